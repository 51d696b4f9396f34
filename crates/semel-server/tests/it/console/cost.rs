//! The cost of open consoles. `SEMEL_PROVE=1` measures longer.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use tokio::time::Instant;

use super::{Tokens, World};

/// CPU time of a process so far.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
}

fn open(at: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at.strip_prefix("http://").unwrap()).unwrap();
    let host = at.strip_prefix("http://").unwrap();
    stream.write_all(format!("GET /console/live HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).unwrap();
    stream
}

#[test]
fn ten_open_consoles_cost_little_and_a_sleeping_one_blocks_nothing() {
    let world = World::start(Tokens::None);
    world.fill();
    let lasts = Duration::from_secs(if std::env::var_os("SEMEL_PROVE").is_some() { 60 } else { 8 });
    let idle = (cpu(world.semel.pid()), Instant::now());
    // Time itself is what is waited for.
    let (_never, nothing) = std::sync::mpsc::channel::<()>();
    let _ = nothing.recv_timeout(lasts);
    let idle = (cpu(world.semel.pid()) - idle.0, idle.1.elapsed());
    // One never reads.
    let _sleeping = open(world.semel.admin_url());
    let mut streams: Vec<TcpStream> = (0..10).map(|_| open(world.semel.admin_url())).collect();
    let open = (cpu(world.semel.pid()), Instant::now());
    let mut received = [0; 10];
    while open.1.elapsed() < lasts {
        for (stream, received) in streams.iter_mut().zip(&mut received) {
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let mut bytes = [0; 65_536];
            *received += stream.read(&mut bytes).unwrap_or(0);
        }
    }
    let open = (cpu(world.semel.pid()) - open.0, open.1.elapsed());
    assert!(received.iter().all(|bytes| *bytes > 1_000), "every console is served: {received:?}");
    let share = |(cpu, wall): (Duration, Duration)| 100.0 * cpu.as_secs_f64() / wall.as_secs_f64();
    let more = share(open) - share(idle);
    println!(
        "ten consoles: {more:.2} % of a core ({:.2} % idle, {:.2} % with them), {} bytes to each in {:.0} s",
        share(idle),
        share(open),
        received[0],
        open.1.as_secs_f64()
    );
    if std::env::var_os("SEMEL_PROVE").is_some() {
        assert!(more <= 5.0, "{more:.2} % of a core");
    }
}
