//! What one seed stands for. Every part draws from a generator of its own, so that leaving one out changes no other:
//! that is what lets a failure be made smaller.

use crate::{
    profile::Profile,
    world::{SECOND, SKEW_MICROS, Stalls},
};
use leasehold::{Settings, clock::Timestamp};
use leasehold_testkit::{Answer, Fault, Rates};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{collections::BTreeSet, fmt, str::FromStr, time::Duration};

/// A generator for one part of one seed.
pub fn dice(seed: u64, part: &str, number: u64) -> StdRng {
    let mut mixed = 0xcbf2_9ce4_8422_2325_u64;
    let bytes = seed.to_le_bytes().into_iter().chain(part.bytes()).chain(number.to_le_bytes());
    for byte in bytes {
        mixed = (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    StdRng::seed_from_u64(mixed)
}

/// What can be left out of a run, by name.
pub const PARTS: [&str; 38] = [
    "crash",
    "pause",
    "suspend",
    "jump",
    "outage",
    "stall",
    "sweep",
    "txn",
    "guard",
    "request_id",
    "cancel",
    "refuse",
    "status",
    "lose",
    "late",
    "duplicate",
    "delay",
    "slow",
    "listing",
    "corrupt",
    "wild",
    "by_id",
    "evict",
    "sweeper",
    "wrong",
    "one_shot",
    "rates",
    "dates",
    "proxy",
    "fronts",
    "whole",
    "force",
    "fsck",
    "namespaces",
    "long",
    "max_hold",
    "new_key",
    "flock",
];

/// A seed, and what is left of it after it was made smaller. Prints as what replays it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub profile: Profile,
    pub nodes: usize,
    pub clients: usize,
    pub keys: usize,
    pub stretches: usize,
    pub off: BTreeSet<String>,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut dice = dice(seed, "size", 0);
        let nodes = *[2, 2, 3, 3, 4].choose(&mut dice).unwrap_or(&2);
        let clients = dice.random_range(2..=4);
        let keys = dice.random_range(1..=3);
        Self { seed, profile: Profile::of(seed), nodes, clients, keys, stretches: 3, off: BTreeSet::new() }
    }

    /// Somewhere around the end of an hour, so that leases and hours meet.
    pub fn start(&self) -> Timestamp {
        let mut dice = dice(self.seed, "start", 0);
        let hour = 1_767_225_600_000_000 + 3600 * SECOND * dice.random_range(0..10_000);
        Timestamp::from_micros(hour - dice.random_range(0..60 * SECOND))
    }

    /// When the clients are at work, counted from the start; in between the store is idle.
    pub fn stretches(&self) -> Vec<(i64, i64)> {
        if self.profile == Profile::Queues {
            return self.queue_stretches();
        }
        let mut dice = dice(self.seed, "stretches", 0);
        let mut at = 0;
        let mut stretches = Vec::new();
        for number in 0..3 {
            let length = dice.random_range(20 * SECOND..50 * SECOND);
            stretches.push((at, at + length));
            // Long enough for decisions to be forgotten; then long enough for hours to be swept.
            let gap = if number == 0 { 150..420 } else { 3600..4500 };
            at += length + SECOND * dice.random_range(gap);
        }
        stretches.truncate(self.stretches);
        stretches
    }

    pub fn stalls(&self) -> Stalls {
        let mut dice = dice(self.seed, "stalls", 0);
        let often = if self.is_wild() { [0, 100, 1000, 3000] } else { [0, 20, 100, 400] };
        let per_100_000 = if self.has("stall") { *often.choose(&mut dice).unwrap_or(&0) } else { 0 };
        Stalls { per_100_000, longest: 30 * SECOND }
    }

    /// In microseconds each way.
    pub fn latency(&self) -> u64 {
        *[2_000, 20_000, 100_000].choose(&mut dice(self.seed, "latency", 0)).unwrap_or(&2_000)
    }

    pub fn lists_in_order(&self) -> bool {
        self.seed.is_multiple_of(2)
    }

    /// How far the store's own time is from the true one, in milliseconds.
    pub fn store_offset(&self) -> i64 {
        let mut dice = dice(self.seed, "store", 0);
        match self.is_wild() && self.has("wild") && !self.has("wrong") {
            true => dice.random_range(-9_000..=9_000),
            false => *[0, -300, 300, -5_000, 5_000].choose(&mut dice).unwrap_or(&0),
        }
    }

    pub fn settings(&self) -> Settings {
        let secs = Duration::from_secs;
        let mut settings = Settings::default();
        settings.max_clock_skew = Some(Duration::from_micros(SKEW_MICROS.unsigned_abs()));
        settings.max_txn_age = Some(secs(30));
        settings.margin = Some(secs(183));
        settings.marker_retention = Some(secs(240));
        settings.max_ttl = Some(secs(60));
        settings.request_timeout = secs(3);
        settings.bulk_timeout = secs(10);
        settings.sweep.hour_grace = secs(183);
        settings.sweep.op_delay = Duration::ZERO;
        settings.sweep.page_size = *[3, 50].choose(&mut dice(self.seed, "page", 0)).unwrap_or(&50);
        if self.has("evict") {
            settings.cached_keys = *[2, 2, 100_000].choose(&mut dice(self.seed, "cached", 0)).unwrap_or(&2);
        }
        if self.has("sweeper") {
            settings.sweep.idle_grace = secs(3);
            settings.sweep.tick = secs(1);
            settings.sweep.starvation_after = secs(30);
            settings.sweep.rest_spread = secs(5);
            settings.sweep.cluster_singleton = self.seed.is_multiple_of(3);
        }
        self.job_settings(&mut settings);
        settings
    }

    /// What goes wrong with requests: of each kind of request at least a tenth.
    pub fn rates(&self) -> Rates {
        let mut dice = dice(self.seed, "rates", 0);
        let millis = Duration::from_millis;
        let mut faults = Vec::new();
        for status in [409, 412, 429, 500, 503] {
            faults.push(("status", Fault::Refuse(Answer::Status(status)), 2));
        }
        faults.push(("refuse", Fault::Refuse(Answer::Drop), 3));
        faults.push(("refuse", Fault::Refuse(Answer::Hang), 1));
        for answer in [Answer::Drop, Answer::Hang, Answer::Status(500), Answer::Status(412), Answer::Status(409)] {
            faults.push(("lose", Fault::Lose(answer), 3));
        }
        for answer in [Answer::Drop, Answer::Status(503), Answer::Hang] {
            faults.push(("late", Fault::Late(millis(dice.random_range(50..2_000)), answer), 2));
            faults.push(("late", Fault::Late(millis(dice.random_range(2_000..50_000)), answer), 1));
        }
        faults.push(("duplicate", Fault::Duplicate, 3));
        faults.push(("delay", Fault::Delay(millis(dice.random_range(20..1_000))), 6));
        faults.push(("delay", Fault::Delay(millis(dice.random_range(1_000..20_000))), 3));
        faults.push(("slow", Fault::Slow(millis(dice.random_range(20..1_000))), 6));
        faults.push(("slow", Fault::Slow(millis(dice.random_range(1_000..20_000))), 3));
        faults.push(("listing", Fault::Shuffle, 20));
        faults.push(("listing", Fault::Gap, 20));
        faults.push(("listing", Fault::Stale, 20));
        faults.push(("corrupt", Fault::Corrupt, 6));
        let scale = dice.random_range(3..=7);
        faults.into_iter().fold(Rates::none(), |rates, (part, fault, weight)| {
            // Drawn also for what is left out, so that the rest stays as it is.
            let weight = weight * dice.random_range(1..=3) * scale / 2;
            // A segment that is damaged twice goes to the dead letters as it is, and none of its jobs runs. That a finished
            // name can no longer be met is known from a listing that does not show it: one that leaves out what was there
            // before it was sent is beyond what queues promise (docs/PROTOCOL.md).
            let partial = matches!(fault, Fault::Gap | Fault::Stale);
            let left_out = (part == "corrupt" || partial) && self.profile == Profile::Queues;
            if self.has(part) && !left_out { rates.with(fault, weight) } else { rates }
        })
    }

    /// Its seed with the kind of its run, which also replays it.
    pub fn titled(&self) -> String {
        format!("{} {}", self.seed, self.profile)
    }

    /// Everything that is a little smaller than this.
    pub fn smaller(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                plans.push(plan);
            }
        };
        add(&|plan| plan.stretches = 1);
        add(&|plan| plan.stretches = plan.stretches.max(2) - 1);
        add(&|plan| plan.nodes = plan.nodes.max(2) - 1);
        add(&|plan| plan.clients = plan.clients.max(2) - 1);
        add(&|plan| plan.keys = plan.keys.max(2) - 1);
        for part in PARTS {
            add(&|plan| {
                plan.off.insert(part.to_owned());
            });
        }
        plans
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = Self::new(self.seed);
        write!(f, "{}", self.seed)?;
        if self.profile != whole.profile {
            write!(f, " {}", self.profile)?;
        }
        let sizes = [
            ("nodes", self.nodes, whole.nodes),
            ("clients", self.clients, whole.clients),
            ("keys", self.keys, whole.keys),
            ("stretches", self.stretches, whole.stretches),
        ];
        for (name, value, _) in sizes.iter().filter(|(_, value, whole)| value != whole) {
            write!(f, " {name}={value}")?;
        }
        self.off.iter().try_for_each(|part| write!(f, " -{part}"))
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let seed = words.next().and_then(|word| word.parse().ok()).ok_or("it begins with a seed, a number")?;
        let mut plan = Self::new(seed);
        for word in words {
            if let Some(part) = word.strip_prefix('-') {
                if !PARTS.contains(&part) {
                    return Err(format!("{part:?} is no part of a run: {PARTS:?} are"));
                }
                plan.off.insert(part.to_owned());
                continue;
            }
            if let Ok(profile) = word.parse() {
                plan.profile = profile;
                continue;
            }
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word:?} is neither name=number, nor -part, nor a kind of run"))?;
            let value: usize = value.parse().map_err(|_| format!("{value:?} is no number"))?;
            match name {
                "nodes" => plan.nodes = value.clamp(1, 4),
                "clients" => plan.clients = value,
                "keys" => plan.keys = value.max(1),
                "stretches" => plan.stretches = value.clamp(1, 3),
                _ => return Err(format!("{name:?} is unknown: nodes, clients, keys and stretches are known")),
            }
        }
        Ok(plan)
    }
}
