//! What the queues of one opened store share, and what one queue of it knows.

use super::{
    committer::Shard,
    counters::{self, Counters},
    duty::Duty,
    fetch::Segments,
    id::{RisingIds, hash},
    inbox::{Age, Inbox},
    layout::Layout,
    ledger::{Ledger, Policy},
    options::JobOptions,
    session::Sessions,
    settings::{QueueRecord, QueueSettings, QueueSlot},
    slot::LedgerSlot,
    together::Singles,
    worker::Beside,
};
use crate::{
    Error, ErrorKind, Leases, Namespace, Result, WriteId,
    clock::Moment,
    decision::Decisions,
    record::{Change, Changed, Patience, Plan},
    shared::SharedSettings,
    storage::{
        Backend,
        cas::{self, Record as _, Seen},
    },
    stream,
    sweep::Activity,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

/// How old `queue.json` may be before it is read again.
const SETTINGS_LAST: Duration = Duration::from_secs(60);

/// What all queues of one opened store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) backend: Arc<Backend>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) segments: Segments,
    /// What became of the transactions that segments hang on.
    pub(crate) decisions: Decisions,
    pub(crate) options: JobOptions,
    pub(crate) max_clock_skew: Duration,
    pub(crate) epoch: u64,
    pub(crate) activity: Arc<Activity>,
    /// Where events go.
    pub(crate) streams: Arc<stream::Shared>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Committers that run, and what they have left to delete.
    pub(crate) tasks: TaskTracker,
    pub(crate) ids: Mutex<RisingIds>,
    pub(crate) counters: Arc<Counters>,
    /// Dead letters that this process has dropped because a queue had too many.
    pub(crate) dead_dropped: std::sync::atomic::AtomicU64,
    /// What workers have in hand.
    pub(crate) beside: Arc<Beside>,
    queues: Mutex<HashMap<(Namespace, String), Arc<Core>>>,
}

impl Shared {
    pub(crate) fn new(
        backend: &Arc<Backend>,
        shared: &SharedSettings,
        options: JobOptions,
        leases: Leases,
        decisions: Decisions,
        activity: Arc<Activity>,
        streams: Arc<stream::Shared>,
    ) -> Arc<Self> {
        let owner: Arc<str> = options.owner.as_deref().unwrap_or_else(|| crate::lease::default_owner()).into();
        let counters = Arc::new(counters::new());
        Arc::new(Self {
            backend: Arc::clone(backend),
            sessions: Sessions::new(leases, Arc::clone(backend), owner, Arc::clone(&counters)),
            segments: Segments::default(),
            decisions,
            options,
            max_clock_skew: shared.max_clock_skew,
            epoch: shared.epoch,
            activity,
            streams,
            runtime: tokio::runtime::Handle::current(),
            tasks: TaskTracker::new(),
            ids: Mutex::default(),
            counters,
            dead_dropped: std::sync::atomic::AtomicU64::default(),
            beside: Arc::default(),
            queues: Mutex::default(),
        })
    }

    /// The one core of a queue.
    pub(crate) fn core(self: &Arc<Self>, namespace: &Namespace, name: &str) -> Result<Arc<Core>> {
        let layout = Layout::new(namespace.as_str(), name)?;
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let core = queues.entry((namespace.clone(), name.to_owned())).or_insert_with(|| {
            Arc::new(Core {
                shared: Arc::clone(self),
                layout: Arc::new(layout),
                name: name.into(),
                namespace: namespace.clone(),
                inbox: Inbox::default(),
                settings: tokio::sync::Mutex::new(None),
                shards: Mutex::default(),
                turn: AtomicUsize::new(0),
                room: super::capacity::Room::default(),
                news: Notify::new(),
                duty: Duty::default(),
                singles: Singles::default(),
            })
        });
        Ok(Arc::clone(core))
    }

