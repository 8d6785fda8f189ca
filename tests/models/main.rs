//! Small models of the two protocols, each gone through state by state, and what fuzzing has kept: see `docs/TESTING.md`.
//!
//! The models have no rules of their own where the code has a function for one: they call `leasehold::internals::rules`.
//! Bugs in those are put into a copy of the library by `tests/planted/run`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "these are tests")]

mod corpora;
mod decisions;
mod leases;
mod retiring;
mod sessions;

use leasehold::{Clock, clock::SystemClock};
use stateright::{Checker, HasDiscoveries, Model};
use std::{fmt::Debug, hash::Hash};

/// Goes through all states; all that must never be is nowhere, and all that should happen does somewhere.
fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let clock = SystemClock::new();
    let began = clock.monotonic();
    let checker = model.checker().spawn_bfs().join();
    let took = clock.monotonic().since(began);
    println!("{name}: {} states, depth {}, {took:.1?}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// A way to what a planted bug breaks, without the steps that are not needed for it.
fn finds<M>(name: &str, model: impl Fn() -> M, breaks: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let checker = model().checker().finish_when(HasDiscoveries::AllOf([breaks].into())).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(breaks).unwrap_or_else(|| panic!("{name}: {breaks:?} holds, after {states} states"));
    let start = path.clone().into_states().remove(0);
    let mut steps = path.into_actions();
    let model = model();
    while let Some(fewer) = (0..steps.len()).rev().find_map(|at| {
        let mut fewer = steps.clone();
        fewer.remove(at);
        breaks_by(&model, &start, &fewer, breaks).then_some(fewer)
    }) {
        steps = fewer;
    }
    println!("{name}: not {breaks:?}, after {states} states: {steps:?}");
}

/// Whether these steps can be taken, and lead to what must never be.
fn breaks_by<M: Model>(model: &M, start: &M::State, steps: &[M::Action], breaks: &str) -> bool
where
    M::State: Clone + PartialEq,
    M::Action: Clone + PartialEq,
{
    let mut state = start.clone();
    for step in steps {
        let mut possible = Vec::new();
        model.actions(&state, &mut possible);
        match possible.contains(step).then(|| model.next_state(&state, step.clone())).flatten() {
            Some(next) => state = next,
            None => return false,
        }
    }
    model.properties().iter().any(|property| property.name == breaks && !(property.condition)(model, &state))
}
