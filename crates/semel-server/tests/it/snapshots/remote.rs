//! Commands that talk to a server.

use std::path::Path;

use super::world::{Token, World};
use super::{NARROW, Situation, Snapshots, interrupted, output, words};

/// A command, with the arguments of an ordinary call.
pub(super) struct RemoteCommand {
    pub(super) name: &'static str,
    /// Arguments that it refuses.
    wrong: &'static str,
    /// A token that may not do it.
    refused: Token,
    /// Its arguments. The number differs between two calls that change something.
    args: fn(&World, usize) -> Vec<String>,
}

const fn look(
    name: &'static str,
    wrong: &'static str,
    args: fn(&World, usize) -> Vec<String>,
) -> RemoteCommand {
    RemoteCommand { name, wrong, refused: Token::Producer, args }
}

const fn change(
    name: &'static str,
    wrong: &'static str,
    args: fn(&World, usize) -> Vec<String>,
) -> RemoteCommand {
    RemoteCommand { name, wrong, refused: Token::Viewer, args }
}

fn with(first: &str, rest: &str) -> Vec<String> {
    [vec![first.to_owned()], words(rest)].concat()
}

/// In the order in which they run: some change what others show.
pub(super) const COMMANDS: [RemoteCommand; 32] = [
    look("status", "--watch=often", |_, _| Vec::new()),
    look("targets", "crm", |_, _| Vec::new()),
    look("targets list", "crm", |_, _| Vec::new()),
    change("targets pause", "crm", |_, _| words("crm --reason repair")),
    change("targets retry", "crm", |_, _| words("crm --reason repaired")),
    change("targets resume", "crm", |_, _| words("crm --reason repaired")),
    look("health", "--alive", |_, _| Vec::new()),
    look("keys list", "--phase doubt", |_, _| words("--phase in_doubt")),
    change("keys find", "--header x", |_, _| {
        ["--key", "order-1", "--header", "Authorization: Bearer shop"].map(str::to_owned).to_vec()
    }),
    look("keys show", "", |world, _| with(&world.keys[0], "")),
    look("keys export", "--phase doubt", |_, _| words("--phase done")),
    change("keys settle", "x --reason r", |world, number| {
        with(&world.doubts[number], "--status 201 --body {\"id\":\"ch_1\"} --reason found")
    }),
    change("keys forget", "x", |world, number| with(&world.keys[number], "--reason tidy")),
    look("events list", "--dedupe-key k", |_, _| words("--type order.paid --limit 2")),
    look("events show", "", |world, _| with(&world.event, "")),
    change("events publish", "--type a", |_, number| {
        words(&format!("--type invoice.sent --dedupe-key invoice-{number} --payload {{}}"))
    }),
    look("deliveries list", "--state broken", |_, _| words("--state done")),
    look("deliveries show", "", |world, _| with(&world.delivery, "")),
    look("audit", "--limit some", |_, _| Vec::new()),
    look("dlq list", "--status dead", |_, _| words("--limit 2")),
    look("dlq show", "", |world, _| with(&world.letters[0], "")),
    look("dlq groups", "--status dead", |_, _| Vec::new()),
    change("dlq discard", "--reason all", |world, number| with(&world.letters[number], "--reason old")),
    change("dlq restore", "x", |world, number| with(&world.discarded[number], "--reason needed")),
    change("dlq edit", "x --reason r --payload {", |world, _| {
        with(&world.letters[3], "--reason typo --payload {\"of\":\"good\"}")
    }),
    change("replay", "--status broken", |_, _| words("--status failed --limit 2 --dry-run")),
    look("runs list", "--buffered --tag x", |_, _| words("--tag nightly")),
    look("runs show", "", |world, _| with(&world.run, "")),
    change("runs trigger", "crm --payload {", |_, number| words(&format!("crm --key again-{number}"))),
    change("runs tag", "x", |world, _| with(&world.run, "checked")),
    change("runs cancel", "", |world, number| with(&world.delayed[number], "--reason obsolete")),
    change("runs reset-key", "crm", |_, _| words("crm run-1 --principal ada --reason again")),
];

