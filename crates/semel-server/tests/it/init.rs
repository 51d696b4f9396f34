//! `semel init` and `semel config example`: both start.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use semel_testbed::Redis;

use crate::kit::{Semel, run, semel};

fn init(folder: &Path, args: &[&str]) -> Output {
    semel().arg("init").args(args).current_dir(folder).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// Starts the file with other ports, in its folder.
fn start(folder: &Path, file: &str) -> Semel {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let text = text.replace("127.0.0.1:8080", "127.0.0.1:0").replace("127.0.0.1:8081", "127.0.0.1:0");
    std::fs::write(folder.join("free.toml"), text).unwrap();
    let mut command = semel();
    command.args(["serve", "--config", "free.toml"]).current_dir(folder);
    Semel::spawn(command)
}

#[test]
fn a_new_config_starts_and_is_never_overwritten_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let output = init(folder, &["--yes"]);
    assert!(
        output.status.success() && said(&output).contains("semel serve --config semel.toml"),
        "{}",
        said(&output)
    );
    let checked = semel().args(["config", "check", "semel.toml"]).current_dir(folder).output().unwrap();
    assert!(checked.status.success(), "{}", said(&checked));
    let semel = start(folder, "semel.toml");
    assert!(folder.join("semel-data").is_dir());
    semel.admin().get("/v1/keys").expect(200);

    let text = std::fs::read(folder.join("semel.toml")).unwrap();
    let output = init(folder, &["--yes", "--profile", "stripe"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--force") && said(&output).contains("--output"), "{}", said(&output));
    assert_eq!(std::fs::read(folder.join("semel.toml")).unwrap(), text);
    assert!(init(folder, &["--yes", "--profile", "stripe", "--force"]).status.success());
    assert!(std::fs::read_to_string(folder.join("semel.toml")).unwrap().contains("profile = \"stripe\""));
    let printed = init(folder, &["--upstream", "https://api.example", "--output", "-"]);
    assert!(printed.status.success() && said(&printed).contains("upstream = \"https://api.example\""));
}

#[test]
fn every_profile_starts() {
    let folder = tempfile::tempdir().unwrap();
    for profile in ["ietf", "stripe", "stripe-v2", "ucp", "adcp-mcp"] {
        let file = format!("{profile}.toml");
        let args = [
            "--upstream",
            "http://127.0.0.1:9",
            "--store",
            "memory:",
            "--profile",
            profile,
            "--output",
            &file,
        ];
        let output = init(folder.path(), &args);
        assert!(output.status.success(), "{}", said(&output));
        start(folder.path(), &file);
    }
}

#[test]
fn scripts_and_mistakes_are_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&[][..], "set --upstream, or --yes"),
        (&["--upstream", "api"], "--upstream: the upstream is not a URL"),
        (&["--yes", "--store", "mysql://h"], "--store: expected memory:"),
        (&["--yes", "--profile", "strip"], "a similar value exists: 'stripe'"),
        (&["--yes", "--output", "no/such/folder/semel.toml"], "no/such/folder/semel.toml: No such file"),
    ] {
        let output = init(folder.path(), args);
        assert!(!output.status.success() && said(&output).contains(expected), "{args:?}: {}", said(&output));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
    // A password is not written into the file.
    for store in ["postgres://semel:hidden@db/semel", "postgres://db/semel?user=semel&password=hidden"] {
        let output = init(folder.path(), &["--yes", "--force", "--store", store, "--json"]);
        assert!(said(&output).contains("\"variables\":[\"SEMEL_STORE_URL\"]"), "{}", said(&output));
        let text = std::fs::read_to_string(folder.path().join("semel.toml")).unwrap();
        assert!(text.contains("url = { env = \"SEMEL_STORE_URL\" }") && !text.contains("hidden"), "{text}");
    }
}

// On a terminal it asks, accepts an empty line as the default, and repeats a question that was not answered well.
#[test]
fn it_asks_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let program = semel();
    let program = program.get_program().to_str().unwrap();
    let mut terminal = Command::new("script")
        .args(["-qefc", &format!("{program} init"), "/dev/null"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    terminal.stdin.take().unwrap().write_all(b"api\nhttp://127.0.0.1:9\n\nucp\n").unwrap();
    let output = terminal.wait_with_output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("The API to protect [http://127.0.0.1:3000]: "), "{said}");
    assert!(said.contains("--upstream: the upstream is not a URL"), "{said}");
    let text = std::fs::read_to_string(folder.path().join("semel.toml")).unwrap();
    for line in ["upstream = \"http://127.0.0.1:9\"", "url = \"embedded:./semel-data\"", "profile = \"ucp\""]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
}

/// The variables that a config names in lines that are not comments.
fn variables(config: &str) -> Vec<&str> {
    let lines = config.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut found: Vec<&str> = lines
        .flat_map(|line| line.split('#').next().unwrap_or_default().split("env = \"").skip(1))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

// It says which variables it needs, and starts with them.
#[test]
fn the_example_starts_with_the_variables_that_it_names() {
    let example = String::from_utf8(run(&["config", "example"]).stdout).unwrap();
    let needed = example.lines().find_map(|line| line.strip_prefix("# It needs these variables: ")).unwrap();
    let mut needed: Vec<&str> = needed.trim_end_matches('.').split(", ").collect();
    needed.sort_unstable();
    assert_eq!(needed, variables(&example));

    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().unwrap();
    let config = example
        .replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace("127.0.0.1:8081", "127.0.0.1:0")
        .replace("redis://127.0.0.1:6379", &redis.url());
    std::fs::write(folder.path().join("semel.toml"), &config).unwrap();
    let serve = |variables: &[&str]| {
        let mut command = semel();
        command.args(["serve", "--config", "semel.toml"]).current_dir(folder.path());
        command.envs(variables.iter().map(|name| (name, "0123456789abcdef0123456789abcdef")));
        command
    };
    let output = serve(&needed[1..]).output().unwrap();
    assert!(
        !output.status.success()
            && said(&output).contains(&format!("the environment variable {} is not set", needed[0])),
        "{}",
        said(&output)
    );
    let semel = Semel::spawn(serve(&needed));
    semel.admin().get("/readyz").expect(200);
    assert_eq!(semel.gateway().get("/.well-known/idempotency").expect(200)["supported"], true);
    drop(semel);
    // Without its Redis it starts too, and waits for it.
    redis.kill();
    let semel = Semel::spawn(serve(&needed));
    semel.admin().get("/readyz").expect(200);
}
