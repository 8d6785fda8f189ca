//! Whether a key can be retired: its record deleted once nobody has locked it for long, so that nothing is left of it.
//!
//! The record is first marked as retired by a compare-and-swap, which nobody can miss; then it is deleted. A deletion is a
//! request like others: it may land at any time after it was sent, by a process that was paused meanwhile. What a
//! compare-and-swap guarantees is taken for granted here, and so is that the fence of a new record lies above all earlier
//! ones, since it is made from the time.

use crate::{finds, holds};
use stateright::{Model, Property};

/// What a lock does that finds a retired record, and what the store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// It takes the key by a compare-and-swap on the retired record.
    Revive,
    /// It waits until the record is gone, and creates a new one.
    Wait,
    /// It waits too, and the store deletes only the version that was read.
    WaitConditional,
}

const CLIENTS: usize = 2;
const SWEEPERS: usize = 2;
/// How many deletions are sent in all.
const DELETIONS: u8 = 2;

impl Protocol {
    /// How often each client locks the key: once is enough where that breaks something.
    fn locks(self) -> u8 {
        if self == Self::WaitConditional { 2 } else { 1 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Record {
    version: u8,
    holder: Option<usize>,
    retired: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    record: Option<Record>,
    versions: u8,
    /// Which clients believe that they hold the key.
    holds: [bool; CLIENTS],
    locks: [u8; CLIENTS],
    /// The version of which each deletion on its way was sent.
    deletions: Vec<u8>,
    sent: u8,
    /// The key has been retired at least once.
    gone: bool,
    locked_again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Lock(usize),
    Release(usize),
    Retire,
    SendDeletion(usize),
    LandDeletion(usize),
}

impl State {
    fn write(&mut self, holder: Option<usize>, retired: bool) {
        self.versions += 1;
        self.record = Some(Record { version: self.versions, holder, retired });
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut start = State {
            record: None,
            versions: 0,
            holds: [false; CLIENTS],
            locks: [0; CLIENTS],
            deletions: Vec::new(),
            sent: 0,
            gone: false,
            locked_again: false,
        };
        start.write(None, false);
        vec![start]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for client in 0..CLIENTS {
            if state.holds[client] {
                actions.push(Action::Release(client));
            } else if state.locks[client] < self.locks() {
                actions.push(Action::Lock(client));
            }
        }
        if let Some(record) = state.record.filter(|record| record.holder.is_none()) {
            if !record.retired {
                actions.push(Action::Retire);
            } else if state.sent < DELETIONS {
                actions.extend((0..SWEEPERS).map(Action::SendDeletion));
            }
        }
        actions.extend((0..state.deletions.len()).map(Action::LandDeletion));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Lock(client) => {
                match state.record {
                    Some(record) if record.holder.is_some() => return None,
                    Some(record) if record.retired && *self != Self::Revive => return None,
                    _ => {}
                }
                state.locked_again |= state.gone && state.record.is_none();
                state.write(Some(client), false);
                state.holds[client] = true;
                state.locks[client] += 1;
            }
            Action::Release(client) => {
                state.holds[client] = false;
                // Only its own lease: another one is not its to give back.
                if state.record.is_some_and(|record| record.holder == Some(client)) {
                    state.write(None, false);
                }
            }
            Action::Retire => state.write(None, true),
            Action::SendDeletion(_) => {
                state.deletions.push(state.record?.version);
                state.sent += 1;
            }
            Action::LandDeletion(at) => {
                let version = state.deletions.remove(at);
                let same = state.record.is_some_and(|record| record.version == version);
                if same || *self != Self::WaitConditional {
                    state.record = None;
                    state.gone = true;
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder", |_, state: &State| state.holds.iter().filter(|holds| **holds).count() <= 1),
            Property::sometimes("nothing is left of a key", |_, state: &State| {
                state.record.is_none() && state.deletions.is_empty()
            }),
            Property::sometimes("a retired key is locked again", |_, state: &State| state.locked_again),
        ]
    }
}

#[test]
fn a_key_cannot_be_retired_where_a_lock_revives_it() {
    finds("retiring, revived", || Protocol::Revive, "one holder");
}

/// The deletion of a sweeper that was paused lands on the record of the next holder.
#[test]
fn a_key_cannot_be_retired_by_deletions_that_hit_whatever_is_there() {
    finds("retiring, waiting", || Protocol::Wait, "one holder");
}

#[test]
fn a_key_could_be_retired_by_deletions_of_one_version() {
    holds("retiring, by version", Protocol::WaitConditional);
}
