//! How many jobs are claimed, and from which queue. Pure rules.

use crate::clock::Moment;
use std::time::Duration;

/// No claim asks for more.
pub(super) const LARGEST_CLAIM: u32 = 2000;
/// Over how long the pace is measured.
const WINDOW: Duration = Duration::from_secs(1);

/// How many jobs end in a second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    since: Moment,
    count: u32,
    per_second: u32,
}

impl Pace {
    pub(super) fn ended(&mut self, now: Moment) {
        self.settle(now);
        self.count += 1;
    }

    /// What may be claimed ahead of what runs: as much as will start within half a second.
    pub(super) fn ahead(&mut self, now: Moment) -> u32 {
        self.settle(now);
        (self.per_second / 2).min(LARGEST_CLAIM)
    }

    fn settle(&mut self, now: Moment) {
        let passed = now.since(self.since);
        if passed >= WINDOW {
            let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
            self.per_second = u32::try_from(u64::from(self.count) * 1000 / millis).unwrap_or(u32::MAX);
            (self.since, self.count) = (now, 0);
        }
    }
}

/// Divides `budget` by weight. What is left over goes to the one whose turn it is, and the next one has the next turn.
pub(super) fn shares(budget: u32, weights: &[u32], turn: &mut usize) -> Vec<u32> {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    let share = |weight: &u32| u32::try_from(u64::from(budget) * u64::from(*weight) / total).unwrap_or(u32::MAX);
    let mut shares: Vec<u32> = weights.iter().map(share).collect();
    let left = budget - shares.iter().sum::<u32>();
    if left > 0 {
        let at = by_weight(weights, *turn);
        shares[at] += left;
        *turn = turn.wrapping_add(1);
    }
    for share in &mut shares {
        *share = (*share).min(LARGEST_CLAIM);
    }
    shares
}

/// Whose turn it is: each has as many in a round as it weighs, spread over the round.
pub(super) fn by_weight(weights: &[u32], turn: usize) -> usize {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    if total == 0 {
        return 0;
    }
    // The golden ratio visits the places of a round evenly.
    let place = u64::try_from(turn).unwrap_or(0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let mut place = (place * total) >> 32;
    for (at, weight) in weights.iter().enumerate() {
        let weight = u64::from(*weight);
        if place < weight {
            return at;
        }
        place -= weight;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn nothing_is_claimed_ahead_until_a_pace_is_known() {
        let mut pace = Pace::default();
        assert_eq!(pace.ahead(at(10)), 0);
        (0..100).for_each(|n| pace.ended(at(100 + n)));
        assert_eq!(pace.ahead(at(900)), 0);
        assert_eq!(pace.ahead(at(1000)), 50);
    }

    #[test]
    fn what_is_claimed_ahead_starts_within_a_second() {
        let mut pace = Pace::default();
        pace.ahead(at(1000));
        (0..300).for_each(|n| pace.ended(at(1000 + n)));
        assert_eq!(pace.ahead(at(2000)), 150);
        assert_eq!(pace.ahead(at(3100)), 0, "nothing has ended for a second");
    }

    #[test]
    fn shares_go_by_weight_and_are_never_more_than_there_is() {
        let mut turn = 0;
        assert_eq!(shares(80, &[3, 1], &mut turn), [60, 20]);
        for budget in 0..50 {
            assert_eq!(shares(budget, &[5, 2, 1], &mut turn).iter().sum::<u32>(), budget);
        }
        assert_eq!(shares(7, &[0, 0], &mut turn), [0, 0]);
    }

    #[test]
    fn a_single_slot_goes_round_by_weight_and_starves_nobody() {
        let mut turn = 0;
        let mut got = [0, 0];
        let mut longest = 0;
        let mut since = 0;
        for _ in 0..1000 {
            let shares = shares(1, &[9, 1], &mut turn);
            got[0] += shares[0];
            got[1] += shares[1];
            since = if shares[1] > 0 { 0 } else { since + 1 };
            longest = longest.max(since);
        }
        assert!((80..=120).contains(&got[1]), "{got:?}");
        assert!(longest <= 20, "the light queue waited for {longest} turns");
    }
}
