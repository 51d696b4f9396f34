//! Redis Streams as a source: one consumer of a consumer group.
//!
//! It processes messages in this order: its own unacknowledged ones (after a broken connection), those of dead
//! consumers, then new ones. Reading blocks at the server, on its own connection.

mod reply;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt as _;
use semel::store::redis_driver::{Value, cmd};
use semel::store::{BoxFuture, Effect, Error, ErrorKind, RedisClient, RedisClientBuilder, RedisScript};
use tokio::time::Instant;

use self::reply::{StreamEntry, entries, pending, text};
use super::{Message, MessageBatch, Rejected, Source};
use crate::id::LetterId;
use crate::letter::Letter;

/// Renews the messages that this consumer still holds: a plain XCLAIM would steal back messages that another consumer
/// has taken over.
const RENEW: &str = "
for i = 3, #ARGV do
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if held[1] and held[1][2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
  end
end
return 1";

/// Moves a message to the dead letters and acknowledges it, atomically. A message that is already acknowledged was
/// already moved.
const REJECT: &str = "
local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if not held[1] then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 1";

/// Copies a dead letter to the stream of dead letters, once: the set remembers when. It remembers longer than until
/// the ledger has recorded the copy: another process may have read before that that the copy is missing, and arrive
/// here later.
const MIRROR: &str = "
local now = redis.call('TIME')[1]
if redis.call('ZADD', KEYS[2], 'NX', now, ARGV[1]) == 0 then return 0 end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
return 1";

/// Forgets copies that are an hour old.
const FORGET: &str = "
return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', redis.call('TIME')[1] - 3600)";

/// Removes consumers that hold no messages and were not seen for long. A consumer with messages stays: they would be
/// deleted with it.
const PRUNE: &str = "
local removed = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local is = {}
  for i = 1, #consumer, 2 do is[consumer[i]] = consumer[i + 1] end
  if is.pending == 0 and is.idle > tonumber(ARGV[3]) and is.name ~= ARGV[2] then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], is.name)
    removed = removed + 1
  end
end
return removed";

/// More fields than this are not copied to the dead letters: the ledger has them all.
const MOST_FIELDS: usize = 1000;

/// Settings of a [`RedisStream`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct RedisStreamBuilder {
    url: String,
    root_certificate: Option<Vec<u8>>,
    stream: String,
    group: String,
    at_once: usize,
    block: Duration,
    min_idle: Duration,
    prune_after: Duration,
}

/// One consumer of a consumer group on a Redis stream.
pub struct RedisStream {
    /// For reading: it blocks.
    reader: RedisClient,
    /// For everything else.
    client: RedisClient,
    settings: RedisStreamBuilder,
    /// Unique for each process and start, to distinguish the messages of a dead consumer from those of a living one.
    consumer: String,
    dlq: String,
    /// The set of dead letters that are in the stream of dead letters.
    seen: String,
    scripts: Scripts,
    place: ReadPosition,
}

struct Scripts {
    renew: RedisScript,
    reject: RedisScript,
    mirror: RedisScript,
    prune: RedisScript,
    forget: RedisScript,
}

struct ReadPosition {
    group: ConsumerGroup,
    /// The last of its own messages that it read again; `None` once it has read all of them.
    own: Option<String>,
    /// Where the search for messages of dead consumers continues.
    cursor: String,
    /// When the search starts again.
    search_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConsumerGroup {
    /// It must be created if it is missing.
    Unknown,
    /// It exists.
    Known,
    /// It existed and is gone.
    Gone,
}

impl RedisStreamBuilder {
    /// A certificate authority in PEM to trust instead of the machine's, for `rediss://`.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// The maximum number of messages per read (500).
    pub fn at_once(mut self, messages: usize) -> Self {
        self.at_once = messages.max(1);
        self
    }

    /// How long a read waits for new messages (2 s).
    pub fn block(mut self, block: Duration) -> Self {
        self.block = block;
        self
    }

    /// How long a consumer may hold a message before others take it over (30 s).
    pub fn min_idle(mut self, idle: Duration) -> Self {
        self.min_idle = idle;
        self
    }