    /// Whether this process has used a queue.
    pub(crate) fn has_queues(&self) -> bool {
        !self.queues.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn now(&self) -> Moment {
        self.backend.clock.monotonic()
    }

    /// Waits until nothing is on its way, and gives the session up if nothing is in hand.
    pub(crate) async fn drain(&self) {
        self.sessions.close_if_idle().await;
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}

/// `queue.json` as it was read.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) seen: Seen<QueueRecord>,
    pub(crate) policy: Arc<Policy>,
    read: Moment,
}

impl Known {
    pub(crate) fn record(&self) -> &QueueRecord {
        self.seen.record()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.record().revision()
    }

    /// The shard of what is placed by a hash.
    pub(crate) fn shard_of(&self, what: &[u8]) -> u8 {
        let [a, b, ..] = hash(&[b"shard", what]);
        u8::try_from(u16::from_le_bytes([a, b]) % self.record().key_shards).unwrap_or(0)
    }
}

/// What an opened store knows of one queue.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) name: Arc<str>,
    pub(crate) namespace: Namespace,
    pub(crate) inbox: Inbox,
    settings: tokio::sync::Mutex<Option<Arc<Known>>>,
    shards: Mutex<BTreeMap<u8, Arc<Shard>>>,
    turn: AtomicUsize,
    /// How full the queue is, if it has a capacity.
    pub(crate) room: super::capacity::Room,
    /// Something was enqueued or has come back in this process.
    pub(crate) news: Notify,
    pub(crate) duty: Duty,
    /// Jobs that are enqueued one by one.
    pub(crate) singles: Singles,
}

