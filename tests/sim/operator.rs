//! What operators do while clients work, and programs that hold many leases at once.

use crate::{
    auditor::Place,
    beliefs::Hold,
    client::{Client, key_of, millis},
};
use futures_util::future::join_all;
use leasehold::{Clock, fsck::FsckOptions, lease::Locked};
use rand::RngExt;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

impl Client {
    pub async fn operate(&mut self) {
        match self.dice.random_range(0..6) {
            0..=2 if self.plan.has("force") => self.force().await,
            3 if self.plan.has("fsck") => self.check().await,
            _ if self.plan.has("flock") => self.flock().await,
            _ => {}
        }
    }

    /// Takes a lease away from its holder.
    pub async fn force(&mut self) {
        let place = self.place();
        let leases = self.leases(&place);
        self.auditor.forcing(&place);
        self.world.note(format_args!("{} forces {}", self.name, place.id()));
        let key = place.key;
        // A failure is as good as none: it may have happened.
        let _ = self.patience(async move { leases.force_release(&key, "it is stuck", "sim").await }).await;
    }

    /// Looks for damage and repairs it. What an answer was damaged by on its way is none.
    async fn check(&mut self) {
        let repairs = self.dice.random_range(0..2) == 0;
        let store = self.store.clone();
        let options = if repairs { FsckOptions::new().repair("sim") } else { FsckOptions::new() };
        self.world.note(format_args!("{} checks, repairs: {repairs}", self.name));
        let _ = self.patience(async move { store.fsck(options).await.map(drop) }).await;
    }

    /// Holds many leases at once, which share one keeper.
    async fn flock(&mut self) {
        let (request, _) = self.request();
        let first = self.place();
        let places: Vec<Place> = (0..self.dice.random_range(3..12))
            .map(|number| Place { key: key_of(&format!("flock-{}-{number}", self.name)), ..first.clone() })
            .collect();
        let machine = self.machine;
        let locking = places.iter().map(|place| {
            let (asked, leases, key) = (self.auditor.asked(place), self.leases(place), place.key.clone());
            let (request, auditor) = (request.clone(), self.auditor.clone());
            async move {
                let Ok(Locked::Granted(guard)) = leases.lock_within(&key, &request, Duration::ZERO).await else {
                    return None;
                };
                let grant = guard.grant();
                let shared = Arc::new(Mutex::new(Some(guard)));
                let belief = auditor.granted(machine, &asked, &grant, Hold::Guard(Arc::clone(&shared)), None);
                Some((belief, grant, shared))
            }
        });
        let held: Vec<_> = join_all(locking).await.into_iter().flatten().collect();
        for _ in 0..self.dice.random_range(1..5) {
            let pause = millis(&mut self.dice, 50..8000);
            self.clock.sleep(pause).await;
            held.iter().for_each(|(belief, ..)| self.auditor.write(*belief));
        }
        for (belief, grant, shared) in held {
            self.auditor.releasing(grant.lease_id());
            self.auditor.forget(belief);
            // Dropped, it is released in the background.
            drop(shared.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
