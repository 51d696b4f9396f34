//! A target on this machine, and what it all costs this process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The CPU time of this process so far.
pub(crate) fn cpu_of_this_process() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// A target that takes everything.
pub(crate) fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).expect("an option of every socket");
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                while answer(&mut reader, &stream).is_some() {}
            });
        }
    });
    at
}

fn answer(reader: &mut BufReader<&TcpStream>, mut stream: &TcpStream) -> Option<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
}
