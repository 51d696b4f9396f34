//! The command line as a report shows it, without secrets.

use semel_check::{shown_address, shown_setting};

/// Stands for a secret.
const REDACTED: &str = "[redacted]";

/// The command line in the syntax of a shell. Tokens, values of headers, the restart command and secrets in settings and
/// addresses are left out.
pub(super) fn shown(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["semel".to_owned()];
    let mut flag = None;
    for argument in arguments {
        let shown = match flag.take() {
            Some(flag) => value_of(flag, &argument),
            None => match argument.split_once('=') {
                Some((name, value)) if secret_flag(name).is_some() => {
                    format!(
                        "{name}={}",
                        secret_flag(name).map_or_else(String::new, |flag| value_of(flag, value))
                    )
                }
                _ => {
                    flag = secret_flag(&argument);
                    argument
                }
            },
        };
        words.push(quoted(&shown));
    }
    words.join(" ")
}

/// A flag whose value may be or contain a secret.
#[derive(Clone, Copy)]
enum SecretFlag {
    Token,
    Header,
    Setting,
    Address,
}

fn secret_flag(name: &str) -> Option<SecretFlag> {
    match name {
        "--auth" | "--other-auth" | "--restart" => Some(SecretFlag::Token),
        "--header" => Some(SecretFlag::Header),
        "--set" => Some(SecretFlag::Setting),
        "--target" => Some(SecretFlag::Address),
        _ => None,
    }
}

fn value_of(flag: SecretFlag, value: &str) -> String {
    match flag {
        SecretFlag::Token => REDACTED.to_owned(),
        SecretFlag::Header => format!("{}: {REDACTED}", value.split(':').next().unwrap_or_default()),
        SecretFlag::Setting => shown_setting(value),
        SecretFlag::Address => shown_address(value),
    }
}

/// A word that a shell reads as it is.
fn quoted(word: &str) -> String {
    let plain = |one: char| one.is_ascii_alphanumeric() || "-_./:=,@%+[]".contains(one);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_command_line_is_shown_without_secrets() {
        let arguments = [
            "check",
            "--suite",
            "ietf",
            "--target",
            "http://me:hidden-1@127.0.0.1:8080",
            "--auth",
            "hidden-2",
            "--other-auth=hidden-3",
            "--header",
            "X-Api-Key: hidden-4",
            "--set",
            "body={\"amount\": 1, \"password\": \"hidden-5\"}",
            "--set=api_key=hidden-6",
            "--restart",
            "curl -H hidden-7 localhost",
            "--path",
            "/v1/it's",
        ];
        let shown = shown(arguments.map(str::to_owned).into_iter());
        assert!(!shown.contains("hidden"), "{shown}");
        for part in [
            "semel check --suite ietf --target http://[redacted]@127.0.0.1:8080 --auth [redacted] --other-auth=[redacted]",
            "--header 'X-Api-Key: [redacted]' --set 'body={\"amount\":1,\"password\":\"[redacted]\"}'",
            "--set=api_key=[redacted] --restart [redacted] --path '/v1/it'\\''s'",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }
}
