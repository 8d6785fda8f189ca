//! What a run is about. A seed has one kind of run, so that each kind gets its share of any range of seeds; in each,
//! everything that can go wrong with requests and machines goes wrong as well.

use crate::plan::{PARTS, Plan, dice};
use rand::{RngExt, seq::IndexedRandom};
use std::{fmt, str::FromStr};

/// One kind of run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Leases, guards and decisions on a few keys.
    Plain,
    /// As through a service: by id, with a small cache, and with sweepers in the background.
    Served,
    /// Wall clocks are wrong by up to a day, and the store's time comes in every way that there is.
    Clocks,
    /// As `Clocks`, with leases that several processes share by a request id.
    Shared,
    /// Operators at work: force, repairs; many namespaces, names and guards.
    Operated,
    /// Producers and workers on a queue. No seed has it by itself: `tests/sim/queue` runs them beside the others.
    Queues,
    /// Leases under sessions beside others, with every way in which clocks are wrong. No seed is of this kind by itself.
    Session,
    /// Semaphores only. No seed is of this kind by itself: it is named.
    Semaphore,
}

/// What only some kinds of runs have.
const SPECIAL: [(&str, &[Profile]); 17] = {
    use Profile::{Clocks, Operated, Queues, Semaphore, Served, Session, Shared};
    [
        ("by_id", &[Served, Clocks, Shared, Operated, Semaphore]),
        ("evict", &[Served, Clocks, Operated, Semaphore, Session]),
        ("sweeper", &[Served, Clocks, Shared, Operated, Semaphore, Session]),
        ("wrong", &[Clocks, Shared, Queues, Semaphore, Session]),
        ("one_shot", &[Clocks, Shared]),
        ("rates", &[Clocks, Shared, Queues, Semaphore, Session]),
        ("dates", &[Clocks, Shared, Operated, Queues, Semaphore, Session]),
        ("proxy", &[Clocks, Shared]),
        ("fronts", &[Clocks, Semaphore, Session]),
        ("whole", &[Clocks, Shared, Operated, Queues, Semaphore, Session]),
        ("force", &[Operated, Session]),
        ("fsck", &[Operated]),
        ("namespaces", &[Operated, Session]),
        ("long", &[Operated]),
        ("max_hold", &[Clocks, Operated]),
        ("new_key", &[Operated]),
        ("flock", &[Operated]),
    ]
};

impl Profile {
    const ALL: [Self; 8] = [
        Self::Plain,
        Self::Served,
        Self::Clocks,
        Self::Shared,
        Self::Operated,
        Self::Queues,
        Self::Session,
        Self::Semaphore,
    ];

    /// That of a seed.
    pub fn of(seed: u64) -> Self {
        // Seven has nothing in common with what else depends on a seed's remainder.
        match seed % 7 {
            0 | 1 => Self::Plain,
            2 => Self::Served,
            3 | 4 => Self::Clocks,
            5 => Self::Shared,
            _ => Self::Operated,
        }
    }

    pub fn has(self, part: &str) -> bool {
        let special = SPECIAL.iter().find(|(name, _)| *name == part);
        special.is_none_or(|(_, profiles)| profiles.contains(&self))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

impl FromStr for Profile {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|profile| profile.to_string() == text).ok_or(())
    }
}

impl Plan {
    /// Whether this part of a run is in it.
    pub fn has(&self, part: &str) -> bool {
        debug_assert!(PARTS.contains(&part), "{part}");
        !self.off.contains(part) && self.profile.has(part)
    }

    /// Whether some clocks go further wrong than they may.
    pub fn is_wild(&self) -> bool {
        self.has("wrong") || self.seed % 4 == 3 && self.has("wild")
    }

    /// By how much the monotonic clock of a machine is too fast, in millionths: any two are within 1 in 1,000.
    pub fn rate(&self, machine: usize) -> i64 {
        if self.has("rates") { dice(self.seed, "rate", machine as u64).random_range(-450..=450) } else { 0 }
    }

    /// Whether every answer says what time it is; otherwise objects are written to find out.
    pub fn has_dates(&self) -> bool {
        self.has("dates") && dice(self.seed, "dates", 0).random_range(0..3) > 0
    }

    /// Whether the dates that a machine gets to see are those of its own wall clock, by a proxy on the same machine.
    pub fn is_proxied(&self, machine: usize) -> bool {
        let mut dice = dice(self.seed, "proxy", machine as u64);
        self.has("proxy") && self.has_dates() && self.seed.is_multiple_of(3) && dice.random_range(0..2) == 0
    }

    /// Whether some machine's dates may be wrong: it is misled about what is past.
    pub fn is_misled(&self) -> bool {
        (1..=self.nodes).any(|machine| self.is_proxied(machine))
    }

    /// How far the machines that the store answers by are ahead of its time, in milliseconds.
    pub fn front_ends(&self) -> Vec<i64> {
        let mut dice = dice(self.seed, "fronts", 0);
        let ways: [&[i64]; 5] = [&[], &[], &[0, 2000], &[-1000, 1000], &[0, 700, 2000]];
        if self.has("fronts") { ways.choose(&mut dice).unwrap_or(&ways[0]).to_vec() } else { Vec::new() }
    }

    pub fn stamps_whole_seconds(&self) -> bool {
        self.has("whole") && dice(self.seed, "whole", 0).random_range(0..2) == 0
    }

    /// Whether transactions are decided: what is promised of those rests on clocks and stamps that agree.
    pub fn decides(&self) -> bool {
        self.has("txn") && self.front_ends().is_empty() && !self.is_misled()
    }

    /// Whether sweepers run in the background.
    pub fn has_sweepers(&self) -> bool {
        self.has("sweeper") && self.seed % 2 == 1
    }
}
