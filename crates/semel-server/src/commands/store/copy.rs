//! `semel store copy`: passes over a store in use, and the move.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use semel::store::transfer::{Pass, Transfer, Transferred};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::CopyArgs;
use super::old::OldStore;
use super::place::{StorePlace, shown};
use crate::commands::screen::{confirm, readable, write_line};

/// The copy has caught up when a pass changes less than this, or than one record in a hundred.
const FEW: u64 = 100;
/// Passes after which the copy has caught up in any case: that much changes during every pass.
const MOST_PASSES: u32 = 5;

pub(super) async fn copy(args: CopyArgs) -> anyhow::Result<()> {
    let (old_place, new_place) = (StorePlace::read(&args.from)?, StorePlace::read(&args.to)?);
    let secrets = [old_place.secret(), new_place.secret()];
    let mut old = OldStore::open(old_place).await?;
    let new = new_place.open().await?;
    let mut transfer = Transfer::begin(old.source()?, Arc::clone(&new), secrets).await?;
    let (name, address) = (old.source()?.address(), new.address());
    announce(&format!("copying {name} to {address}"));
    follow(&mut transfer, &old, args.every).await?;
    if !args.switch.switch {
        announce(&format!("caught up. The move closes {name}: its servers refuse new keys from then on"));
        // Without a terminal nobody can be asked.
        if ask_while_following(&mut transfer, &old, args.every).await?.is_err() {
            announce("not moved: run the same command with --switch to move");
            if args.json {
                return write_line(&json!({ "from": name, "to": address, "moved": false }).to_string());
            }
            return Ok(());
        }
    }
    let run = transfer.run();
    let moved = async {
        old.close(run, &address, args.switch.wait, Some(&mut transfer)).await?;
        old.wait_for_claims(args.switch.wait, Some(&mut transfer)).await?;
        Ok::<_, anyhow::Error>(transfer.finish(old.source()?).await?)
    };
    let result = moved.await.with_context(|| {
        let from = shown(&args.from);
        format!("not moved; run the same command again, or go back with `semel store reopen {from}`")
    })?;
    print_result(&result, &name, &address, args.json)
}

/// Copies until a pass changes little.
async fn follow(transfer: &mut Transfer, old: &OldStore, every: Duration) -> anyhow::Result<()> {
    for number in 1..=MOST_PASSES {
        let began = Instant::now();
        let Pass { records, changed, in_progress, .. } = transfer.pass(old.source()?).await?;
        let took = readable(began.elapsed());
        announce(&format!(
            "pass {number}: {records} records, {changed} changed, {in_progress} in progress, {took}"
        ));
        if number > 1 && changed < FEW.max(records / 100) {
            break;
        }
        sleep(every).await;
    }
    Ok(())
}

/// Asks whether to move, and copies changes until the answer comes.
async fn ask_while_following(
    transfer: &mut Transfer,
    old: &OldStore,
    every: Duration,
) -> anyhow::Result<anyhow::Result<()>> {
    let mut answer = pin!(confirm("Move now?", false));
    let copy_changes = async {
        loop {
            sleep(every).await;
            transfer.pass(old.source()?).await?;
        }
    };
    tokio::select! {
        biased;
        answer = &mut answer => Ok(answer),
        // It ends only with an error.
        failed = copy_changes => failed,
    }
}

/// Progress, on standard error: standard output is for the result.
pub(super) fn announce(line: &str) {
    eprintln!("{line}");
}

pub(super) fn print_result(result: &Transferred, from: &str, to: &str, json: bool) -> anyhow::Result<()> {
    let Transferred { records, marks, in_progress, in_doubt, .. } = result;
    if json {
        let result = json!({
            "from": from, "to": to, "moved": true, "records": records, "marks": marks, "in_progress": in_progress, "in_doubt": in_doubt,
        });
        return write_line(&result.to_string());
    }
    write_line(&format!("moved {records} records and {marks} marks, all compared; {in_doubt} in doubt"))?;
    if *in_progress > 0 {
        write_line(&format!("{in_progress} claims are in progress; their leases expire on the new store"))?;
    }
    write_line(&format!("start the servers on {to}"))
}
