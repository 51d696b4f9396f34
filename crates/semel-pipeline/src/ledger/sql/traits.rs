//! The ledger traits that both ledgers implement in the same way, over shared code.

/// Implements the ledger traits over `call` and `wake` of a ledger. `call` takes a `Shape`, the arguments, and what to do with the
/// database; `wake` tells workers to look once an answer is there.
///
/// A macro, because the futures of the embedded ledger stay on the thread of its writer, and those of PostgreSQL do not: no
/// generic function can be both.
macro_rules! sql_ledger {
    ($ledger:ty) => {
        const _: () = {
            use semel::fingerprint::Fingerprint;
            use semel::key::KeyId;

            use crate::delivery::{Delivery, DeliveryHistory, DeliveryState};
            use crate::event::{Event, Generation, NewEvent};
            use crate::id::{DeliveryId, EventId, JobId, LetterId};
            use crate::ledger::sql::traits::methods;
            use crate::ledger::sql::{control, jobs, letters, plan, reading, release, runs};
            use crate::ledger::*;
            use crate::letter::{FailureGroups, Letter, LetterStory, NewLetter};
            use crate::replay::{JobItem, JobOrder, JobRecord, NewJob, Planned, ReplayMode, Selection};

            impl Ledger for $ledger {}

            impl Reading for $ledger {
                methods! {
                    Read: event(id: EventId) -> Option<Event> = reading::event[*id];
                    Read: events(filter: EventFilter, page: Page) -> Paged<Event> = reading::events[filter, page];
                    Read: delivery(id: DeliveryId) -> Option<DeliveryHistory> = reading::delivery[*id];
                    Read: deliveries(filter: DeliveryFilter, page: Page) -> Paged<Delivery>
                        = reading::deliveries[filter, page];
                    Read: delivery_states(events: Vec<EventId>) -> Vec<(EventId, DeliveryState, u64)>
                        = reading::delivery_states[events];
                    Read: deliveries_of(event: EventId) -> Vec<DeliveryHistory> = reading::deliveries_of[*event];
                    Read: find_events(request_id: Option<String>, dedupe: Option<KeyId>, tags: Vec<String>) -> Vec<EventId>
                        = reading::find_events[request_id.as_deref(), *dedupe, tags];
                    Read: totals() -> Totals = reading::totals[];
                }
            }

            impl TargetControl for $ledger {
                methods! {
                    Transaction: pause_target(target: String, line: AuditLine) -> TargetPause = control::pause[target, line];
                    Read: paused_targets() -> Vec<TargetPause> = control::paused[];
                }

                fn resume_target(&self, target: String, line: AuditLine) -> Answer<'_, Option<TargetPause>> {
                    self.wake(self.call(Shape::Transaction, (target, line), |db, (target, line)| {
                        Box::pin(control::resume(db, target, line))
                    }))
                }

                fn retry_now(&self, deliveries: Vec<DeliveryId>) -> Answer<'_, u64> {
                    self.wake(self.call(Shape::Transaction, (deliveries,), |db, (deliveries,)| {
                        Box::pin(control::retry_now(db, deliveries))
                    }))
                }
            }

            impl AuditLog for $ledger {
                methods! {
                    Statement: audit(line: AuditLine) -> () = reading::audit[line];
                    Read: audit_log(subject: Option<String>, page: Page) -> Paged<Audited>
                        = reading::audit_log[subject.as_deref(), page];
                }
            }

            impl Letters for $ledger {
                methods! {
                    Transaction: put(letters: Vec<NewLetter>) -> Vec<LetterId> = letters::put[letters];
                    Read: letter(id: LetterId) -> Option<LetterStory> = letters::story[*id];
                    Read: letters(filter: LetterFilter, page: Page) -> Paged<Letter> = letters::letters[filter, page];
                    Read: groups(filter: LetterFilter) -> FailureGroups = letters::groups[filter];
                    Transaction: discard(id: LetterId, line: AuditLine) -> () = letters::discard[*id, line];
                    Transaction: restore(id: LetterId, line: AuditLine) -> () = letters::restore[*id, line];
                    Transaction: edit(id: LetterId, copy: NewEvent, line: AuditLine) -> LetterId
                        = letters::edit[*id, copy, line];
                    Read: unmirrored(stream: String, limit: u32) -> Vec<Letter> = letters::unmirrored[stream, *limit];
                    Statement: mirrored(letters: Vec<LetterId>) -> () = letters::mirrored[letters];
                }
            }

            impl Replays for $ledger {
                methods! {
                    Read: plan(selection: Selection, mode: ReplayMode, targets: Vec<String>) -> Vec<Planned>
                        = plan::plan[selection, *mode, targets];
                    Transaction: create(job: NewJob, targets: Vec<String>) -> JobRecord = jobs::create[job, targets];
                    Read: job(id: JobId) -> Option<JobRecord> = jobs::find[*id];
                    Read: jobs(page: Page) -> Paged<JobRecord> = jobs::jobs[page];
                    Read: items(job: JobId, page: Page) -> Paged<JobItem> = jobs::items[*job, page];
                    Read: unfinished_targets(job: JobId) -> Vec<String> = jobs::unfinished_targets[*job];
                    Read: running() -> Vec<JobId> = jobs::running[];
                    Transaction: order(job: JobId, order: JobOrder, note: String, line: AuditLine) -> JobRecord
                        = jobs::order[*job, *order, note, line];
                }

                fn release(&self, job: JobId, limit: u32) -> Answer<'_, JobRecord> {
                    self.wake(self.call(Shape::Transaction, (job, limit), |db, (job, limit)| {
                        Box::pin(release::release(db, *job, None, *limit))
                    }))
                }

                fn release_after(&self, job: JobId, started: u64, limit: u32) -> Answer<'_, JobRecord> {
                    self.wake(self.call(Shape::Transaction, (job, started, limit), |db, (job, started, limit)| {
                        Box::pin(release::release(db, *job, Some(*started), *limit))
                    }))
                }
            }

            impl Runs for $ledger {
                methods! {
                    Read: resolve(ghost: EventId) -> Option<EventId> = runs::resolve[*ghost];
                    TransactionOnce: reset(dedupe: KeyId, line: AuditLine) -> Reset = runs::reset[*dedupe, line];
                    Transaction: advance(dedupe: KeyId, from: Generation) -> Generation = runs::advance[*dedupe, *from];
                    Read: find_keyless(dedupe: KeyId, generation: Generation, fingerprint: Fingerprint) -> Option<EventId>
                        = runs::find_keyless[*dedupe, *generation, *fingerprint];
                }

                fn change(&self, id: EventId, change: Change, version: Option<u64>) -> Answer<'_, Event> {
                    // An increment counts every time: where its commit has an unknown end, the caller decides.
                    let is_repeatable = change.increment.is_empty();
                    let shape = if is_repeatable { Shape::Transaction } else { Shape::TransactionOnce };
                    let reschedules = change.delay.is_some();
                    let changed = self.call(shape, (id, change, version), |db, (id, change, version)| {
                        Box::pin(runs::change(db, *id, change, *version))
                    });
                    if reschedules { self.wake(changed) } else { changed }
                }

                fn cancel(&self, id: EventId, line: AuditLine) -> Answer<'_, u32> {
                    self.wake(self.call(Shape::Transaction, (id, line), |db, (id, line)| {
                        Box::pin(runs::cancel(db, *id, line))
                    }))
                }
            }
        };
    };
}

/// Methods of a ledger that call a function of shared code with their arguments: `shape: method(arguments) -> answer =
/// function[arguments]`.
macro_rules! methods {
    ($($shape:ident: $name:ident($($argument:ident: $type:ty),*) -> $answer:ty = $function:path [$($given:expr),*];)*) => {$(
        fn $name(&self, $($argument: $type),*) -> Answer<'_, $answer> {
            self.call(Shape::$shape, ($($argument,)*), |db, ($($argument,)*)| Box::pin($function(db, $($given),*)))
        }
    )*};
}

pub(crate) use {methods, sql_ledger};
