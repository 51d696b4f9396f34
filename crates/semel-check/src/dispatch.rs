//! Concurrent calls: all connections are opened first, and all requests are written before the first answer is read.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::answer::{IN_FLIGHT, InFlight, TargetAnswer};
use crate::call::CheckCall;
use crate::wire::{CheckedTarget, Connection, SharedHalves, WireError};

/// How often a call is repeated that was told to wait.
const AGAIN: usize = 5;
/// Half of the first pause if the answer does not say how long to wait.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The result of a dispatch.
#[derive(Debug)]
pub(crate) enum Dispatched {
    /// Every call was answered, in the order of the calls, each after this time.
    Answered(Vec<(TargetAnswer, Duration)>),
    /// Some calls have no answer, for this reason. The others are in the order of the calls.
    Incomplete(Vec<Option<(TargetAnswer, Duration)>>, String),
}

/// Sends all calls concurrently, each over its own connection, and repeats those that are answered with "in flight".
pub(crate) async fn dispatch(
    target: &Arc<CheckedTarget>,
    calls: Vec<CheckCall>,
    within: Duration,
) -> Dispatched {
    allow_many_connections(calls.len());
    let nothing = |why| Dispatched::Incomplete(Vec::new(), why);
    let deadline = Instant::now() + within;
    let connections = match timeout_at(deadline, open_all(target, calls.len())).await {
        Err(_) => return nothing(format!("step_timeout: not all connections were open within {within:?}")),
        Ok(Err(error @ WireError::ConnectTimeout { .. })) => {
            return nothing(format!("step_timeout: {error}"));
        }
        Ok(Err(error)) => return nothing(format!("not all connections could be opened: {error}")),
        Ok(Ok(connections)) => connections,
    };
    let holds: Vec<Arc<SharedHalves>> = connections.iter().map(Connection::hold).collect();
    let mut running = JoinSet::new();
    for (index, (call, connection)) in calls.into_iter().zip(connections).enumerate() {
        let target = Arc::clone(target);
        running.spawn(async move {
            let began = Instant::now();
            let hold = connection.hold();
            let answer = resolve(&target, &call, connection, deadline).await;
            // The others must not wait for a request that can no longer be written.
            hold.abandon();
            (index, answer.map(|answer| (answer, began.elapsed())))
        });
    }
    for hold in &holds {
        if timeout_at(deadline, hold.written()).await.is_err() {
            return nothing(format!("step_timeout: not all requests were written within {within:?}"));
        }
    }
    for hold in &holds {
        hold.release();
    }
    let mut answers: Vec<Option<(TargetAnswer, Duration)>> = holds.iter().map(|_| None).collect();
    let mut failure = None;
    loop {
        match timeout_at(deadline, running.join_next()).await {
            Err(_) => {
                failure = Some(WireError::Timeout(within));
                break;
            }
            Ok(None) => break,
            Ok(Some(Ok((index, Ok(answer))))) => answers[index] = Some(answer),
            Ok(Some(Ok((_, Err(error))))) => failure = Some(error),
            Ok(Some(Err(error))) => failure = Some(WireError::Broken(error.to_string())),
        }
    }
    let missing =
        format!("{} of {}", answers.iter().filter(|answer| answer.is_none()).count(), answers.len());
    let why = match failure {
        None => return Dispatched::Answered(answers.into_iter().flatten().collect()),
        Some(WireError::Timeout(within)) => format!("step_timeout: {missing} not answered within {within:?}"),
        Some(error) => format!("{missing} not answered: {error}"),
    };
    Dispatched::Incomplete(answers, why)
}

async fn open_all(target: &Arc<CheckedTarget>, count: usize) -> Result<Vec<Connection>, WireError> {
    let mut opening = JoinSet::new();
    for _ in 0..count {
        let target = Arc::clone(target);
        opening.spawn(async move { target.open(SharedHalves::held()).await });
    }
    let mut open = Vec::with_capacity(count);
    while let Some(joined) = opening.join_next().await {
        open.push(joined.map_err(|error| WireError::Broken(error.to_string()))??);
    }
    Ok(open)
}

/// Sends a call. While the key is in progress, waits and sends it again. Returns the last answer if it never ends.
async fn resolve(
    target: &Arc<CheckedTarget>,
    call: &CheckCall,
    connection: Connection,
    deadline: Instant,
) -> Result<TargetAnswer, WireError> {
    let mut answer = call.send_over(connection, target).await?;
    let (mut pause, mut without_hint, mut was_in_flight) = (FIRST_PAUSE, false, false);
    for _ in 0..AGAIN {
        let wait = match answer.in_flight() {
            None => break,
            Some(InFlight::Until(wait)) => wait,
            Some(InFlight::WithoutHint) => {
                without_hint = true;
                pause *= 2;
                pause
            }
        };
        was_in_flight |= answer.code() == Some(IN_FLIGHT);
        let Some(then) = Instant::now().checked_add(wait).filter(|then| *then < deadline) else { break };
        sleep_until(then).await;
        let connection = target.open(SharedHalves::released()).await?;
        answer = call.send_over(connection, target).await?;
    }
    // A 409 that stays is a conflict, which needs no hint.
    answer.without_hint = without_hint && answer.in_flight().is_none();
    answer.was_in_flight = was_in_flight;
    Ok(answer)
}

/// Raises this process's limit of open files if many connections need it.
fn allow_many_connections(count: usize) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let needed = u64::try_from(count).unwrap_or(u64::MAX).saturating_add(200);
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
        // If this fails, opening the connections reports the error.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
