//! Which slots of a schedule are due: what a commit inserts, and what has been missed.

use super::spec::Spec;
use crate::job::{
    apply::DueSlots,
    ledger::{Millis, Schedule},
};

/// Slots that one commit inserts for one schedule; the rest comes with the next.
const MOST: usize = 64;

/// What is due at this time, if anything is.
pub(crate) fn due(schedule: &Schedule, spec: &Spec, now: Millis) -> Option<DueSlots> {
    let from = schedule.next.filter(|next| *next <= now && !schedule.paused)?;
    let horizon = now.saturating_sub(schedule.look_back);
    // What is older than the look-back window is missed, up to the first slot that is not.
    let start = if from < horizon { spec.at_or_after(horizon) } else { Some(from) };
    let slots = match start {
        Some(start) => spec.between(start, now.saturating_add(1), MOST),
        None => Vec::new(),
    };
    // What was next counts as a slot even if the times of the zone have been changed since.
    let slots = if start == Some(from) && slots.first() != Some(&from) { vec![from] } else { slots };
    let next = match slots.last() {
        Some(last) => spec.after(*last),
        None => spec.after(now),
    };
    let until = slots.first().copied().unwrap_or_else(|| now.saturating_add(1));
    let missed = (from < until && start != Some(from)).then_some((from, until));
    Some(DueSlots { schedule: schedule.id, version: schedule.version, from, slots, missed, next })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn schedule(next: Millis, look_back: Millis) -> (Schedule, Spec) {
        let spec = Spec::every(Duration::from_secs(10), 0).unwrap();
        (Schedule { next: Some(next), look_back, ..Schedule::default() }, spec)
    }

    /// Next, look-back, now: slots, missed, the next one.
    type Case = (Millis, Millis, Millis, &'static [Millis], Option<(Millis, Millis)>, Millis);

    #[test]
    fn what_is_due_is_inserted_and_what_is_too_old_is_missed() {
        let cases: &[Case] = &[
            (20_000, 0, 20_000, &[20_000], None, 30_000),
            (20_000, 60_000, 45_000, &[20_000, 30_000, 40_000], None, 50_000),
            (20_000, 5_000, 45_000, &[40_000], Some((20_000, 40_000)), 50_000),
            (20_000, 4_999, 45_000, &[], Some((20_000, 45_001)), 50_000),
            (20_000, 5_000, 24_999, &[20_000], None, 30_000),
        ];
        for (next, look_back, now, slots, missed, then) in cases {
            let (schedule, spec) = schedule(*next, *look_back);
            let due = due(&schedule, &spec, *now).unwrap();
            assert_eq!((&due.slots[..], due.missed, due.next), (*slots, *missed, Some(*then)), "at {now}");
            assert_eq!(due.from, *next);
        }
    }

    #[test]
    fn nothing_is_due_before_its_time_or_while_it_is_paused() {
        let (mut schedule, spec) = schedule(20_000, 60_000);
        assert_eq!(due(&schedule, &spec, 19_999), None);
        schedule.paused = true;
        assert_eq!(due(&schedule, &spec, 20_000), None);
    }

    #[test]
    fn many_slots_come_in_several_commits_and_none_is_left_out() {
        let (mut schedule, spec) = schedule(10_000, Millis::MAX);
        let mut all = Vec::new();
        while let Some(due) = due(&schedule, &spec, 2_000_000) {
            assert!(due.slots.len() <= MOST && due.missed.is_none());
            all.extend(due.slots);
            schedule.next = due.next;
        }
        assert_eq!(all, (1..=200).map(|n| n * 10_000).collect::<Vec<Millis>>());
    }
}
