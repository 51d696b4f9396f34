//! The settings that are in force, for people: from the file and the flags, without secrets.

use semel_client::downstream::Runbook;
use toml::de::{DeTable, DeValue};

use crate::cli::ServeArgs;

/// The settings of a config.
#[derive(Debug, Default)]
pub(crate) struct EffectiveConfig {
    /// The name of the file, or that there is none.
    pub(crate) source: String,
    pub(crate) settings: Vec<EffectiveSetting>,
    /// How duplicates are kept from downstream services.
    pub(crate) runbook: Runbook,
}

/// A setting that differs from its default.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EffectiveSetting {
    /// The table: `gateway.limits`, or `target 2`; empty at the top.
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) source: SettingSource,
}

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingSource {
    File,
    Flag,
}

impl SettingSource {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Flag => "flag",
        }
    }
}

impl EffectiveConfig {
    /// The settings of a file, with the flags over them.
    pub(super) fn new(file: &str, root: &DeTable<'_>, args: &ServeArgs, runbook: Runbook) -> Self {
        let mut settings = Vec::new();
        collect(&mut settings, "", root);
        let flags = [
            ("gateway", "upstream", &args.upstream),
            ("gateway", "listen", &args.listen),
            ("gateway", "profile", &args.profile),
            ("gateway", "scope", &args.scope),
            ("admin", "listen", &args.admin),
            ("store", "url", &args.store),
            ("store", "coordinate", &args.coordinate),
        ];
        for (table, name, value) in flags {
            let Some(value) = value else { continue };
            settings.retain(|setting| setting.table != table || setting.name != name);
            let value = without_credentials(value);
            let source = SettingSource::Flag;
            settings.push(EffectiveSetting { table: table.to_owned(), name: name.to_owned(), value, source });
        }
        settings.sort_by(|one, other| one.table.cmp(&other.table));
        Self { source: file.to_owned(), settings, runbook }
    }
}

fn collect(settings: &mut Vec<EffectiveSetting>, path: &str, table: &DeTable<'_>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for (name, value) in table {
        let name = name.get_ref();
        match value.get_ref() {
            // A secret names where it is; its value is in no table.
            DeValue::Table(inner) if !is_secret(inner) => collect(settings, &below(name), inner),
            DeValue::Array(items)
                if items.iter().all(|item| item.get_ref().is_table()) && !items.is_empty() =>
            {
                for (at, item) in items.iter().enumerate() {
                    if let DeValue::Table(inner) = item.get_ref() {
                        collect(settings, &format!("{} {}", below(name), at + 1), inner);
                    }
                }
            }
            value => settings.push(EffectiveSetting {
                table: path.to_owned(),
                name: name.to_string(),
                value: show(value),
                source: SettingSource::File,
            }),
        }
    }
}

fn is_secret(table: &DeTable<'_>) -> bool {
    table.len() == 1 && table.iter().all(|(name, _)| matches!(&**name.get_ref(), "env" | "file"))
}

fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => without_credentials(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Datetime(moment) => moment.to_string(),
        DeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| show(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(table) => {
            let members =
                table.iter().map(|(name, value)| format!("{} = {}", name.get_ref(), show(value.get_ref())));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A URL without its user, password and query, which can hold a token.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?…"));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => authority.to_owned(),
    };
    format!("{scheme}://{host}{path}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_listed_without_secrets() {
        let text = "secret = { env = \"S\" }\n[store]\nurl = \"postgres://user:hunter2@db/x?password=hunter2\"\n\
                    [[target]]\nname = \"crm\"\nurl = \"http://crm/hook?token=hunter2\"\nevents = [\"a\", \"b\"]\n\
                    [gateway.limits]\nbody = 5\n";
        let table = DeTable::parse(text).unwrap();
        let flags = ServeArgs { admin: Some("127.0.0.1:0".to_owned()), ..ServeArgs::default() };
        let config = EffectiveConfig::new("semel.toml", table.get_ref(), &flags, Runbook::default());
        let shown: Vec<String> =
            config.settings.iter().map(|one| format!("{}|{}|{}", one.table, one.name, one.value)).collect();
        assert_eq!(
            shown,
            [
                "|secret|{ env = S }",
                "admin|listen|127.0.0.1:0",
                "gateway.limits|body|5",
                "store|url|postgres://…@db/x?…",
                "target 1|events|[a, b]",
                "target 1|name|crm",
                "target 1|url|http://crm/hook?…",
            ]
        );
    }
}