fn take(world: &World, command: &RemoteCommand) {
    let mut snapshots = Snapshots::in_folder(world.folder());
    let name = words(command.name);
    let call = |situation, args: Vec<String>, url: &str, token: Token| {
        let more = if situation == Situation::Json { words("--json") } else { Vec::new() };
        let shown = [name.clone(), args, more].concat();
        let place = ["--admin", url, "--token", token.value()].map(str::to_owned);
        (shown.join(" "), [shown, place.to_vec()].concat())
    };
    for situation in Situation::ALL {
        let args = (command.args)(world, usize::from(situation == Situation::Json));
        let (shown, result) = match situation {
            Situation::WrongArguments => {
                let args = [name.clone(), words(command.wrong)].concat();
                (args.join(" "), output(&args, None, Path::new("/")))
            }
            Situation::Unreachable => {
                let (shown, args) = call(situation, args, "http://127.0.0.1:1", Token::Admin);
                (shown, output(&args, None, Path::new("/")))
            }
            Situation::MissingRights => {
                let (shown, args) = call(situation, args, world.full_url(), command.refused);
                (shown, output(&args, None, Path::new("/")))
            }
            Situation::EmptyResult => {
                let (shown, args) = call(situation, args, world.empty_url(), Token::Admin);
                (shown, output(&args, None, Path::new("/")))
            }
            Situation::NarrowTerminal => {
                let (shown, args) = call(situation, args, world.full_url(), Token::Admin);
                (shown, output(&args, Some(NARROW), Path::new("/")))
            }
            Situation::Json => {
                let (shown, args) = call(situation, args, world.full_url(), Token::Admin);
                (shown, output(&args, None, Path::new("/")))
            }
            Situation::Interrupted => {
                let (shown, args) = call(situation, args, world.hanging().url(), Token::Admin);
                let before = world.hanging().asked();
                (shown, interrupted(&args, |_| world.hanging().asked() > before))
            }
        };
        snapshots.add(situation, &shown, &result);
    }
    if command.name == "replay" {
        add_lists(world, &mut snapshots);
    }
    snapshots.compare(command.name);
}

/// The list of replay jobs.
fn add_lists(world: &World, snapshots: &mut Snapshots) {
    let run = |situation, args: &str, url: &str| {
        let place = ["--admin", url, "--token", Token::Admin.value()].map(str::to_owned);
        let width = (situation == Situation::NarrowTerminal).then_some(NARROW);
        output(&[words(args), place.to_vec()].concat(), width, Path::new("/"))
    };
    let replayed = run(Situation::Json, "replay --status failed --limit 1 --json", world.full_url());
    assert!(!replayed.stdout.is_empty(), "{}", String::from_utf8_lossy(&replayed.stderr));
    for (situation, args, url) in [
        (Situation::EmptyResult, "replay --list", world.empty_url()),
        (Situation::NarrowTerminal, "replay --list", world.full_url()),
        (Situation::Json, "replay --list --json", world.full_url()),
    ] {
        snapshots.add(situation, args, &run(situation, args, url));
    }
}

/// Takes the snapshots of the commands that begin with one of these words.
fn take_all(first: &[&str]) {
    let world = World::new();
    if first.contains(&"status") {
        world.wait_for_counts();
    }
    let mut count = 0;
    for command in &COMMANDS {
        if first.contains(&command.name.split(' ').next().unwrap()) {
            take(&world, command);
            count += 1;
        }
    }
    assert!(count > 0);
}

#[test]
fn snapshots_of_the_state_of_a_server() {
    take_all(&["status", "targets", "health"]);
}

#[test]
fn snapshots_of_keys() {
    take_all(&["keys"]);
}

#[test]
fn snapshots_of_events_and_deliveries() {
    take_all(&["events", "deliveries", "audit"]);
}

#[test]
fn snapshots_of_dead_letters_and_replays() {
    take_all(&["dlq", "replay"]);
}

#[test]
fn snapshots_of_runs() {
    take_all(&["runs"]);
}
