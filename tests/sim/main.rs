//! The real library in a simulated world: see `docs/TESTING.md`.
//!
//! `LEASEHOLD_SIM` replays one run with its trace: a seed, and what was left of it after it was made smaller, as a
//! failure prints it. `LEASEHOLD_SIM_SEEDS` says how many seeds are run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "these are tests")]
#![allow(missing_docs, unreachable_pub, reason = "nobody uses this but the tests in it")]

mod auditor;
mod client;
mod node;
mod plan;
mod register;
mod run;
mod wire;
mod world;

use leasehold::testkit::Planted;
use plan::Plan;
use run::{Ran, run};
use std::{collections::BTreeMap, env, sync::Mutex, thread};

/// What all runs came to.
#[derive(Default)]
struct Sum {
    operations: Vec<u64>,
    grants: Vec<u64>,
    stalls: u64,
    faults: BTreeMap<&'static str, u64>,
    events: BTreeMap<&'static str, u64>,
    failed: Vec<(u64, Vec<String>)>,
}

impl Sum {
    fn add(&mut self, seed: u64, ran: Ran) {
        self.operations.push(ran.operations);
        self.grants.push(ran.grants);
        self.stalls += ran.stalls;
        ran.faults.into_iter().for_each(|(kind, count)| *self.faults.entry(kind).or_default() += count);
        ran.events.into_iter().for_each(|(kind, count)| *self.events.entry(kind).or_default() += count);
        if !ran.violations.is_empty() {
            self.failed.push((seed, ran.violations));
        }
    }
}

fn median(numbers: &mut [u64]) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}

/// Runs many seeds, on as many threads as there are processors.
fn simulate(seeds: std::ops::Range<u64>) -> Sum {
    let threads = thread::available_parallelism().map_or(2, usize::from) as u64;
    let sum = Mutex::new(Sum::default());
    thread::scope(|scope| {
        for thread in 0..threads {
            let (sum, seeds) = (&sum, seeds.clone());
            scope.spawn(move || {
                for seed in seeds.filter(|seed| seed % threads == thread) {
                    let ran = run(&Plan::new(seed), false);
                    sum.lock().unwrap().add(seed, ran);
                }
            });
        }
    });
    sum.into_inner().unwrap()
}

/// Leaves out of a failing plan whatever it does not need in order to fail in the same way.
fn shrink(plan: &Plan, kind: &str) -> Plan {
    let mut smallest = plan.clone();
    let fails = |plan: &Plan| run(plan, false).violations.first().is_some_and(|what| kind_of(what) == kind);
    while let Some(smaller) = smallest.smaller().into_iter().find(fails) {
        smallest = smaller;
    }
    smallest
}

/// What a violation is about, without its names and numbers.
fn kind_of(violation: &str) -> String {
    let words = violation.split([':', ',', '(']).take(2).collect::<String>();
    words.split_whitespace().filter(|word| word.chars().all(|c| c.is_ascii_alphabetic())).take(8).collect()
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn no_promise_is_broken() {
    if let Ok(text) = env::var("LEASEHOLD_SIM") {
        let plan: Plan = text.parse().unwrap();
        let ran = run(&plan, true);
        println!("{}", ran.lines.join("\n"));
        println!("trace {:016x}, {} operations, {} grants", ran.hash, ran.operations, ran.grants);
        assert!(ran.violations.is_empty(), "{:#?}", ran.violations);
        return;
    }
    let seeds = number("LEASEHOLD_SIM_SEEDS", 200);
    let from = number("LEASEHOLD_SIM_FROM", 0);
    let mut sum = simulate(from..from + seeds);
    let total: u64 = sum.operations.iter().sum();
    let faulted: u64 = sum.faults.values().sum();
    println!("{seeds} seeds, {total} operations, {} grants, {} stalls", sum.grants.iter().sum::<u64>(), sum.stalls);
    println!("median of a seed: {} operations, {} grants", median(&mut sum.operations), median(&mut sum.grants));
    println!("faults: {faulted} ({:.1} % of operations): {:?}", faulted as f64 * 100. / total as f64, sum.faults);
    println!("events: {:?}", sum.events);
    println!("violations: {}", sum.failed.len());
    sum.failed.sort();
    for (seed, violations) in sum.failed.iter().take(5) {
        let what = violations.first().unwrap();
        println!("LEASEHOLD_SIM='{}': {what}", shrink(&Plan::new(*seed), &kind_of(what)));
    }
    assert!(sum.failed.is_empty());
}

/// The first seed that finds a planted bug, and what it says.
fn first_find(bug: Planted, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    Planted::plant(Some(bug));
    let found = seeds.into_iter().find_map(|seed| Some((seed, run(&Plan::new(seed), false).violations.into_iter().next()?)));
    Planted::plant(None);
    found
}

#[test]
#[ignore = "searches for the seeds that the next test has"]
fn planted_bugs_are_searched_for() {
    let bugs = Mutex::new(Planted::ALL.to_vec());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(bug) = { bugs.lock().unwrap().pop() } {
                    let found = first_find(bug, 0..2000);
                    println!("{bug:?}: {found:?}");
                }
            });
        }
    });
}
