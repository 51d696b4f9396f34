//! Buffers concurrent runs of one process in batches: one script call for each tenant, and one more if the tenant is
//! not on the list of those with buffered runs.

use std::collections::HashMap;
use std::sync::Arc;

use semel::store::redis_driver::{Value, cmd};
use semel::store::{Effect, Error, ErrorKind};
use semel_pipeline::event::{Accepted, NewEvent};
use semel_pipeline::id::EventId;
use tokio::task::JoinSet;

use super::{Buffer, PutOutcome, ReadTime, answer, format, key_name, millis};

/// The most runs in one script call: this number blocks the server for about 0.6 ms.
pub(super) const BATCH: usize = 64;

/// How often a tenant is announced for one put. Once is enough, unless a drainer empties its queue at the same time.
const ANNOUNCEMENTS: usize = 5;

/// For how many tenants a process remembers the time.
const MAX_READ_TIMES: usize = 1024;

/// A run that waits for a batch.
#[derive(Debug)]
pub(super) struct PendingPut {
    tenant: String,
    id: EventId,
    /// The script's arguments: id, run, key and generation, fingerprint, the key's lifetime, and when the ledger was
    /// read.
    arguments: [Vec<u8>; 6],
}

impl PendingPut {
    pub(super) fn of(run: &NewEvent, read: ReadTime) -> Self {
        let (key, print, lifetime) = match &run.dedupe {
            Some(dedupe) => (
                key_name(dedupe.id, dedupe.generation.unwrap_or_default()),
                format::hex(dedupe.fingerprint.as_bytes()),
                dedupe.lifetime.map_or_else(|| "-1".to_owned(), |lifetime| millis(lifetime).to_string()),
            ),
            None => (String::new(), String::new(), "-1".to_owned()),
        };
        let (id, read) = (run.id.to_string(), read.0.to_string());
        let arguments =
            [id.into(), format::encode_run(run), key.into(), print.into(), lifetime.into(), read.into()];
        Self { tenant: run.tenant.clone(), id: run.id, arguments }
    }
}

impl Buffer {
    /// A time on the clock of Redis that is in the past, for a [`put`](Self::put) of this tenant. Take it before you
    /// read the ledger.
    pub fn read_time(&self, tenant: &str) -> ReadTime {
        self.read_times.lock().get(tenant).copied().unwrap_or_default()
    }

    fn note_read_time(&self, tenant: &str, now: ReadTime) {
        let mut times = self.read_times.lock();
        if let Some(known) = times.get_mut(tenant) {
            *known = now;
            return;
        }
        // A tenant without a time needs one more call.
        if times.len() >= MAX_READ_TIMES {
            times.clear();
        }
        times.insert(tenant.to_owned(), now);
    }

    /// Buffers a run, in a batch with concurrent runs of this process. Refused if its key is already taken, with or
    /// without the same payload, or if what the ledger knew of the key at the time `read` may have changed since.
    ///
    /// A put whose answer was lost can be repeated: the run is accepted as the first one again.
    ///
    /// # Errors
    /// Redis does not answer, or is full.
    pub async fn put(self: &Arc<Self>, run: &NewEvent, read: ReadTime) -> Result<PutOutcome, Error> {
        let buffer = Arc::clone(self);
        let carry = move |runs| {
            let buffer = Arc::clone(&buffer);
            async move { put_batch(&buffer, runs).await }
        };
        self.puts.ask(PendingPut::of(run, read), carry).await.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Ambiguous, "the buffer's runtime ended before it answered"))
        })
    }

    /// Adds a tenant to the list of those with buffered runs.
    async fn announce(&self, tenant: &str) -> Result<(), Error> {
        self.call_on_list(&self.scripts.announce, &[tenant.as_bytes()], Effect::WritesDurably).await.map(drop)
    }

    /// Records the tenants of runs.
    async fn record_tenants(&self, runs: &[(String, EventId)]) -> Result<(), Error> {
        let ids: Vec<String> = runs.iter().map(|(_, run)| run.to_string()).collect();
        let pairs: Vec<&[u8]> =
            ids.iter().zip(runs).flat_map(|(id, (tenant, _))| [id.as_bytes(), tenant.as_bytes()]).collect();
        let key = self.tenants_key();
        let record = &self.scripts.record;
        self.client.call(record, &[key.as_bytes()], &pairs, Effect::WritesDurably).await.map(drop)
    }

    /// Removes the records of the tenants of runs that left the buffer.
    pub(super) async fn forget_tenants(&self, runs: &[EventId]) -> Result<(), Error> {
        let mut forget = cmd("HDEL");
        forget.arg(self.tenants_key());
        for run in runs {
            forget.arg(run.to_string());
        }
        self.client.query(&forget, Effect::Writes).await.map(drop)
    }
}

