//! The archive: streams copied to compressed JSON lines, with every message in exactly one file.
//!
//! A stream whose settings name a domain is copied to
//! `archive/<domain>/<YYYY>/<MM>/<DD>/<stream>-<partition>-<first>-<last>-<incarnation>.jsonl.gz`, in the same store or in
//! another one. Nothing is trimmed before it is there. A file is written when enough messages wait or the first of them has
//! waited long enough, also if nothing new arrives.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! use leasehold::{Store, archive::ArchiveSettings, stream::StreamSettings};
//!
//! let store = Store::open("memory://").await?;
//! let audit = store.stream("events.audit")?;
//! audit.configure(StreamSettings::default().archive("audit")).await?;
//! audit.publish("events.audit.login", r#"{"user":"alice"}"#).await?;
//!
//! let mut archiver = store.archiver("audit", ArchiveSettings::default())?; // run(stop) goes on until it is told to stop
//! let report = archiver.flush().await?;
//! assert_eq!(report.files[0].count, 1);
//! assert!(archiver.verify().await?.problems.is_empty());
//! # Ok::<(), leasehold::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Exactly one file** holds over crashes, takeovers, upgrades and files that are written because time is up: a range and its
//! files are named in the archiver's record by a swap before the first of them is written, and whoever comes next carries out
//! that plan and no other. Several archivers at once are harmless; a lease keeps them from doing the work twice.

mod counters;
mod file;
mod gather;
mod kind;
mod lag;
mod layout;
mod record;
mod settings;
mod verify;
mod worker;

pub(crate) use counters::{Counters, Counts, describe_lag};
pub(crate) use kind::{ArchiveKind, DECLARATION};
pub use lag::Lag;
pub use settings::{ArchiveSettings, Days};
pub use verify::Verified;
pub use worker::Archived;

use self::{gather::Target, worker::Worker};
use crate::{
    CancellationToken, Leases, Namespace, Result,
    clock::Moment,
    storage::{Backend, layout::OURS},
    stream::{Streams, check_domain},
};
use serde_json::json;
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// How often streams that came to be since are looked for.
const LOOK_AROUND: Duration = Duration::from_secs(60);

/// How long the lease of an archiver lasts that has died.
const TTL: Duration = Duration::from_secs(30);

/// Another store that files go to: [`Store::destination`](crate::Store::destination) of it.
#[derive(Clone)]
pub struct Destination(Arc<Backend>);

impl Destination {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self(backend)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.place)
    }
}

/// What a step has come to.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ArchiveReport {
    /// The files that were written.
    pub files: Vec<Archived>,
    /// What is not archived yet.
    pub lag: Lag,
    /// Whether that is more than it may be.
    pub is_behind: bool,
    /// What went wrong, by partition: tried again with the next step.
    pub failures: Vec<String>,
}

/// Copies the streams of one domain.
#[derive(Debug)]
pub struct Archiver {
    streams: Streams,
    domain: String,
    settings: ArchiveSettings,
    target: Arc<Backend>,
    counters: Arc<Counters>,
    workers: BTreeMap<(String, u16), Worker>,
    looked: Option<Moment>,
    was_behind: bool,
}

impl Archiver {
    pub(crate) fn new(
        streams: Streams,
        domain: &str,
        settings: ArchiveSettings,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        check_domain(domain)?;
        settings.validate()?;
        let target = Arc::clone(&streams.shared().backend);
        let (workers, looked, domain) = (BTreeMap::new(), None, domain.to_owned());
        Ok(Self { streams, domain, settings, target, counters, workers, looked, was_behind: false })
    }

    /// For the streams of another namespace.
    pub fn namespace<N>(mut self, namespace: N) -> Result<Self>
    where
        N: TryInto<Namespace>,
        N::Error: Into<crate::Error>,
    {
        self.streams = Streams::new(Arc::clone(self.streams.shared()), namespace.try_into().map_err(Into::into)?);
        Ok(self)
    }

    /// Writes files to another store.
    #[must_use]
    pub fn to(mut self, destination: &Destination) -> Self {
        self.target = Arc::clone(&destination.0);
        self
    }

    /// Archives what makes a full file or has waited long enough: at most one range of each partition.
    pub async fn step(&mut self) -> Result<ArchiveReport> {
        self.work(false).await
    }

    /// Archives everything that is there.
    pub async fn flush(&mut self) -> Result<ArchiveReport> {
        self.looked = None;
        self.work(true).await
    }

    async fn work(&mut self, flush: bool) -> Result<ArchiveReport> {
        self.look_around().await?;
        let (mut report, now) = (ArchiveReport::default(), self.streams.shared().backend.clocks().latest());
        for ((stream, partition), worker) in &mut self.workers {
            match worker.step(flush).await {
                Ok(files) => {
                    if !files.is_empty() {
                        // What follows has not been read: it is no older than the last that was archived.
                        let oldest =
                            worker.newest.filter(|_| !flush).map_or(Duration::ZERO, |newest| now.since(newest));
                        report.lag.add(Lag { oldest, ..Lag::default() });
                    }
                    report.files.extend(files);
                    if let Some(gathered) = &worker.gathered {
                        let oldest = gathered.oldest.map_or(Duration::ZERO, |oldest| now.since(oldest));
                        let messages = gathered.rows.len() as u64;
                        report.lag.add(Lag { messages, bytes: if messages > 0 { gathered.bytes } else { 0 }, oldest });
                    }
                }
                Err(error) => {
                    tracing::warn!(stream, partition, %error, "could not be archived: tried again");
                    self.counters.failures(1);
                    report.failures.push(format!("{stream}, partition {partition}: {error}"));
                    report.lag.add(lag::of(&worker.partition).await?);
                }
            }
        }
        let Lag { messages, oldest, .. } = report.lag;
        report.is_behind = messages > self.settings.alert_messages || oldest > self.settings.alert_age;
        self.tell(&report).await;
        Ok(report)
    }

