//! Somebody without a credential invents keys and principals, to fill the store or the memory.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use semel_testbed::wait;

use crate::kit::{PATIENCE, Semel, metric};

const MIB: u64 = 1 << 20;
/// What SQLite's log may take beside the data (docs/reference/embedded-store.md).
const LOG: u64 = 32 * MIB;

/// An API with large refusals: `/missing` is a 404 with a page, `/slow` waits, everything else is a 201 of 1 KiB.
struct Api {
    at: SocketAddr,
    open: Arc<AtomicBool>,
}

impl Api {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, open) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let of_thread = Arc::clone(&open);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let open = Arc::clone(&of_thread);
                std::thread::spawn(move || serve(&stream, &open));
            }
        });
        Self { at, open }
    }
}

fn serve(stream: &TcpStream, open: &AtomicBool) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        let (status, size) = match path.as_str() {
            "/missing" => ("404 Not Found", 110_000),
            _ => ("201 Created", 1_024),
        };
        if path == "/slow" {
            wait::until("the slow call may end", PATIENCE * 30, || open.load(Ordering::Acquire)).ok()?;
        }
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {size}\r\n\r\n{}", "x".repeat(size));
        (&*stream).write_all(answer.as_bytes()).ok()?;
    }
}

/// A client that keeps its connection and invents a principal with every key.
struct Inventor {
    reader: BufReader<TcpStream>,
}

impl Inventor {
    fn connect(url: &str) -> Self {
        let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    /// The status, and whether it says when to come back.
    fn post(&mut self, path: &str, principal: u64) -> (u16, bool) {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer invented-{principal}\r\n\
             idempotency-key: key-{principal}\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        self.reader.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut line, mut length, mut says_when) = (String::new(), 0, false);
        self.reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        loop {
            line.clear();
            self.reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "retry-after" => says_when = true,
                _ => {}
            }
        }
        self.reader.read_exact(&mut vec![0; length]).unwrap();
        (status, says_when)
    }
}

fn start(folder: &Path, api: &Api, store: &str) -> Semel {
    let file = folder.join("semel.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nurl = \"embedded:{}\"\n{store}",
        api.at,
        folder.join("data").display()
    );
    std::fs::write(&file, text).unwrap();
    Semel::with_config(&file, &[])
}

fn size_of_folder(folder: &Path) -> u64 {
    std::fs::read_dir(folder)
        .unwrap()
        .map_while(Result::ok)
        .filter_map(|file| file.metadata().ok())
        .map(|file| file.len())
        .sum()
}

// Grew by 174 MB in one second: each 404 page was kept, for a principal that nobody had checked.
#[test]
fn keyed_requests_to_a_missing_path_leave_little() {
    let (api, folder) = (Api::start(), tempfile::tempdir().unwrap());
    let semel = start(folder.path(), &api, "");
    std::thread::scope(|threads| {
        for thread in 0..8 {
            let mut client = Inventor::connect(semel.gateway_url());
            threads.spawn(move || {
                for number in 0..200 {
                    assert_eq!(client.post("/missing", thread * 200 + number).0, 404);
                }
            });
        }
    });
    let admin = semel.admin();
    let bytes = metric(&admin, "semel_store_bytes");
    assert!(bytes < 1_600.0 * 2_048.0, "1,600 refusals take {bytes} bytes");
    let on_disk = size_of_folder(&folder.path().join("data"));
    assert!(on_disk < 1_600 * 2_048 + LOG, "{on_disk} bytes on disk");

    // A retry is not run again, and learns how the first ended.
    let gateway = semel.gateway().with("authorization", "Bearer invented-7").with("idempotency-key", "key-7");
    let again = gateway.post("/missing", "{}");
    assert_eq!(again.status, 409);
    assert!(again.text().contains("outcome_not_kept") && again.text().contains("404"), "{}", again.text());
}

/// How a flood of invented principals was answered.
#[derive(Default)]
struct Answers {
    served: AtomicU64,
    refused: AtomicU64,
}

fn flood(semel: &Semel, keys: Range<u64>, answers: &Answers) {
    let next = AtomicU64::new(keys.start);
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                let mut client = Inventor::connect(semel.gateway_url());
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= keys.end {
                        return;
                    }
                    match client.post("/pay", number) {
                        (201, _) => answers.served.fetch_add(1, Ordering::Relaxed),
                        (429 | 503, true) => answers.refused.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other:?} for key {number}"),
                    };
                }
            });
        }
    });
}

/// The most memory that it ever had, in bytes.
fn peak_memory(semel: &Semel) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", semel.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1_024
}

