//! Runs in columns: what most of them do not have costs no byte.

use super::{ClaimId, Millis, Run, Traits, Why, wire};
use std::sync::Arc;

impl Why {
    fn number(self) -> u32 {
        match self {
            Self::New => 0,
            Self::Failed => 1,
            Self::Snoozed => 2,
            Self::Returned => 3,
            Self::Stalled => 4,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [Self::New, Self::Failed, Self::Snoozed, Self::Returned, Self::Stalled]
            .into_iter()
            .find(|why| why.number() == number)
    }
}

fn column<'a, T: Default + PartialEq>(
    runs: impl Iterator<Item = &'a Run> + Clone,
    of: impl Fn(&'a Traits) -> T,
) -> Vec<T> {
    if runs.clone().all(|run| of(&run.traits) == T::default()) {
        return Vec::new();
    }
    runs.map(|run| of(&run.traits)).collect()
}

pub(super) fn write<'a>(runs: impl ExactSizeIterator<Item = &'a Run> + Clone) -> Option<wire::Runs> {
    if runs.len() == 0 {
        return None;
    }
    let mut last: Millis = 0;
    let due = runs.clone().map(|run| {
        let delta = run.traits.due.wrapping_sub(last);
        last = run.traits.due;
        delta
    });
    let due_ms = due.collect();
    // A column of texts is asked for without making any.
    let errors = runs.clone().any(|run| run.traits.error.is_some());
    let error = |run: &Run| run.traits.error.as_deref().unwrap_or_default().to_owned();
    Some(wire::Runs {
        from: runs.clone().map(|run| u32::from(run.from)).collect(),
        length: runs.clone().map(|run| u32::from(run.len())).collect(),
        priority: column(runs.clone(), |traits| i32::from(traits.priority)),
        due_ms,
        tenant: column(runs.clone(), |traits| traits.tenant),
        key: column(runs.clone(), |traits| traits.key),
        attempts: column(runs.clone(), |traits| traits.attempts),
        stalls: column(runs.clone(), |traits| u32::from(traits.stalls)),
        group: column(runs.clone(), |traits| u32::from(traits.group)),
        why: column(runs.clone(), |traits| traits.why.number()),
        claim: column(runs.clone(), |traits| traits.claim.map_or(0, ClaimId::get)),
        paused: column(runs.clone(), |traits| u32::from(traits.paused)),
        error: if errors { runs.map(error).collect() } else { Vec::new() },
    })
}

/// Each column has a value for every run, or none at all.
fn at<T: Clone + Default>(column: &[T], runs: usize, at: usize) -> Result<T, String> {
    if column.is_empty() {
        return Ok(T::default());
    }
    match column.get(at) {
        Some(value) if column.len() == runs => Ok(value.clone()),
        _ => Err("its columns are not of one length".to_owned()),
    }
}

fn narrow<T: TryFrom<N>, N>(what: &str, number: N) -> Result<T, String> {
    T::try_from(number).map_err(|_| format!("the {what} of a run is too large"))
}

/// `jobs` is how many there are in the segment that they are runs of; for claims it is looked at later.
pub(super) fn read(message: Option<&wire::Runs>) -> Result<Vec<Run>, String> {
    let Some(runs) = message else { return Ok(Vec::new()) };
    let count = runs.from.len();
    let mut read = Vec::with_capacity(count);
    let mut due: Millis = 0;
    for place in 0..count {
        due = due.wrapping_add(at(&runs.due_ms, count, place)?);
        let from: u16 = narrow("start", runs.from[place])?;
        let length: u16 = narrow("length", at(&runs.length, count, place)?)?;
        let error: String = at(&runs.error, count, place)?;
        read.push(Run {
            from,
            to: from.checked_add(length).filter(|_| length > 0).ok_or("a run has no jobs or too many")?,
            traits: Traits {
                priority: narrow("priority", at(&runs.priority, count, place)?)?,
                due,
                tenant: at(&runs.tenant, count, place)?,
                key: at(&runs.key, count, place)?,
                attempts: at(&runs.attempts, count, place)?,
                stalls: narrow("stalls", at(&runs.stalls, count, place)?)?,
                group: narrow("group", at(&runs.group, count, place)?)?,
                why: Why::from_number(at(&runs.why, count, place)?).ok_or("a run waits for an unknown reason")?,
                claim: ClaimId::new(at(&runs.claim, count, place)?),
                paused: at(&runs.paused, count, place)? != 0,
                error: Some(error).filter(|error| !error.is_empty()).map(Arc::from),
            },
        });
    }
    Ok(read)
}
