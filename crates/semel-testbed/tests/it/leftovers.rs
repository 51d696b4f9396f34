//! Nothing is left behind: no process, no folder, no shared memory; however the test ends.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    panic,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use semel_testbed::{Postgres, Redis, Storage, wait};

const LONG: Duration = Duration::from_secs(30);

/// Servers as a test may leave them: running, paused, and killed.
struct Servers {
    redis: Redis,
    postgres: Postgres,
    paused: Redis,
    paused_postgres: Postgres,
    killed: Postgres,
    killed_pid: u32,
}

impl Servers {
    fn start() -> Self {
        let postgres = || Postgres::options().storage(Storage::Memory).start().unwrap();
        let killed = postgres();
        let killed_pid = killed.pid().unwrap();
        killed.kill();
        let servers = Self {
            redis: Redis::start().unwrap(),
            postgres: postgres(),
            paused: Redis::start().unwrap(),
            paused_postgres: postgres(),
            killed,
            killed_pid,
        };
        servers.paused.pause().unwrap();
        servers.paused_postgres.pause().unwrap();
        servers
    }

    fn pids(&self) -> Vec<u32> {
        assert!(self.killed.pid().is_err());
        let pids = [self.redis.pid(), self.postgres.pid(), self.paused.pid(), self.paused_postgres.pid()];
        pids.into_iter().map(Result::unwrap).flat_map(|pid| [vec![pid], children(pid)].concat()).collect()
    }
}

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Processes that still run. One that only waits for its new parent to reap it has ended.
fn running(pids: &[u32]) -> Vec<u32> {
    let lives = |pid: &&u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    };
    pids.iter().filter(lives).copied().collect()
}

/// The folders of servers that the process started: their watchers, its children, name them.
fn folders(parent: u32) -> Vec<PathBuf> {
    let words = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let watched = |line: String| {
        let mut words = line.split('\0').skip_while(|word| *word != "semel-testbed-watcher");
        words.nth(1).map(PathBuf::from)
    };
    all_children(parent).into_iter().filter_map(|pid| watched(words(pid))).collect()
}

/// Of all threads: each test has one.
fn all_children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<u32>>())
        .collect()
}

/// The numbers of shared memory segments whose creator is one of these.
fn segments(creators: &[u32]) -> usize {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let creator = |line: &str| line.split_whitespace().nth(4)?.parse::<u32>().ok();
    table.lines().filter_map(creator).filter(|pid| creators.contains(pid)).count()
}

#[test]
fn nothing_is_left_after_a_test_that_panics() {
    let (tell, hear) = std::sync::mpsc::channel();
    let outcome = panic::catch_unwind(move || {
        let servers = Servers::start();
        tell.send((servers.pids(), servers.killed_pid, folders(std::process::id()))).unwrap();
        panic!("this test fails on purpose");
    });
    assert!(outcome.is_err());
    let (mut pids, killed, folders) = hear.recv().unwrap();
    pids.push(killed);
    assert!(pids.len() >= 10, "{pids:?}");
    assert!(folders.len() >= 5, "{folders:?}");
    assert_eq!(running(&pids), [0_u32; 0]);
    assert_eq!(segments(&pids), 0);
    // Those of other tests in this process may be among them, so they get time.
    wait::until("the folders are gone", LONG, || !folders.iter().any(|path| path.exists())).unwrap();
}

#[test]
fn nothing_is_left_after_the_test_process_is_killed() {
    let mut other = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "leftovers::waits_to_be_killed"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map_while(Result::ok);
    let pids = lines.find_map(|line| Some(line.split_once("servers: ")?.1.to_owned())).unwrap();
    let mut pids: Vec<u32> = pids.split(' ').map(|word| word.parse().unwrap()).collect();
    let folders = folders(other.id());
    let killed = pids.pop().unwrap();
    assert_eq!(running(&pids), pids);
    pids.push(killed);
    assert_eq!(segments(&pids), 3);
    assert_eq!(folders.len(), 5);
    other.kill().unwrap();
    other.wait().unwrap();
    let gone =
        || running(&pids).is_empty() && segments(&pids) == 0 && !folders.iter().any(|path| path.exists());
    wait::until("the watchers have cleaned up", LONG, gone).unwrap();
}

/// Not a test of its own: the process that the one above kills.
#[test]
#[ignore = "started by the test of a killed process"]
fn waits_to_be_killed() {
    let servers = Servers::start();
    let pids = [servers.pids(), vec![servers.killed_pid]].concat();
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>();
    println!("servers: {}", pids.join(" "));
    let _ = wait::until("it is killed", Duration::from_secs(60), || false);
}

#[test]
fn a_dropped_server_takes_its_folder_along() {
    let redis = Redis::start().unwrap();
    let folder = redis.tell(&["CONFIG", "GET", "dir"]).unwrap().text().replace("dir ", "");
    let pid = redis.pid().unwrap();
    assert!(Path::new(&folder).join("redis.conf").is_file());
    drop(redis);
    assert!(!Path::new(&folder).exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}