    /// How long a consumer without messages may be silent before its name is removed (1 h).
    pub fn prune_after(mut self, silence: Duration) -> Self {
        self.prune_after = silence;
        self
    }

    /// Checks the settings. Nothing is sent yet.
    ///
    /// # Errors
    /// The URL or a name is invalid.
    pub fn build(self) -> Result<RedisStream, Error> {
        for (what, name) in [("stream", &self.stream), ("group", &self.group)] {
            if name.is_empty() || name.chars().any(char::is_control) {
                let why = format!("the name of the {what} is empty or contains a control character");
                return Err(Error::new(ErrorKind::Setup, why));
            }
        }
        let client = |response: Duration| -> Result<RedisClient, Error> {
            let mut builder: RedisClientBuilder =
                RedisClient::builder(self.url.clone()).response_timeout(response).used_for("source");
            if let Some(pem) = &self.root_certificate {
                builder = builder.root_certificate(pem.clone());
            }
            builder.build()
        };
        let reader = client(self.block + Duration::from_secs(3))?;
        let client = client(Duration::from_secs(3))?;
        // On a cluster both must share a slot: the braces ensure that if the name has none.
        let dlq = match client.is_cluster() && !self.stream.contains('{') {
            true => format!("{{{}}}.dlq", self.stream),
            false => format!("{}.dlq", self.stream),
        };
        Ok(RedisStream {
            reader,
            client,
            consumer: format!("semel:{}:{:016x}", std::process::id(), rand::random::<u64>()),
            seen: format!("{dlq}.seen"),
            dlq,
            scripts: Scripts {
                renew: RedisScript::new(RENEW),
                reject: RedisScript::new(REJECT),
                mirror: RedisScript::new(MIRROR),
                prune: RedisScript::new(PRUNE),
                forget: RedisScript::new(FORGET),
            },
            place: ReadPosition {
                group: ConsumerGroup::Unknown,
                own: None,
                cursor: "0-0".to_owned(),
                search_at: Instant::now(),
            },
            settings: self,
        })
    }
}

impl RedisStream {
    /// Settings for a source. The URL has the form of the Redis store's.
    pub fn builder(
        url: impl Into<String>,
        stream: impl Into<String>,
        group: impl Into<String>,
    ) -> RedisStreamBuilder {
        RedisStreamBuilder {
            url: url.into(),
            root_certificate: None,
            stream: stream.into(),
            group: group.into(),
            at_once: 500,
            block: Duration::from_secs(2),
            min_idle: Duration::from_secs(30),
            prune_after: Duration::from_secs(3600),
        }
    }

    /// The name of this consumer at the server.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// The stream of dead letters.
    pub fn dead_letters(&self) -> &str {
        &self.dlq
    }

