//! A target repeats what it was sent, and its credentials end where operators, logs and backups see them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use semel_testbed::wait;

use crate::kit::{PATIENCE, Semel};

const BEARER: (&str, &str) = ("TARGET_TOKEN", "hunter2-bearer");
const SIGNING: (&str, &str) = ("TARGET_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
const QUERY: &str = "s3cr3t-query";
const PATH: &str = "B0123456789x";

/// Answers 422 with the request's own head, and the same in base64.
fn echo(stream: &TcpStream) -> Option<()> {
    use base64::Engine as _;
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
        let line = &head[start..];
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    let encoded = base64::engine::general_purpose::STANDARD.encode(BEARER.1);
    let credentials: Vec<&str> = head
        .lines()
        .filter(|line| line.starts_with("POST") || line.to_ascii_lowercase().starts_with("authorization"))
        .collect();
    let body = format!("{} / {encoded} / {}", credentials.join(" "), SIGNING.1);
    let size = body.len();
    let answer = format!(
        "HTTP/1.1 422 Unprocessable Content\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n{body}"
    );
    (&*stream).write_all(answer.as_bytes()).ok()
}

fn files_hold(folder: &Path, word: &str) -> bool {
    std::fs::read_dir(folder).unwrap().map_while(Result::ok).any(|file| {
        let bytes = std::fs::read(file.path()).unwrap();
        bytes.windows(word.len()).any(|window| window == word.as_bytes())
    })
}

#[test]
fn credentials_that_a_target_echoes_are_not_kept() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || echo(&stream));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("semel.toml"), folder.path().join("data"));
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[log]\nlevel = \"debug\"\n\
         [[target]]\nname = \"echo\"\nurl = \"http://{at}/hooks/{PATH}?token={QUERY}\"\n\
         bearer = {{ env = \"{}\" }}\nsecret = {{ env = \"{}\" }}\n",
        data.display(),
        BEARER.0,
        SIGNING.0
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[BEARER, SIGNING]);
    let admin = semel.admin();
    admin.post("/v1/events", r#"{"type": "a", "dedupe_key": "1", "payload": {}}"#).expect(201);
    let letters = || admin.get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().clone();
    wait::until("it is a dead letter", PATIENCE, || letters().len() == 1).unwrap();
    let id = letters()[0]["id"].as_str().unwrap().to_owned();
    let shown = admin.get(&format!("/v1/dead-letters/{id}")).text();
    assert!(shown.contains("422") && shown.contains("POST /hooks/"), "{shown}");
    let log = semel.log();
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, BEARER.1);
    for secret in [BEARER.1, QUERY, PATH, SIGNING.1.trim_start_matches("whsec_"), &encoded] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
        assert!(!log.contains(secret), "{secret} in the log");
        assert!(!files_hold(&data, secret), "{secret} in the ledger's files");
    }
}
