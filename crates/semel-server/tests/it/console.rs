//! The console: who gets in, what each action does, and every page in a real Chromium.

mod access;
mod actions;
mod browser;
mod cost;
mod demo;
mod flows;
mod inert;
mod scale;
mod states;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use semel_testbed::wait;
use serde_json::{Value, json};

use crate::kit::{Answer, Http, PATIENCE, Semel, Sink, Upstream};
use crate::real_clients::installed;

/// A server with a gateway, two targets and something of everything.
struct World {
    semel: Semel,
    upstream: Upstream,
    /// Delivers.
    billing: Sink,
    /// Answers with 503.
    warehouse: Sink,
    _folder: tempfile::TempDir,
}

const ROLES: [&str; 3] = ["viewer", "operator", "admin"];

fn token(role: &str) -> String {
    format!("{role}-token-of-more-than-32-bytes")
}

/// A server whose tokens have their values.
fn with_tokens(file: &Path) -> Semel {
    let env: Vec<(String, String)> =
        ROLES.iter().chain(&["producer"]).map(|role| (format!("T_{role}"), token(role))).collect();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Semel::with_config(file, &env)
}

/// Whether the server has tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tokens {
    Some,
    None,
}

impl World {
    fn start(tokens: Tokens) -> Self {
        Self::with_config(tokens, "")
    }

