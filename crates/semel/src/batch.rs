//! Batches concurrent calls of one process. There is no timer: a single call is sent immediately, and while one batch is
//! in progress the next one fills.
//!
//! A `Batcher` starts a task while calls wait, because it belongs to no runtime of its own. A `BatchQueue` has one
//! consumer that lives as long as its store: a thread, or a task with its own connection.

#[cfg(any(feature = "embedded", feature = "postgres"))]
mod queue;

use std::sync::Arc;

use tokio::sync::oneshot;

#[cfg(feature = "embedded")]
pub(crate) use self::queue::BatchWait;
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub(crate) use self::queue::{BatchQueue, QueueRefusal};
use crate::sync::Mutex;

/// The maximum number of batches in progress. Further batches would only wait in the server instead of here.
const CONCURRENT: usize = 3;

/// The size of a call or of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSize {
    /// Number of items.
    pub items: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// Calls that wait for a batch, each with the channel for its answer.
#[derive(Debug)]
pub struct Batcher<Q, A> {
    state: Mutex<BatcherState<Q, A>>,
    /// Maximum size of a batch, unless a single call is larger.
    most: BatchSize,
    measure: fn(&Q) -> BatchSize,
    /// The maximum number of batches in progress. A full batch does not wait for them, up to this number.
    concurrent: usize,
}

#[derive(Debug)]
struct BatcherState<Q, A> {
    calls: Vec<(Q, oneshot::Sender<A>)>,
    /// Number of batches in progress.
    tasks: usize,
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// A batcher with at most `most` calls in a batch.
    pub fn new(most: usize) -> Arc<Self> {
        let most = BatchSize { items: most, bytes: usize::MAX };
        Self::with_limits(CONCURRENT, most, |_| BatchSize { items: 1, bytes: 0 })
    }

    /// A batcher for calls of different sizes.
    pub fn with_limits(concurrent: usize, most: BatchSize, measure: fn(&Q) -> BatchSize) -> Arc<Self> {
        let state = Mutex::new(BatcherState { calls: Vec::new(), tasks: 0 });
        Arc::new(Self { state, most, measure, concurrent })
    }

    /// Sends a question in a batch with other waiting calls. `send` answers each question, in order. A caller that
    /// is dropped does not affect the others. `None` if the runtime or `send` ends before there is an answer.
    pub async fn ask<S, F>(self: &Arc<Self>, question: Q, send: S) -> Option<A>
    where
        S: Fn(Vec<Q>) -> F + Send + 'static,
        F: Future<Output = Vec<A>> + Send,
    {
        let send_all = move |questions, callers: Vec<oneshot::Sender<A>>| {
            let answers = send(questions);
            async move {
                for (caller, answer) in callers.into_iter().zip(answers.await) {
                    // The caller may have been dropped.
                    let _ = caller.send(answer);
                }
            }
        };
        self.ask_each(question, send_all).await
    }

    /// As [`ask`](Self::ask), but `send` answers each caller itself, as soon as it can.
    pub async fn ask_each<S, F>(self: &Arc<Self>, question: Q, send: S) -> Option<A>
    where
        S: Fn(Vec<Q>, Vec<oneshot::Sender<A>>) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let (answer, answered) = oneshot::channel();
        let starts = {
            let mut state = self.state.lock();
            state.calls.push((question, answer));
            let full = state.calls.len() >= self.most.items && state.tasks < self.concurrent;
            let starts = state.tasks == 0 || full;
            state.tasks += usize::from(starts);
            starts
        };
        if starts {
            let mut task = BatchTask { of: Arc::clone(self), ended: false };
            // A separate task, so that a dropped caller does not leave the others waiting.
            tokio::spawn(async move {
                while let Some((questions, callers)) = task.next() {
                    send(questions, callers).await;
                }
            });
        }
        answered.await.ok()
    }
}

/// Sends batches. If it ends early, no caller waits for it.
struct BatchTask<Q, A> {
    of: Arc<Batcher<Q, A>>,
    ended: bool,
}

