//! What happens to machines and their clocks, and when.

use crate::{
    plan::{Plan, dice},
    profile::Profile,
    world::{SECOND, SKEW_MICROS},
};
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use std::ops::Range;

/// How far a clock is wrong at most, in milliseconds.
const WRONG: [i64; 12] =
    [1_500, 2_500, 5_000, 8_000, 11_000, 20_000, 45_000, 60_000, 400_000, 3_600_000, 20_000_000, 86_400_000];

/// What a machine does when it falls asleep, to a name that contains this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// It sends a write: that is then in its hands, and leaves when it wakes.
    Writes(&'static str),
    /// It reads: the store has answered, and the machine hears of it when it wakes.
    Reads(&'static str),
}

/// Something that happens to a machine, or to all of them.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// All its tasks are gone; after this long it starts again with nothing but the store.
    Crash(usize, i64),
    /// It does nothing for this long; when `still`, its monotonic clock does not count it. With a `trap`, from when it
    /// sends its next write to a name like that, or when it is answered.
    Sleep { node: usize, lasts: i64, still: bool, trap: Option<Trap> },
    /// Its wall clock is set, and drifts from there.
    Clock { node: usize, offset: i64, drift: i64, sound: bool },
    /// The store answers nothing for this long.
    Outage(i64),
}

impl Plan {
    /// What happens besides, and when.
    pub fn events(&self) -> Vec<(i64, Event)> {
        let mut events = Vec::new();
        for (number, (begin, end)) in self.stretches().into_iter().enumerate() {
            // Four machines' worth of dice, however many there are.
            for node in 1..=4 {
                self.events_of(node, number as u64, begin..end, &mut events);
            }
            let mut dice = dice(self.seed, "outage", number as u64);
            if self.has("outage") && dice.random_range(0..4) == 0 {
                let lasts = dice.random_range(SECOND..15 * SECOND);
                events.push((dice.random_range(begin..end), Event::Outage(lasts)));
            }
        }
        events.retain(|(_, event)| match event {
            Event::Crash(node, _) | Event::Sleep { node, .. } | Event::Clock { node, .. } => *node <= self.nodes,
            Event::Outage(_) => true,
        });
        events.sort_by_key(|(at, _)| *at);
        events
    }

    fn events_of(&self, node: usize, stretch: u64, when: Range<i64>, events: &mut Vec<(i64, Event)>) {
        let number = stretch * 8 + node as u64;
        let mut add = |part: &str, chance: u32, event: &mut dyn FnMut(&mut StdRng) -> Event| {
            let mut dice = dice(self.seed, part, number);
            for _ in 0..2 {
                if dice.random_range(0..100) < chance {
                    let at = dice.random_range(when.clone());
                    let event = event(&mut dice);
                    if self.has(part) {
                        events.push((at, event));
                    }
                }
            }
        };
        add("crash", 20, &mut |dice| Event::Crash(node, dice.random_range(SECOND / 10..20 * SECOND)));
        let traps = [
            None,
            Some(Trap::Writes("/meta/")),
            Some(Trap::Writes(".txn-decisions/m/")),
            Some(Trap::Reads(".txn-decisions/m/")),
        ];
        // Between the looks at a lease and at the store's time as well.
        let more =
            [None, Some(Trap::Writes("/meta/")), Some(Trap::Reads("/meta/")), Some(Trap::Reads(".leasehold/time"))];
        let queues = [None, Some(Trap::Writes("/ledger/")), Some(Trap::Reads("/ledger/")), Some(Trap::Writes("/in/"))];
        let traps = match self.profile {
            Profile::Queues => queues,
            _ if self.has("wrong") => more,
            _ => traps,
        };
        let trap = |dice: &mut StdRng| *traps.choose(dice).unwrap_or(&None);
        // A producer that stands still for longer with a repeated create in hand may bring back what has ended: nobody can
        // tell it in time, and the protocol says so.
        let bounded = |lasts: i64, trap: &Option<Trap>| match trap {
            Some(Trap::Writes("/in/")) => lasts.min(25 * SECOND),
            _ => lasts,
        };
        add("pause", 30, &mut |dice| {
            // Now and then over the gap, with an operation in hand.
            let longest = if dice.random_range(0..4) == 0 { 600 } else { 20 };
            let lasts = dice.random_range(SECOND / 10..longest * SECOND);
            let trap = trap(dice);
            Event::Sleep { node, lasts: bounded(lasts, &trap), still: false, trap }
        });
        add("suspend", 15, &mut |dice| {
            let longest = if dice.random_range(0..4) == 0 { 4000 } else { 40 };
            let lasts = dice.random_range(SECOND..longest * SECOND);
            let trap = trap(dice);
            Event::Sleep { node, lasts: bounded(lasts, &trap), still: true, trap }
        });
        add("jump", 45, &mut |dice| Event::Clock {
            node,
            offset: dice.random_range(-SKEW_MICROS / 2..=SKEW_MICROS / 2),
            drift: dice.random_range(-2000..=2000),
            sound: true,
        });
        if self.has("wrong") {
            self.wrong_clocks(node, stretch, when, events);
        } else if self.is_wild() && node > 1 {
            add("wild", 45, &mut |dice| {
                let far = *[3, 20, 58, 400, 90_000].choose(dice).unwrap_or(&3) * SECOND;
                // Back more often: that is what makes a holder believe for too long.
                let offset = if dice.random_range(0..3) == 0 { far } else { -far };
                Event::Clock { node, offset, drift: 0, sound: false }
            });
        }
    }

    /// Clocks that are as wrong as clocks can be, of any machine, from the start or set in the middle of anything; some
    /// are right again a little later.
    fn wrong_clocks(&self, node: usize, stretch: u64, when: Range<i64>, events: &mut Vec<(i64, Event)>) {
        let mut dice = dice(self.seed, "wrong", stretch * 8 + node as u64);
        for number in 0..3 {
            if dice.random_range(0..100) >= 45 {
                continue;
            }
            let at = if number == 0 { when.start } else { dice.random_range(when.clone()) };
            let far = *WRONG.choose(&mut dice).unwrap_or(&2);
            // Between what is listed, too.
            let far = far * dice.random_range(500..=1000);
            let offset = if dice.random_range(0..2) == 0 { far } else { -far };
            events.push((at, Event::Clock { node, offset, drift: 0, sound: false }));
            if dice.random_range(0..2) == 0 {
                let later = at + dice.random_range(SECOND / 2..20 * SECOND);
                let offset = dice.random_range(-SKEW_MICROS / 2..=SKEW_MICROS / 2);
                events.push((later, Event::Clock { node, offset, drift: 0, sound: true }));
            }
        }
    }
}
