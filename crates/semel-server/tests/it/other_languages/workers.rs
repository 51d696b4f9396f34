//! Workers in two languages share their jobs, are killed and started again, while the server is killed too.
//!
//! In `marked` no effect happens twice; in `keyed` each happens exactly once; all callers of a job get the same answer.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use semel_testbed::{Postgres, Redis};

use super::{Compiled, is_full, python, repository};
use crate::kit::{Semel, semel};

/// How many jobs a worker runs at the same time: `TOGETHER` in both scripts.
const TOGETHER: usize = 8;

/// How much of it runs.
struct Size {
    jobs: usize,
    /// Kills of a worker between two kills of the server.
    kills: usize,
    pause: Duration,
    longest: Duration,
}

fn size() -> Size {
    if is_full() {
        Size { jobs: 20_000, kills: 5, pause: Duration::from_secs(1), longest: Duration::from_secs(1200) }
    } else {
        Size { jobs: 300, kills: 1, pause: Duration::from_millis(400), longest: Duration::from_secs(180) }
    }
}

/// A worker. Dropped, it is killed.
struct Worker(Child);

impl Worker {
    fn end(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// The server, always on the same port.
fn start_server(port: u16, store: &str) -> Semel {
    let mut command = semel();
    command.args(["serve", "--admin", &format!("127.0.0.1:{port}"), "--store", store]);
    Semel::spawn(command)
}

#[expect(clippy::disallowed_methods, reason = "kills come at intervals of the real clock")]
fn work_through_kills(mode: &str, store: &str) {
    let size = size();
    let (folder, compiled) = (tempfile::tempdir().unwrap(), Compiled::new());
    let folder = folder.path();
    for name in ["receiver", "drafts"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    // Every job is wanted by two workers, and some twice by one of them.
    for number in 0..4 {
        let wants = |job: &usize| job % 4 == number || job % 4 == (number + 1) % 4;
        let jobs = (0..size.jobs)
            .filter(wants)
            .flat_map(|job| std::iter::repeat_n(job, 1 + usize::from(job % 10 == 0)));
        let lines: String = jobs.map(|job| format!("job-{job}\n")).collect();
        std::fs::write(folder.join(format!("jobs-{number}")), lines).unwrap();
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Some(start_server(port, store));
    let start = |number: usize| {
        let mut command = if number.is_multiple_of(2) { python() } else { compiled.node() };
        let script = if number.is_multiple_of(2) {
            "clients/python/tests/worker.py"
        } else {
            "clients/typescript/tests/worker.mjs"
        };
        command.arg(repository(script)).arg(mode).arg(folder).arg(number.to_string());
        command.env("SEMEL_ADMIN", format!("http://127.0.0.1:{port}")).env_remove("SEMEL_TOKEN");
        Worker(spawn(&mut command))
    };
    let mut workers: Vec<Worker> = (0..4).map(start).collect();
    let (began, mut kills, mut restarts, mut done_at_start) = (Instant::now(), 0, 0, [0; 4]);
    loop {
        std::thread::sleep(size.pause);
        assert!(began.elapsed() < size.longest, "{kills} kills, and not done: {}", server.unwrap().log());
        let mut running: Vec<usize> = Vec::new();
        for (number, worker) in workers.iter_mut().enumerate() {
            match worker.0.try_wait().unwrap() {
                None => running.push(number),
                Some(status) => assert!(status.success(), "worker {number} ended with {status}"),
            }
        }
        if running.is_empty() {
            break;
        }
        // The short form ends after a few kills, so that it ends at all.
        if !is_full() && kills >= 4 {
            continue;
        }
        // On a busy machine a worker needs more than a second to start: one that has done nothing yet is left alone.
        running.retain(|number| done(folder, *number) > done_at_start[*number]);
        let Some(victim) = running.get(kills % running.len().max(1)).copied() else { continue };
        workers[victim].end();
        done_at_start[victim] = done(folder, victim);
        workers[victim] = start(victim);
        kills += 1;
        if kills.is_multiple_of(size.kills) {
            server.take().unwrap().kill();
            server = Some(start_server(port, store));
            restarts += 1;
        }
    }
    assert!(restarts > 0, "the server was killed");
    let seconds = began.elapsed().as_secs();
    println!("{mode}: {kills} kills of workers, {restarts} of the server, in {seconds} s");
    // One a second, less the time in which no worker has done anything since its start.
    assert!(!is_full() || kills as u64 >= seconds / 3, "only {kills} kills in {seconds} s");
    judge(folder, mode, size.jobs, kills);
}

/// How many lines a worker has answered.
fn done(folder: &Path, number: usize) -> usize {
    std::fs::read_to_string(folder.join(format!("done-{number}"))).unwrap_or_default().lines().count()
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// The values of each job that a file notes.
fn noted(folder: &Path, name: &str) -> HashMap<String, Vec<String>> {
    by_job(&std::fs::read_to_string(folder.join(name)).unwrap_or_default())
}

/// The values of each job that the receiver of mode `keyed` accepted: one file for each derived key.
fn received(folder: &Path) -> HashMap<String, Vec<String>> {
    let files = std::fs::read_dir(folder.join("receiver")).unwrap();
    by_job(&files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect::<String>())
}

fn by_job(lines: &str) -> HashMap<String, Vec<String>> {
    let mut noted: HashMap<String, Vec<String>> = HashMap::new();
    for line in lines.lines() {
        let (job, value) = line.split_once('\t').unwrap_or((line, ""));
        noted.entry(job.to_owned()).or_default().push(value.to_owned());
    }
    noted
}

fn judge(folder: &Path, mode: &str, jobs: usize, kills: usize) {
    let effects = if mode == "keyed" { received(folder) } else { noted(folder, "effects") };
    let (answers, doubts) = (noted(folder, "answers"), noted(folder, "doubts"));
    let calls: usize = answers.values().map(Vec::len).sum();
    println!(
        "{mode}: {jobs} jobs, {kills} kills, {} effects, {calls} answers, {} jobs in doubt",
        effects.len(),
        doubts.len()
    );
    for (job, values) in &effects {
        assert_eq!(values.len(), 1, "{job} had its effect {} times", values.len());
    }
    for (job, values) in &answers {
        let different: HashSet<&String> = values.iter().collect();
        assert_eq!(different.len(), 1, "all callers of {job} got one answer: {values:?}");
        assert_eq!(values[0], effects[job][0], "{job}: the answer is that of its effect");
    }
    for job in (0..jobs).map(|job| format!("job-{job}")) {
        let known = answers.contains_key(&job) || mode == "marked" && doubts.contains_key(&job);
        assert!(known, "{job} was answered, or is in doubt");
        assert!(mode == "marked" || effects.contains_key(&job), "{job} happened");
    }
    assert!(mode == "marked" || doubts.is_empty(), "nothing is in doubt in {mode}");
    // Where the owner lives, it stores its outcome, however late: only a killed worker leaves a doubt, one for each of its jobs.
    let left = doubts.keys().filter(|job| !answers.contains_key(*job)).count();
    assert!(left <= kills * TOGETHER, "{left} jobs are in doubt after {kills} kills");
    assert!(kills > 0, "somebody was killed");
}

#[test]
fn marked_jobs_never_happen_twice_on_redis() {
    let redis = crate::kit::durable_redis();
    work_through_kills("marked", &redis.url());
}

#[test]
fn marked_jobs_never_happen_twice_on_postgres() {
    let postgres = Postgres::start().unwrap();
    work_through_kills("marked", &postgres.url());
}

#[test]
fn keyed_jobs_happen_exactly_once_on_redis() {
    let redis = Redis::start().unwrap();
    work_through_kills("keyed", &redis.url());
}

#[test]
fn keyed_jobs_happen_exactly_once_on_postgres() {
    let postgres = Postgres::start().unwrap();
    work_through_kills("keyed", &postgres.url());
}
