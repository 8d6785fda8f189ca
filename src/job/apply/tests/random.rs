//! Random sequences of everything that can happen, with processes that die, commits in doubt, deletes unknown.

use super::world::World;
use proptest::{collection::vec, prelude::*, strategy::ValueTree};

/// How many sequences are run: `LEASEHOLD_APPLY_CASES`, or 10,000.
fn cases() -> u32 {
    std::env::var("LEASEHOLD_APPLY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(10_000)
}

fn step(world: &mut World, kind: u8, arg: u32) {
    let process = (arg >> 28) as usize % world.processes.len();
    if arg & 0x0c00_0000 != 0 {
        world.find_out(process);
    }
    match kind {
        0..=3 => world.enqueue(arg),
        4 | 5 => world.duplicate(arg),
        6..=9 => {
            world.list(process);
            world.absorb(process, arg);
        }
        10 => world.list(process),
        11 | 12 => world.absorb(process, arg),
        13..=18 => {
            world.list(process);
            world.absorb(process, 0);
            world.open(process);
            world.claim(process, arg);
        }
        19..=21 => world.claim(process, arg),
        22..=31 => world.answer(process, arg),
        32 => world.now += [1, 50, 1_000, 5_000, 31_000, 61_000, 100_000, 1_200_000][arg as usize % 8],
        33..=35 => world.now += [1_000, 6_000, 20_000, 95_000][arg as usize % 4],
        36 | 37 => world.die(process),
        38..=40 => world.recover(process, arg),
        41 => world.find_out(process),
        42 => world.give_back(process),
        43..=45 => world.delete(process, arg % 4),
        46 | 47 => world.confirm(process, arg),
        48 => world.forget(process),
        49..=51 => world.prepare_spill(process),
        52..=54 => world.commit_spill(process, arg),
        55 => world.collect(process),
        56 => world.delete_orphans(process),
        57 | 58 => world.carry_out_plans(process, arg),
        59 => world.touch(process, arg),
        60 => world.change_settings(process, arg),
        61 => world.close(process, arg),
        62 => world.rewrite(process, arg),
        _ => world.open(process),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_job_is_lost_or_in_two_places_and_fences_rise(steps in vec((0u8..64, any::<u32>()), 1..80)) {
        let mut world = World::new(3);
        for (kind, arg) in steps {
            step(&mut world, kind, arg);
            world.settle();
        }
        world.drain();
    }
}

/// A test that meets nothing proves nothing.
#[test]
fn the_random_sequences_meet_every_outcome() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut met = std::collections::BTreeMap::<String, u64>::new();
    let (mut commits, mut largest) = (0, 0);
    let sequences = vec((0u8..64, any::<u32>()), 40..160);
    for _ in 0..2_000 {
        let mut world = World::new(3);
        for (kind, arg) in sequences.new_tree(&mut runner).unwrap().current() {
            step(&mut world, kind, arg);
        }
        world.settle();
        commits += world.commits;
        largest = largest.max(world.largest);
        for (name, count) in &world.met {
            *met.entry(name.clone()).or_default() += count;
        }
    }
    println!("{commits} commits, the largest ledger {largest} bytes, {met:#?}");
    for outcome in [
        "Absorbed",
        "AnsweredBefore",
        "Asked",
        "Buried",
        "CancelledInstead",
        "Claimed",
        "Delete(",
        "Done",
        "Ended",
        "Full(",
        "Known",
        "NotFound",
        "Nothing",
        "NothingToClaim(",
        "Orphans(",
        "ReadFirst",
        "Recovered(",
        "Spilled",
        "StaleAttempt(",
        "Waits",
        "WriteAgain",
    ] {
        assert!(met.keys().any(|name| name.starts_with(outcome)), "{outcome} was never met: {met:#?}");
    }
}
