//! The way out of the buffer: lease runs, renew the lease, acknowledge them or give them back.

use std::time::Duration;

use semel::store::redis_driver::Value;
use semel::store::{Effect, Error, ErrorKind};
use semel_pipeline::id::EventId;

use super::{AckOutcome, Buffer, BufferedRun, LeaseOneOutcome, LeasedRun, RunLease, answer, change, millis};

impl Buffer {
    /// Gives a turn to the tenant that has waited longest, and returns it with the number of its announcement; `None`
    /// if nothing is buffered.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn next_tenant(&self) -> Result<Option<(String, u64)>, Error> {
        let Value::Array(parts) = self.call_on_list(&self.scripts.turn, &[], Effect::Writes).await? else {
            return Ok(None);
        };
        let [name, number] = answer::read_bytes::<2>(parts)?;
        let name = String::from_utf8(name.to_vec()).map_err(|_| answer::unexpected_answer())?;
        Ok(Some((name, answer::read_number(&number)?)))
    }

    /// Leases the next runs of a tenant that are due. Expired leases are given back first. `announced` is the number
    /// of the tenant's turn: a tenant without runs leaves the list, unless it was announced since.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn lease(
        &self,
        (tenant, announced): (&str, u64),
        limit: u32,
        lease: Duration,
    ) -> Result<RunLease, Error> {
        let token = new_token();
        let (limit, lease) = (limit.to_string(), millis(lease).to_string());
        let number = announced.to_string();
        let arguments: [&[u8]; 3] = [limit.as_bytes(), lease.as_bytes(), token.as_bytes()];
        let answer = self.call(&self.scripts.lease, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(mut parts) = answer else { return Err(answer::unexpected_answer()) };
        if parts.len() < 2 || (parts.len() - 2) % 6 != 0 {
            return Err(answer::unexpected_answer());
        }
        let rest = parts.split_off(2);
        let (reclaimed, left) = (answer::read_int(&parts[0]), answer::read_int(&parts[1]));
        let mut runs = Vec::with_capacity(rest.len() / 6);
        let mut rest = rest.into_iter();
        while let Some(id) = rest.next() {
            let [id] = answer::read_bytes::<1>(vec![id])?;
            let id = std::str::from_utf8(&id)
                .ok()
                .and_then(|id| id.parse().ok())
                .ok_or_else(answer::unexpected_answer)?;
            runs.push(leased_run(id, rest.by_ref().take(5).collect())?);
        }
        if left == 0 {
            let arguments = [tenant.as_bytes(), number.as_bytes()];
            self.call_on_list(&self.scripts.leave, &arguments, Effect::Writes).await?;
        }
        Ok(RunLease { tenant: tenant.to_owned(), token, runs, reclaimed })
    }

    /// Leases one run, even before it is due.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn lease_one(
        &self,
        tenant: &str,
        id: EventId,
        lease: Duration,
    ) -> Result<LeaseOneOutcome, Error> {
        let (token, text, lease) = (new_token(), id.to_string(), millis(lease).to_string());
        let arguments: [&[u8]; 3] = [text.as_bytes(), lease.as_bytes(), token.as_bytes()];
        let answer = self.call(&self.scripts.lease_one, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(mut parts) = answer else { return Err(answer::unexpected_answer()) };
        if parts.is_empty() {
            return Err(answer::unexpected_answer());
        }
        let rest = parts.split_off(1);
        let [word] = answer::read_bytes::<1>(parts)?;
        match &word[..] {
            b"leased" => {
                let runs = vec![leased_run(id, rest)?];
                Ok(LeaseOneOutcome::Leased(RunLease { tenant: tenant.to_owned(), token, runs, reclaimed: 0 }))
            }
            b"held" => Ok(LeaseOneOutcome::Held),
            b"missing" => Ok(LeaseOneOutcome::Missing),
            _ => Err(answer::unexpected_answer()),
        }
    }

    /// Extends leases. Returns the runs that the caller still holds.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn renew(
        &self,
        leased: (&str, &str),
        ids: &[EventId],
        lease: Duration,
    ) -> Result<Vec<bool>, Error> {
        let (tenant, token) = leased;
        let lease = millis(lease).to_string();
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let mut arguments = vec![token.as_bytes(), lease.as_bytes()];
        arguments.extend(ids.iter().map(String::as_bytes));
        let answer = self.call(&self.scripts.renew, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(held) = answer else { return Err(answer::unexpected_answer()) };
        Ok(held.iter().map(|held| answer::read_int(held) == 1).collect())
    }

    /// Acknowledges that the run is in the ledger, with all changes up to `version`: it leaves the buffer, unless it
    /// was changed since.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn ack(&self, leased: (&str, &str), run: EventId, version: u64) -> Result<AckOutcome, Error> {
        let mut acked = self.ack_all(leased, &[(run, version)]).await?;
        acked.pop().ok_or_else(answer::unexpected_answer)
    }

    /// As [`ack`](Self::ack), for many runs of one lease. Answers in their order.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn ack_all(
        &self,
        (tenant, token): (&str, &str),
        runs: &[(EventId, u64)],
    ) -> Result<Vec<AckOutcome>, Error> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let texts: Vec<[String; 2]> =
            runs.iter().map(|(run, version)| [run.to_string(), version.to_string()]).collect();
        let mut arguments = vec![token.as_bytes()];
        arguments.extend(texts.iter().flatten().map(String::as_bytes));
        let answer = self.call(&self.scripts.ack, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(answers) = answer else { return Err(answer::unexpected_answer()) };
        if answers.len() != runs.len() {
            return Err(answer::unexpected_answer());
        }
        let (mut acked, mut gone) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
        for (answer, (run, _)) in answers.into_iter().zip(runs) {
            let Value::Array(parts) = answer else { return Err(answer::unexpected_answer()) };
            let [word, changes] = answer::read_bytes::<2>(parts)?;
            acked.push(match &word[..] {
                b"gone" => {
                    gone.push(*run);
                    AckOutcome::Gone
                }
                b"lost" => AckOutcome::Lost,
                b"changed" => {
                    let patches = change::decode_changes(&changes)
                        .map_err(|why| Error::new(ErrorKind::Corrupt, why))?;
                    AckOutcome::Changed(patches)
                }
                _ => return Err(answer::unexpected_answer()),
            });
        }
        if !gone.is_empty() {
            self.forget_tenants(&gone).await?;
        }
        Ok(acked)
    }

    /// Gives a run back, to be drained after a pause. `counts` if the run itself failed.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn give_back(
        &self,
        leased: (&str, &str),
        id: EventId,
        pause: Duration,
        counts: bool,
    ) -> Result<bool, Error> {
        let (tenant, token) = leased;
        let (id, pause) = (id.to_string(), millis(pause).to_string());
        let counts: &[u8] = if counts { b"1" } else { b"0" };
        let arguments: [&[u8]; 4] = [token.as_bytes(), id.as_bytes(), pause.as_bytes(), counts];
        let answer = self.call(&self.scripts.give_back, tenant, &arguments, Effect::Writes).await?;
        Ok(answer::read_int(&answer) == 1)
    }

    /// Removes a leased run that cannot be read: it is a dead letter now.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn remove(&self, (tenant, token): (&str, &str), run: EventId) -> Result<bool, Error> {
        let id = run.to_string();
        let arguments: [&[u8]; 2] = [token.as_bytes(), id.as_bytes()];
        let answer = self.call(&self.scripts.remove, tenant, &arguments, Effect::Writes).await?;
        let removed = answer::read_int(&answer) == 1;
        if removed {
            self.forget_tenants(&[run]).await?;
        }
        Ok(removed)
    }
}

fn new_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Parses a leased run from a script's answer: the run, its changes, attempts, version and expiry.
fn leased_run(id: EventId, parts: Vec<Value>) -> Result<LeasedRun, Error> {
    let [run, changes, attempts, version, expires] = answer::read_bytes::<5>(parts)?;
    Ok(LeasedRun {
        id,
        run: BufferedRun::read(&run, &changes, answer::read_expiry(&expires)?),
        attempts: u32::try_from(answer::read_number(&attempts)?).unwrap_or(u32::MAX),
        version: answer::read_number(&version)?,
    })
}
