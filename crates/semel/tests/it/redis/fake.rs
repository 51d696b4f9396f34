//! error_map: a server that answers every claim with an error of our choice, and what becomes of each.

use semel::record::Mode;
use semel::store::ErrorKind;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// In place of an error: claims are won, but not by SET.
const NO_NX_GET: &str = "(no NX GET)";

/// Answers as a healthy server does, but for claims.
async fn fake(version: &'static str, error: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, version, error));
        }
    });
    url
}

async fn serve(stream: TcpStream, version: &'static str, error: &'static str) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let words = command(&mut stream).await?;
        let word = |at: usize| {
            words.get(at).map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default()
        };
        let answer = match (word(0).as_str(), word(4).as_str()) {
            ("HELLO", _) => "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
            ("INFO", _) => bulk(&format!(
                "redis_version:{version}\r\nrole:master\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n"
            )),
            ("CONFIG", _) => "-NOPERM this user has no permissions\r\n".to_owned(),
            ("EVALSHA" | "EVAL", "beat") => {
                format!("*4\r\n{}:1\r\n:1000000\r\n:0\r\n", bulk("0123456789abcdef"))
            }
            ("SET", "GET") if error == NO_NX_GET => "-ERR syntax error\r\n".to_owned(),
            ("EVALSHA" | "EVAL", "claim") if error == NO_NX_GET => {
                format!("*5\r\n{}:5\r\n:1\r\n:0\r\n:30000000\r\n", bulk("won"))
            }
            ("EVALSHA" | "EVAL", "claim") | ("SET", "GET") if error == "(cut)" => return None,
            ("EVALSHA" | "EVAL", "claim") | ("SET", "GET") => format!("-{error}\r\n"),
            ("TIME", _) => format!("*2\r\n{}{}", bulk("1"), bulk("0")),
            ("GET", _) => "_\r\n".to_owned(),
            ("PUBLISH" | "EXISTS", _) => ":0\r\n".to_owned(),
            ("SUBSCRIBE", _) => format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(&word(1))),
            _ => "+OK\r\n".to_owned(),
        };
        stream.get_mut().write_all(answer.as_bytes()).await.ok()?;
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn error_map() {
    use ErrorKind::{Ambiguous, Corrupt, Full, Incompatible, Setup, Unavailable};
    for (reply, kind) in [
        ("NOSCRIPT No matching script.", Unavailable),
        ("READONLY You can't write against a read only replica.", Unavailable),
        ("LOADING Redis is loading the dataset in memory", Unavailable),
        ("MASTERDOWN Link with MASTER is down", Unavailable),
        ("CLUSTERDOWN The cluster is down", Unavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
        ("MOVED 3999 127.0.0.1:6381", Unavailable),
        ("ASK 3999 127.0.0.1:6381", Unavailable),
        ("BUSY Redis is busy running a script.", Unavailable),
        ("NOREPLICAS Not enough good replicas to write.", Unavailable),
        ("MISCONF Redis is configured to save RDB snapshots", Unavailable),
        ("UNBLOCKED force unblock from blocking operation", Unavailable),
        ("OOM command not allowed when used memory > 'maxmemory'.", Full),
        ("ERR Error running script (call to f_0): @user_script:1: -OOM command not allowed", Full),
        ("NOAUTH Authentication required.", Setup),
        ("WRONGPASS invalid username-password pair", Setup),
        ("NOPERM this user has no permissions", Setup),
        ("CROSSSLOT Keys in request don't hash to the same slot", Setup),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Corrupt),
        ("SEMELDAMAGED the record is too short", Corrupt),
        ("SEMELVERSION 9", Incompatible),
        ("ERR something nobody has heard of", Setup),
        ("(cut)", Ambiguous),
    ] {
        for claim in [claim(), keyed()] {
            let store = connect(&fake("7.0.15", reply).await).await;
            let error = ask(&store, key(), &claim).await.expect_err("the server refuses");
            assert_eq!(error.kind(), kind, "{reply}: {error}");
        }
    }
}

/// A claim that needs no script.
fn keyed() -> NewClaim {
    NewClaim { terms: Arc::new(Terms { mode: Mode::Keyed, ..Terms::default() }), ..claim() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_scripts_only_is_asked_by_scripts() {
    let store = connect(&fake("7.0.15", NO_NX_GET).await).await;
    for _ in 0..3 {
        won(ask(&store, key(), &keyed()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_is_refused() {
    for (version, fit) in
        [("5.0.14", false), ("6.0.16", false), ("6.2.0", true), ("7.0.15", true), ("10.1.2", true)]
    {
        let connected = RedisStore::connect(&fake(version, "BUSY").await).await;
        assert_eq!(connected.is_ok(), fit, "{version}: {connected:?}");
        if let Err(error) = connected {
            assert_eq!(error.kind(), ErrorKind::Setup);
            let sentence = error.to_string();
            assert!(sentence.contains(version) && sentence.contains("6.2"), "{error}");
            assert!(sentence.contains("upgrade"), "says what to do: {error}");
        }
    }
}
