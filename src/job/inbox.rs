//! Looking at a queue's inbox: one listing serves all shards, and none is used for longer than 30 seconds.
//!
//! A listing that is cut off goes on after its last name the next time, shard by shard, and begins again at the folder's
//! end: names that cannot be absorbed now hide nothing.

use super::{
    layout::{Layout, Listed, Listing, Minute, SegmentName},
    ledger::{Ledger, Millis},
};
use crate::{
    Result,
    clock::{Moment, Timestamp},
    storage::{Backend, Name},
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// How long a listing may be used, by this machine's clock and by the store's.
pub(crate) const USABLE: Duration = Duration::from_secs(30);
/// Names in one page.
const PAGE: usize = 1000;
/// How often the folder of what is due later is looked at.
const LATER: Duration = Duration::from_secs(60);
/// What is due within this is absorbed, so that it is open when its time comes.
const SOON: Duration = Duration::from_secs(120);

/// When a listing was begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Age {
    began: Moment,
    store: Option<Timestamp>,
}

impl Age {
    pub(crate) fn now(backend: &Backend) -> Self {
        Self { began: backend.clock.monotonic(), store: backend.store_time() }
    }

    /// How old it is at the most, by either clock.
    pub(crate) fn of(self, backend: &Backend) -> Duration {
        let ours = backend.clock.monotonic().since(self.began);
        let theirs = self.store.zip(backend.store_time()).map(|(then, now)| now.since(then));
        ours.max(theirs.unwrap_or_default())
    }

    /// Whether it was certainly begun after this time of the store, which may count whole seconds.
    pub(crate) fn is_later_than(self, at: Millis) -> bool {
        self.store.is_some_and(|store| store.as_millis() > at.saturating_add(2000))
    }

    pub(crate) fn is_usable(self, backend: &Backend) -> bool {
        self.of(backend) < USABLE
    }
}

/// One look, as far as it concerns one shard.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub(crate) age: Age,
    /// In the order of the listing: urgent ones first, older ones first.
    pub(crate) names: Arc<Vec<SegmentName>>,
    pub(crate) listings: Arc<Vec<Listing>>,
}

/// What has been seen of one queue's inbox.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: tokio::sync::Mutex<State>,
    /// Looks that were begun.
    begun: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Taken>,
    /// The listing over all shards was cut off then: each shard is listed by itself.
    cut_off: Option<Moment>,
    /// Where the listing of a shard goes on, and when it was begun at the start.
    after: BTreeMap<u8, (Name, Age)>,
    later: Option<Later>,
    foreign: HashSet<Name>,
}

#[derive(Debug, Clone)]
struct Taken {
    number: u64,
    age: Age,
    /// Of one shard alone.
    only: Option<u8>,
    names: Arc<Vec<SegmentName>>,
    listings: Arc<Vec<Listing>>,
}

#[derive(Debug)]
struct Later {
    looked: Moment,
    age: Age,
    names: Vec<SegmentName>,
    listing: Vec<Listing>,
}

impl Inbox {
    /// How many looks were begun so far: what one of them shows may be older than this call.
    pub(crate) fn looks(&self) -> u64 {
        self.begun.load(SeqCst)
    }

    /// What the inbox shows for a shard. A look that was begun after the first `since` ones is used again, and so is one
    /// that is not older than `recent`.
    pub(crate) async fn look(
        &self,
        backend: &Backend,
        layout: &Layout,
        shard: u8,
        since: u64,
        recent: Option<Duration>,
    ) -> Result<Look> {
        let mut state = self.state.lock().await;
        let known = state.last.as_ref().filter(|last| {
            let fresh = last.number > since || recent.is_some_and(|recent| last.age.of(backend) < recent);
            fresh && last.only.is_none_or(|only| only == shard) && last.age.is_usable(backend)
        });
        let taken = match known {
            Some(known) => known.clone(),
            None => {
                let number = self.begun.fetch_add(1, SeqCst) + 1;
                let taken = state.list(backend, layout, shard, number).await?;
                state.last = Some(taken.clone());
                taken
            }
        };
        let mine = |name: &&SegmentName| name.id.shard() == shard;
        let mut names: Vec<SegmentName> = taken.names.iter().filter(mine).copied().collect();
        let mut listings = taken.listings.as_ref().clone();
        let mut age = taken.age;
        if let Some(later) = state.later.as_ref().filter(|later| later.age.is_usable(backend)) {
            let due = backend.store_time().unwrap_or_default().plus(SOON);
            names.extend(later.names.iter().filter(mine).filter(|name| is_due(name, due)));
            listings.extend(later.listing.iter().cloned());
            age = Age { began: age.began.min(later.age.began), store: age.store.min(later.age.store) };
        }
        Ok(Look { age, names: Arc::new(names), listings: Arc::new(listings) })
    }

    /// Whether the last look is not older than this.
    pub(crate) async fn looked_within(&self, backend: &Backend, recent: Duration) -> bool {
        self.state.lock().await.last.as_ref().is_some_and(|last| last.age.of(backend) < recent)
    }

