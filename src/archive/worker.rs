//! Archiving one partition: plan, write, commit.
//!
//! A swap of the archiver's record names the range and its files; the files are created; the next swap moves the cursor.
//! Whoever finds a plan carries out that one and no other, so that a message is in one file whatever dies in between, and
//! also where files are written because time is up.

use super::{
    ArchiveSettings, Counters,
    file::{self, Row},
    gather::{self, Gathered, PATIENCE, Target},
    layout::{self, Range},
    record::{ArchiveBody, Plan, PlannedFile},
};
use crate::{
    Error, Result,
    clock::Timestamp,
    record::{
        Plan as Change,
        sealed::{self, Base, Ended, body},
    },
    storage::{Created, Fetched, Name, cas::Record as _},
    stream::{Look, partition::Partition, records::Cursor},
};
use std::{sync::Arc, time::Duration};

/// After so long by the store's dates the record is read again before a file is created.
const STOPPED: Duration = Duration::from_secs(5 * 60);

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Archived {
    /// The stream.
    pub stream: String,
    /// The partition.
    pub partition: u16,
    /// How many messages are in it.
    pub count: u64,
    /// Its name, below the prefix of the store that it is in.
    pub destination: String,
}

/// What one process does for one partition.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) partition: Partition,
    pub(crate) target: Target,
    settings: ArchiveSettings,
    counters: Arc<Counters>,
    /// The record as it was read or won last, and when.
    base: Option<(Base<ArchiveBody>, Look)>,
    pub(crate) gathered: Option<Gathered>,
    /// When the store received the last segment that was archived.
    pub(crate) newest: Option<Timestamp>,
}

impl Worker {
    pub(crate) fn new(
        partition: Partition,
        target: Target,
        settings: ArchiveSettings,
        counters: Arc<Counters>,
    ) -> Self {
        Self { partition, target, settings, counters, base: None, gathered: None, newest: None }
    }

    /// Archives what makes a full file or is old, one file and its days at a time; everything, if it is to be flushed.
    pub(crate) async fn step(&mut self, flush: bool) -> Result<Vec<Archived>> {
        let done = self.run(flush).await;
        if done.is_err() {
            // Nothing that was in hand is believed any more.
            (self.base, self.gathered) = (None, None);
        }
        done
    }

    async fn run(&mut self, flush: bool) -> Result<Vec<Archived>> {
        let mut written = Vec::new();
        loop {
            let (base, _) = self.record().await?;
            if let Some(plan) = body(&base).plan.clone() {
                self.gathered = None;
                let rows = self.read(body(&base).cursor, &plan).await?;
                written.extend(self.carry_out(&plan, &rows).await?);
                self.commit(&plan).await?;
                continue;
            }
            let is_full = self.gather(body(&base).cursor).await?;
            let Some(gathered) = self.gathered.as_mut().filter(|gathered| !gathered.is_empty()) else { break };
            let now = self.partition.shared.backend.clock.monotonic();
            let is_old = gathered.since.is_some_and(|since| now.since(since) >= self.settings.batch_timeout);
            if !is_full && !is_old && !flush {
                break;
            }
            self.newest = gathered.newest;
            let ready = gathered.split(self.settings.batch_size, body(&base).cursor);
            let plan = self.plan(body(&base).cursor, &ready);
            if self.announce(&plan).await? {
                written.extend(self.carry_out(&plan, &ready.rows).await?);
                self.commit(&plan).await?;
                if !flush {
                    break;
                }
            }
        }
        Ok(written)
    }