    /// With more tables in its configuration.
    fn with_config(tokens: Tokens, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (upstream, billing, warehouse) = (Upstream::start(), Sink::start(), Sink::start());
        warehouse.answer_with(503);
        let mut text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [store]\nurl = \"embedded:{}\"\n[[downstream]]\nname = \"bank\"\npattern = \"derived-key\"\n",
            upstream.url(),
            folder.path().join("data").display()
        );
        for (name, url) in [("billing", billing.url()), ("warehouse", warehouse.url())] {
            text += &format!(
                "[[target]]\nname = \"{name}\"\nurl = \"{url}\"\nevents = [\"order.*\"]\nretry = {{ max_attempts = 1 }}\nschedule = []\n\
                 breaker = {{ failure_calls = 1000 }}\n"
            );
        }
        if tokens == Tokens::Some {
            for role in ROLES.iter().chain(&["producer"]) {
                text += &format!(
                    "[[token]]\nname = \"the-{role}\"\nrole = \"{role}\"\nvalue = {{ env = \"T_{role}\" }}\n"
                );
            }
        }
        text += more;
        let file = folder.path().join("semel.toml");
        std::fs::write(&file, text).unwrap();
        let semel = with_tokens(&file);
        Self { semel, upstream, billing, warehouse, _folder: folder }
    }

    /// The API, as an admin.
    fn api(&self) -> Http {
        self.semel.admin().with("authorization", &format!("Bearer {}", token("admin")))
    }

    fn client(&self, key: &str, request: &str) -> Http {
        let client = self.semel.gateway().with("authorization", "Bearer shop");
        client.with("idempotency-key", key).with("x-request-id", request)
    }

    /// Something of everything: a key with three requests, keys in doubt, dead letters of one target, runs.
    fn fill(&self) -> Filled {
        for request in ["first", "second", "third"] {
            assert_eq!(self.client("order-77", request).post("/pay", r#"{"amount": 1}"#).status, 201);
        }
        for number in 1..=2 {
            let lost = self.client(&format!("lost-{number}"), &format!("lost-{number}"));
            assert!(lost.post(&format!("/lost/{number}"), "{}").status >= 500);
        }
        for number in 0..6 {
            let event = json!({
                "type": "order.paid", "dedupe_key": format!("order-{number}"), "tenant": "eu",
                "payload": { "order": number, "email": "ann@example.com" },
            });
            self.api().post("/v1/events", &event.to_string()).expect(201);
        }
        for number in 0..2 {
            let run = json!({
                "target": "billing", "idempotency_key": format!("nightly-{number}"), "delay": "1h",
                "tags": ["nightly"], "payload": {},
            });
            self.api().post("/v1/runs", &run.to_string()).expect(201);
        }
        let letters = || self.api().get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().clone();
        wait::until("six dead letters", PATIENCE, || letters().len() == 6).unwrap();
        let keys = |query: &str| self.api().get(&format!("/v1/keys?{query}")).expect(200)["items"].clone();
        wait::until("two keys in doubt", PATIENCE, || keys("phase=in_doubt").as_array().unwrap().len() == 2)
            .unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let letter = &letters()[0];
        Filled {
            done: text(&keys("hint=order-77")[0]["id"]),
            doubt: text(&keys("phase=in_doubt")[0]["id"]),
            letter: text(&letter["id"]),
            event: text(&letter["event_id"]),
            delivery: text(&letter["delivery_id"]),
            run: text(&self.api().get("/v1/runs").expect(200)["items"][0]["id"]),
        }
    }
}

/// Ids of what [`World::fill`] made.
struct Filled {
    done: String,
    doubt: String,
    letter: String,
    event: String,
    delivery: String,
    run: String,
}

impl Filled {
    /// A path of the console or of the API, with the id of something that exists.
    fn with_ids(&self, path: &str, job: &str) -> String {
        let id = match path.trim_start_matches("/v1").split('/').nth(1).unwrap() {
            "keys" => &self.doubt,
            "dead-letters" => &self.letter,
            "replays" => job,
            "runs" => &self.run,
            "targets" => "warehouse",
            _ => return path.to_owned(),
        };
        path.replace("{id}", id).replace("{name}", id)
    }
}

/// A person with a browser that keeps cookies.
struct Person {
    http: Http,
    /// The cookie of the session; empty without one.
    cookie: String,
}

impl Person {
    /// Somebody who has not logged in: nobody does without tokens.
    fn local(world: &World) -> Self {
        Self { http: world.semel.admin(), cookie: String::new() }
    }

    fn log_in(world: &World, role: &str) -> Self {
        let stranger = Self::local(world);
        let answer = stranger.submit("/login", "/login", &[("token", &token(role)), ("next", "/")]);
        assert_eq!(answer.status, 303, "{}", answer.text());
        let cookie = answer.header("set-cookie").expect("a cookie").split(';').next().unwrap().to_owned();
        Self { http: world.semel.admin().with("cookie", &cookie), cookie }
    }

    /// The live updates, as a browser gets them.
    fn listen(&self, world: &World) -> TcpStream {
        let address = world.semel.admin_url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "GET /console/live HTTP/1.1\r\nHost: {address}\r\nCookie: {}\r\nConnection: close\r\n\r\n",
            self.cookie
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        stream
    }

    fn get(&self, path: &str) -> Answer {
        self.http.get(path)
    }

    /// The form token of a page.
    fn form_token(&self, page: &str) -> String {
        let page = self.get(page).text();
        let (_, rest) =
            page.split_once("name=\"form_token\" value=\"").unwrap_or_else(|| panic!("a form in {page}"));
        rest.split_once('"').unwrap().0.to_owned()
    }

    /// Submits the form at its own address, with the hidden fields that it has now.
    fn submit_form(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let page = self.get(path).text();
        let hidden = hidden_fields(&page, path);
        let hidden = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let hidden = hidden.filter(|(name, _)| fields.iter().all(|(given, _)| given != name));
        self.http.post(path, &encoded(&hidden.chain(fields.iter().copied()).collect::<Vec<_>>()))
    }

    /// Submits a form with the token of a page, and with these fields alone.
    fn submit(&self, page: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.form_token(page);
        self.http.post(path, &encoded(&[fields, &[("form_token", &token)]].concat()))
    }
}

/// The hidden fields of the form that is submitted to this path.
fn hidden_fields(page: &str, path: &str) -> Vec<(String, String)> {
    let (_, form) = page
        .split_once(&format!("action=\"{path}\">"))
        .unwrap_or_else(|| panic!("a form that is submitted to {path} in {page}"));
    let form = form.split_once("</form>").unwrap().0;
    let fields = form.split("<input type=\"hidden\" name=\"").skip(1);
    let field = |text: &str| {
        let (name, rest) = text.split_once("\" value=\"").unwrap();
        (name.to_owned(), rest.split_once('"').unwrap().0.to_owned())
    };
    fields.map(field).collect()
}

fn encoded(fields: &[(&str, &str)]) -> String {
    let encode = |text: &str| -> String {
        let byte = |byte: u8| match byte {
            byte if byte.is_ascii_alphanumeric() => (byte as char).to_string(),
            byte => format!("%{byte:02X}"),
        };
        text.bytes().map(byte).collect()
    };
    fields
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
        .collect::<Vec<_>>()
        .join("&")
}

/// Where screenshots are kept.
fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("console-screenshots")
}

/// Gives orders to Chromium and returns what it found.
fn browse(orders: &Value) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/console.mjs");
    let mut node = Command::new("node");
    node.arg(script).arg(installed()).env("NO_PROXY", "*").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = node.spawn().expect("node runs");
    child.stdin.take().unwrap().write_all(orders.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: Value =
        serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error} in {text:?}"));
    assert_eq!(found["failure"], Value::Null, "{found:#}");
    // Pages in the middle of a flow are judged as the others are.
    assert_eq!(found["acting"], json!([]), "{found:#}");
    found
}
