//! The gateway against nginx, request for request.
//!
//! `cargo bench -p semel-http --bench proxy` prints, `-- --check` also fails where a goal is missed, and a word such as
//! `-- replay` runs only the rows that hold it. Both stand before
//! the same upstream and take turns under the same load. What counts is the CPU of the proxy's own process per request:
//! upstream and load run in other processes, and wall-clock time is shared with them on the same cores.
//!
//! This program plays every part: called with a part's name it becomes the upstream or the gateway.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use semel::Engine;
use semel::store::MemoryStore;
use semel_http::layer::Guarded;
use semel_http::policy::{InsertLimits, Rate};
use semel_http::proxy::{self, Proxy};
use semel_http::{Guard, Profile, edge};
use tokio::net::TcpListener;

/// As in the `semel` binary.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

const REPEATS: usize = 21;
const CLIENTS: usize = 32;
const REQUESTS: usize = 4_800;
const ANSWER: &[u8] = &[b'x'; 512];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["upstream"] => play(upstream),
        ["gateway", to] => {
            let to = to.to_owned();
            play(move |listener| gateway(listener, to));
        }
        ref rest => return compare(rest),
    }
    ExitCode::SUCCESS
}

// === the parts ===

/// Binds a port, says which, and goes on until the process is killed.
fn play<F: Future<Output = ()>>(part: impl FnOnce(TcpListener) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("{}", listener.local_addr().expect("a bound listener"));
        part(listener).await;
    });
}

async fn upstream(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        let service = hyper::service::service_fn(async |request: Request<hyper::body::Incoming>| {
            let _ = http_body_util::BodyExt::collect(request.into_body()).await;
            let mut response = Response::new(Full::new(Bytes::from_static(ANSWER)));
            response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
            Ok::<_, std::convert::Infallible>(response)
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}

/// The whole gateway, on the memory store: listener, guard, proxy.
async fn gateway(listener: TcpListener, to: String) {
    let proxy = Proxy::new(to.parse().expect("a URL"), proxy::ProxyOptions::default()).expect("no TLS");
    let engine = Engine::builder(MemoryStore::new()).build().expect("an engine");
    // One client sends everything, far above the limit of a principal: the limit is kept, and is not reached.
    let rate = Rate { per_second: u32::MAX, burst: u32::MAX };
    let limits = Some(InsertLimits { writes: rate, reads: rate });
    let profile = Profile { limits, ..Profile::ietf() };
    let guard = Guard::builder(engine).profile(profile).build().expect("a guard");
    let options =
        edge::EdgeOptions { shortcut: Some(Arc::new(guard.clone())), ..edge::EdgeOptions::default() };
    edge::serve(listener, Guarded::new(guard, proxy), options, std::future::pending()).await;
}

/// A process that is killed with its owner.
struct Part {
    child: Child,
    address: SocketAddr,
    /// Whose CPU counts.
    pid: u32,
}

impl Part {
    fn start(arguments: &[&str]) -> Self {
        let this = std::env::current_exe().expect("this program");
        let mut child = Command::new(this).args(arguments).stdout(Stdio::piped()).spawn().expect("a process");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("its first line");
        let pid = child.id();
        Self { child, address: line.trim().parse().expect("an address"), pid }
    }

    fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).expect("a running process");
        let spent = |task: &Path| -> Option<u64> {
            std::fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
        };
        Duration::from_nanos(tasks.flatten().filter_map(|task| spent(&task.path())).sum())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === nginx ===

/// What nginx does with requests.
#[derive(Clone, Copy)]
enum Nginx {
    Passes,
    Caches,
}

/// nginx with one worker before `upstream`; nothing where it is not installed.
fn nginx(folder: &Path, upstream: SocketAddr, does: Nginx) -> Option<Part> {
    let program = ["nginx", "/usr/sbin/nginx"]
        .into_iter()
        .find(|name| Command::new(name).arg("-v").output().is_ok())?;
    let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let folder_name = folder.display();
    let cache = match does {
        Nginx::Passes => "",
        Nginx::Caches => {
            "proxy_cache answers; proxy_cache_methods POST; proxy_cache_valid 200 1h;
             proxy_cache_key $request_uri$http_authorization$http_idempotency_key;"
        }
    };
    let config = format!(
        "daemon off; master_process off; pid {folder_name}/pid; error_log {folder_name}/error crit;
         events {{ worker_connections 1024; }}
         http {{
           access_log off; client_body_temp_path {folder_name}/body; proxy_temp_path {folder_name}/proxy;
           fastcgi_temp_path {folder_name}/f; uwsgi_temp_path {folder_name}/u; scgi_temp_path {folder_name}/s;
           keepalive_requests 1000000; proxy_cache_path {folder_name}/cache keys_zone=answers:10m;
           upstream behind {{ server {upstream}; keepalive 64; keepalive_requests 1000000; }}
           server {{ listen 127.0.0.1:{port};
             location / {{ proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection '';
               proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Host $host;
               proxy_set_header X-Forwarded-Proto $scheme; {cache} }} }} }}"
    );
    std::fs::write(folder.join("nginx.conf"), config).ok()?;
    let child =
        Command::new(program).arg("-c").arg(folder.join("nginx.conf")).stderr(Stdio::null()).spawn().ok()?;
    let pid = child.id();
    let part = Part { child, address: SocketAddr::from(([127, 0, 0, 1], port)), pid };
    let patience = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(part.address).is_err() {
        if Instant::now() > patience {
            return None;
        }
        std::thread::yield_now();
    }
    Some(part)
}

// === the load ===

/// What the clients send.
#[derive(Clone, Copy)]
enum Traffic {
    /// No key.
    Plain,
    /// A key of its own with every request; the number keeps turns apart.
    Fresh(usize),
    /// One key per client, all the time.
    Repeated,
}

impl Traffic {
    fn plain(_turn: usize) -> Self {
        Self::Plain
    }

    fn repeated(_turn: usize) -> Self {
        Self::Repeated
    }

    fn request(self, client: usize, number: usize) -> String {
        let key = match self {
            Self::Plain => String::new(),
            Self::Fresh(turn) => format!("Idempotency-Key: bench-{turn:06}-{client:06}-{number:08}\r\n"),
            Self::Repeated => format!("Idempotency-Key: bench-repeated-{client:08}\r\n"),
        };
        let body = r#"{"amount":1000,"currency":"eur","customer":"cus_0123456789abcdef"}"#;
        format!(
            "POST /v1/payments HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\n\
             Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n{key}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Sends `REQUESTS` over kept connections, each waiting for its answer. How long it took.
fn load(to: SocketAddr, traffic: Traffic) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(to).expect("a listener");
                stream.set_nodelay(true).expect("a socket");
                let mut buffer = vec![0; 16 * 1024];
                for number in 0..REQUESTS / CLIENTS {
                    let request = traffic.request(client, number);
                    stream.write_all(request.as_bytes()).expect("an open connection");
                    read_answer(&mut stream, &mut buffer);
                }
            });
        }
    });
    began.elapsed()
}

