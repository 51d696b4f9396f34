//! Starts victims, listens to them, stops and kills them, and never leaves one behind.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use semel_proof::victim::{VictimJob, VictimReport};

use super::PATIENCE;

/// A running victim. Dropped, it is killed and reaped.
pub(crate) struct Victim {
    child: Child,
    reports: Receiver<VictimReport>,
}

impl Victim {
    pub(crate) fn start(job: &VictimJob) -> Self {
        Self::start_with(job, |_| ())
    }

    /// Starts a victim whose environment `prepare` changes.
    pub(crate) fn start_with(job: &VictimJob, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel-victim"));
        command.arg(serde_json::to_string(job).expect("a job is plain data"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().expect("the victim can be started");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let (sender, reports) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                // A line that is none of ours is the panic of a victim: the waiting test sees it.
                let Ok(Ok(report)) = line.map(|line| serde_json::from_str(&line)) else { break };
                if sender.send(report).is_err() {
                    break;
                }
            }
        });
        Self { child, reports }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The next report; none once the victim has ended and everything it said was heard.
    pub(crate) fn hear(&self) -> Option<VictimReport> {
        self.hear_within(PATIENCE).unwrap_or_else(|Silence| panic!("nothing was heard for {PATIENCE:?}"))
    }

    /// The same, with a time of its own.
    pub(crate) fn hear_within(&self, time: Duration) -> Result<Option<VictimReport>, Silence> {
        match self.reports.recv_timeout(time) {
            Ok(report) => Ok(Some(report)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(Silence),
        }
    }

    /// Listens until `pick` finds what it wants.
    pub(crate) fn wait_for<T>(&self, what: &str, mut pick: impl FnMut(&VictimReport) -> Option<T>) -> T {
        let mut heard = Vec::new();
        while let Some(report) = self.hear() {
            if let Some(found) = pick(&report) {
                return found;
            }
            heard.push(report);
        }
        panic!("the victim ended before {what}; it said {heard:?}")
    }

    /// Sends a line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("its input is piped");
        writeln!(input, "{line}").expect("it still listens");
    }

    /// Stops it, and returns once it stands still.
    pub(crate) fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).expect("it is ours to stop");
        // Does not reap: it has not ended.
        let stopped = waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("it is ours to wait for");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()), "it ended instead: {stopped:?}");
    }

    pub(crate) fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it is ours to wake");
    }

    /// Kills it with `kill -9`, and returns what it had said and nobody had heard yet.
    pub(crate) fn kill(&mut self) -> Vec<VictimReport> {
        self.child.kill().expect("it is ours to kill");
        self.child.wait().expect("it is ours to wait for");
        std::iter::from_fn(|| self.hear()).collect()
    }

    /// How it ended, if it ended by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is ours to wait for")
    }

    /// Closes its standard input.
    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Waits for its own end; what was said and not heard before, and how it ended.
    pub(crate) fn end(mut self) -> (Vec<VictimReport>, ExitStatus) {
        let said = std::iter::from_fn(|| self.hear()).collect();
        // Its output is closed, so it is about to end.
        let status = self.child.wait().expect("it is ours to wait for");
        (said, status)
    }

    /// Waits for an end by `kill -9`, by its own hand or the system's.
    pub(crate) fn end_by_kill(self) -> Vec<VictimReport> {
        let (said, status) = self.end();
        assert_eq!(
            status.signal(),
            Some(Signal::KILL.as_raw()),
            "it was to be killed: {status}; it said {said:?}"
        );
        said
    }
}

/// Nothing was heard.
#[derive(Debug)]
pub(crate) struct Silence;

impl Drop for Victim {
    fn drop(&mut self) {
        // Either fails only where it was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
