//! Opening a store: from handle or URL to something that may be trusted.

use super::{
    Probing, Settings, SharedSettings, SharedSettingsChange, Store, StoreBuilder,
    records::{is_used, settings_lost},
};
use crate::{
    Error, Leases, Namespace, Result,
    archive::{self, ArchiveKind},
    decision::{self, DecisionKind},
    fenced::FencedKind,
    job::{self, JobKind},
    kind::Kind,
    lease::{self, Engine, LeaseKind, LeaseTurn, Terms},
    record::{Change, Changed, Patience, Plan},
    semaphore::{self, SemaphoreKind},
    shared::Rules,
    storage::{
        Backend,
        cas::{self, Record as _, Seen},
        layout::OURS,
        probe,
        store_json::{Passed, StoreRecord, StoreSlot},
    },
    stream::{self, StreamKind},
    sweep::{Activity, Sweeper},
    timing,
};
use std::{sync::Arc, time::Duration};

/// How many writes of `store.json` in a row may come too late because of another one.
pub(super) const CONFLICTS: u32 = 5;

impl StoreBuilder {
    /// Connects, makes sure that the store is safe, and takes from it what all processes must have alike.
    ///
    /// One read when all that is known already. Fails with nothing written when the URL, the options or the
    /// credentials are wrong, and when the store has records but its `store.json` is lost or damaged
    /// ([`repair_shared_settings`](Self::repair_shared_settings) writes it again).
    pub async fn open(self) -> Result<Store> {
        let (declarations, named, kinds) = (self.declarations(), self.named(), self.kinds.clone());
        let rules: Arc<[&'static Rules]> = declarations.iter().map(|kind| &kind.shared).collect();
        let proposal = SharedSettings::propose(&rules, &named)?;
        self.settings.validate()?;
        let always = self.always_probes();
        let (probing, must_exist, settings) = (self.probing, self.must_exist, self.settings.clone());
        let (backend, place) = self.connect().await?;
        let backend = Arc::new(backend);
        let mut known = cas::read(&backend, &StoreSlot).await?;
        if known.is_none() && is_used(&backend, &declarations).await? {
            // Another process may have made the store, and granted something, since that was read.
            known = cas::read(&backend, &StoreSlot).await?;
            if known.is_none() {
                return Err(settings_lost(&backend.place));
            }
        }
        match &known {
            Some(known) => SharedSettings::read(&rules, known.record())?.admit(&named)?,
            None if must_exist => return Err(no_store(&backend.place)),
            None => {}
        }
        let due = !known
            .as_ref()
            .and_then(|known| known.record().probe.as_ref())
            .is_some_and(|passed| passed.holds(backend.store_time(), &place));
        let passed = if probing != Probing::Never && (always || due) {
            probe::probe(&backend).await?;
            backend.store_time().map(|now| Passed::now(now, &place))
        } else {
            None
        };
        if probing != Probing::Never || known.is_none() {
            backend.refresh_time().await?;
        }
        let spread = known.as_ref().map_or(Duration::ZERO, |known| known.record().spread(backend.store_time()));
        let shared = match known {
            Some(known) if passed.is_none() || !due => SharedSettings::read(&rules, known.record())?,
            known => agree(&backend, known, &proposal, passed, &rules, &named).await?,
        };
        backend.note_spread(spread);
        backend.look_at_clock(shared.max_clock_skew);
        assemble(backend, shared, settings, kinds)
    }
}

/// Puts an opened store together. Here, and nowhere else, every kind of record is registered.
fn assemble(
    backend: Arc<Backend>,
    shared: SharedSettings,
    settings: Settings,
    more: Vec<Arc<dyn Kind>>,
) -> Result<Store> {
    let activity = Arc::new(Activity::default());
    activity.touch(&*backend.clock);
    settings.sweep.validate(timing::least_margin(shared.max_clock_skew))?;
    let timeout = settings.request_timeout;
    let decisions = decision::Shared::new(Arc::clone(&backend), &shared, timeout, Arc::clone(&activity));
    let bounds = lease::Shared::of(&shared);
    let engine = Engine::new(Arc::clone(&backend), bounds, settings.leases(), Arc::clone(&activity));
    let sessions = Leases::new(Arc::clone(&engine), Namespace::trusted(OURS));
    let streams = stream::Shared::new(Arc::clone(&backend), Arc::clone(&engine), Arc::clone(&activity));
    let (options, active) = (settings.jobs.clone(), Arc::clone(&activity));
    let jobs = job::Shared::new(
        &backend,
        &shared,
        options,
        sessions,
        decision::Decisions::new(Arc::clone(&decisions)),
        active,
        Arc::clone(&streams),
    );
    archive::describe_lag();
    let semaphores = semaphore::Engine::new(Terms::new(&engine));
    let ours: [Arc<dyn Kind>; 7] = [
        Arc::new(LeaseKind::new(Arc::clone(&engine))),
        Arc::new(DecisionKind(Arc::clone(&decisions))),
        Arc::new(JobKind(Arc::clone(&jobs))),
        Arc::new(StreamKind::new(Arc::clone(&streams))),
        Arc::new(ArchiveKind),
        Arc::new(FencedKind(Arc::clone(&backend))),
        Arc::new(SemaphoreKind(Arc::clone(&semaphores))),
    ];
    let kinds: Arc<[Arc<dyn Kind>]> = ours.into_iter().chain(more).collect();
    let sweeper = Sweeper::new(
        Arc::clone(&backend),
        shared.max_clock_skew,
        settings.sweep,
        kinds.to_vec(),
        Arc::new(LeaseTurn(Arc::clone(&engine))),
        Arc::clone(&activity),
    );
    let archive = Arc::new(archive::Counters::new());
    Ok(Store { backend, shared, engine, decisions, jobs, streams, archive, semaphores, kinds, sweeper, activity })
}

/// Writes the shared settings into a new store, or a newer probe into a known one. A process that loses the race takes
/// what is there.
async fn agree(
    backend: &Arc<Backend>,
    known: Option<Seen<StoreRecord>>,
    proposal: &SharedSettings,
    passed: Option<Passed>,
    rules: &Arc<[&'static Rules]>,
    named: &SharedSettingsChange,
) -> Result<SharedSettings> {
    let old = known.map(Arc::new);
    let id = |seen: Option<&Seen<StoreRecord>>| seen.map(|seen| seen.record().write_id());
    let based_on = id(old.as_deref());
    // Where only the note of a probe is at stake, one try will do: without it the next process probes again.
    let within = if old.is_some() { Duration::ZERO } else { 3 * backend.request_timeout };
    let mut change = Change::new(backend, StoreSlot, old.clone(), Patience { within, conflicts: CONFLICTS });
    let mut removed = false;
    let changed = change.run(|there, stamp| {
        let record = match there {
            there if id(there) == based_on => match there {
                Some(old) => old.record().probed(stamp, passed.clone()),
                None => StoreRecord::new(stamp, proposal.epoch, proposal.in_file(), passed.clone()),
            },
            Some(there) => return Ok(((), Plan::Stop(there.record().clone()))),
            None => {
                removed = true;
                return Err(Error::unavailable(format!(
                    "the settings in {} were removed just now: open it again",
                    backend.place
                )));
            }
        };
        Ok(((), Plan::Write(record)))
    });
    let changed = changed.await;
    let there = match (changed, old) {
        (Ok(Changed::Won(seen, ())), _) => seen.record().clone(),
        (Ok(Changed::Stopped(there)), _) => there,
        (Err(error), Some(old)) if !removed => {
            tracing::debug!(%error, "the probe could not be noted");
            return SharedSettings::read(rules, old.record());
        }
        (Err(error), _) => return Err(error),
    };
    let shared = SharedSettings::read(rules, &there)?;
    shared.admit(named)?;
    Ok(shared)
}

pub(super) fn no_store(place: &str) -> Error {
    Error::config(format!("there is no store at {place}: check the URL, or let the first acquire or lock make it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[tokio::test]
    async fn every_kind_that_is_declared_is_registered_under_names_of_its_own() {
        let store = Store::open("memory://").await.unwrap();
        let declared = StoreBuilder::default().declarations();
        let registered: Vec<&str> = store.kinds.iter().map(|kind| kind.declaration().name).collect();
        assert_eq!(registered, declared.iter().map(|kind| kind.name).collect::<Vec<_>>());
        assert_eq!(registered.iter().collect::<BTreeSet<_>>().len(), registered.len());
        let settings: Vec<&str> = store.shared.values().map(|(name, _)| name).collect();
        assert_eq!(settings.iter().collect::<BTreeSet<_>>().len(), settings.len(), "{settings:?}");
    }
}