    /// Sets the gauges, and publishes what has happened, if a stream for that is named.
    async fn tell(&mut self, report: &ArchiveReport) {
        let label = self.domain.clone();
        metrics::gauge!(counters::LAG_MESSAGES, "domain" => label.clone()).set(report.lag.messages as f64);
        metrics::gauge!(counters::LAG_BYTES, "domain" => label.clone()).set(report.lag.bytes as f64);
        metrics::gauge!(counters::LAG_SECONDS, "domain" => label).set(report.lag.oldest.as_secs_f64());
        let mut events: Vec<(&str, serde_json::Value)> = report
            .files
            .iter()
            .map(|file| {
                let Archived { stream, partition, count, destination } = file;
                let body =
                    json!({"stream": stream, "partition": partition, "count": count, "destination": destination});
                ("system.archive", body)
            })
            .collect();
        if report.is_behind && !self.was_behind {
            let (domain, messages) = (&self.domain, report.lag.messages);
            tracing::error!(domain, messages, oldest = ?report.lag.oldest, "the archiver is behind: nothing is trimmed that it has not copied");
            self.counters.alerts(1);
            events.push((
                "system.error",
                json!({"what": "archiver behind", "domain": domain, "lag": report.lag, "failures": report.failures}),
            ));
        }
        self.was_behind = report.is_behind;
        let Some(name) = self.settings.events.as_deref().filter(|_| !events.is_empty()) else { return };
        let drafts = events.into_iter().map(|(subject, body)| crate::stream::Draft::new(subject, body.to_string()));
        let published = match self.streams.stream(name) {
            Ok(stream) => stream.publish_many(drafts).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = published {
            tracing::warn!(%error, stream = name, "what the archiver has done could not be published");
        }
    }

    /// Finds the streams of the domain, now and then.
    async fn look_around(&mut self) -> Result<()> {
        let now = self.streams.shared().backend.clock.monotonic();
        if self.looked.is_some_and(|looked| now.since(looked) < LOOK_AROUND) {
            return Ok(());
        }
        for name in self.streams.names().await? {
            let stream = self.streams.stream(name.as_str())?;
            let settings = stream.settings().await?;
            for number in 0..settings.partitions {
                let key = (name.to_string(), number);
                if settings.archive.as_deref() != Some(self.domain.as_str()) {
                    self.workers.remove(&key);
                } else if !self.workers.contains_key(&key) {
                    let (backend, domain) = (Arc::clone(&self.target), self.domain.clone());
                    let incarnation = stream.incarnation().await?.to_owned();
                    let target = Target { backend, domain, incarnation };
                    let partition = stream.partition(number).await?;
                    let (settings, counters) = (self.settings.clone(), Arc::clone(&self.counters));
                    self.workers.insert(key, Worker::new(partition, target, settings, counters));
                }
            }
        }
        self.looked = Some(now);
        Ok(())
    }

    /// Archives until it is told to stop, then writes what is left. While another process archives the domain it waits.
    pub async fn run(&mut self, stop: CancellationToken) -> Result<()> {
        let shared = Arc::clone(self.streams.shared());
        let clock = &shared.backend.clock;
        let leases = Leases::new(Arc::clone(&shared.engine), Namespace::trusted(OURS));
        let key = format!("archive/{}/{}", self.streams.namespace(), self.domain);
        while !stop.is_cancelled() {
            let guard = match leases.try_lock(key.as_str()).ttl(TTL).owner("archiver").await {
                Ok(guard) => guard,
                Err(error) => {
                    tracing::warn!(%error, domain = self.domain, "the archiver's lease could not be taken: tried again");
                    None
                }
            };
            if let Some(guard) = guard {
                self.workers.clear();
                self.looked = None;
                while !stop.is_cancelled() && guard.is_valid() {
                    match self.step().await {
                        // There may be more at once.
                        Ok(report) if !report.files.is_empty() && report.failures.is_empty() => continue,
                        Ok(_) => {}
                        Err(error) => {
                            tracing::warn!(%error, domain = self.domain, "streams could not be archived: tried again");
                        }
                    }
                    stop.run_until_cancelled(clock.sleep(self.settings.poll_interval)).await;
                }
                if stop.is_cancelled() && guard.is_valid() {
                    self.flush().await?;
                    return guard.release().await;
                }
            }
            stop.run_until_cancelled(clock.sleep(TTL / 3)).await;
        }
        Ok(())
    }

    /// What is not archived yet: a few requests for each partition.
    pub async fn lag(&mut self) -> Result<Lag> {
        self.looked = None;
        self.look_around().await?;
        let mut lag = Lag::default();
        for worker in self.workers.values() {
            lag.add(lag::of(&worker.partition).await?);
        }
        Ok(lag)
    }

    /// Reads every file of the domain, and says what is missing, double or damaged.
    pub async fn verify(&self) -> Result<Verified> {
        verify::verify(&self.target, &self.domain).await
    }
}
