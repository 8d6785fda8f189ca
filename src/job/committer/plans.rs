//! Carrying out plans: dead letters and jobs on their way to another queue. The ledger names the object, then it is written,
//! then the next commit drops the job. A plan is carried out only within 30 s of the ledger that showed it.

use super::{KnownLedger, Pending, Shard, Waits};
use crate::{
    Error, ErrorKind, Result, WriteId,
    clock::Timestamp,
    job::{
        apply::Op,
        inbox::Age,
        layout::Layout,
        ledger::{DeadPlan, Ledger, MovePlan},
        segment::{Head, History, NewJob, encode},
        whole::{self, Wanted},
    },
    storage::{
        Name,
        bodies::{LONGEST_OBJECT, Way},
    },
};
use std::sync::Arc;

impl Shard {
    /// Carries out the plans that the last commit has made, and those that nobody has carried out for a while.
    pub(super) fn write_plans(self: &Arc<Self>, known: &KnownLedger) {
        let ledger = known.seen.record();
        if ledger.dead.is_empty() && ledger.moves.is_empty() {
            return;
        }
        let now = self.now();
        let ours = |id: WriteId| id.as_bytes()[..8] == ledger.write_id.as_bytes()[..8];
        let left = |at: i64| now.saturating_sub(at) >= 60_000;
        let mut writing = self.writing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dead: Vec<DeadPlan> = ledger
            .dead
            .iter()
            .filter(|plan| (ours(plan.id) || left(plan.at)) && writing.insert(*plan.id.as_bytes()))
            .cloned()
            .collect();
        let moves: Vec<MovePlan> = ledger
            .moves
            .iter()
            .filter(|plan| {
                (plan.at == ledger.now || left(plan.at)) && writing.insert(plan.target.id.number().to_be_bytes())
            })
            .cloned()
            .collect();
        drop(writing);
        if dead.is_empty() && moves.is_empty() {
            return;
        }
        let (shard, known) = (Arc::clone(self), known.clone());
        let shared = &self.queue.shared;
        shared.tasks.spawn_on(async move { shard.carry_out(known, dead, moves).await }, &shared.runtime);
    }

    async fn carry_out(self: Arc<Self>, known: KnownLedger, dead: Vec<DeadPlan>, moves: Vec<MovePlan>) {
        let mut done = Vec::new();
        for plan in &dead {
            match self.bury(known.seen.record(), plan, known.at).await {
                Ok(()) => done.push(Op::DeadWritten { plan: plan.id }),
                Err(error) => {
                    tracing::warn!(%error, plan = %plan.id, "dead letters could not be written: tried again in a minute");
                }
            }
        }
        for plan in &moves {
            match self.move_on(known.seen.record(), plan, known.at).await {
                Ok(Some(op)) => done.push(op),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, queue = %plan.queue, "a job could not be moved: tried again in a minute");
                }
            }
        }
        {
            let mut writing = self.writing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for plan in &dead {
                writing.remove(plan.id.as_bytes());
            }
            for plan in &moves {
                writing.remove(&plan.target.id.number().to_be_bytes());
            }
        }
        if !done.is_empty() {
            self.submit(Pending::new(done, Waits::Nobody));
        }
    }

    fn in_time(&self, read: Age) -> Result<()> {
        if read.is_usable(self.queue.backend()) {
            return Ok(());
        }
        Err(Error::unavailable("the ledger that shows the plan is too old by now"))
    }

    async fn bury(&self, ledger: &Ledger, plan: &DeadPlan, read: Age) -> Result<()> {
        let layout = &self.queue.layout;
        let (body, count) = match plan.raw {
            Some((row, _)) => {
                let Some(row) = ledger.row(row) else { return Ok(()) };
                let path = layout.segment(&row.name).map(Name::new).unwrap_or_else(|| Name::new(""));
                let whole = self.queue.backend().get_range(&path, 0..LONGEST_OBJECT, Way::First).await?;
                (whole.map(|piece| piece.body).unwrap_or_default(), row.name.jobs)
            }
            None => self.letters(ledger, plan).await?,
        };
        let name = Name::new(layout.dead_letters(plan.hour, self.number, plan.id, count));
        self.in_time(read)?;
        self.put_confirmed(&name, &body).await
    }

    /// The jobs of a plan as a segment: all that they were, and why they are dead.
    async fn letters(&self, ledger: &Ledger, plan: &DeadPlan) -> Result<(bytes::Bytes, u16)> {
        let wanted: Vec<(_, Wanted)> =
            plan.jobs.iter().filter_map(|job| Self::wanted(ledger, job.row, job.index)).collect();
        let places: Vec<Wanted> = wanted.iter().map(|(_, wanted)| wanted.clone()).collect();
        let mut jobs = match whole::read(&self.queue, &places).await {
            Ok(jobs) => jobs,
            // Parts that nobody can read any more must not keep a job from being buried.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::error!(%error, "dead letters are written without their parts");
                let job = |(job, _): &(crate::job::ledger::JobRef, Wanted)| NewJob {
                    history: History { id: Some(job.segment.job(job.index)), ..History::default() },
                    ..NewJob::default()
                };
                wanted.iter().map(job).collect()
            }
            Err(error) => return Err(error),
        };
        for (job, dead) in jobs.iter_mut().zip(&plan.jobs) {
            job.history.attempts = dead.attempts;
            job.history.stalls = dead.stalls;
            job.history.fence = dead.fence;
            job.history.reason = Some(dead.reason);
            job.history.error = Some(dead.error.clone().unwrap_or_else(|| dead.reason.as_text().into()));
        }
        let Some((first, _)) = wanted.first() else { return Err(Error::corrupt("a plan of dead letters has no jobs")) };
        let head = Head {
            segment: first.segment,
            write_id: plan.id,
            made: Timestamp::from_millis(plan.at),
            txn: None,
            request: false,
            source: Some(self.queue.name.as_ref().to_owned()),
            pack: self.queue.shared.options.pack,
        };
        let encoded = encode(&head, &jobs)?;
        Ok((encoded.body, u16::try_from(jobs.len()).unwrap_or(u16::MAX)))
    }

    async fn move_on(&self, ledger: &Ledger, plan: &MovePlan, read: Age) -> Result<Option<Op>> {
        let Some((job, wanted)) = Self::wanted(ledger, plan.row, plan.index) else { return Ok(None) };
        let mut jobs = whole::read(&self.queue, &[wanted]).await?;
        for moved in &mut jobs {
            moved.priority = plan.priority;
            moved.due = Timestamp::from_millis(plan.due);
            moved.history = crate::job::segment::History { fence: Some(plan.fence), ..Default::default() };
        }
        // The name follows from the job's id alone, so a repeat makes the same object.
        let write_id = WriteId::from(plan.target.id.number().to_be_bytes());
        let head = Head {
            segment: plan.target.id,
            write_id,
            made: Timestamp::from_millis(plan.at),
            txn: None,
            request: false,
            source: Some(self.queue.name.as_ref().to_owned()),
            pack: self.queue.shared.options.pack,
        };
        let encoded = encode(&head, &jobs)?;
        let layout = Layout::new(self.queue.namespace.as_str(), &plan.queue)?;
        let Some(path) = layout.segment(&plan.target).map(Name::new) else { return Ok(None) };
        self.in_time(read)?;
        self.put_confirmed(&path, &encoded.body).await?;
        Ok(Some(Op::MoveWritten { job, target: plan.target.id }))
    }
}
