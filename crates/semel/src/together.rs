//! Combines concurrent calls of one process into batches, with one round trip for each batch. There is no timer: a
//! single call is sent immediately, and while one batch is in progress the next one fills. A full batch does not wait
//! for batches in progress.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::sync::Mutex;

/// The maximum number of batches in progress. Further batches would only wait in the server instead of here.
const AT_ONCE: usize = 3;

/// Calls that wait for a batch, each with the channel for its answer.
#[derive(Debug)]
pub struct Together<Q, A> {
    waiting: Mutex<Waiting<Q, A>>,
    /// Maximum size of a batch.
    most: usize,
}

#[derive(Debug)]
struct Waiting<Q, A> {
    calls: Vec<(Q, oneshot::Sender<A>)>,
    /// Number of batches in progress.
    carriers: usize,
}

impl<Q: Send + 'static, A: Send + 'static> Together<Q, A> {
    /// A batcher with at most `most` calls in a batch.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::new(Waiting { calls: Vec::new(), carriers: 0 }), most })
    }

    /// Sends a question in a batch with other waiting calls. `carry` answers each question, in order. A caller that
    /// is dropped does not affect the others. `None` if the runtime or `carry` ends before there is an answer.
    pub async fn ask<C, F>(self: &Arc<Self>, question: Q, carry: C) -> Option<A>
    where
        C: Fn(Vec<Q>) -> F + Send + 'static,
        F: Future<Output = Vec<A>> + Send,
    {
        let (answer, answered) = oneshot::channel();
        let carries = {
            let mut waiting = self.waiting.lock();
            waiting.calls.push((question, answer));
            let full = waiting.calls.len() >= self.most && waiting.carriers < AT_ONCE;
            let carries = waiting.carriers == 0 || full;
            waiting.carriers += usize::from(carries);
            carries
        };
        if carries {
            let mut carrier = Carrier { of: Arc::clone(self), over: false };
            // A separate task, so that a dropped caller does not leave the others waiting.
            tokio::spawn(async move {
                while let Some((questions, askers)) = carrier.next() {
                    let answers = carry(questions).await;
                    for (asker, answer) in askers.into_iter().zip(answers) {
                        // The caller may have been dropped.
                        let _ = asker.send(answer);
                    }
                }
            });
        }
        answered.await.ok()
    }
}

/// Sends batches. If it ends early, no caller waits for it.
struct Carrier<Q, A> {
    of: Arc<Together<Q, A>>,
    over: bool,
}

impl<Q, A> Carrier<Q, A> {
    fn next(&mut self) -> Option<(Vec<Q>, Vec<oneshot::Sender<A>>)> {
        let mut waiting = self.of.waiting.lock();
        let count = waiting.calls.len().min(self.of.most);
        if count == 0 {
            waiting.carriers -= 1;
            self.over = true;
            return None;
        }
        Some(waiting.calls.drain(..count).unzip())
    }
}

impl<Q, A> Drop for Carrier<Q, A> {
    fn drop(&mut self) {
        if !self.over {
            let mut waiting = self.of.waiting.lock();
            waiting.carriers -= 1;
            // Batches in progress take over the waiting calls. Without one, nobody would.
            if waiting.carriers == 0 {
                waiting.calls.clear();
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
    async fn what_waits_goes_together_and_each_gets_its_own_answer() {
        let (together, gate) = (Together::<u32, u32>::new(100), Arc::new(Semaphore::new(0)));
        let trips = Arc::new(AtomicUsize::new(0));
        let asked: Vec<_> = (0..50)
            .map(|number| {
                let (together, gate, trips) = (Arc::clone(&together), Arc::clone(&gate), Arc::clone(&trips));
                tokio::spawn(async move {
                    let carry = move |questions: Vec<u32>| {
                        let (gate, trips) = (Arc::clone(&gate), Arc::clone(&trips));
                        async move {
                            trips.fetch_add(1, Ordering::SeqCst);
                            gate.acquire().await.expect("it stays open").forget();
                            questions.into_iter().map(|question| question * 2).collect()
                        }
                    };
                    together.ask(number, carry).await
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
        let together = Together::<u32, usize>::new(2);
        let asked: Vec<_> = (0..5)
            .map(|number| {
                let together = Arc::clone(&together);
                tokio::spawn(async move {
                    let carry = |questions: Vec<u32>| async move { vec![questions.len(); questions.len()] };
                    together.ask(number, carry).await
                })
            })
            .collect();
        for asked in asked {
            assert!(asked.await.expect("it ends").is_some_and(|together| together <= 2));
        }
    }

    #[tokio::test]
    async fn a_full_batch_does_not_wait_for_the_one_under_way() {
        let (together, gate) = (Together::<u32, u32>::new(2), Arc::new(Semaphore::new(0)));
        let under_way = Arc::new(AtomicUsize::new(0));
        let asked: Vec<_> = (0..20)
            .map(|number| {
                let (together, gate) = (Arc::clone(&together), Arc::clone(&gate));
                let under_way = Arc::clone(&under_way);
                tokio::spawn(async move {
                    let carry = move |questions: Vec<u32>| {
                        let (gate, under_way) = (Arc::clone(&gate), Arc::clone(&under_way));
                        async move {
                            let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
                            assert!(now <= AT_ONCE, "{now} are in progress");
                            gate.acquire().await.expect("it stays open").forget();
                            under_way.fetch_sub(1, Ordering::SeqCst);
                            questions
                        }
                    };
                    together.ask(number, carry).await
                })
            })
            .collect();
        while under_way.load(Ordering::SeqCst) < AT_ONCE {
            tokio::task::yield_now().await;
        }
        gate.add_permits(20);
        for (number, asked) in (0..20).zip(asked) {
            assert_eq!(asked.await.expect("it ends"), Some(number));
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_carrier_that_is_gone() {
        let together = Together::<bool, ()>::new(10);
        let carry = |questions: Vec<bool>| async move {
            assert!(!questions[0], "as asked for");
            vec![(); questions.len()]
        };
        assert_eq!(together.ask(true, carry).await, None, "it panicked");
        assert_eq!(together.ask(false, carry).await, Some(()), "and the next one has a carrier of its own");
    }
}