// The long form is five million keys: within 256 MB of memory, and a store of 512 MB.
#[test]
fn invented_principals_exhaust_neither_memory_nor_the_store() {
    let is_long = std::env::var_os("SEMEL_PROVE").is_some();
    // New keys are refused at 7/8 of the limit; the size is measured every second.
    let (keys, step, nearly_full) = if is_long { (5_000_000, 4_000, 0.8) } else { (6_000, 100, 0.1) };
    let (max_bytes, most_on_disk) = if is_long { (512 * MIB, 512 * MIB) } else { (4 * MIB, 4 * MIB + LOG) };
    let (api, folder) = (Api::start(), tempfile::tempdir().unwrap());
    let semel = start(folder.path(), &api, &format!("max_bytes = {max_bytes}\n"));
    let (gateway, admin) = (semel.gateway().with("authorization", "Bearer honest"), semel.admin());
    let honest = gateway.with("idempotency-key", "honest");
    assert_eq!(honest.post("/pay", "{}").status, 201);
    let (answers, mut sent) = (Answers::default(), 0);
    let mut flood_step = || {
        flood(&semel, sent..sent + step, &answers);
        sent += step;
        assert!(sent < keys, "the store is never full");
    };
    while metric(&admin, "semel_store_bytes") < nearly_full * max_bytes as f64 {
        flood_step();
    }
    std::thread::scope(|threads| {
        let slow = || gateway.with("idempotency-key", "in-flight").post("/slow", "{}");
        let in_flight = threads.spawn(slow);
        // Soon: the call in flight has a time limit of its own.
        while metric(&admin, "semel_store_full") < 1.0 {
            flood_step();
        }

        // New keys are refused with when to come back; those that are known, and work in flight, are not.
        let new = gateway.with("idempotency-key", "new").post("/pay", "{}");
        assert_eq!((new.status, new.header("retry-after").is_some()), (503, true), "{}", new.text());
        let again = honest.post("/pay", "{}");
        assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
        api.open.store(true, Ordering::Release);
        assert_eq!(in_flight.join().unwrap().status, 201);
        let again = slow();
        assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    });
    flood(&semel, sent..keys, &answers);
    assert_eq!(honest.post("/pay", "{}").header("idempotent-replayed"), Some("true"));

    let (served, refused) = (answers.served.into_inner(), answers.refused.into_inner());
    let (peak, on_disk) = (peak_memory(&semel), size_of_folder(&folder.path().join("data")));
    let megabytes = |bytes: u64| bytes / 1_000_000;
    println!(
        "{served} served, {refused} refused, {} MB of memory at most, {} MB on disk",
        megabytes(peak),
        megabytes(on_disk)
    );
    assert!(served > 1_000 && refused > keys / 4, "{served} served, {refused} refused");
    let counted = metric(&admin, "semel_new_keys_refused_total{reason=\"bytes\"}")
        + metric(&admin, "semel_new_keys_refused_total{reason=\"rate\"}");
    assert!(counted >= refused as f64, "{counted} of {refused} refusals are counted");
    let ready = admin.get("/readyz").expect(200);
    assert_eq!(ready["new_keys"], "refused", "{ready}");
    assert!(on_disk < most_on_disk, "{on_disk} bytes on disk");
    assert!(peak < 256_000_000, "{peak} bytes of memory");
    let lines = semel.log().lines().count() as u64;
    assert!(lines < keys / 5, "a flood does not fill the log: {lines} lines");

    // It starts again although it is full, and still knows what it knew.
    semel.kill();
    let semel = start(folder.path(), &api, &format!("max_bytes = {max_bytes}\n"));
    let again = semel.gateway().with("authorization", "Bearer honest").with("idempotency-key", "honest");
    assert_eq!(again.post("/pay", "{}").header("idempotent-replayed"), Some("true"));
}

#[test]
fn new_keys_of_all_principals_together_have_a_rate() {
    let (api, folder) = (Api::start(), tempfile::tempdir().unwrap());
    let semel = start(folder.path(), &api, "new_keys_per_second = 1\nnew_keys_burst = 20\n");
    let mut client = Inventor::connect(semel.gateway_url());
    let statuses: Vec<u16> = (0..60).map(|number| client.post("/pay", number).0).collect();
    let refused = statuses.iter().filter(|status| **status == 429).count();
    assert!((20..=45).contains(&refused), "{statuses:?}");
    assert_eq!(client.post("/pay", 0).0, 201, "a replay is not a new key");
    assert!(metric(&semel.admin(), "semel_new_keys_refused_total{reason=\"rate\"}") >= refused as f64);
}
