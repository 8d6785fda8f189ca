//! One transaction, one that commits and one that aborts it, a reader and a sweeper, and writes that land when they like.
//!
//! Time goes in ticks of a minute, which is the skew as well: the transaction closes after two, and what comes after the
//! margin is void. Everything between two clock ticks may happen in any order.

use crate::{finds, holds};
use leasehold::{
    Settings,
    clock::Timestamp,
    decision::TxnId,
    internals::rules::{self, Ages, ReadBack, Written},
    layout::WriteId,
};
use leasehold_testkit::{SeededGenerator, TestClock};
use stateright::{Model, Property};
use std::time::Duration;

const TICK: Duration = Duration::from_secs(60);
const BEGUN: Timestamp = Timestamp::from_millis(1_767_225_600_000);
/// A while after the last marker has expired.
const END: u8 = 10;
/// How often each of the two tries to write.
const TRIES: [u8; 2] = [2, 1];
/// The processes: two that decide, of which the second sweeps as well, and one that reads.
const SWEEPER: usize = 1;
const READER: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Overwrites,
    ForgottenWithoutMargin,
    ForgottenByOldAnswer,
    DeletedWhenClosed,
    DeletedByItsExpiry,
    LateVerdictBelieved,
    UndecidedByOneClock,
    UndecidedByOldClock,
}

