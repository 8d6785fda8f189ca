//! The end of a run, when everything must be tidy and everything can be had.

use crate::{auditor::Place, profile::Profile, run::Run};
use leasehold::{
    Hour, Result, Store,
    clock::Timestamp,
    decision::{Answer, TxnId},
    fsck::{Damage, FsckOptions},
    lease::{Acquired, Request},
    sweep::{StoppedBy, SweepOptions},
};
use std::time::Duration;

/// Long enough to see that a lease is not being renewed, whatever the clocks said that it was written by.
const WATCHED: Duration = Duration::from_secs(150);

impl Run {
    /// One process tidies everything, in a bounded number of requests, and then every key can be had.
    pub fn inspect(&mut self) {
        let before = self.auditor.left();
        let (entries, keys) = (before.entries.len() as u64, before.highest);
        let wild = self.plan.is_wild();
        // What is left of sessions goes in steps, one in each pass.
        let passes = if self.plan.profile == Profile::Session { 4 } else { 1 };
        self.ask(move |store| tidied(store, entries, keys, wild, passes));
        let left = self.auditor.left();
        let hour = Hour::of(Timestamp::from_micros(self.world.now())).ok();
        let past = left.entries.iter().filter(|entry| {
            let bucket = entry.rsplit('/').nth(1).and_then(|bucket| bucket.parse().ok());
            bucket.is_some_and(|bucket: Hour| hour.is_some_and(|hour| bucket < hour))
        });
        let past: Vec<_> = past.collect();
        let counted = left.markers.iter().filter(|(_, void)| !void).count();
        if !past.is_empty() || counted > 0 {
            self.auditor.accuse(format!("I10: left behind: {past:?} and {counted} decisions"));
        }
        // What came too late for the sweeper is cleared by the next operation on it.
        let late: Vec<TxnId> = left.markers.into_iter().map(|(txn, _)| txn).collect();
        self.ask(move |store| forgotten(store, late));
        let left = self.auditor.left().markers;
        if self.auditor.is_content() && !left.is_empty() {
            self.auditor.accuse(format!("I10: decisions that came too late are there for ever: {left:?}"));
        }
        if self.auditor.is_content() {
            self.inspect_slots();
        }
        if self.auditor.is_content() {
            self.ask(undamaged);
        }
    }
}

/// Sweeps in small bites, as often as it may take and no oftener; then takes every key.
async fn tidied(store: Store, entries: u64, keys: Vec<(Place, u64)>, wild: bool, passes: u64) -> Result<Vec<String>> {
    const BITE: u64 = 20;
    let mut problems = Vec::new();
    let (mut requests, mut bites, mut complete) = (0, 0, 0);
    loop {
        let options = SweepOptions::new().op_delay(Duration::ZERO).max_ops(u32::try_from(BITE).unwrap_or(20));
        let report = store.sweeper().run_once(options).await?;
        requests += report.requests;
        bites += 1;
        if report.failures > 0 {
            problems.push(format!("I10: with no fault anywhere the sweeper failed: {report:?}"));
        }
        complete += u64::from(report.stopped_by == Some(StoppedBy::Complete));
        if complete == passes {
            break;
        }
        if bites > (entries / BITE + 2) * passes * passes {
            problems.push(format!("I10: {bites} runs of {BITE} did not tidy {entries} entries"));
            return Ok(problems);
        }
    }
    if requests > 4 * entries * passes + 40 * bites {
        problems.push(format!("I10: {requests} requests were made for {entries} entries"));
    }
    for (place, highest) in keys {
        let (leases, key) = (store.leases(place.namespace)?, &place.key);
        let status = leases.peek(key).await?;
        // A clock that was a day ahead leaves a lease that looks alive: it ends after a process has watched it without a renewal.
        if status.holder.is_some() && !wild {
            problems.push(format!("I10: {key} is still held: {status:?}"));
        }
        // Longer than the store can be behind: no lease is granted that ends by its own machine's clock at once.
        let request = Request::new(Duration::from_secs(30));
        match leases.acquire_within(key, &request, WATCHED).await? {
            Acquired::Granted(grant) if grant.fence().get() <= highest => {
                problems.push(format!("I1: {key} was granted with {} after {highest}", grant.fence()));
            }
            Acquired::Granted(grant) => leases.release(&grant).await?,
            Acquired::Held(held) => problems.push(format!("I10: {key} is stuck: {held:?}")),
        }
    }
    Ok(problems)
}

async fn forgotten(store: Store, txns: Vec<TxnId>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for txn in txns {
        let answer = store.decisions().get(txn).await?;
        if answer != Answer::Forgotten {
            problems.push(format!("I5: {txn} came too late, and is {answer:?}"));
        }
    }
    Ok(problems)
}

/// Looks for damage when everything is tidied, late decisions too.
async fn undamaged(store: Store) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let report = store.fsck(FsckOptions::new()).await?;
    // Who died between the entry and the record leaves an entry, which goes with its hour.
    let damage =
        report.findings.iter().filter(|found| found.is_open() && found.damage != Damage::MissingRecord).count();
    if damage > 0 || report.failures > 0 {
        problems.push(format!("I10: with everything tidied there is damage: {report:?}"));
    }
    Ok(problems)
}