fn read_answer(stream: &mut TcpStream, buffer: &mut [u8]) {
    let mut have = 0;
    loop {
        let count = stream.read(&mut buffer[have..]).expect("an answer");
        assert!(count > 0, "closed: {}", String::from_utf8_lossy(&buffer[..have]));
        have += count;
        if let Some(end) = buffer[..have].windows(4).position(|window| window == b"\r\n\r\n")
            && have >= end + 4 + ANSWER.len()
        {
            assert!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..have]));
            return;
        }
    }
}

// === the comparison ===

struct Turn {
    cpu: f64,
    rate: f64,
}

fn turn(part: &Part, traffic: Traffic) -> Turn {
    let before = part.cpu();
    let took = load(part.address, traffic);
    let cpu = (part.cpu() - before).as_secs_f64() * 1e6 / REQUESTS as f64;
    Turn { cpu, rate: REQUESTS as f64 / took.as_secs_f64() }
}

fn compare(arguments: &[&str]) -> ExitCode {
    let check = arguments.contains(&"--check");
    let wanted: Vec<&str> = arguments.iter().copied().filter(|word| !word.starts_with("--")).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let (passing, caching) = (folder.path().join("pass"), folder.path().join("cache"));
    for folder in [&passing, &caching] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let upstream = Part::start(&["upstream"]);
    let (Some(passing), Some(caching)) =
        (nginx(&passing, upstream.address, Nginx::Passes), nginx(&caching, upstream.address, Nginx::Caches))
    else {
        println!("skipped: nginx is not installed (apt-get install nginx)");
        return ExitCode::SUCCESS;
    };
    let ours = Part::start(&["gateway", &format!("http://{}", upstream.address)]);
    println!("proxy CPU a request, {CLIENTS} clients | nginx, one worker");
    let mut met = true;
    /// Its name, its goal, our traffic in a turn, and theirs with who gets it.
    type Comparison<'a> = (&'a str, f64, fn(usize) -> Traffic, (&'a Part, Traffic));
    let comparisons: [Comparison<'_>; 3] = [
        ("pass-through | proxy_pass", 1.3, Traffic::plain, (&passing, Traffic::Plain)),
        ("first run | proxy_pass", 1.8, Traffic::Fresh, (&passing, Traffic::Plain)),
        ("replay | proxy_cache hit", 0.8, Traffic::repeated, (&caching, Traffic::Repeated)),
    ];
    for (name, goal, traffic, theirs) in comparisons {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word)) {
            met &= rows(name, goal, (&ours, traffic), theirs);
        }
    }
    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn rows(name: &str, goal: f64, ours: (&Part, fn(usize) -> Traffic), theirs: (&Part, Traffic)) -> bool {
    // Warm both: connections to the upstream, memory, code, what is replayed.
    turn(ours.0, ours.1(REPEATS));
    turn(theirs.0, theirs.1);
    let mut ratios = Vec::new();
    for repeat in 0..REPEATS {
        let (ours, theirs) = (turn(ours.0, ours.1(repeat)), turn(theirs.0, theirs.1));
        ratios.push(ours.cpu / theirs.cpu);
        println!(
            "  {name}: {:>5.1} us {:>6.0}/s | {:>5.1} us {:>6.0}/s",
            ours.cpu, ours.rate, theirs.cpu, theirs.rate
        );
    }
    ratios.sort_by(f64::total_cmp);
    let (least, median, most) = (ratios[0], ratios[REPEATS / 2], ratios[REPEATS - 1]);
    println!("{name}: {median:.2} x ({least:.2} to {most:.2}), goal at most {goal} x");
    median <= goal
}
