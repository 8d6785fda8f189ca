//! One key, two clients whose clocks differ, a sweeper, and writes that land when they like.
//!
//! Time goes in ticks of twenty minutes, so that a lease of two or three, the skew of two and the hour of three make a
//! small world. Everything between two clock ticks may happen in any order.

use crate::{finds, holds};
use leasehold::{
    Fence, Hour, Ttl,
    clock::Timestamp,
    internals::rules::{self, Facts, ReadBack, Standing, Written},
    layout::WriteId,
};
use stateright::{Model, Property};
use std::time::Duration;

const TICK: Duration = Duration::from_secs(20 * 60);
const SKEW: Duration = Duration::from_secs(2 * 20 * 60);
/// What the sweeper writes has higher numbers.
const SWEPT: u8 = 0xf0;
/// The sweeper runs in the process of this client.
const SWEEPER: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    BeliefByTheLastTry,
    StampOfTheBase,
    FenceInLeaseOnly,
    TakeoverKeepsFence,
    EntryAfterRecord,
    SweptWithoutGrace,
    FreedByDelete,
    SweptWithoutSwap,
}

/// What there is in a world, and for how long; all of it at once would be too many states.
#[derive(Debug, Clone, Copy)]
struct World {
    ttl: u8,
    end: u8,
    /// How many writes each client sends at the most.
    writes: [u8; 2],
    sweeper: bool,
    /// Whether the first client's wall clock may be set back.
    step: bool,
}

const SWEPT_WORLD: World = World { ttl: 2, end: 7, writes: [2, 1], sweeper: true, step: false };
const STEPPED_WORLD: World = World { ttl: 3, end: 6, writes: [2, 1], sweeper: false, step: true };

impl World {
    /// How long after it was sent a write may land: longer than a lease lasts.
    fn late(&self) -> u8 {
        self.ttl + 1
    }

    /// Longer than that.
    fn grace(&self) -> u8 {
        self.late() + 1
    }
}

