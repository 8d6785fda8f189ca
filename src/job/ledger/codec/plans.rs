//! Plans, events and the places of single jobs, as they are written down.

use super::{all, bytes, fence, halves, id16, place, range, read_place, segment, short, some_fence, time, try_all};
use crate::{
    Fence, WriteId,
    job::{
        layout::SegmentName,
        ledger::{DeadJob, DeadPlan, Event, Happened, JobRef, Letters, MovePlan, Reason, wire},
    },
};

fn reason(reason: Reason) -> u32 {
    reason.number()
}

fn read_reason(number: u32) -> Result<Reason, String> {
    Reason::from_number(number).ok_or_else(|| format!("{number} is no reason to be dead"))
}

pub(super) fn write_letters(letters: &Letters) -> wire::Letters {
    wire::Letters {
        plan: bytes(letters.plan.as_bytes()),
        hour: letters.hour,
        jobs: u32::from(letters.jobs),
        taken: letters.taken.iter().flat_map(|range| [u32::from(range.from), u32::from(range.len())]).collect(),
        gone_ms: letters.gone,
    }
}

pub(super) fn read_letters(letters: wire::Letters) -> Result<Letters, String> {
    let (pairs, odd) = letters.taken.as_chunks::<2>();
    if !odd.is_empty() {
        return Err("a range of dead letters has no length".to_owned());
    }
    Ok(Letters {
        plan: WriteId::from(id16("plan", &letters.plan)?),
        hour: letters.hour,
        jobs: short("number of jobs", letters.jobs)?,
        taken: pairs.iter().map(|pair| range(pair[0], pair[1])).collect::<Result<_, _>>()?,
        gone: letters.gone_ms.map(time).transpose()?,
    })
}

pub(super) fn write_dead(plan: &DeadPlan) -> wire::DeadPlan {
    wire::DeadPlan {
        id: bytes(plan.id.as_bytes()),
        hour: plan.hour,
        at_ms: plan.at,
        jobs: all(&plan.jobs, |job| wire::DeadJob {
            row: job.row,
            index: u32::from(job.index),
            reason: reason(job.reason),
            attempts: job.attempts,
            stalls: u32::from(job.stalls),
            fence: job.fence.map_or(0, Fence::get),
            error: job.error.as_deref().unwrap_or_default().to_owned(),
        }),
        raw_row: plan.raw.map(|(row, _)| row),
        raw_reason: plan.raw.map_or(0, |(_, why)| reason(why)),
    }
}

pub(super) fn read_dead(plan: wire::DeadPlan) -> Result<DeadPlan, String> {
    Ok(DeadPlan {
        id: WriteId::from(id16("plan", &plan.id)?),
        hour: plan.hour,
        at: time(plan.at_ms)?,
        jobs: try_all(plan.jobs, |job| {
            Ok(DeadJob {
                row: job.row,
                index: short("index", job.index)?,
                reason: read_reason(job.reason)?,
                attempts: job.attempts,
                stalls: short("number of stalls", job.stalls)?,
                fence: some_fence(job.fence)?,
                error: Some(job.error).filter(|error| !error.is_empty()).map(Into::into),
            })
        })?,
        raw: match plan.raw_row {
            None => None,
            Some(row) => Some((row, read_reason(plan.raw_reason)?)),
        },
    })
}

pub(super) fn write_move(plan: &MovePlan) -> wire::MovePlan {
    let ((high, low), (place, minute)) = (halves(plan.target.id), place(plan.target.place));
    wire::MovePlan {
        row: plan.row,
        index: u32::from(plan.index),
        queue: plan.queue.as_ref().to_owned(),
        high,
        low,
        place,
        minute,
        priority: i32::from(plan.priority),
        due_ms: plan.due,
        fence: plan.fence.get(),
        at_ms: plan.at,
    }
}

pub(super) fn read_move(plan: wire::MovePlan) -> Result<MovePlan, String> {
    let target =
        SegmentName { id: segment(plan.high, plan.low)?, place: read_place(plan.place, plan.minute)?, jobs: 1 };
    Ok(MovePlan {
        row: plan.row,
        index: short("index", plan.index)?,
        queue: plan.queue.into(),
        target,
        priority: i16::try_from(plan.priority).map_err(|_| "a priority is beyond 16 bits")?,
        due: time(plan.due_ms)?,
        fence: fence(plan.fence)?,
        at: time(plan.at_ms)?,
    })
}

pub(super) fn write_ref(job: &JobRef) -> wire::JobRef {
    let (high, low) = halves(job.segment);
    wire::JobRef { high, low, index: u32::from(job.index) }
}

pub(super) fn read_ref(job: wire::JobRef) -> Result<JobRef, String> {
    Ok(JobRef { segment: segment(job.high, job.low)?, index: short("index", job.index)? })
}

pub(super) fn write_event(event: &Event) -> wire::Event {
    let (high, low) = halves(event.segment);
    let (what, why, of) = match event.what {
        Happened::Finished => (0, 0, None),
        Happened::Dead(why) => (1, reason(why), None),
        Happened::Cancelled => (2, 0, None),
        Happened::Recovered => (3, 0, None),
        Happened::Duplicate(of) => (4, 0, Some(write_ref(&of))),
        Happened::Retried => (5, 0, None),
    };
    wire::Event {
        number: event.number,
        high,
        low,
        from: u32::from(event.range.from),
        length: u32::from(event.range.len()),
        what,
        reason: why,
        of,
        at_ms: event.at,
        fence: event.fence.map_or(0, Fence::get),
    }
}

pub(super) fn read_event(event: wire::Event) -> Result<Event, String> {
    Ok(Event {
        number: event.number,
        segment: segment(event.high, event.low)?,
        range: range(event.from, event.length)?,
        what: match (event.what, event.of) {
            (0, _) => Happened::Finished,
            (1, _) => Happened::Dead(read_reason(event.reason)?),
            (2, _) => Happened::Cancelled,
            (3, _) => Happened::Recovered,
            (4, Some(of)) => Happened::Duplicate(read_ref(of)?),
            (5, _) => Happened::Retried,
            (other, _) => return Err(format!("{other} is nothing that happens")),
        },
        at: time(event.at_ms)?,
        fence: some_fence(event.fence)?,
    })
}
