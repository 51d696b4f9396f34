//! An interrupted or killed drill leaves nothing behind: no process, no file, no key, no schema.

use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use semel_testbed::{Postgres, Redis, wait};

use crate::kit::{PATIENCE, semel};

/// The processes that have this folder for temporary files, as the drill and everything it started.
fn processes(folder: &Path) -> Vec<String> {
    let mark = format!("TMPDIR={}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        // One that has ended and was not waited for has no command line.
        if !line.is_empty() && (is_marked || line.contains(&folder.display().to_string())) {
            found.push(line);
        }
    }
    found
}

fn start(folder: &Path, args: &[&str]) -> Child {
    let mut command = semel();
    command.arg("drill").args(args).env("TMPDIR", folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts a drill, waits until it has started a server, sends the signal, and waits until nothing is left.
fn ends_with(signal: Signal, args: &[&str]) -> (Option<i32>, String) {
    // PostgreSQL runs as another user, in a folder below.
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    let folder = tempfile::Builder::new().permissions(permissions).tempdir().unwrap();
    let mut drill = start(folder.path(), args);
    wait::until("a server of the drill runs", PATIENCE, || {
        processes(folder.path()).iter().any(|line| line.contains(" serve --config "))
    })
    .unwrap();
    kill_process(Pid::from_child(&drill), signal).unwrap();
    let status = drill.wait().unwrap();
    let mut said = String::new();
    if signal == Signal::KILL {
        let left = || (processes(folder.path()), std::fs::read_dir(folder.path()).unwrap().count());
        wait::until("nothing is left", PATIENCE, || left() == (Vec::new(), 0))
            .unwrap_or_else(|_| panic!("{:?}", left()));
    } else {
        std::io::Read::read_to_string(&mut drill.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!(processes(folder.path()), Vec::<String>::new(), "it waits until everything has ended");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    (status.code(), said)
}

#[test]
fn an_interrupted_drill_leaves_nothing_behind() {
    for (signal, name) in
        [(Signal::INT, "target-down"), (Signal::TERM, "drainer-killed"), (Signal::INT, "winner-crashes")]
    {
        let (code, said) = ends_with(signal, &[name]);
        assert_eq!(code, Some(130), "{name}: {said}");
        assert!(said.contains("everything that the drill started is removed"), "{name}: {said}");
    }
}

#[test]
fn a_killed_drill_leaves_nothing_behind() {
    for name in ["target-down", "drainer-killed", "winner-crashes"] {
        ends_with(Signal::KILL, &[name]);
    }
}

// On servers that were there before, only the drill's own data goes.
#[test]
fn a_killed_drill_leaves_other_servers_as_they_were() {
    let (redis, postgres) = (Redis::start().unwrap(), Postgres::start().unwrap());
    redis.tell(&["SET", "of-somebody-else", "1"]).unwrap();
    let (redis_url, postgres_url) = (redis.url(), postgres.url());
    ends_with(Signal::KILL, &["cold-gate-burst", "--redis", &redis_url, "--postgres", &postgres_url]);
    assert_eq!(redis.tell(&["KEYS", "*"]).unwrap().text(), "of-somebody-else");
    let schemas = postgres.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'semel%'").unwrap();
    assert!(!schemas.contains("semel"), "{schemas}");
}
