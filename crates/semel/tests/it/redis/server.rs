//! A redis-server that lives as long as its value.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server in a folder of its own.
pub(crate) struct Server {
    child: Option<Child>,
    port: u16,
    folder: tempfile::TempDir,
    settings: Vec<String>,
}

impl Server {
    /// Starts a server without persistence, with further settings as on its command line.
    pub(crate) fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { child: None, port, folder, settings };
        server.run();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn run(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        let until = now() + Duration::from_secs(20);
        while self.ask("PING").is_none() {
            assert!(now() < until, "redis-server did not start");
            std::thread::yield_now();
        }
    }

    /// Kills the server, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port and folder.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.run();
    }

    /// Sends a command of words without spaces in them, and returns the reply as it came.
    pub(crate) fn ask(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).ok()?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).ok()?;
        let reply = String::from_utf8_lossy(&reply).into_owned();
        reply.strip_suffix("+OK\r\n").map(str::to_owned)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[expect(clippy::disallowed_methods, reason = "a deadline of the harness")]
fn now() -> Instant {
    Instant::now()
}
