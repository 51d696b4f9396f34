//! A Redis server for a drill: an existing one, or one started for the drill.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use semel::store::redis_driver::{Cmd, Value};
use semel::store::{Effect, RedisClient};

use super::ground::{Killed, Skipped, exists, until};

/// A Redis server.
pub(super) struct DrillRedis {
    pub(super) url: String,
    /// Prefix of the drill's keys and streams: an existing server may contain others.
    pub(super) prefix: String,
    /// Port and folder, if the drill started it.
    own: Option<(u16, std::path::PathBuf)>,
    server: Option<Killed>,
}

impl DrillRedis {
    /// Uses the server at `url`, or starts `redis-server`.
    pub(super) async fn find(url: Option<&str>, folder: &Path) -> anyhow::Result<Self> {
        let prefix = format!("semel-drill-{:08x}", rand::random::<u32>());
        if let Some(url) = url {
            return Ok(Self { url: url.to_owned(), prefix, own: None, server: None });
        }
        if !exists("redis-server") {
            let why = "it needs Redis: install redis-server; some drills accept --redis URL";
            return Err(Skipped(why).into());
        }
        // Free at this moment; another process is unlikely to take it.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Some(start(port, folder)?);
        let own = Some((port, folder.to_owned()));
        let redis = Self { url: format!("redis://127.0.0.1:{port}"), prefix, own, server };
        redis.ready().await?;
        Ok(redis)
    }

    async fn ready(&self) -> anyhow::Result<()> {
        until("redis-server answers", || async {
            let mut ping = Cmd::new();
            ping.arg("PING");
            Ok(self.client()?.query(&ping, Effect::Reads).await.is_ok())
        })
        .await
    }

    fn client(&self) -> anyhow::Result<RedisClient> {
        let builder = RedisClient::builder(self.url.clone()).connect_timeout(Duration::from_millis(500));
        builder.build().context("the Redis of the drill")
    }

    /// Sends one command.
    pub(super) async fn tell(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        Ok(self.client()?.query(&command, Effect::Writes).await?)
    }

    /// Its port, if the drill started it and may kill it.
    pub(super) fn port(&self) -> Option<u16> {
        self.own.as_ref().map(|(port, _)| *port)
    }

    /// The members of a kind of buffer key (`queue`, `leased`, `runs`, `about`) of all tenants.
    pub(super) async fn buffered(&self, part: &str) -> anyhow::Result<Vec<String>> {
        let (list, range) = match part {
            "queue" | "leased" => ("ZRANGE", &["0", "-1"][..]),
            _ => ("HVALS", &[][..]),
        };
        let mut members = Vec::new();
        for key in texts(self.tell(&["KEYS", &format!("{}:*:{part}", self.prefix)]).await?) {
            members.extend(texts(self.tell(&[&[list, &key], range].concat()).await?));
        }
        Ok(members)
    }

    /// Kills it.
    pub(super) fn kill(&mut self) {
        self.server = None;
    }

    /// Starts it again with its data.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        let (port, folder) = self.own.as_ref().context("it is somebody else's")?;
        self.server = Some(start(*port, folder)?);
        self.ready().await
    }

    /// Removes the drill's data from an existing server.
    pub(super) async fn end(self) {
        if self.own.is_some() {
            return;
        }
        if let Ok(keys) = self.tell(&["KEYS", &format!("{}*", self.prefix)]).await {
            for key in texts(keys) {
                let _ = self.tell(&["DEL", &key]).await;
            }
        }
    }
}

/// The strings of a list.
fn texts(answer: Value) -> Vec<String> {
    let Value::Array(items) = answer else { return Vec::new() };
    let text = |item| match item {
        Value::BulkString(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        _ => None,
    };
    items.into_iter().filter_map(text).collect()
}

fn start(port: u16, folder: &Path) -> anyhow::Result<Killed> {
    let child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
        .args(["--appendfsync", "always", "--dir"])
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("redis-server")?;
    Ok(Killed(child))
}