    /// Creates the group if it is missing. It begins with the oldest message: known messages are recognised by their
    /// deduplication key.
    async fn ensure_group(&mut self) -> Result<(), Error> {
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(&self.settings.stream).arg(&self.settings.group).arg("0").arg("MKSTREAM");
        match self.client.query(&create, Effect::Writes).await {
            Ok(_) => Ok(()),
            Err(error) if error.to_string().contains("BUSYGROUP") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// One step: its own messages, then those of dead consumers, then new ones.
    async fn step(&mut self) -> Result<MessageBatch, Error> {
        if self.place.group != ConsumerGroup::Known {
            let began_anew = self.place.group == ConsumerGroup::Gone;
            self.ensure_group().await?;
            self.place.group = ConsumerGroup::Known;
            self.place.own = Some("0".to_owned());
            if began_anew {
                return Ok(MessageBatch { began_anew, ..MessageBatch::default() });
            }
        }
        if let Some(after) = self.place.own.take() {
            let read = self.read(&after, None).await?;
            if let Some(last) = read.last() {
                self.place.own = Some(last.id.clone());
                return self.sort_out(read, MessageBatch::default()).await;
            }
        }
        if Instant::now() >= self.place.search_at {
            let batch = self.take_over().await?;
            if !batch.messages.is_empty() || !batch.lost.is_empty() {
                return Ok(batch);
            }
        }
        let read = self.read(">", Some(self.settings.block)).await?;
        self.sort_out(read, MessageBatch::default()).await
    }

    async fn read(&self, after: &str, block: Option<Duration>) -> Result<Vec<StreamEntry>, Error> {
        let settings = &self.settings;
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&settings.group).arg(&self.consumer).arg("COUNT").arg(settings.at_once);
        if let Some(block) = block {
            read.arg("BLOCK").arg(millis(block).max(1));
        }
        read.arg("STREAMS").arg(&settings.stream).arg(after);
        let client = if block.is_some() { &self.reader } else { &self.client };
        reply::streams(client.query(&read, Effect::Reads).await?)
    }

    /// Separates existing messages from those of which only the id is left. The latter are acknowledged: they cannot
    /// be read any more.
    async fn sort_out(&self, read: Vec<StreamEntry>, mut batch: MessageBatch) -> Result<MessageBatch, Error> {
        for StreamEntry { id, fields } in read {
            match fields {
                Some(fields) => batch.messages.push(Message { id, fields, given_out: 1 }),
                None => batch.lost.push(id),
            }
        }
        if !batch.lost.is_empty() {
            self.acknowledge(&batch.lost).await?;
        }
        Ok(batch)
    }

    /// Takes over the messages of consumers that have been silent for long.
    async fn take_over(&mut self) -> Result<MessageBatch, Error> {
        let mut batch = MessageBatch::default();
        let settings = &self.settings;
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(&settings.stream).arg(&settings.group).arg(&self.consumer).arg(millis(settings.min_idle));
        claim.arg(&self.place.cursor).arg("COUNT").arg(settings.at_once.min(200));
        let answer = self.client.query(&claim, Effect::Writes).await?;
        let Value::Array(parts) = answer else { return Err(reply::strange("XAUTOCLAIM")) };
        let mut parts = parts.into_iter();
        let cursor = text(parts.next().unwrap_or(Value::Nil))?;
        let claimed = entries(parts.next().unwrap_or(Value::Array(Vec::new())))?;
        // Since 7.0 the server names the deleted messages, and has already dropped them.
        if let Some(Value::Array(gone)) = parts.next() {
            for id in gone {
                batch.lost.push(text(id)?);
            }
        }
        let over = cursor == "0-0";
        self.place.cursor = cursor;
        if over {
            let pause = self.settings.min_idle.mul_f64(rand::rng().random_range(0.25..0.5));
            self.place.search_at = Instant::now() + pause;
            self.prune().await?;
        }
        let counts = self.given_out(&claimed).await?;
        batch.reclaimed = claimed.iter().filter(|entry| entry.fields.is_some()).count();
        let mut batch = self.sort_out(claimed, batch).await?;
        for message in &mut batch.messages {
            message.given_out = counts.get(&message.id).copied().unwrap_or(1);
        }
        Ok(batch)
    }

    /// How often messages were given out, by the server's own count.
    async fn given_out(&self, claimed: &[StreamEntry]) -> Result<HashMap<String, u32>, Error> {
        let (Some(first), Some(last)) = (claimed.first(), claimed.last()) else {
            return Ok(HashMap::new());
        };
        let mut ask = cmd("XPENDING");
        ask.arg(&self.settings.stream).arg(&self.settings.group).arg(&first.id).arg(&last.id);
        ask.arg(claimed.len()).arg(&self.consumer);
        pending(self.client.query(&ask, Effect::Reads).await?)
    }

    async fn acknowledge(&self, messages: &[String]) -> Result<(), Error> {
        let mut ack = cmd("XACK");
        ack.arg(&self.settings.stream).arg(&self.settings.group).arg(messages);
        self.client.query(&ack, Effect::Writes).await.map(drop)
    }

    async fn prune(&self) -> Result<(), Error> {
        let silence = millis(self.settings.prune_after).to_string();
        let arguments = [self.settings.group.as_bytes(), self.consumer.as_bytes(), silence.as_bytes()];
        let keys = [self.settings.stream.as_bytes()];
        let removed = self.client.call(&self.scripts.prune, &keys, &arguments, Effect::Writes).await?;
        if let Value::Int(removed @ 1..) = removed {
            tracing::info!(target: "semel", source = %self.settings.stream, removed, "removed inactive consumers");
        }
        Ok(())
    }

    /// Updates the position after an error.
    fn lost_place(&mut self, error: &Error) {
        if error.to_string().contains("NOGROUP") {
            self.place.group = ConsumerGroup::Gone;
        } else if self.place.own.is_none() {
            // Messages may have been given to this consumer in a lost answer.
            self.place.own = Some("0".to_owned());
        }
    }
}

impl Source for RedisStream {
    fn name(&self) -> &str {
        &self.settings.stream
    }

