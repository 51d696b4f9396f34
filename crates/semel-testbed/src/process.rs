//! One server process with its children: spawned here, reaped here.

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

/// A system user that a server runs as, because it refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Owner {
    /// The first of the named users that this system has; none when this process is not root and so needs none.
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

    /// Lets the command run as this user.
    pub(crate) fn apply(owner: Option<Self>, command: &mut Command) {
        if let Some(owner) = owner {
            command.uid(owner.uid).gid(owner.gid);
        }
    }
}

/// How a server is ended when nobody needs what it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// Killed: it leaves nothing outside of its folder.
    Kill,
    /// Asked to go at once, then killed: PostgreSQL so removes its shared memory, which outlives processes.
    Quit,
}

impl Ending {
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
    ending: Ending,
}

impl Process {
    /// Spawns the server and tells the folder's watcher of it.
    pub(crate) fn spawn(command: &mut Command, folder: &Folder, ending: Ending) -> Result<Self> {
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

    /// How it ended, if it did by itself.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops the whole tree from running. It keeps its connections and answers nothing.
    pub(crate) fn pause(&self) {
        self.stop_tree();
    }

    pub(crate) fn resume(&self) {
        for pid in tree(self.pid()).into_iter().rev() {
            send(pid, Signal::CONT);
        }
    }

    /// Kills the whole tree as a power cut would, and reaps it.
    pub(crate) fn kill(mut self) {
        let all = self.stop_tree();
        for pid in &all {
            send(*pid, Signal::KILL);
        }
        let _ = self.child.wait();
        // The children are reaped by the system; a server started anew must not meet them.
        let _ = wait::until("the killed processes end", PATIENCE, || {
            all.iter().all(|pid| !procfs::is_running(*pid))
        });
    }

    /// Asks with a signal, and kills what has not gone in time.
    pub(crate) fn end_with(mut self, signal: Signal, within: Duration) {
        self.resume();
        send(self.pid(), signal);
        if wait::until("the server ends", within, || self.exited().is_some()).is_err() {
            self.kill();
        }
    }

    /// Ends it when nobody needs what it holds.
    pub(crate) fn discard(self) {
        match self.ending {
            Ending::Kill => self.kill(),
            Ending::Quit => self.end_with(Signal::QUIT, Duration::from_secs(3)),
        }
    }

    /// Processor time of the tree so far, of children that ended too.
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

/// A process that has gone needs no signal.
fn send(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// The process and all that descend from it, parents first.
fn tree(root: Pid) -> Vec<Pid> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        all.extend(procfs::children(pid));
        next += 1;
    }
    all
}

/// Runs a helper program to its end.
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
    //! What `/proc` says of a process. One that has gone has no children and no time.

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

    /// Whether it still runs; one that only waits to be reaped does not.
    pub(super) fn is_running(pid: Pid) -> bool {
        fields(pid).first().is_some_and(|state| state != "Z" && state != "X")
    }

    /// Its own time to the nanosecond, and that of its reaped children to the clock tick.
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

    /// The fields of its `stat` line from the state on: the name before it may hold spaces.
    fn fields(pid: Pid) -> Vec<String> {
        let line = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        let after_name = line.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().map(str::to_owned).collect()
    }
}
