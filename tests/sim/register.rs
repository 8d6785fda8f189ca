//! What was decided, by whom it was read, and whether that was right.

use crate::world::SECOND;
use leasehold::{
    Hour,
    clock::Timestamp,
    decision::{Answer, Decision, TxnId},
};
use leasehold_testkit::{Applied, Op};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The ages of a transaction, as agreed in the store.
const AGE: i64 = 30 * SECOND;
const MARGIN: i64 = 183 * SECOND;

/// A decider may have been held up between its last look at the clock and its write: skew and date, and the longest
/// stalls.
const HELD_UP: i64 = 61 * SECOND + 60 * SECOND;

#[derive(Deserialize)]
struct Body {
    decision: Decision,
    expires_ms: i64,
}

/// A decision that stands in the store, or did.
struct Marker {
    decision: Decision,
    expires: i64,
    void: bool,
    deleted: bool,
}

#[derive(Default)]
struct Txn {
    markers: Vec<Marker>,
    told: Option<Decision>,
    /// A client was told that there is no decision any more, when there had been none.
    forgotten: bool,
    may_forget: bool,
}

/// All transactions.
#[derive(Default)]
pub struct Register {
    txns: BTreeMap<String, Txn>,
    entries: BTreeSet<String>,
    /// How far the store's time is from the true one.
    pub store_offset: i64,
}

fn ends(txn: &str) -> i64 {
    txn.parse::<TxnId>().map_or(0, |txn| txn.begun().as_micros()) + AGE + MARGIN
}

impl Register {
    fn standing(&self, txn: &str) -> Option<&Marker> {
        self.txns.get(txn)?.markers.last().filter(|marker| !marker.deleted)
    }

    pub fn entries(&self) -> impl Iterator<Item = &String> {
        self.entries.iter()
    }

    /// The decisions that are in the store, and whether each came too late to count.
    pub fn markers(&self) -> Vec<(TxnId, bool)> {
        let standing = self.txns.keys().filter_map(|txn| Some((txn.parse().ok()?, self.standing(txn)?.void)));
        standing.collect()
    }

    /// A decision is on its way, from a machine that could know how old it is.
    pub fn sent(&mut self, txn: &str, now: i64) -> Result<(), String> {
        let late = now + self.store_offset - (ends(txn) - MARGIN);
        if late > HELD_UP {
            return Err(format!("I5: {txn} was decided {} s after it was too old", late / SECOND));
        }
        Ok(())
    }

    pub fn see(&mut self, applied: &Applied) -> Vec<String> {
        let mut problems = Vec::new();
        let at = applied.at.as_micros();
        if let Some(txn) = applied.name.strip_prefix(".txn-decisions/m/") {
            let was_there = self.standing(txn).is_some();
            let entries = &self.entries;
            let record = self.txns.entry(txn.to_owned()).or_default();
            match applied.body.as_ref().map(|body| serde_json::from_slice::<Body>(body)) {
                None => {
                    let Some(marker) = record.markers.last_mut() else { return problems };
                    marker.deleted = true;
                    let due = if marker.void || record.may_forget { ends(txn) } else { marker.expires.max(ends(txn)) };
                    if at <= due {
                        let early = (due - at) / 1000;
                        problems.push(format!("I5: the decision on {txn} was deleted {early} ms before its time"));
                    }
                }
                Some(Err(error)) => problems.push(format!("the decision on {txn} cannot be read: {error}")),
                Some(Ok(body)) => {
                    let void = at > ends(txn);
                    if was_there {
                        problems.push(format!("I5: the decision on {txn} was overwritten"));
                    }
                    if !void && !record.markers.is_empty() {
                        problems.push(format!("I5: {txn} was decided again after its decision was deleted"));
                    }
                    let expires = body.expires_ms * 1000;
                    let hour = Hour::of(Timestamp::from_micros(expires)).map(|hour| hour.to_string());
                    let entry = format!(".txn-decisions/e/{}/{txn}", hour.unwrap_or_default());
                    if !void && !entries.contains(&entry) {
                        problems.push(format!("I7: the decision on {txn} has no entry"));
                    }
                    record.markers.push(Marker { decision: body.decision, expires, void, deleted: false });
                }
            }
        } else if applied.op == Op::Put {
            self.entries.insert(applied.name.clone());
        } else {
            self.entries.remove(&applied.name);
            let filed = applied.name.trim_start_matches(".txn-decisions/e/").split_once('/');
            let Some((hour, txn)) = filed else { return problems };
            let filed_here = |marker: &Marker| {
                Hour::of(Timestamp::from_micros(marker.expires)).is_ok_and(|filed| filed.to_string() == hour)
            };
            if self.standing(txn).is_some_and(|marker| !marker.void && filed_here(marker)) {
                problems.push(format!("I7: the entry of {txn} was deleted before its decision"));
            }
        }
        problems
    }

    /// A client was told a decision.
    pub fn told(&mut self, txn: TxnId, decision: Decision) -> Result<(), String> {
        let record = self.txns.entry(txn.to_string()).or_default();
        if let Some(before) = record.told.filter(|before| *before != decision) {
            return Err(format!("I5: {txn} is {decision}, and somebody was told {before}"));
        }
        if record.forgotten {
            return Err(format!("I5: {txn} is {decision}, and somebody was told that there is no decision"));
        }
        record.told = Some(decision);
        if !record.markers.iter().any(|marker| !marker.void && marker.decision == decision) {
            return Err(format!("I5: somebody was told that {txn} is {decision}, and that was never in the store"));
        }
        Ok(())
    }

    /// A client that asked was told something else. `known` is whether a decision had been told before it asked.
    pub fn answered(&mut self, txn: TxnId, answer: Answer, known: bool, now: i64) -> Result<(), String> {
        let now = now + self.store_offset;
        let name = txn.to_string();
        let record = self.txns.entry(name).or_default();
        match answer {
            Answer::Committed => return self.told(txn, Decision::Commit),
            Answer::Aborted => return self.told(txn, Decision::Abort),
            Answer::Undecided if known => return Err(format!("I5: {txn} was decided, and then undecided")),
            Answer::Undecided => {}
            Answer::Forgotten => match record.markers.iter().find(|marker| !marker.void) {
                Some(marker) if now <= marker.expires && !record.may_forget => {
                    return Err(format!("I5: {txn} was forgotten before its time"));
                }
                Some(_) => {}
                None => record.forgotten = true,
            },
        }
        Ok(())
    }

    /// A decider was told that it came too late.
    pub fn too_old(&mut self, txn: TxnId, known: bool, now: i64) -> Result<(), String> {
        let now = now + self.store_offset;
        let record = self.txns.entry(txn.to_string()).or_default();
        let stands = record.markers.iter().any(|marker| !marker.void && now <= marker.expires);
        if known && stands && !record.may_forget {
            return Err(format!("I5: {txn} was decided, and then too old to be known"));
        }
        Ok(())
    }

    pub fn is_told(&self, txn: TxnId) -> bool {
        self.txns.get(&txn.to_string()).is_some_and(|txn| txn.told.is_some())
    }

    /// A coordinator knows that all participants have applied it.
    pub fn may_forget(&mut self, txn: TxnId) {
        self.txns.entry(txn.to_string()).or_default().may_forget = true;
    }
}
