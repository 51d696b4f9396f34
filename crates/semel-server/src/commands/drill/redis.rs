//! A Redis server for a drill: an existing one, or one started for the drill.

use std::time::Duration;

use anyhow::Context as _;
use semel::store::redis_driver::{Cmd, Value};
use semel::store::{Effect, RedisClient};
use semel_testbed::Redis;
use semel_testbed::redis::Persistence;

use super::environment::Skipped;

/// How often no key of the drill must be found before they count as removed.
const EMPTY_LOOKS: u32 = 3;
/// The most looks, and the pause between two.
const LOOKS: u32 = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A Redis server.
pub(in crate::commands) struct DrillRedis {
    pub(in crate::commands) url: String,
    /// Prefix of the drill's keys and streams: an existing server may contain others.
    pub(in crate::commands) prefix: String,
    /// The server, if the drill started it.
    own: Option<Redis>,
}

impl DrillRedis {
    /// Uses the server at `url`, or starts `redis-server`.
    pub(in crate::commands) fn find(url: Option<&str>) -> anyhow::Result<Self> {
        let prefix = format!("semel-drill-{:08x}", rand::random::<u32>());
        if let Some(url) = url {
            return Ok(Self::named(url, prefix));
        }
        match Redis::options().persistence(Persistence::Always).start() {
            Ok(own) => Ok(Self { url: own.url(), prefix, own: Some(own) }),
            Err(semel_testbed::Error::Missing { .. }) => {
                let why = "it needs Redis: install redis-server; some drills accept --redis URL";
                Err(Skipped(why).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The drill's part of an existing server.
    pub(in crate::commands) fn named(url: &str, prefix: String) -> Self {
        Self { url: url.to_owned(), prefix, own: None }
    }

    /// True if the drill did not start it.
    pub(in crate::commands) fn is_foreign(&self) -> bool {
        self.own.is_none()
    }

    fn client(&self) -> anyhow::Result<RedisClient> {
        let builder = RedisClient::builder(self.url.clone()).connect_timeout(Duration::from_millis(500));
        builder.build().context("the Redis of the drill")
    }

    /// Sends one command.
    pub(in crate::commands) async fn command(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        Ok(self.client()?.query(&command, Effect::Writes).await?)
    }

    /// Its port, if the drill started it and may kill it.
    pub(in crate::commands) fn port(&self) -> Option<u16> {
        self.own.as_ref().map(Redis::port)
    }

    /// The members of a kind of buffer key (`queue`, `leased`, `runs`, `about`) of all tenants.
    pub(in crate::commands) async fn buffered(&self, part: &str) -> anyhow::Result<Vec<String>> {
        let (list, range) = match part {
            "queue" | "leased" => ("ZRANGE", &["0", "-1"][..]),
            _ => ("HVALS", &[][..]),
        };
        let mut members = Vec::new();
        for key in texts(self.command(&["KEYS", &format!("{}:*:{part}", self.prefix)]).await?) {
            members.extend(texts(self.command(&[&[list, &key], range].concat()).await?));
        }
        Ok(members)
    }

    /// Kills it.
    pub(in crate::commands) fn kill(&self) {
        if let Some(own) = &self.own {
            own.kill();
        }
    }

    /// Starts it again with its data.
    pub(in crate::commands) fn restart(&self) -> anyhow::Result<()> {
        Ok(self.own.as_ref().context("the drill did not start this Redis")?.restart()?)
    }

    /// Removes the drill's data from an existing server.
    ///
    /// # Errors
    /// It does not answer.
    pub(in crate::commands) async fn remove_data(self) -> anyhow::Result<()> {
        // What a killed process had sent is executed after its death: the data is gone once several looks in a row find none.
        let mut empty_looks = 0;
        for _ in 0..LOOKS {
            if empty_looks == EMPTY_LOOKS {
                break;
            }
            let keys = texts(self.command(&["KEYS", &format!("{}*", self.prefix)]).await?);
            empty_looks = if keys.is_empty() { empty_looks + 1 } else { 0 };
            for key in keys {
                self.command(&["DEL", &key]).await?;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
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