    /// Looks at what is due later, if that was not done for a minute. Whether it was done now and shows what is due soon.
    pub(crate) async fn look_at_later(&self, backend: &Backend, layout: &Layout, shards: u16) -> Result<bool> {
        let mut state = self.state.lock().await;
        let now = backend.clock.monotonic();
        if state.later.as_ref().is_some_and(|later| now.since(later.looked) < LATER) {
            return Ok(false);
        }
        let age = Age::now(backend);
        let mut names = Vec::new();
        let mut listing = Vec::new();
        let all = layout.later_all();
        let page = backend.page(&all, None, PAGE).await?;
        if page.more {
            for shard in 0..shards {
                let folder = layout.later(u8::try_from(shard).unwrap_or(u8::MAX));
                let page = backend.page(&folder, None, PAGE).await?;
                listing.push(state.read(layout, &folder, page, &mut names));
            }
        } else {
            listing.push(state.read(layout, &all, page, &mut names));
        }
        let due = backend.store_time().unwrap_or_default().plus(SOON);
        let any = names.iter().any(|name| is_due(name, due));
        state.later = Some(Later { looked: now, age, names, listing });
        Ok(any)
    }

    /// The next due minute that the last look at what is due later has shown.
    pub(crate) async fn next_due(&self) -> Option<Timestamp> {
        let state = self.state.lock().await;
        let later = state.later.as_ref()?;
        later.names.iter().filter_map(minute).min().map(Minute::start)
    }
}

fn minute(name: &SegmentName) -> Option<Minute> {
    match name.place {
        super::layout::Place::At(minute) => Some(minute),
        _ => None,
    }
}

fn is_due(name: &SegmentName, due: Timestamp) -> bool {
    minute(name).is_some_and(|minute| minute.start() <= due)
}

impl State {
    async fn list(&mut self, backend: &Backend, layout: &Layout, shard: u8, number: u64) -> Result<Taken> {
        let now = backend.clock.monotonic();
        if self.cut_off.is_some_and(|since| now.since(since) >= USABLE) {
            self.cut_off = None;
        }
        let age = Age::now(backend);
        let mut names = Vec::new();
        if self.cut_off.is_none() {
            let folder = layout.inbox();
            let page = backend.page(&folder, None, PAGE).await?;
            let more = page.more;
            let listing = self.read(layout, &folder, page, &mut names);
            if !more {
                let (names, listings) = (Arc::new(names), Arc::new(vec![listing]));
                return Ok(Taken { number, age, only: None, names, listings });
            }
            self.cut_off = Some(now);
            names.clear();
        }
        let folder = layout.inbox_of(shard);
        let after = self.after.remove(&shard).filter(|(_, age)| age.is_usable(backend));
        // What goes on is as old as its beginning: a store may answer from the listing that it began then.
        let age = after.as_ref().map_or(age, |(_, age)| *age);
        let page = backend.page(&folder, after.as_ref().map(|(name, _)| name), PAGE).await?;
        if page.more
            && let Some(last) = page.names.last()
        {
            self.after.insert(shard, (last.clone(), age));
        }
        let mut listing = self.read(layout, &folder, page, &mut names);
        listing.from_start = after.is_none();
        Ok(Taken { number, age, only: Some(shard), names: Arc::new(names), listings: Arc::new(vec![listing]) })
    }

    fn read(
        &mut self,
        layout: &Layout,
        folder: &str,
        page: crate::storage::page::Page,
        names: &mut Vec<SegmentName>,
    ) -> Listing {
        let cut_off_after = page.names.last().filter(|_| page.more).map(|name| name.as_str().to_owned());
        let mut shown = HashSet::with_capacity(page.names.len());
        for name in page.names {
            match layout.parse(name.as_str()) {
                Listed::Segment(segment) => names.push(segment),
                Listed::Foreign => {
                    if self.foreign.len() < PAGE && self.foreign.insert(name.clone()) {
                        tracing::warn!(%name, "an object in the inbox of a queue is none of ours: it is left alone");
                    }
                }
            }
            shown.insert(name.as_str().to_owned());
        }
        Listing { prefix: folder.to_owned(), from_start: true, cut_off_after, shown }
    }
}

/// Which of these names the ledger does not know, in their order, until they have `enough` jobs.
pub(crate) fn unknown(ledger: &Ledger, names: &[SegmentName], enough: u64) -> Vec<SegmentName> {
    let known: HashSet<_> =
        ledger.rows.iter().map(|row| row.name.id).chain(ledger.finished.iter().map(|entry| entry.name.id)).collect();
    let mut jobs = 0;
    let mut unknown = Vec::new();
    for name in names {
        if jobs >= enough {
            break;
        }
        if !known.contains(&name.id) {
            jobs += u64::from(name.jobs);
            unknown.push(*name);
        }
    }
    unknown
}
