//! One server process with its children: started and reaped here.

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Output},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    Error, Result,
    error::Doing,
    folder::Folder,
    wait::{self, PATIENCE},
};

/// The system user of a server that refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl SystemUser {
    /// The first of these users that exists; `None` if this process is not root.
    pub(crate) fn unless_user(names: &[&str]) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").doing(|| "reading /etc/passwd".to_owned())?;
        let find = |name: &&str| {
            users.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(*name)).then_some(())?;
                Some(Self { uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
            })
        };
        names.iter().find_map(find).map(Some).ok_or_else(|| Error::Io {
            doing: format!(
                "looking for one of the users {names:?}, because the server refuses to run as root"
            ),
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Makes the command run as this user.
    pub(crate) fn apply(owner: Option<Self>, command: &mut Command) {
        if let Some(owner) = owner {
            command.uid(owner.uid).gid(owner.gid);
        }
    }
}

/// How a server is ended when its data is not needed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StopMethod {
    /// Killed: it leaves nothing outside of its folder.
    Kill,
    /// Asked to exit immediately, then killed: PostgreSQL then removes its shared memory, which outlives processes.
    Quit,
}

impl StopMethod {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Quit => "quit",
        }
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    ending: StopMethod,
}

impl Process {
    /// Starts the server and registers it with the folder's watcher.
    pub(crate) fn spawn(command: &mut Command, folder: &Folder, ending: StopMethod) -> Result<Self> {
        let child = command
            .process_group(0)
            .spawn()
            .doing(|| format!("starting {}", command.get_program().display()))?;
        let process = Self { child, ending };
        folder.watch(process.pid(), ending);
        Ok(process)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Its exit status, if it ended by itself.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops the whole process tree. It keeps its connections and answers nothing.
    pub(crate) fn pause(&self) {
        self.stop_tree();
    }

    pub(crate) fn resume(&self) {
        for pid in tree(self.pid()).into_iter().rev() {
            send(pid, Signal::CONT);
        }
    }

    /// Kills the whole process tree like a power cut, and reaps it.
    pub(crate) fn kill(mut self) {
        let all = self.stop_tree();
        for pid in &all {
            send(*pid, Signal::KILL);
        }
        let _ = self.child.wait();
        // The system reaps the children; a restarted server must not meet them.
        let _ = wait::until("the killed processes end", PATIENCE, || {
            all.iter().all(|pid| !procfs::is_running(*pid))
        });
    }

    /// Sends a signal, and kills the processes that have not ended in time.
    pub(crate) fn end_with(mut self, signal: Signal, within: Duration) {
        self.resume();
        send(self.pid(), signal);
        if wait::until("the server ends", within, || self.exited().is_some()).is_err() {
            self.kill();
        }
    }

    /// Ends it when its data is not needed.
    pub(crate) fn discard(self) {
        match self.ending {
            StopMethod::Kill => self.kill(),
            StopMethod::Quit => self.end_with(Signal::QUIT, Duration::from_secs(3)),
        }
    }

    /// CPU time of the process tree so far, including children that have ended.
    pub(crate) fn cpu_time(&self) -> Duration {
        tree(self.pid()).into_iter().map(procfs::cpu_time).sum()
    }

    /// The parent first, so that it starts no further child; then again until no child runs.
    fn stop_tree(&self) -> Vec<Pid> {
        let mut stopped = Vec::new();
        loop {
            let fresh: Vec<Pid> = tree(self.pid()).into_iter().filter(|pid| !stopped.contains(pid)).collect();
            if fresh.is_empty() {
                return stopped;
            }
            for pid in fresh {
                send(pid, Signal::STOP);
                stopped.push(pid);
            }
        }
    }
}

/// A process that has ended needs no signal.
fn send(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// The process and all its descendants, parents first.
fn tree(root: Pid) -> Vec<Pid> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        all.extend(procfs::children(pid));
        next += 1;
    }
    all
}

/// Runs a helper program until it ends.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let Output { status, stdout, stderr } = command.output().doing(|| format!("running {program}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&stderr).trim().to_owned();
    Err(Error::Command { program, status: status.to_string(), message })
}

mod procfs {
    //! Reads `/proc`. A process that has ended has no children and no CPU time.

    use std::{fs, time::Duration};

    use rustix::process::Pid;

    pub(super) fn children(pid: Pid) -> Vec<Pid> {
        let mut found = Vec::new();
        for task in tasks(pid) {
            let list = fs::read_to_string(task.join("children")).unwrap_or_default();
            found.extend(list.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)));
        }
        found
    }

    /// True if it is running; a zombie is not.
    pub(super) fn is_running(pid: Pid) -> bool {
        fields(pid).first().is_some_and(|state| state != "Z" && state != "X")
    }

    /// Its own time in nanoseconds, and that of its reaped children in clock ticks.
    pub(super) fn cpu_time(pid: Pid) -> Duration {
        let own: u64 = tasks(pid)
            .filter_map(|task| {
                fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
            })
            .sum();
        // cutime and cstime: the 16th and 17th field of the line, the 14th and 15th after the name.
        let reaped: u64 =
            fields(pid).iter().skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Duration::from_nanos(own) + Duration::from_secs(reaped) / ticks_per_second()
    }

    fn ticks_per_second() -> u32 {
        u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
    }

    fn tasks(pid: Pid) -> impl Iterator<Item = std::path::PathBuf> {
        let list = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).ok();
        list.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
    }

    /// The fields of its `stat` line from the state on: the name before it may contain spaces.
    fn fields(pid: Pid) -> Vec<String> {
        let line = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        let after_name = line.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().map(str::to_owned).collect()
    }
}