    /// The record, made if it is not there. It is read again after a while: somebody else may have gone on.
    async fn record(&mut self) -> Result<(Base<ArchiveBody>, Look)> {
        let backend = &self.partition.shared.backend;
        if let Some((base, look)) = &self.base
            && body(base).settled
            && look.age(backend).is_some_and(|age| age <= STOPPED)
        {
            return Ok((base.clone(), *look));
        }
        let look = Look::now(backend);
        let name = self.partition.path.archive();
        let there = sealed::read::<ArchiveBody>(backend, &name).await?;
        let changed = match (&self.base, &there) {
            (Some((ours, _)), Some(there)) => ours.record().revision() != there.record().revision(),
            _ => true,
        };
        if changed {
            self.gathered = None;
        }
        let base = match there {
            Some(base) if body(&base).settled => base,
            there => self.settle(there).await?,
        };
        self.base = Some((base.clone(), look));
        Ok((base, look))
    }

    /// Makes the record in three steps, as a group's is made: not settled, which holds everything; the partition's record
    /// is touched; and settled, from where the log began then.
    async fn settle(&self, there: Option<Base<ArchiveBody>>) -> Result<Base<ArchiveBody>> {
        let (backend, name) = (&self.partition.shared.backend, self.partition.path.archive());
        let base = match there {
            Some(base) => base,
            None => {
                let made = sealed::change(backend, &name, None, |there| match there {
                    None => Ok(Change::Write(ArchiveBody::default())),
                    Some(there) => Ok(Change::Stop(there.body.settled)),
                });
                match made.await? {
                    Ended::Won(base) => base,
                    Ended::Stopped(_) => sealed::read(backend, &name).await?.ok_or_else(|| gone(&name))?,
                }
            }
        };
        let first = self.partition.touch().await?;
        let settled = sealed::change(backend, &name, Some(base), |there| match there {
            Some(there) if there.body.settled => Ok(Change::Stop(())),
            _ => Ok(Change::Write(ArchiveBody { cursor: first, settled: true, plan: None })),
        });
        match settled.await? {
            Ended::Won(base) => Ok(base),
            Ended::Stopped(()) => sealed::read(backend, &name).await?.ok_or_else(|| gone(&name)),
        }
    }

    /// Reads on from what is in hand, until a file is full or there is no more. Whether it is full.
    async fn gather(&mut self, cursor: Cursor) -> Result<bool> {
        let gathered = self.gathered.get_or_insert_with(|| Gathered::from(cursor));
        loop {
            if gathered.rows.len() >= self.settings.batch_size || gathered.bytes >= self.settings.batch_bytes {
                return Ok(true);
            }
            if !gather::more(&self.partition, &self.target, gathered).await? {
                return Ok(false);
            }
        }
    }

    /// Reads again exactly what a plan names.
    async fn read(&self, cursor: Cursor, plan: &Plan) -> Result<Vec<Row>> {
        let mut gathered = Gathered::from(cursor);
        while gathered.to.offset < plan.to.offset || gathered.to.number < plan.to.number {
            let number = gathered.to.number;
            if plan.skipped.contains(&number) {
                let after = self.partition.segment(number + 1).await?;
                let base = after.map_or(plan.to.offset, |after| after.segment.base);
                gathered.to = Cursor { offset: base, number: number + 1 };
            } else if !gather::more(&self.partition, &self.target, &mut gathered).await? {
                let name = self.partition.path.segment(number);
                return Err(Error::corrupt(format!("{name} is not there, and the archiver's plan needs it")));
            }
        }
        gathered.rows.retain(|row| (plan.first..=plan.last).contains(&row.message.offset));
        Ok(gathered.rows)
    }

    fn plan(&self, from: Cursor, ready: &Gathered) -> Plan {
        let first = ready.rows.first().map_or(from.offset, |row| row.message.offset);
        let last = ready.rows.last().map_or(first, |row| row.message.offset);
        let Target { domain, incarnation, .. } = &self.target;
        let path = &self.partition.path;
        let range = Range {
            stream: path.stream.clone(),
            partition: path.number,
            incarnation: incarnation.clone(),
            first,
            last,
        };
        let files = file::by_day(&ready.rows).into_iter().map(|(day, rows)| PlannedFile {
            name: layout::file(domain, self.settings.days, day, &range).as_str().to_owned(),
            digest: file::digest_of(&rows),
            count: rows.len() as u64,
        });
        let skipped = ready.skipped.clone();
        Plan { domain: domain.clone(), to: ready.to, first, last, skipped, files: files.collect() }
    }