    fn next(&mut self) -> BoxFuture<'_, Result<MessageBatch, Error>> {
        Box::pin(async move {
            let stepped = self.step().await;
            if let Err(error) = &stepped {
                self.lost_place(error);
                if self.place.group == ConsumerGroup::Gone {
                    return Ok(MessageBatch::default());
                }
            }
            stepped
        })
    }

    fn renew(&mut self, messages: Vec<String>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            for some in messages.chunks(MOST_FIELDS) {
                let mut arguments = vec![self.settings.group.as_bytes(), self.consumer.as_bytes()];
                arguments.extend(some.iter().map(String::as_bytes));
                let keys = [self.settings.stream.as_bytes()];
                self.client.call(&self.scripts.renew, &keys, &arguments, Effect::Writes).await?;
            }
            Ok(())
        })
    }

    fn done(&mut self, messages: Vec<String>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let acknowledged = self.acknowledge(&messages).await;
            if let Err(error) = &acknowledged {
                self.lost_place(error);
            }
            acknowledged
        })
    }

    fn reject(&mut self, rejected: Vec<Rejected>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            for Rejected { message, letter, error } in &rejected {
                let letter = letter.to_string();
                let mut arguments = vec![self.settings.group.as_bytes(), message.id.as_bytes()];
                if message.fields.len() <= MOST_FIELDS {
                    arguments.extend(message.fields.iter().flat_map(|(name, value)| [&name[..], &value[..]]));
                }
                let about = [
                    ("semel_source_id", message.id.as_str()),
                    ("semel_letter", &letter),
                    ("semel_error", error),
                ];
                arguments.extend(about.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]));
                let keys = [self.settings.stream.as_bytes(), self.dlq.as_bytes()];
                let moved = self.client.call(&self.scripts.reject, &keys, &arguments, Effect::Writes).await;
                if let Err(error) = moved {
                    self.lost_place(&error);
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    fn mirror(&mut self, letters: Vec<Letter>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            for letter in &letters {
                let id = letter.id.to_string();
                let event = letter.event.map(|event| event.to_string()).unwrap_or_default();
                let message = letter.source.as_ref().map_or("", |source| source.message.as_str());
                let about: [(&str, &[u8]); 9] = [
                    ("semel_letter", id.as_bytes()),
                    ("semel_source_id", message.as_bytes()),
                    ("semel_event", event.as_bytes()),
                    ("semel_target", letter.target.as_deref().unwrap_or("").as_bytes()),
                    ("semel_cause", letter.cause.as_str().as_bytes()),
                    ("semel_error", letter.error.as_bytes()),
                    ("tenant", letter.tenant.as_bytes()),
                    ("type", letter.event_type.as_deref().unwrap_or("").as_bytes()),
                    ("payload", &letter.payload),
                ];
                let mut arguments = vec![id.as_bytes()];
                arguments.extend(about.iter().flat_map(|(name, value)| [name.as_bytes(), *value]));
                let keys = [self.dlq.as_bytes(), self.seen.as_bytes()];
                self.client.call(&self.scripts.mirror, &keys, &arguments, Effect::Writes).await?;
            }
            Ok(())
        })
    }

    fn forget(&mut self, _letters: Vec<LetterId>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let keys = [self.seen.as_bytes()];
            self.client.call(&self.scripts.forget, &keys, &[], Effect::Writes).await.map(drop)
        })
    }
}

impl fmt::Debug for RedisStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStream")
            .field("server", &self.client.name())
            .field("stream", &self.settings.stream)
            .field("group", &self.settings.group)
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// For the replies: bytes without a copy.
fn bytes(value: Vec<u8>) -> Bytes {
    Bytes::from(value)
}
