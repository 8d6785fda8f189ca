//! Limits of keys, and the rate: the ledger counts what runs, so a limit is exact, costs no request and leaks no slot.

use super::{Full, Outcome, work::Work};
use crate::job::ledger::{Ledger, Limit, Millis, Range, Why};
use std::{collections::HashMap, sync::Arc};

/// Keys with a limit of their own in one ledger.
const MOST_LIMITS: usize = 1024;

pub(super) fn limit(work: &mut Work<'_>, key: u64, name: &Arc<str>, most: Option<u32>) -> Outcome {
    let known = work.ledger.limits.iter().find(|limit| limit.key == key).map(|limit| limit.most);
    if known == most {
        return Outcome::Nothing;
    }
    if known.is_none() && work.ledger.limits.len() >= MOST_LIMITS {
        return Outcome::Full(Full::Limits);
    }
    work.ledger.limits.retain(|limit| limit.key != key);
    work.ledger.limits.extend(most.map(|most| Limit { key, most, name: Arc::clone(name) }));
    work.changed = true;
    Outcome::Done
}

/// Jobs of a key that wait for their next attempt run at once, so that whatever stands behind them goes on.
pub(super) fn unblock(work: &mut Work<'_>, key: u64) -> Outcome {
    let now = work.now;
    let mut places = Vec::new();
    for (at, row) in work.ledger.rows.iter().enumerate() {
        let held = |run: &&crate::job::ledger::Run| {
            let traits = &run.traits;
            traits.key == key && traits.why != Why::New && (traits.paused || traits.due > now)
        };
        places.extend(row.runs.iter().filter(held).flat_map(|run| (run.from..run.to).map(move |index| (at, index))));
    }
    for (at, index) in &places {
        if let Some(mut traits) = work.take_waiting(*at, *index) {
            (traits.due, traits.paused) = (now, false);
            work.wait(*at, Range::one(*index), traits);
        }
    }
    match u32::try_from(places.len()).unwrap_or(u32::MAX) {
        0 => Outcome::Nothing,
        jobs => Outcome::Unblocked { jobs },
    }
}

/// With a limit of 1 the jobs of a key run in order: one that has been claimed before comes first, and while it waits
/// for its next attempt nobody passes it. For each such key, the place of that job.
pub(super) fn heads(work: &Work<'_>) -> HashMap<u64, (u32, u16)> {
    let ledger = &work.ledger;
    let mut heads = HashMap::new();
    if ledger.policy.skip_waiting || (ledger.policy.key_limit.is_none() && ledger.limits.is_empty()) {
        return heads;
    }
    for row in &ledger.rows {
        for run in row.runs.iter().filter(|run| run.traits.key != 0 && run.traits.why != Why::New) {
            if ledger.key_limit(run.traits.key) == Some(1) {
                heads.entry(run.traits.key).or_insert((row.number, run.from));
            }
        }
    }
    heads
}

/// How many jobs the rate lets start now.
pub(super) fn tokens(work: &mut Work<'_>) -> u32 {
    let Some(rate) = work.ledger.policy.rate_milli else { return u32::MAX };
    let tokens = &mut work.ledger.tokens;
    if tokens.at == 0 {
        // The first job under a rate starts at once, and there is no burst after it.
        (tokens.milli, tokens.at) = (1000, work.now);
    }
    let passed = u64::try_from(work.now.saturating_sub(tokens.at)).unwrap_or(0);
    // Never more than one second's worth, and at least one job: a bucket that was full for a day gives no burst.
    let most = rate.max(1000);
    let credit = rate.saturating_mul(passed) / 1000;
    if credit > 0 {
        tokens.milli = tokens.milli.saturating_add(credit).min(most);
        // Only by as much as was credited: who looks often loses nothing of a slow rate.
        let counted = Millis::try_from(credit.saturating_mul(1000).div_ceil(rate)).unwrap_or(Millis::MAX);
        tokens.at = if tokens.milli == most { work.now } else { tokens.at.saturating_add(counted).min(work.now) };
    }
    u32::try_from(tokens.milli / 1000).unwrap_or(u32::MAX)
}

pub(super) fn spend(work: &mut Work<'_>, jobs: u64) {
    if work.ledger.policy.rate_milli.is_some() {
        work.ledger.tokens.milli = work.ledger.tokens.milli.saturating_sub(jobs.saturating_mul(1000));
    }
}

impl Ledger {
    /// How many jobs of a key may run at once.
    pub(crate) fn key_limit(&self, key: u64) -> Option<u32> {
        let own = self.limits.iter().find(|limit| limit.key == key).map(|limit| limit.most);
        own.or(self.policy.key_limit)
    }

    /// When the rate lets jobs start again, if it does not now: a tenth of a second's worth of them together.
    pub(crate) fn rate_allows_at(&self) -> Option<Millis> {
        let rate = self.policy.rate_milli?;
        if self.tokens.at == 0 || self.tokens.milli >= 1000 {
            return None;
        }
        let needed = (rate / 10).max(1000) - self.tokens.milli;
        let wait = needed.saturating_mul(1000).div_ceil(rate.max(1));
        Some(self.tokens.at.saturating_add(Millis::try_from(wait).unwrap_or(Millis::MAX)))
    }
}