    /// Names the plan in the record. Not if another one came first: then the record is read again.
    async fn announce(&mut self, plan: &Plan) -> Result<bool> {
        let Some((base, _)) = self.base.take() else { return Ok(false) };
        let (look, revision) = (Look::now(&self.partition.shared.backend), base.record().revision());
        let name = self.partition.path.archive();
        let announced = sealed::change(&self.partition.shared.backend, &name, Some(base), |there| match there {
            Some(there) if there.revision() == revision => {
                Ok(Change::Write(ArchiveBody { plan: Some(plan.clone()), ..there.body.clone() }))
            }
            _ => Ok(Change::Stop(())),
        });
        match announced.await? {
            Ended::Won(base) => {
                self.base = Some((base, look));
                Ok(true)
            }
            Ended::Stopped(()) => {
                self.gathered = None;
                Ok(false)
            }
        }
    }

    /// Creates the files of a plan. One that is there with the same messages is done, whatever its bytes are.
    async fn carry_out(&mut self, plan: &Plan, rows: &[Row]) -> Result<Vec<Archived>> {
        let mut written = Vec::new();
        let days = file::by_day(rows);
        if days.len() != plan.files.len() {
            return Err(Error::corrupt(format!(
                "{}: what the archiver planned is not what it reads",
                self.partition.path.archive()
            )));
        }
        for (planned, rows) in plan.files.iter().zip(days.values()) {
            let name = Name::new(planned.name.clone());
            if file::digest_of(rows) != planned.digest {
                return Err(Error::corrupt(format!(
                    "{name} should have other messages than are read now: an operator must look"
                )));
            }
            self.look_again(plan).await?;
            let body = file::write(rows)?;
            let is_ours =
                |there: &Fetched| file::header(&there.body).is_some_and(|(digest, _)| digest == planned.digest);
            match self.target.backend.create(&name, &body, is_ours, PATIENCE).await? {
                Created::Won => {}
                Created::Taken(_) => {
                    return Err(Error::corrupt(format!(
                        "{name} is there with other messages: move it away, and the archiver goes on"
                    )));
                }
            }
            self.counters.messages(planned.count);
            self.counters.files(1);
            let path = &self.partition.path;
            written.push(Archived {
                stream: path.stream.to_string(),
                partition: path.number,
                count: planned.count,
                destination: planned.name.clone(),
            });
        }
        Ok(written)
    }

    /// After a while somebody else may have finished the plan, and its files may have been moved on.
    async fn look_again(&mut self, plan: &Plan) -> Result<()> {
        let (base, _) = self.record().await?;
        match body(&base).plan.as_ref() {
            Some(there) if there == plan => Ok(()),
            _ => Err(Error::unavailable(format!(
                "{}: another archiver has gone on meanwhile; the next step begins from there",
                self.partition.path.archive()
            ))),
        }
    }

    /// Moves the cursor, if the plan is still the one that was carried out.
    async fn commit(&mut self, plan: &Plan) -> Result<()> {
        let backend = &self.partition.shared.backend;
        let (look, name) = (Look::now(backend), self.partition.path.archive());
        let base = match self.base.take() {
            Some((base, _)) => Some(base),
            None => sealed::read(backend, &name).await?,
        };
        let committed = sealed::change(backend, &name, base, |there| match there {
            Some(there) if there.body.plan.as_ref() == Some(plan) => {
                Ok(Change::Write(ArchiveBody { cursor: plan.to, plan: None, ..there.body.clone() }))
            }
            _ => Ok(Change::Stop(())),
        });
        match committed.await? {
            Ended::Won(base) => self.base = Some((base, look)),
            Ended::Stopped(()) => self.gathered = None,
        }
        Ok(())
    }
}

fn gone(name: &Name) -> Error {
    Error::unavailable(format!("{name} was removed just now"))
}
