//! Schedules as they are written down and read.

use super::{bytes, id16, time};
use crate::job::ledger::{Millis, Schedule, wire};

pub(super) fn write_schedule(schedule: &Schedule) -> wire::Schedule {
    wire::Schedule {
        id: bytes(&schedule.id),
        slot_ms: schedule.slot,
        next_ms: schedule.next,
        version: schedule.version,
        name: schedule.name.as_ref().to_owned(),
        spec: schedule.spec.as_ref().to_owned(),
        paused: schedule.paused,
        look_back_ms: schedule.look_back,
        single: schedule.single,
        priority: i32::from(schedule.priority),
        job: schedule.job.clone(),
        missed_ms: schedule.missed.iter().flat_map(|(from, to)| [*from, *to]).collect(),
    }
}

pub(super) fn read_schedule(schedule: wire::Schedule) -> Result<Schedule, String> {
    let (pairs, odd) = schedule.missed_ms.as_chunks::<2>();
    if !odd.is_empty() {
        return Err("missed slots of a schedule have no end".to_owned());
    }
    let pair = |pair: &[Millis; 2]| Ok::<_, String>((time(pair[0])?, time(pair[1])?));
    Ok(Schedule {
        id: id16("schedule", &schedule.id)?,
        slot: time(schedule.slot_ms)?,
        next: schedule.next_ms.map(time).transpose()?,
        version: schedule.version,
        name: schedule.name.into(),
        spec: schedule.spec.into(),
        paused: schedule.paused,
        look_back: schedule.look_back_ms.max(0),
        single: schedule.single,
        priority: i16::try_from(schedule.priority).map_err(|_| "a priority is beyond 16 bits")?,
        job: schedule.job,
        missed: pairs.iter().map(pair).collect::<Result<_, _>>()?,
    })
}
