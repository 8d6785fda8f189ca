//! What clients do about transactions.

use crate::{client::Client, world::SECOND};
use leasehold::{
    Clock,
    decision::{Decided, Decision, TxnId},
};
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use std::{sync::PoisonError, time::Duration};

const MAX_TXN_AGE: i64 = 30 * SECOND;
const MARGIN: i64 = 183 * SECOND;

impl Client {
    pub async fn transaction(&mut self) {
        let newest = |dice: &mut StdRng, txns: &[TxnId]| {
            let back = dice.random_range(0..8usize) << dice.random_range(0..3);
            txns.len().checked_sub(1 + back).map(|at| txns[at])
        };
        let chosen = {
            let txns = self.common.txns.lock().unwrap_or_else(PoisonError::into_inner);
            newest(&mut self.dice, &txns)
        };
        let txn = match chosen {
            Some(txn) if self.dice.random_range(0..3) > 0 => txn,
            _ => {
                let txn = self.decisions.begin();
                self.common.txns.lock().unwrap_or_else(PoisonError::into_inner).push(txn);
                txn
            }
        };
        match self.dice.random_range(0..10) {
            0..=4 => self.decide(txn).await,
            5..=8 => self.read(txn).await,
            _ => {
                self.auditor.register(|register, _| {
                    register.may_forget(txn);
                    Ok(())
                });
                let decisions = self.decisions.clone();
                let _ = self.patience(async move { decisions.forget(txn).await }).await;
            }
        }
    }

    /// Decides and reads where it matters to the second: when it becomes too old, or when it is forgotten.
    pub async fn at_the_edge(&mut self) {
        let edges: Vec<(TxnId, i64)> = {
            let now = self.world.now();
            let txns = self.common.txns.lock().unwrap_or_else(PoisonError::into_inner);
            let edges = txns.iter().flat_map(|txn| {
                let closes = txn.begun().as_micros() + MAX_TXN_AGE;
                [(*txn, closes), (*txn, closes + MARGIN)]
            });
            edges.filter(|(_, at)| (now..now + 25 * SECOND).contains(at)).collect()
        };
        let Some((txn, edge)) = edges.choose(&mut self.dice).copied() else { return self.transaction().await };
        let at = edge + self.dice.random_range(-2 * SECOND..2 * SECOND);
        let left = at - self.world.now();
        if left > 0 {
            self.clock.sleep(Duration::from_micros(left.unsigned_abs())).await;
        }
        match self.dice.random_range(0..2) {
            0 => self.decide(txn).await,
            _ => self.read(txn).await,
        }
    }

    async fn decide(&mut self, txn: TxnId) {
        let decision = if self.dice.random_range(0..2) == 0 { Decision::Commit } else { Decision::Abort };
        let known = self.is_told(txn);
        let decisions = self.decisions.clone();
        self.world.note(format_args!("{} decides {txn}: {decision}", self.name));
        match self.patience(async move { decisions.decide(txn, decision).await }).await {
            Some(Ok(Decided::Decision(decision))) => {
                self.auditor.register(|register, _| register.told(txn, decision));
            }
            Some(Ok(Decided::TooOld)) => {
                self.auditor.register(|register, now| register.too_old(txn, known, now));
            }
            Some(Err(_)) | None => {}
        }
    }

    async fn read(&mut self, txn: TxnId) {
        let known = self.is_told(txn) && self.world.has_a_clock(self.machine);
        let decisions = self.decisions.clone();
        if let Some(Ok(answer)) = self.patience(async move { decisions.get(txn).await }).await {
            self.world.note(format_args!("{} reads {txn}: {answer:?}", self.name));
            self.auditor.register(|register, now| register.answered(txn, answer, known, now));
        }
    }

    fn is_told(&self, txn: TxnId) -> bool {
        self.auditor.register(|register, _| Ok(register.is_told(txn))).unwrap_or(false)
    }
}