impl Core {
    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.shared.backend
    }

    fn slot(&self) -> QueueSlot {
        QueueSlot { layout: Arc::clone(&self.layout), queue: Arc::clone(&self.name) }
    }

    pub(crate) fn ledger_slot(&self, shard: u8) -> LedgerSlot {
        LedgerSlot { layout: Arc::clone(&self.layout), queue: Arc::clone(&self.name), shard }
    }

    pub(crate) fn shard(self: &Arc<Self>, number: u8) -> Arc<Shard> {
        let mut shards: MutexGuard<'_, _> = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(shards.entry(number).or_insert_with(|| Shard::new(self, number)))
    }

    /// The shards that were worked on.
    pub(crate) fn known_shards(&self) -> Vec<Arc<Shard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A number that rises with every call: whose turn it is.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Relaxed)
    }

    /// What the queue is set to; makes the queue if there is none. Read again once a minute.
    pub(crate) async fn settings(self: &Arc<Self>) -> Result<Arc<Known>> {
        let mut settings = self.settings.lock().await;
        let now = self.shared.now();
        if let Some(known) = settings.as_ref().filter(|known| now.since(known.read) < SETTINGS_LAST) {
            return Ok(Arc::clone(known));
        }
        match self.read_settings(settings.as_deref()).await {
            Ok(known) => {
                *settings = Some(Arc::clone(&known));
                Ok(known)
            }
            // What was read a minute ago serves for a while longer.
            Err(error) if error.is_retryable() => settings.clone().ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// What the queue is set to now.
    pub(crate) async fn settings_now(self: &Arc<Self>) -> Result<Arc<Known>> {
        let mut settings = self.settings.lock().await;
        let known = self.read_settings(settings.as_deref()).await?;
        *settings = Some(Arc::clone(&known));
        Ok(known)
    }

    async fn read_settings(self: &Arc<Self>, before: Option<&Known>) -> Result<Arc<Known>> {
        let now = self.shared.now();
        match cas::read(self.backend(), &self.slot()).await? {
            Some(seen) => {
                let older = before.is_some_and(|before| seen.record().revision() < before.revision());
                if older {
                    let name = self.layout.settings();
                    return Err(Error::new(ErrorKind::Regressed, format!("{name} went back: a backup was restored")));
                }
                Ok(self.known(seen, now))
            }
            None => self.make(QueueSettings { shards: self.shared.options.shards, ..QueueSettings::default() }).await,
        }
    }

    fn known(&self, seen: Seen<QueueRecord>, read: Moment) -> Arc<Known> {
        let policy = Arc::new(seen.record().settings.policy());
        Arc::new(Known { seen, policy, read })
    }

    fn patience(&self) -> Patience {
        Patience { within: 3 * self.backend().request_timeout, conflicts: 32 }
    }

    /// Makes the queue: each shard's ledger first, so that one that is missing later is known to be lost.
    async fn make(self: &Arc<Self>, settings: QueueSettings) -> Result<Arc<Known>> {
        self.make_ledgers(0..settings.shards, 1, &settings).await?;
        let mut change: Change<QueueSlot, ()> = Change::new(self.backend(), self.slot(), None, self.patience());
        let done = change.run(|there, stamp| {
            Ok(match there {
                Some(there) => ((), Plan::Stop(there.clone())),
                None => ((), Plan::Write(QueueRecord::new(stamp, &self.name, settings.clone()))),
            })
        });
        match done.await? {
            Changed::Won(seen, ()) | Changed::Stopped(seen) => Ok(self.known(seen, self.shared.now())),
        }
    }

    /// Changes what the queue is set to. New shards have their ledgers before `queue.json` shows them.
    /// `to` says what they become, given what they are: it may be asked more than once.
    pub(crate) async fn change_settings(
        self: &Arc<Self>,
        to: impl Fn(&QueueSettings) -> QueueSettings,
    ) -> Result<Arc<Known>> {
        let before = self.settings_now().await?;
        let settings = to(&before.record().settings);
        settings.validate()?;
        // Only those of new shards: one that is missing below was lost, and an empty one in its place would lose jobs.
        let ever = before.record().shards_ever;
        self.make_ledgers(ever..settings.shards.max(ever), before.revision(), &settings).await?;
        let mut kept = self.settings.lock().await;
        let base = Some(Arc::new(before.seen.clone()));
        let mut change: Change<QueueSlot, ()> = Change::new(self.backend(), self.slot(), base, self.patience());
        let done = change.run(|there, stamp| match there {
            Some(there) => {
                let now = to(&there.record().settings);
                now.validate()?;
                // Its ledgers were made for what was read first.
                let shards = now.shards.min(there.record().shards_ever.max(settings.shards));
                Ok(((), Plan::<_, ()>::Write(there.record().changed(stamp, QueueSettings { shards, ..now }))))
            }
            None => Err(Error::corrupt(format!("{} is gone: write it again", self.layout.settings()))),
        });
        match done.await? {
            Changed::Won(seen, ()) => {
                let known = self.known(seen, self.shared.now());
                *kept = Some(Arc::clone(&known));
                Ok(known)
            }
            Changed::Stopped(()) => Err(Error::unavailable("the settings were not changed: try again")),
        }
    }

    async fn make_ledgers(
        self: &Arc<Self>,
        shards: std::ops::Range<u16>,
        revision: u64,
        settings: &QueueSettings,
    ) -> Result<()> {
        let backend = self.backend();
        let make = |shard: u16| async move {
            let shard = u8::try_from(shard).unwrap_or(u8::MAX);
            let slot = self.ledger_slot(shard);
            let mut change: Change<LedgerSlot, ()> = Change::new(backend, slot, None, self.patience());
            let done = change.run(|there, stamp| {
                Ok(match there {
                    Some(there) => ((), Plan::Stop(there.clone())),
                    None => {
                        let write_id: WriteId = stamp.write_id;
                        ((), Plan::Write(Ledger::new(&self.name, shard, write_id, revision, settings.policy())))
                    }
                })
            });
            let at = Age::now(backend);
            let (Changed::Won(seen, ()) | Changed::Stopped(seen)) = done.await?;
            self.shard(shard).learn(Arc::new(seen), at);
            Ok::<_, Error>(())
        };
        futures_util::future::try_join_all(shards.map(make)).await.map(drop)
    }
}
