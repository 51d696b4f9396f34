//! Applies the rules to the records that were read: all commands of a batch on one key, in order.

use super::columns::Swap;
use super::queue::Item;
use super::row::{RowAnswer, Stored};
use super::shared::StoreShared;
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Record, Ruling};
use crate::store::{Error, ErrorKind};
use crate::time::Timestamp;

/// The commands of a batch on one key, in the order of their arrival.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: KeyId,
    pub(super) items: Vec<Item>,
    /// The ruling of each command, valid once the change is written.
    pub(super) rulings: Vec<Ruling>,
    pub(super) swap: Option<Swap>,
}

/// The known state of a key.
#[derive(Debug)]
pub(super) enum KeyRuling {
    Nothing,
    Stored(Stored),
    /// The first command of the group, a claim, was inserted as the first of its key.
    Inserted {
        fence: Fence,
        floor: Fence,
        now: Timestamp,
        version: i64,
    },
}

impl RowAnswer {
    /// The state of a key after this answer; `version` is the version that its insert wrote.
    pub(super) fn judged(self, version: i64) -> KeyRuling {
        match self {
            Self::Stored(stored) => KeyRuling::Stored(stored),
            Self::Inserted { fence, floor, now } => KeyRuling::Inserted { fence, floor, now, version },
        }
    }
}

/// The result for a group.
#[derive(Debug)]
pub(super) enum Judgement {
    /// All commands have an answer, except claims of a missing key: they must be inserted.
    Answered(Vec<Item>),
    /// The rules change the record, which must be written first.
    Swap(Box<Group>),
}

/// A record as it was read, and the version to swap.
struct Base {
    record: Option<Record>,
    version: i64,
    watched: bool,
    now: Timestamp,
}

impl Group {
    pub(super) fn split(batch: Vec<Item>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::with_capacity(batch.len());
        for item in batch {
            match groups.last_mut() {
                Some(group) if group.id == item.id => group.items.push(item),
                _ => groups.push(Self { id: item.id, items: vec![item], rulings: Vec::new(), swap: None }),
            }
        }
        groups
    }

    /// Applies the rules to every command. Answers all of them, or none if the record changes.
    pub(super) fn judge(mut self, judged: KeyRuling, shared: &StoreShared) -> Judgement {
        let mut fresh = Vec::new();
        if let (KeyRuling::Nothing, Some(first)) =
            (&judged, self.items.iter().position(|item| matches!(item.command, Command::Claim(_))))
        {
            fresh = self.items.split_off(first);
        }
        let base = match judged {
            KeyRuling::Nothing => {
                Base { record: None, version: 0, watched: false, now: Timestamp::default() }
            }
            KeyRuling::Stored(stored) => Base {
                record: Some(stored.record),
                version: stored.version,
                watched: stored.watched,
                now: stored.now,
            },
            KeyRuling::Inserted { fence, floor, now, version } => {
                let record = self.inserted(fence, floor, now);
                Base { record: Some(record), version, watched: false, now }
            }
        };
        match self.apply(&base, shared) {
            Judgement::Answered(_) => Judgement::Answered(fresh),
            swap @ Judgement::Swap(_) => swap,
        }
    }

    /// Answers the inserted claim, and returns its record.
    fn inserted(&mut self, fence: Fence, floor: Fence, now: Timestamp) -> Record {
        let mut first = self.items.remove(0);
        let mut record = None;
        // The server took the maximum of floor and clock; so do the rules from just below it.
        let below = Fence::new(fence.get().saturating_sub(1));
        let ruling = record::apply(&mut record, &first.command, now, below);
        let record = record.expect("a claim of an unknown key is granted");
        if fence > floor {
            first.answer(Ok(ruling));
        } else {
            // A sweep removed the key and raised the floor during the insert. No caller knows this fence yet, and
            // none may.
            first.above = Some(floor);
            self.items.insert(0, first);
        }
        record
    }

    fn apply(mut self, base: &Base, shared: &StoreShared) -> Judgement {
        let mut record = base.record.clone();
        let (mut changed, mut wake, mut invalidate) = (false, false, false);
        let mut items = Vec::with_capacity(self.items.len());
        for mut item in std::mem::take(&mut self.items) {
            if let Some(attempt) = item.attempt.take() {
                if base.version == attempt.version {
                    // It was this process: the write with the unknown result has happened.
                    shared.answer_known_write(item, attempt.ruling);
                    continue;
                }
                if base.version != attempt.seen && !repeatable(&item.command) {
                    item.answer(Err(Error::new(
                        ErrorKind::Ambiguous,
                        "the connection broke while the record was written, and another process changed it since; whether the command was executed is unknown",
                    )));
                    continue;
                }
            }
            if let (Some(above), Some(record), Command::Claim(claim)) =
                (item.above, &mut record, &item.command)
                && record.owner == claim.owner
                && record.fence <= above
            {
                record.fence = Fence::new(above.get().saturating_add(1));
                changed = true;
            }
            let before = record.clone();
            let ruling = record::apply(&mut record, &item.command, base.now, Fence::default());
            match &ruling {
                Ruling::Won(_) | Ruling::Accepted { .. } => changed |= record != before,
                Ruling::Busy { .. } if !base.watched => shared.arm(item.id),
                _ => {}
            }
            if let Ruling::Accepted { .. } = ruling {
                wake |= StoreShared::wakes_waiters(&item.command);
                invalidate |= matches!(item.command, Command::Forget(_) | Command::Reexecute);
            }
            self.rulings.push(ruling);
            items.push(item);
        }
        self.items = items;
        match record {
            Some(record) if changed => {
                self.swap = Some(Swap {
                    id: self.id,
                    seen: base.version,
                    judged_until: base.record.as_ref().map_or(FOR_EVER, |record| next_edge(record, base.now)),
                    version: rand::random(),
                    record,
                    wake,
                    invalidate,
                });
                Judgement::Swap(Box::new(self))
            }
            _ => {
                for (item, ruling) in self.items.into_iter().zip(self.rulings) {
                    shared.announce(item.id, &item.command, &ruling);
                    item.answer(Ok(ruling));
                }
                Judgement::Answered(Vec::new())
            }
        }
    }
}

const FOR_EVER: Timestamp = Timestamp::from_micros(i64::MAX as u64);

/// When time alone next changes the phase of the record: a judgement is invalid after that.
pub(super) fn next_edge(record: &Record, now: Timestamp) -> Timestamp {
    [record.lease_until, record.expires_at, record.forget_at]
        .into_iter()
        .filter(|edge| *edge > now)
        .min()
        .unwrap_or(FOR_EVER)
}

/// True if the rules recognise a repetition of this command.
fn repeatable(command: &Command) -> bool {
    matches!(command, Command::Claim(_) | Command::Begin(_) | Command::Renew(_) | Command::Complete { .. })
}
