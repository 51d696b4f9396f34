//! Starts the real binary, and talks to it.

mod http;
mod proxy;
mod sink;
mod upstream;

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use semel_testbed::wait;

pub(crate) use self::http::{Answer, Http};
pub(crate) use self::proxy::{Action, Direction, HoldingProxy};
pub(crate) use self::sink::Sink;
pub(crate) use self::upstream::{LARGE, Upstream};

/// How long anything may take before a test fails. Generous: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running `semel serve`. Dropped, it is killed.
pub(crate) struct Semel {
    child: Child,
    pub(crate) ready: String,
    /// Without a name: no file is left, however the test ends.
    log: std::fs::File,
}

/// The binary, with nothing of the environment that could change what it does.
pub(crate) fn semel() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command
        .env_remove("SEMEL_TOKEN")
        .env_remove("SEMEL_ADMIN")
        .env_remove("SEMEL_ADMIN_CA")
        .env_remove("SEMEL_SECRET")
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    semel().args(args).output().expect("the binary runs")
}

impl Semel {
    /// Starts a server on free ports and waits until it is ready.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = semel();
        command.args(["serve", "--admin", "127.0.0.1:0"]).args(args);
        if args.contains(&"--upstream") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        Self::spawn(command)
    }

    /// Starts a server whose standard error is a pipe that nobody reads.
    pub(crate) fn with_unread_log(args: &[&str]) -> Self {
        let mut command = semel();
        command.args(["serve", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0"]).args(args);
        command.stderr(Stdio::piped());
        Self::spawn_with(command, tempfile::tempfile().expect("a temporary file"))
    }

    /// Starts a server with this limit of open files and connections.
    pub(crate) fn with_descriptors(most: usize, args: &[&str]) -> Self {
        Self::with_ulimit(&format!("-n {most}"), args)
    }

    /// Starts a server behind `ulimit` with these flags.
    pub(crate) fn with_ulimit(flags: &str, args: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {flags}; exec \"$0\" \"$@\"")]);
        command.arg(semel().get_program()).args([
            "serve",
            "--admin",
            "127.0.0.1:0",
            "--listen",
            "127.0.0.1:0",
        ]);
        command.args(args).stdin(Stdio::null());
        Self::spawn(command)
    }

    /// Starts a server with this config file, whose ports should be 0.
    pub(crate) fn with_config(file: &Path, env: &[(&str, &str)]) -> Self {
        let mut command = semel();
        command.arg("serve").arg("--config").arg(file).envs(env.iter().copied());
        Self::spawn(command)
    }

    /// Starts a server by this command.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let log = tempfile::tempfile().expect("a temporary file");
        command.stderr(log.try_clone().expect("the file can be opened again"));
        Self::spawn_with(command, log)
    }

    fn spawn_with(mut command: Command, log: std::fs::File) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Nobody listens after the first line.
                let _ = tell.send(line);
            }
        });
        let ready = told.recv_timeout(PATIENCE);
        let mut semel = Self { child, ready: String::new(), log };
        semel.ready = ready.unwrap_or_else(|_| panic!("not ready: {}", semel.log()));
        semel
    }

    fn url(&self, name: &str) -> &str {
        let found = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    /// The admin side.
    pub(crate) fn admin_url(&self) -> &str {
        self.url("admin")
    }

    /// The gateway.
    pub(crate) fn gateway_url(&self) -> &str {
        self.url("gateway")
    }

    pub(crate) fn admin(&self) -> Http {
        Http::new(self.url("admin"))
    }

    pub(crate) fn gateway(&self) -> Http {
        Http::new(self.url("gateway"))
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// All it has logged.
    pub(crate) fn log(&self) -> String {
        let length = self.log.metadata().expect("an open file").len();
        let mut bytes = vec![0; usize::try_from(length).expect("a log fits into memory")];
        // Not by the file's position: the server writes there.
        self.log.read_exact_at(&mut bytes, 0).expect("the log can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it has logged this.
    pub(crate) fn logged(&self, text: &str) {
        wait::until(text, PATIENCE, || self.log().contains(text))
            .unwrap_or_else(|_| panic!("{text} in {}", self.log()));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
        // A thread that runs at this moment goes on until the kernel sees it: a stopped process is one whose threads all are.
        if signal == Signal::STOP {
            let tasks = format!("/proc/{}/task", self.child.id());
            let is_stopped = |task: std::fs::DirEntry| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['T', 't', 'Z', 'X']))
            };
            let all = || std::fs::read_dir(&tasks).unwrap().flatten().all(is_stopped);
            semel_testbed::wait::until("every thread has stopped", PATIENCE, all).unwrap();
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ended");
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait::for_some("the end of the server", PATIENCE, || Ok(self.child.try_wait().ok().flatten()))
            .expect("it ends")
    }
}

impl Drop for Semel {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of a metric, by its whole name with labels.
pub(crate) fn metric(admin: &Http, name: &str) -> f64 {
    let text = admin.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned);
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().expect("a number")
}

/// A Redis that keeps what it has acknowledged when it is killed. One that syncs every second delays its writes while the disk is busy,
/// and then loses them.
pub(crate) fn durable_redis() -> semel_testbed::Redis {
    let persistence = semel_testbed::redis::Persistence::Always;
    semel_testbed::Redis::options().persistence(persistence).start().unwrap()
}