impl<Q, A> BatchTask<Q, A> {
    fn next(&mut self) -> Option<(Vec<Q>, Vec<oneshot::Sender<A>>)> {
        let Batcher { state, most, measure, .. } = &*self.of;
        let mut state = state.lock();
        let mut size = BatchSize::default();
        let fitting = state.calls.iter().take_while(|(question, _)| {
            let call = measure(question);
            size = BatchSize { items: size.items + call.items, bytes: size.bytes + call.bytes };
            size.items <= most.items && size.bytes <= most.bytes
        });
        // A single call is sent whatever its size.
        let count = fitting.count().max(1).min(state.calls.len());
        if count == 0 {
            state.tasks -= 1;
            self.ended = true;
            return None;
        }
        Some(state.calls.drain(..count).unzip())
    }
}

impl<Q, A> Drop for BatchTask<Q, A> {
    fn drop(&mut self) {
        if !self.ended {
            let mut state = self.of.state.lock();
            state.tasks -= 1;
            // Batches in progress take over the waiting calls. Without one, no task would.
            if state.tasks == 0 {
                state.calls.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn waiting_calls_share_a_batch_and_each_gets_its_own_answer() {
        let (batcher, gate) = (Batcher::<u32, u32>::new(100), Arc::new(Semaphore::new(0)));
        let trips = Arc::new(AtomicUsize::new(0));
        let asked: Vec<_> = (0..50)
            .map(|number| {
                let (batcher, gate, trips) = (Arc::clone(&batcher), Arc::clone(&gate), Arc::clone(&trips));
                tokio::spawn(async move {
                    let carry = move |questions: Vec<u32>| {
                        let (gate, trips) = (Arc::clone(&gate), Arc::clone(&trips));
                        async move {
                            trips.fetch_add(1, Ordering::SeqCst);
                            gate.acquire().await.expect("it stays open").forget();
                            questions.into_iter().map(|question| question * 2).collect()
                        }
                    };
                    batcher.ask(number, carry).await
                })
            })
            .collect();
        gate.add_permits(50);
        for (number, asked) in (0..50).zip(asked) {
            assert_eq!(asked.await.expect("it ends"), Some(number * 2));
        }
        assert!(trips.load(Ordering::SeqCst) <= 2, "one for the first, one for all others");
    }

    #[tokio::test]
    async fn a_batch_has_a_bound() {
        let batcher = Batcher::<u32, usize>::new(2);
        let asked: Vec<_> = (0..5)
            .map(|number| {
                let batcher = Arc::clone(&batcher);
                tokio::spawn(async move {
                    let carry = |questions: Vec<u32>| async move { vec![questions.len(); questions.len()] };
                    batcher.ask(number, carry).await
                })
            })
            .collect();
        for asked in asked {
            assert!(asked.await.expect("it ends").is_some_and(|size| size <= 2));
        }
    }

    #[tokio::test]
    async fn a_full_batch_does_not_wait_for_the_one_in_progress() {
        let (batcher, gate) = (Batcher::<u32, u32>::new(2), Arc::new(Semaphore::new(0)));
        let in_progress = Arc::new(AtomicUsize::new(0));
        let asked: Vec<_> = (0..20)
            .map(|number| {
                let (batcher, gate) = (Arc::clone(&batcher), Arc::clone(&gate));
                let in_progress = Arc::clone(&in_progress);
                tokio::spawn(async move {
                    let carry = move |questions: Vec<u32>| {
                        let (gate, in_progress) = (Arc::clone(&gate), Arc::clone(&in_progress));
                        async move {
                            let now = in_progress.fetch_add(1, Ordering::SeqCst) + 1;
                            assert!(now <= CONCURRENT, "{now} are in progress");
                            gate.acquire().await.expect("it stays open").forget();
                            in_progress.fetch_sub(1, Ordering::SeqCst);
                            questions
                        }
                    };
                    batcher.ask(number, carry).await
                })
            })
            .collect();
        while in_progress.load(Ordering::SeqCst) < CONCURRENT {
            tokio::task::yield_now().await;
        }
        gate.add_permits(20);
        for (number, asked) in (0..20).zip(asked) {
            assert_eq!(asked.await.expect("it ends"), Some(number));
        }
    }

    #[tokio::test]
    async fn no_caller_waits_for_a_task_that_is_gone() {
        let batcher = Batcher::<bool, ()>::new(10);
        let carry = |questions: Vec<bool>| async move {
            assert!(!questions[0], "as asked for");
            vec![(); questions.len()]
        };
        assert_eq!(batcher.ask(true, carry).await, None, "it panicked");
        assert_eq!(batcher.ask(false, carry).await, Some(()), "and the next one has a task of its own");
    }
}
