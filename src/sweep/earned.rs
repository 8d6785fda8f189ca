//! What a process that is never idle may sweep: work pays for its own tidying.

use super::SweepSettings;
use std::time::Duration;

/// So much may be swept for each entry that was filed: itself, and one of a process that died.
const FOR_EACH_FILED: u64 = 2;

/// What has been earned is spent evenly over this time, or faster by whoever has had to wait for the turn.
const SPENT_WITHIN: Duration = Duration::from_secs(900);

/// How many entries are looked at side by side when one after the other would be too slow.
const SIDE_BY_SIDE: usize = 16;

/// What the entries that this process has filed have earned and its runs have not spent. One op is an index entry or a
/// LIST.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Earned {
    left: u64,
    /// How many had been filed when that was last reckoned, and when a pass was last complete.
    filed: u64,
    filed_at_completion: u64,
}

impl Earned {
    /// So many entries have been filed in all.
    pub(super) fn count(&mut self, filed: u64) {
        self.left = self.left.saturating_add(FOR_EACH_FILED.saturating_mul(filed.saturating_sub(self.filed)));
        self.filed = self.filed.max(filed);
    }

    pub(super) fn spend(&mut self, ops: u64) {
        self.left = self.left.saturating_sub(ops);
    }

    /// There is nothing left to sweep. What was earned before the last time is not needed any more: without this, a
    /// process that runs for months could spend what it has saved in one burst.
    pub(super) fn complete(&mut self) {
        self.left = self.left.min(FOR_EACH_FILED.saturating_mul(self.filed - self.filed_at_completion));
        self.filed_at_completion = self.filed;
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// What the next run may do, for a process that could have run for so long.
    pub(super) fn plan(&self, waited: Duration, settings: &SweepSettings) -> Plan {
        let runtime = settings.max_runtime_per_run;
        let part = waited.saturating_add(runtime).min(SPENT_WITHIN).as_secs_f64() / SPENT_WITHIN.as_secs_f64();
        let at_its_pace = match settings.op_delay.is_zero() {
            true => u64::MAX,
            false => u64::try_from(runtime.as_micros() / settings.op_delay.as_micros().max(1)).unwrap_or(u64::MAX),
        };
        let ops = ((self.left as f64 * part) as u64).max(at_its_pace).min(self.left);
        if ops <= at_its_pace {
            return Plan { ops, op_delay: settings.op_delay, side_by_side: 1 };
        }
        Plan { ops, op_delay: runtime / u32::try_from(ops).unwrap_or(u32::MAX), side_by_side: SIDE_BY_SIDE }
    }
}

/// How much a run does, and how fast.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) ops: u64,
    pub(super) op_delay: Duration,
    pub(super) side_by_side: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn earned(left: u64) -> Earned {
        Earned { left, ..Earned::default() }
    }

    #[test]
    fn two_for_each_that_was_filed() {
        let mut earned = Earned::default();
        earned.count(10);
        earned.count(15);
        assert_eq!(earned.left(), 30);
        earned.spend(8);
        assert_eq!(earned.left(), 22);
        earned.spend(100);
        assert_eq!(earned.left(), 0);
    }

    #[test]
    fn what_was_earned_before_the_pass_before_is_gone() {
        let mut earned = Earned::default();
        earned.count(1000);
        earned.complete();
        assert_eq!(earned.left(), 2000, "these are not over yet: they will be swept by the next pass");
        earned.count(1100);
        earned.spend(1000);
        assert_eq!(earned.left(), 1200);
        earned.complete();
        assert_eq!(earned.left(), 200);
    }

    #[test]
    fn little_is_swept_at_the_usual_pace_and_much_within_a_quarter_of_an_hour() {
        let settings = SweepSettings::default();
        let tenth = Duration::from_millis(100);
        let seconds = Duration::from_secs;
        let cases = [
            (earned(0), seconds(60), Plan { ops: 0, op_delay: tenth, side_by_side: 1 }),
            (earned(40), seconds(60), Plan { ops: 40, op_delay: tenth, side_by_side: 1 }),
            // As much as fits into a run.
            (earned(4000), seconds(60), Plan { ops: 400, op_delay: Duration::from_millis(75), side_by_side: 16 }),
            (earned(2000), seconds(0), Plan { ops: 300, op_delay: tenth, side_by_side: 1 }),
            (earned(30_000), seconds(30), Plan { ops: 2000, op_delay: Duration::from_millis(15), side_by_side: 16 }),
            // Others have had the turn for an hour.
            (earned(30_000), seconds(3600), Plan { ops: 30_000, op_delay: Duration::from_millis(1), side_by_side: 16 }),
        ];
        for (earned, waited, plan) in cases {
            assert_eq!(earned.plan(waited, &settings), plan, "{} after {waited:?}", earned.left());
        }
    }

    #[test]
    fn without_a_delay_all_of_it_is_spent_at_once() {
        let settings = SweepSettings { op_delay: Duration::ZERO, ..SweepSettings::default() };
        let plan = earned(5000).plan(Duration::ZERO, &settings);
        assert_eq!(plan, Plan { ops: 5000, op_delay: Duration::ZERO, side_by_side: 1 });
    }
}
