//! The front-end machines of a store: each has a clock of its own, and the client cannot choose which one answers.

use leasehold::clock::Timestamp;

/// How a store says what time it is.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    /// How far each of them is ahead of the store's time, in milliseconds. None: there is one, and it is right.
    pub(super) ahead: Vec<i64>,
    /// Whether objects are stamped with whole seconds, as clouds do.
    pub(super) whole_seconds: bool,
    turn: u64,
}

impl Fronts {
    /// The time by the machine whose turn it is.
    fn time(&mut self, time: Timestamp) -> Timestamp {
        if self.ahead.is_empty() {
            return time;
        }
        self.turn += 1;
        // Well mixed, and no generator is disturbed by it.
        let mixed = self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let ahead = self.ahead[(mixed % self.ahead.len() as u64) as usize];
        Timestamp::from_micros(time.as_micros().saturating_add(ahead.saturating_mul(1000)))
    }

    /// What an object is stamped with.
    pub(super) fn stamp(&mut self, time: Timestamp) -> Timestamp {
        let time = self.time(time);
        if self.whole_seconds { whole_seconds(time) } else { time }
    }

    /// The `Date` of an answer.
    pub(super) fn date(&mut self, time: Timestamp) -> Timestamp {
        whole_seconds(self.time(time))
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_micros(time.as_micros().div_euclid(1_000_000).saturating_mul(1_000_000))
}