struct Decisions {
    bug: Option<Wrong>,
    ages: Ages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Marker {
    by: u8,
    attempt: u8,
    expires: Timestamp,
}

/// How far a call to decide has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Starting,
    /// For the answer to its last write, which says whether that was first.
    Waiting(Option<bool>),
    /// Ok came late in the day: when did the store receive it?
    Asking,
    ReadingBack,
    /// Too old to write: what is there counts.
    Closed,
    Done,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Decider {
    stage: Stage,
    tries: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Reader {
    #[default]
    Resting,
    /// Has looked at its clocks: whether all was over by both, and by the later one.
    Asking { over: bool, past: bool },
    /// What it was told is on its way; `decided` if another client was told a decision by then.
    Told { over: bool, past: bool, found: Option<(Marker, Timestamp)>, decided: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    /// How many ticks each process's clock is ahead, and the store's.
    ahead: [i8; 3],
    store_ahead: i8,
    /// With when the store received it, by its own clock.
    marker: Option<(Marker, Timestamp)>,
    flying: Vec<Marker>,
    deciders: [Decider; 2],
    reader: Reader,
    /// Of a marker, under way: nothing can be asked of it any more.
    deleting: bool,
    /// Which decisions any client was told of.
    told: [bool; 2],
    forgotten: bool,
    /// What must never be.
    won_after_forgotten: bool,
    undecided_after_told: bool,
    forgotten_while_there: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    Send(usize),
    Land(usize),
    Ok(usize),
    GiveUp(usize),
    /// Reads, and goes on by what is there.
    Look(usize),
    ReaderStarts,
    ReaderReads,
    ReaderAnswers,
    Sweep,
    Delete,
}

fn write_id(marker: &Marker) -> WriteId {
    WriteId::from([16 * marker.by + marker.attempt; 16])
}

impl State {
    fn at(&self, ahead: i8) -> Timestamp {
        let ticks = i64::from(self.now) + i64::from(ahead);
        Timestamp::from_millis(BEGUN.as_millis() + ticks * 60_000)
    }

    fn wall(&self, process: usize) -> Timestamp {
        self.at(self.ahead[process])
    }

    fn store(&self) -> Timestamp {
        self.at(self.store_ahead)
    }

    fn latest(&self, process: usize) -> Timestamp {
        self.wall(process).max(self.store())
    }

    fn tell(&mut self, by: u8) {
        self.told[usize::from(by)] = true;
    }
}

impl Decisions {
    fn new(bug: Option<Wrong>) -> Self {
        let minutes = |count: u64| Some(Duration::from_secs(60 * count));
        let mut settings = Settings::default();
        settings.max_clock_skew = Some(TICK);
        settings.max_txn_age = minutes(2);
        // The least that is allowed, in whole ticks.
        settings.margin = minutes(6);
        settings.marker_retention = minutes(8);
        let shared = rules::shared_settings(&settings).unwrap();
        let txn = TxnId::begin(&TestClock::at(BEGUN), &SeededGenerator::new(1));
        Self { bug, ages: Ages::of(txn, &shared) }
    }

    fn is(&self, bug: Wrong) -> bool {
        self.bug == Some(bug)
    }

    fn counts(&self, found: Option<(Marker, Timestamp)>) -> Option<Marker> {
        found.filter(|(_, modified)| !self.ages.is_void(*modified)).map(|(marker, _)| marker)
    }

    fn are_over(&self, state: &State, process: usize) -> bool {
        self.ages.are_over(state.wall(process), state.store())
    }

    /// Whether a marker may go: it is void or has expired, and no other one can be written.
    fn may_go(&self, state: &State, process: usize, marker: Marker, modified: Timestamp) -> bool {
        let past = |at| rules::are_past(at, state.wall(process), state.store());
        if self.is(Wrong::DeletedWhenClosed) {
            return past(self.ages.closes());
        }
        let over = self.are_over(state, process) || self.is(Wrong::DeletedByItsExpiry);
        over && (self.ages.is_void(modified) || past(marker.expires))
    }

    fn send(&self, state: &mut State, process: usize) {
        if state.latest(process) >= self.ages.closes() {
            state.deciders[process].stage = Stage::Closed;
            return;
        }
        let decided = state.wall(process);
        let expires = match self.is(Wrong::DeletedByItsExpiry) {
            // As if the retention were all that counts, and were short.
            true => decided.plus(TICK),
            false => self.ages.expiry(decided),
        };
        let me = &mut state.deciders[process];
        (me.stage, me.tries) = (Stage::Waiting(None), me.tries + 1);
        state.flying.push(Marker { by: process as u8, attempt: me.tries, expires });
        state.flying.sort_unstable();
    }

    fn land(&self, state: &mut State, marker: Marker) {
        let first = state.marker.is_none() || self.is(Wrong::Overwrites);
        if first {
            state.marker = Some((marker, state.store()));
        }
        let writer = &mut state.deciders[usize::from(marker.by)];
        if writer.stage == Stage::Waiting(None) && writer.tries == marker.attempt {
            writer.stage = Stage::Waiting(Some(first));
        }
    }

    /// A write has won, unless that was found out too late.
    fn verdict(&self, state: &mut State, process: usize, void: bool) {
        let late = void || state.latest(process) >= self.ages.verdict_by();
        if !late || self.is(Wrong::LateVerdictBelieved) {
            state.won_after_forgotten |= state.forgotten;
            state.tell(process as u8);
        }
        state.deciders[process].stage = Stage::Done;
    }

    fn look(&self, state: &mut State, process: usize) {
        let me = state.deciders[process];
        match me.stage {
            Stage::Asking => {
                let void = self.counts(state.marker).is_none();
                self.verdict(state, process, void);
            }
            Stage::ReadingBack => {
                let tried: Vec<_> = (1..=me.tries)
                    .map(|attempt| write_id(&Marker { by: process as u8, attempt, expires: BEGUN }))
                    .collect();
                let there = state.marker.map(|(marker, _)| Written { id: write_id(&marker), beat: None, revision: 1 });
                match rules::read_back(None, there.as_ref(), &tried) {
                    ReadBack::Won(_) => {
                        let void = self.counts(state.marker).is_none();
                        self.verdict(state, process, void);
                    }
                    ReadBack::Lost => self.answer(state, process),
                    ReadBack::Unknown => state.deciders[process].stage = Stage::Starting,
                }
            }
            _ => self.answer(state, process),
        }
    }

    /// Answers what is there, or that the transaction is too old.
    fn answer(&self, state: &mut State, process: usize) {
        if let Some(marker) = self.counts(state.marker) {
            state.tell(marker.by);
        }
        state.deciders[process].stage = Stage::Done;
    }

    fn reader_answers(&self, state: &mut State) {
        let Reader::Told { over, past, found, decided } = std::mem::take(&mut state.reader) else { return };
        let over = over || self.is(Wrong::ForgottenByOldAnswer) && self.are_over(state, READER);
        let closed = rules::are_past(self.ages.closes(), state.wall(READER), state.store());
        match (found, self.counts(found)) {
            (Some((marker, modified)), _) if self.may_go(state, READER, marker, modified) => {
                state.deleting = true;
                self.forget(state);
            }
            (_, Some(marker)) => state.tell(marker.by),
            // Void: it counts for nothing.
            (Some(_), None) => self.forget(state),
            (None, _) if over || closed && self.is(Wrong::ForgottenWithoutMargin) => self.forget(state),
            (None, _) => {
                let past = match self.bug {
                    Some(Wrong::UndecidedByOneClock) => false,
                    Some(Wrong::UndecidedByOldClock) => past,
                    _ => state.latest(READER) > self.ages.ends(),
                };
                // By one clock only: it must be asked again.
                state.undecided_after_told |= !past && decided;
            }
        }
    }

    fn forget(&self, state: &mut State) {
        state.forgotten = true;
        let standing = state.marker.filter(|(_, modified)| *modified <= self.ages.ends());
        let expired = |marker: Marker| state.wall(READER) > marker.expires;
        state.forgotten_while_there |= standing.is_some_and(|(marker, _)| !expired(marker));
    }
}

impl Model for Decisions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // The store's clock behind all others, and with the fastest.
        let clocks = [([0, 1, 0], -1), ([0, 1, 0], 1), ([0, 1, 1], -1), ([0, 1, 1], 1)];
        let start = |(ahead, store_ahead)| State {
            now: 0,
            ahead,
            store_ahead,
            marker: None,
            flying: Vec::new(),
            deciders: Default::default(),
            reader: Reader::Resting,
            deleting: false,
            told: [false; 2],
            forgotten: false,
            won_after_forgotten: false,
            undecided_after_told: false,
            forgotten_while_there: false,
        };
        clocks.into_iter().map(start).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < END {
            actions.push(Action::Tick);
        }
        actions.extend((0..state.flying.len()).map(Action::Land));
        for (process, decider) in state.deciders.iter().enumerate() {
            match decider.stage {
                Stage::Starting => actions.push(Action::Send(process)),
                Stage::Waiting(answer) => {
                    if answer == Some(true) {
                        actions.push(Action::Ok(process));
                    }
                    actions.push(Action::GiveUp(process));
                }
                Stage::Asking | Stage::ReadingBack | Stage::Closed => actions.push(Action::Look(process)),
                Stage::Done => {}
            }
        }
        actions.push(match state.reader {
            Reader::Resting => Action::ReaderStarts,
            Reader::Asking { .. } => Action::ReaderReads,
            Reader::Told { .. } => Action::ReaderAnswers,
        });
        actions.push(Action::Sweep);
        if state.deleting {
            actions.push(Action::Delete);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Send(process) if state.deciders[process].tries == TRIES[process] => {
                state.deciders[process].stage = Stage::Done;
            }
            Action::Send(process) => self.send(&mut state, process),
            Action::Land(at) => {
                let marker = state.flying.remove(at);
                self.land(&mut state, marker);
            }
            Action::Ok(process) if state.latest(process) >= self.ages.closes() => {
                state.deciders[process].stage = Stage::Asking;
            }
            Action::Ok(process) => self.verdict(&mut state, process, false),
            Action::GiveUp(process) => state.deciders[process].stage = Stage::ReadingBack,
            Action::Look(process) => self.look(&mut state, process),
            Action::ReaderStarts => {
                let past = state.latest(READER) > self.ages.ends();
                state.reader = Reader::Asking { over: self.are_over(&state, READER), past };
            }
            Action::ReaderReads => {
                let Reader::Asking { over, past } = state.reader else { return None };
                let decided = state.told.contains(&true);
                state.reader = Reader::Told { over, past, found: state.marker, decided };
            }
            Action::ReaderAnswers => {
                if !matches!(state.reader, Reader::Told { .. }) {
                    return None;
                }
                self.reader_answers(&mut state);
            }
            Action::Sweep => {
                let (marker, modified) = state.marker?;
                state.deleting |= self.may_go(&state, SWEEPER, marker, modified);
            }
            Action::Delete => (state.marker, state.deleting) = (None, false),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one decision", |_, state: &State| state.told != [true; 2]),
            Property::always("none is made once it was forgotten", |_, state: &State| !state.won_after_forgotten),
            Property::always("what was told is not undecided", |_, state: &State| !state.undecided_after_told),
            Property::always("none is forgotten in its time", |_, state: &State| !state.forgotten_while_there),
            Property::sometimes("committed", |_, state: &State| state.told[0]),
            Property::sometimes("a marker that was told of is deleted", |_, state: &State| {
                state.told.contains(&true) && state.marker.is_none() && state.now > 8
            }),
            Property::sometimes("a marker comes too late", |model: &Self, state: &State| {
                state.marker.is_some_and(|(_, modified)| modified > model.ages.ends())
            }),
        ]
    }
}

#[test]
fn no_order_of_deciding_reading_and_deleting_makes_two_decisions() {
    holds("decisions", Decisions::new(None));
}

#[test]
fn the_decision_model_finds_what_is_planted() {
    let bugs = [
        (Wrong::Overwrites, "one decision"),
        (Wrong::DeletedWhenClosed, "one decision"),
        (Wrong::DeletedByItsExpiry, "one decision"),
        (Wrong::LateVerdictBelieved, "none is made once it was forgotten"),
        (Wrong::ForgottenWithoutMargin, "none is made once it was forgotten"),
        (Wrong::ForgottenByOldAnswer, "none is forgotten in its time"),
        (Wrong::UndecidedByOneClock, "what was told is not undecided"),
        (Wrong::UndecidedByOldClock, "what was told is not undecided"),
    ];
    for (bug, breaks) in bugs {
        finds(&format!("{bug:?}"), || Decisions::new(Some(bug)), breaks);
    }
}