async fn put_batch(buffer: &Arc<Buffer>, runs: Vec<PendingPut>) -> Vec<Result<PutOutcome, Error>> {
    let whose: Vec<(String, EventId)> = runs.iter().map(|run| (run.tenant.clone(), run.id)).collect();
    // On one connection this is written before a run can be drained, so that its drainer finds the entry to remove.
    let (noted, mut answers) = tokio::join!(buffer.record_tenants(&whose), put_by_tenant(buffer, runs));
    let is_new =
        |answer: &Result<PutOutcome, Error>| matches!(answer, Ok(PutOutcome::Accepted(Accepted::First(_))));
    let refused: Vec<EventId> = answers
        .iter()
        .zip(&whose)
        .filter(|(answer, _)| answer.is_ok() && !is_new(answer))
        .map(|(_, (_, id))| *id)
        .collect();
    if let Err(error) = noted {
        for answer in answers.iter_mut().filter(|answer| is_new(answer)) {
            *answer = Err(clone_error(&error));
        }
    }
    if !refused.is_empty()
        && let Err(error) = buffer.forget_tenants(&refused).await
    {
        tracing::debug!(target: "semel", %error, "the tenants of refused runs could not be removed");
    }
    answers
}

async fn put_by_tenant(buffer: &Arc<Buffer>, runs: Vec<PendingPut>) -> Vec<Result<PutOutcome, Error>> {
    let mut answers: Vec<Option<Result<PutOutcome, Error>>> = runs.iter().map(|_| None).collect();
    let mut tenants: HashMap<String, Vec<(usize, PendingPut)>> = HashMap::new();
    for (place, run) in runs.into_iter().enumerate() {
        tenants.entry(run.tenant.clone()).or_default().push((place, run));
    }
    let mut calls = JoinSet::new();
    for (tenant, runs) in tenants {
        let buffer = Arc::clone(buffer);
        calls.spawn(async move {
            let put = put_for_tenant(&buffer, &tenant, &runs).await;
            (runs.into_iter().map(|(place, _)| place).collect::<Vec<_>>(), put)
        });
    }
    while let Some(Ok((places, put))) = calls.join_next().await {
        match put {
            Ok(put) => {
                for (place, put) in places.into_iter().zip(put) {
                    answers[place] = Some(Ok(put));
                }
            }
            Err(error) => {
                for place in places {
                    answers[place] = Some(Err(clone_error(&error)));
                }
            }
        }
    }
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(answer::unexpected_answer()))).collect()
}

async fn put_for_tenant(
    buffer: &Buffer,
    tenant: &str,
    runs: &[(usize, PendingPut)],
) -> Result<Vec<PutOutcome>, Error> {
    let capacity = buffer.capacity.to_string();
    let (mut token, mut answer) = (Vec::new(), Value::Nil);
    for _ in 0..ANNOUNCEMENTS {
        let mut arguments: Vec<&[u8]> = vec![capacity.as_bytes(), &token];
        arguments.extend(runs.iter().flat_map(|(_, run)| run.arguments.iter().map(Vec::as_slice)));
        answer = buffer.call(&buffer.scripts.put, tenant, &arguments, Effect::WritesDurably).await?;
        let Value::BulkString(refusal) = answer else { break };
        buffer.announce(tenant).await?;
        (token, answer) = (refusal, Value::Nil);
    }
    if answer == Value::Nil {
        let why = "the tenant left the list of the buffer as often as it was announced; nothing was buffered";
        return Err(Error::new(ErrorKind::Unavailable, why));
    }
    let Value::Array(words) = answer else { return Err(answer::unexpected_answer()) };
    let Some((now, words)) = words.split_first().filter(|(_, words)| words.len() == runs.len()) else {
        return Err(answer::unexpected_answer());
    };
    buffer.note_read_time(tenant, ReadTime(answer::read_int(now)));
    let read = |(word, (_, run)): (&Value, &(usize, PendingPut))| {
        if *word == Value::Int(1) {
            return Ok(PutOutcome::Accepted(Accepted::First(run.id)));
        }
        let (word, id) = answer::read_word(word)?;
        match (word.as_str(), id.parse()) {
            ("cached", Ok(id)) => Ok(PutOutcome::Accepted(Accepted::Cached(id))),
            ("conflict", _) => Ok(PutOutcome::Accepted(Accepted::Conflict)),
            ("full", _) => Ok(PutOutcome::Full),
            ("expired", _) => Ok(PutOutcome::Expired),
            ("late", _) => Ok(PutOutcome::Late),
            ("reserved", _) => Ok(PutOutcome::Reserved),
            _ => Err(answer::unexpected_answer()),
        }
    };
    words.iter().zip(runs).map(read).collect()
}

/// The same error for another caller.
fn clone_error(error: &Error) -> Error {
    error.copy()
}