struct Leases {
    bug: Option<Wrong>,
    world: World,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lease {
    id: u8,
    fence: Fence,
    expires: Timestamp,
    beat: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Record {
    write: u8,
    revision: u8,
    last_fence: Option<Fence>,
    lease: Option<Lease>,
    hour: Option<Hour>,
    /// When the store received it, by its own clock.
    stamp: u8,
}

/// A write on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Flying {
    sent: u8,
    base: Option<u8>,
    /// `None` is a deletion, which only a bug makes.
    body: Option<Record>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Acquire,
    Renew,
    Release,
}

/// What a client is about to find out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Op {
    kind: Kind,
    id: u8,
    base: Option<Record>,
    /// The attempts so far, with the monotonic clock from before each.
    tried: Vec<(Record, u8)>,
    /// Whether the store has answered the last of them with Ok.
    landed: bool,
    reading: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Belief {
    id: u8,
    deadline: u8,
    expires: Timestamp,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Client {
    /// How many ticks its wall clock is ahead.
    ahead: i8,
    known: Option<Option<Record>>,
    indexed: Option<Hour>,
    op: Option<Op>,
    belief: Option<Belief>,
    grants: u8,
    writes: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum Sweep {
    #[default]
    Resting,
    Clearing(Hour, Record),
    Deleting(Hour),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    record: Option<Record>,
    entries: Vec<Hour>,
    flying: Vec<Flying>,
    clients: [Client; 2],
    stepped: bool,
    sweep: Sweep,
    /// The highest fence that was ever granted.
    fence: Option<Fence>,
    fence_fell: bool,
    /// Writes that were said to have lost, and leases that were said to be free.
    lost: Vec<u8>,
    released: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    /// The first client's wall clock is set back by more than clocks may differ.
    StepBack,
    Land(usize),
    Read(usize),
    Send(usize, Kind),
    /// Another attempt of the write on the same base.
    Retry(usize),
    Ok(usize),
    GiveUp(usize),
    ReadBack(usize),
    /// It is not wanted any more, whatever becomes of it.
    Abandon(usize),
    Look(Hour),
    Clear,
    Delete,
}

fn at(tick: i16) -> Timestamp {
    // The beginning of an hour.
    Timestamp::from_millis(1_767_225_600_000 + i64::from(tick) * 1_200_000)
}

fn ticks(count: u8) -> Duration {
    TICK * u32::from(count)
}

fn write_id(write: u8) -> WriteId {
    WriteId::from([write; 16])
}

fn written(record: &Record) -> Written {
    Written {
        id: write_id(record.write),
        beat: record.lease.map(|lease| write_id(lease.beat)),
        revision: u64::from(record.revision),
    }
}

impl State {
    fn wall(&self, client: usize) -> Timestamp {
        at(i16::from(self.now) + i16::from(self.clients[client].ahead))
    }

    fn believes(&self, client: usize) -> bool {
        let belief = self.clients[client].belief;
        belief.is_some_and(|belief| self.now < belief.deadline && self.wall(client) < belief.expires)
    }

    /// A write arrives whose base is still there.
    fn land(&mut self, write: Flying) {
        self.put(write.body);
        for client in &mut self.clients {
            if let Some(op) = &mut client.op
                && op.tried.last().map(|(body, _)| body.write) == write.body.map(|body| body.write)
                && !op.reading
            {
                op.landed = true;
            }
        }
    }

    fn put(&mut self, body: Option<Record>) {
        let held = self.record.and_then(|record| record.lease).map(|lease| lease.id);
        if let Some(lease) = body.and_then(|body| body.lease).filter(|lease| Some(lease.id) != held) {
            self.fence_fell |= Some(lease.fence) <= self.fence;
            self.fence = self.fence.max(Some(lease.fence));
        }
        self.record = body.map(|body| Record { stamp: self.now, ..body });
    }

    /// What can no longer come true need not be remembered: fewer states that differ in nothing else.
    ///
    /// A write whose base is gone can never land, and to be told so is no different from giving up on it.
    fn forget(&mut self) {
        let base = self.record.map(|record| record.write);
        self.flying.retain(|write| write.base == base || write.body.is_none());
        for belief in self.clients.iter_mut().filter_map(|client| client.belief.as_mut()) {
            if belief.deadline <= self.now {
                (belief.deadline, belief.expires) = (0, at(0));
            }
        }
        let (flying, there) = (&self.flying, self.record);
        let bodies = || flying.iter().filter_map(|write| write.body).chain(there);
        self.lost.retain(|write| bodies().any(|body| body.write == *write));
        self.released.retain(|id| bodies().any(|body| body.lease.is_some_and(|lease| lease.id == *id)));
        self.lost.sort_unstable();
        self.released.sort_unstable();
    }

    fn file(&mut self, hour: Hour) {
        if !self.entries.contains(&hour) {
            self.entries.push(hour);
            self.entries.sort_unstable();
        }
    }
}

impl Leases {
    fn is(&self, bug: Wrong) -> bool {
        self.bug == Some(bug)
    }

    /// For a process that wrote a time object just now, which the store has stamped, and then looked.
    fn standing(&self, state: &State, record: Option<Record>, wall: Timestamp) -> Standing {
        let stamp = |record: Record| if self.is(Wrong::StampOfTheBase) { 0 } else { record.stamp };
        let facts = record.and_then(|record| {
            let expires = record.lease?.expires;
            Some(Facts { expires, lasts: ticks(self.world.ttl), beat_stamp: at(i16::from(stamp(record))) })
        });
        let time = Some(at(i16::from(state.now)));
        rules::standing(facts, wall, time, Duration::ZERO, SKEW, ticks(self.world.ttl)).unwrap()
    }

    /// What a client would write on this base, if it may.
    fn plan(&self, state: &State, client: usize, kind: Kind, base: Option<Record>, id: u8) -> Option<Record> {
        let (me, wall) = (&state.clients[client], state.wall(client));
        let held = base.and_then(|record| record.lease);
        let write = 16 * client as u8 + me.writes + 1;
        let ttl = Ttl::new(ticks(self.world.ttl)).unwrap();
        let last = base.and_then(|record| record.last_fence);
        let (lease, last_fence) = match kind {
            Kind::Acquire => {
                // However wrong its clock is.
                if !matches!(self.standing(state, base, wall), Standing::Free | Standing::Ended) {
                    return None;
                }
                let fence = match last {
                    Some(last) if self.is(Wrong::TakeoverKeepsFence) => last,
                    Some(last) => Fence::next(Some(last), wall, SKEW).unwrap(),
                    None => Fence::first(None, at(i16::from(state.now)), SKEW).unwrap(),
                };
                let lease = Lease { id, fence, expires: ttl.expiry(wall).unwrap(), beat: write };
                (Some(lease), Some(fence))
            }
            Kind::Renew => {
                let lease = held.filter(|lease| lease.id == id)?;
                let believed = me.belief.is_some_and(|belief| belief.id == id && state.now < belief.deadline);
                if wall >= lease.expires || !believed {
                    return None;
                }
                let expires = ttl.expiry(wall).unwrap().max(lease.expires);
                (Some(Lease { expires, beat: write, ..lease }), last)
            }
            Kind::Release => {
                held.filter(|lease| lease.id == id)?;
                (None, last.filter(|_| !self.is(Wrong::FenceInLeaseOnly)))
            }
        };
        let hour = match lease {
            Some(lease) => Some(Hour::of(lease.expires).unwrap()),
            None => base.and_then(|record| record.hour),
        };
        let revision = base.map_or(0, |record| record.revision) + 1;
        (me.writes < self.world.writes[client]).then_some(Record { write, revision, last_fence, lease, hour, stamp: 0 })
    }

    /// Index entry first, then the record.
    fn send(&self, state: &mut State, client: usize, body: Record, base: Option<Record>) {
        if let Some(hour) = body.hour.filter(|_| body.lease.is_some() && !self.is(Wrong::EntryAfterRecord)) {
            let known =
                base.and_then(|record| record.hour) == Some(hour) || state.clients[client].indexed == Some(hour);
            if !known {
                state.file(hour);
                state.clients[client].indexed = Some(hour);
            }
        }
        let deletes = body.lease.is_none() && self.is(Wrong::FreedByDelete);
        let write = Flying { sent: state.now, base: base.map(|base| base.write), body: (!deletes).then_some(body) };
        state.flying.push(write);
        state.flying.sort_unstable();
        state.clients[client].writes += 1;
    }

    /// The attempt of this number has landed: its clock readings count, and no later ones.
    fn won(&self, state: &mut State, client: usize, op: &Op, attempt: usize) {
        let (body, began) = op.tried[attempt];
        let stamp = state.record.filter(|there| there.write == body.write).map_or(state.now, |there| there.stamp);
        let body = Record { stamp, ..body };
        if self.is(Wrong::EntryAfterRecord)
            && let Some(hour) = body.hour
        {
            state.file(hour);
        }
        let began = if self.is(Wrong::BeliefByTheLastTry) { state.now } else { began };
        let me = &mut state.clients[client];
        me.known = Some(Some(body));
        match (op.kind, body.lease) {
            (Kind::Release, _) | (_, None) => state.released.push(op.id),
            (_, Some(lease)) => {
                let latest = began + self.world.ttl;
                // Never further than the expiry moved.
                let moved = |belief: &Belief| {
                    let by = lease.expires.since(belief.expires).as_secs() / TICK.as_secs();
                    belief.deadline + u8::try_from(by).unwrap()
                };
                let old = me.belief.filter(|belief| belief.id == lease.id);
                let longest = old.as_ref().map(moved);
                let deadline = longest.map_or(latest, |longest| latest.min(longest));
                me.belief = Some(Belief { id: lease.id, deadline, expires: lease.expires });
            }
        }
    }

    fn read_back(&self, state: &mut State, client: usize, op: Op) {
        let tried: Vec<_> = op.tried.iter().map(|(body, _)| write_id(body.write)).collect();
        let (base, there) = (op.base.as_ref().map(written), state.record.as_ref().map(written));
        match rules::read_back(base.as_ref(), there.as_ref(), &tried) {
            ReadBack::Won(attempt) => self.won(state, client, &op, attempt),
            ReadBack::Lost => {
                state.clients[client].known = Some(state.record);
                state.lost.extend(op.tried.iter().map(|(body, _)| body.write));
                let there = state.record.and_then(|record| record.lease).map(|lease| lease.id);
                if op.kind == Kind::Release && there != Some(op.id) {
                    state.released.push(op.id);
                }
            }
            // What became of it is not known: the client goes on asking.
            ReadBack::Unknown => state.clients[client].op = Some(Op { reading: true, landed: false, ..op }),
        }
    }

    fn look(&self, state: &mut State, hour: Hour) -> Option<()> {
        let due = rules::due(
            hour,
            if self.is(Wrong::SweptWithoutGrace) { Duration::ZERO } else { ticks(self.world.grace()) },
        );
        // By this clock and by the store's, which is right.
        if state.wall(SWEEPER) < due || at(i16::from(state.now)) < due {
            return None;
        }
        let lease = state.record.and_then(|record| record.lease);
        state.sweep = match lease {
            Some(lease) if Hour::of(lease.expires).unwrap() <= hour => {
                if self.standing(state, state.record, state.wall(SWEEPER)) != Standing::Ended {
                    return None;
                }
                Sweep::Clearing(hour, state.record?)
            }
            _ => Sweep::Deleting(hour),
        };
        Some(())
    }

    fn clear(&self, state: &mut State, hour: Hour, base: Record) {
        if state.record == Some(base) || self.is(Wrong::SweptWithoutSwap) {
            let writes = base.revision + 1;
            state.put(Some(Record { write: SWEPT + writes, revision: writes, lease: None, ..base }));
            state.sweep = Sweep::Deleting(hour);
        } else {
            state.sweep = Sweep::Resting;
        }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // Right ones, and such as no bound allows for.
        let clocks = [(0, 0), (0, 6), (6, 0)];
        let start = |(first, second)| {
            let client = |ahead| Client { ahead, ..Client::default() };
            State { clients: [client(first), client(second)], ..State::default() }
        };
        clocks.into_iter().map(start).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.world.end {
            actions.push(Action::Tick);
        }
        if self.world.step && !state.stepped {
            actions.push(Action::StepBack);
        }
        actions.extend((0..state.flying.len()).map(Action::Land));
        for (client, me) in state.clients.iter().enumerate() {
            match &me.op {
                None => {
                    actions.push(Action::Read(client));
                    actions.extend([Kind::Acquire, Kind::Renew, Kind::Release].map(|kind| Action::Send(client, kind)));
                }
                Some(op) if op.reading => {
                    actions.extend([Action::ReadBack(client), Action::Retry(client), Action::Abandon(client)]);
                }
                Some(op) => {
                    if op.landed {
                        actions.push(Action::Ok(client));
                    }
                    actions.push(Action::GiveUp(client));
                }
            }
        }
        match state.sweep {
            Sweep::Resting if !self.world.sweeper => {}
            Sweep::Resting => actions.extend(state.entries.iter().map(|hour| Action::Look(*hour))),
            Sweep::Clearing(..) => actions.push(Action::Clear),
            Sweep::Deleting(_) => actions.push(Action::Delete),
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each action")]
    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => {
                state.now += 1;
                state.flying.retain(|write| write.sent + self.world.late() >= state.now);
            }
            Action::StepBack => {
                state.stepped = true;
                state.clients[0].ahead -= 5;
            }
            Action::Land(at) => {
                let write = state.flying.remove(at);
                state.land(write);
            }
            Action::Read(client) => state.clients[client].known = Some(state.record),
            Action::Send(client, kind) => {
                let me = &state.clients[client];
                let base = me.known?;
                let id = match kind {
                    Kind::Acquire if state.believes(client) => return None,
                    Kind::Acquire => 8 * client as u8 + me.grants + 1,
                    Kind::Renew | Kind::Release => me.belief?.id,
                };
                let body = self.plan(&state, client, kind, base, id)?;
                let tried = vec![(body, state.now)];
                self.send(&mut state, client, body, base);
                let me = &mut state.clients[client];
                me.op = Some(Op { kind, id, base, tried, landed: false, reading: false });
                match kind {
                    Kind::Acquire => (me.grants, me.belief) = (me.grants + 1, None),
                    Kind::Renew => {}
                    Kind::Release => me.belief = None,
                }
            }
            Action::Retry(client) => {
                let mut op = state.clients[client].op.take().filter(|op| op.tried.len() < 2)?;
                let body = self.plan(&state, client, op.kind, op.base, op.id)?;
                op.tried.push((body, state.now));
                (op.landed, op.reading) = (false, false);
                self.send(&mut state, client, body, op.base);
                state.clients[client].op = Some(op);
            }
            Action::Ok(client) => {
                let op = state.clients[client].op.take()?;
                self.won(&mut state, client, &op, op.tried.len() - 1);
            }
            Action::GiveUp(client) => state.clients[client].op.as_mut()?.reading = true,
            Action::ReadBack(client) => {
                let op = state.clients[client].op.take()?;
                self.read_back(&mut state, client, op);
            }
            Action::Abandon(client) => (state.clients[client].op, state.clients[client].known) = (None, None),
            Action::Look(hour) => self.look(&mut state, hour)?,
            Action::Clear => {
                let Sweep::Clearing(hour, base) = state.sweep else { return None };
                self.clear(&mut state, hour, base);
            }
            Action::Delete => {
                let Sweep::Deleting(hour) = state.sweep else { return None };
                state.entries.retain(|entry| *entry != hour);
                state.sweep = Sweep::Resting;
            }
        }
        state.forget();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one holder", |_, state: &State| !(state.believes(0) && state.believes(1))),
            Property::always("fences rise", |_, state: &State| !state.fence_fell),
            Property::always("what has lost stays lost", |_, state: &State| {
                state.record.is_none_or(|record| !state.lost.contains(&record.write))
            }),
            Property::always("what was released stays free", |_, state: &State| {
                let held = state.record.and_then(|record| record.lease);
                held.is_none_or(|lease| !state.released.contains(&lease.id))
            }),
            Property::always("every lease is filed", |_, state: &State| {
                let held = state.record.and_then(|record| record.lease);
                held.is_none_or(|lease| state.entries.contains(&Hour::of(lease.expires).unwrap()))
            }),
            Property::always("a fence is kept", |_, state: &State| {
                state.fence.is_none() || state.record.and_then(|record| record.last_fence) >= state.fence
            }),
            Property::sometimes("an ended lease is taken over", |_, state: &State| {
                // Each has written once: the first its own lease, the second over it.
                let over = |record: Record| record.revision == 2 && record.lease.is_some_and(|lease| lease.id > 8);
                state.clients.iter().all(|client| client.writes == 1) && state.record.is_some_and(over)
            }),
        ];
        if self.world.sweeper {
            properties.push(Property::sometimes("an ended lease is swept", |_, state: &State| {
                state.record.is_some_and(|record| record.write > SWEPT)
            }));
        }
        properties
    }
}

#[test]
fn no_order_of_two_clients_and_a_sweeper_breaks_a_lease() {
    for world in [SWEPT_WORLD, STEPPED_WORLD, World { writes: [1, 2], ..STEPPED_WORLD }] {
        holds(&format!("leases: {world:?}"), Leases { bug: None, world });
    }
}

#[test]
fn the_lease_model_finds_what_is_planted() {
    let stepped = [
        (Wrong::StampOfTheBase, "one holder"),
        (Wrong::BeliefByTheLastTry, "one holder"),
        (Wrong::TakeoverKeepsFence, "fences rise"),
        (Wrong::FenceInLeaseOnly, "fences rise"),
        (Wrong::FreedByDelete, "fences rise"),
    ];
    let swept = [
        (Wrong::SweptWithoutSwap, "a fence is kept"),
        (Wrong::SweptWithoutGrace, "every lease is filed"),
        (Wrong::EntryAfterRecord, "every lease is filed"),
    ];
    let stepped = stepped.map(|found| (found, STEPPED_WORLD));
    let swept = swept.map(|found| (found, SWEPT_WORLD));
    for ((bug, breaks), world) in stepped.into_iter().chain(swept) {
        finds(&format!("{bug:?}"), || Leases { bug: Some(bug), world }, breaks);
    }
}
