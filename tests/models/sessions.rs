//! One session, one key that is held under it, and another process that wants the key; writes land when they like.
//!
//! The holder believes in its session from before a renewal was sent, and in the key for as long as in the session. The other
//! process goes by what it reads. When a session has ended, and what that means for a lease under it, is asked of the code.

use crate::{finds, holds};
use leasehold::{
    LeaseId,
    internals::rules::{self, SessionStanding, Standing},
};
use stateright::{Model, Property};

/// For how many ticks a session lasts.
const TTL: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// A session that looks expired counts as ended, without being cleared: a renewal on its way revives it.
    LooksExpired,
    /// A clear that was sent and not answered counts as one.
    UnknownClear,
    /// A record that is not there counts as ended, without one being made.
    MissingIsEnded,
    /// A grant that its caller gave up is forgotten instead of settled.
    UnknownGrantLeft,
    /// A request in the session's record is not looked at by its process.
    ForcedNotNoticed,
    /// Force frees the key's record instead of asking.
    ForceFrees,
    /// The key is given back to others by the end of its own time.
    EndsByItsOwnTime,
}

#[derive(Debug, Clone, Copy)]
struct World {
    end: u8,
    renewals: u8,
    grants: u8,
    /// An operator forces the key.
    force: bool,
    /// The session's record is deleted after its process is gone, while a first attempt to make it may be on its way.
    sweep: bool,
}

struct Sessions {
    bug: Option<Wrong>,
    world: World,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SessionRecord {
    version: u8,
    lease: bool,
    /// When the store received the last renewal.
    stamp: u8,
    asked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum By {
    Nobody,
    Session,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Flying {
    base: u8,
    sent: u8,
    /// What its writer would write as the version, once it has landed.
    landed: Option<u8>,
    wanted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    session: Option<SessionRecord>,
    /// A first attempt to make the session's record, whose answer never came.
    late_create: bool,
    key: (u8, By),
    /// The holder's belief in its session, the version of its record that it knows, and what it has sent.
    deadline: u8,
    known: u8,
    met: bool,
    renewal: Option<Flying>,
    renewals: u8,
    grant: Option<Flying>,
    grants: u8,
    holds: bool,
    /// The other process.
    over: bool,
    clearing: Option<u8>,
    creating: bool,
    taken: bool,
    forced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    Renew,
    LandRenewal,
    RenewalAnswered,
    RenewalLost,
    Grant,
    LandGrant,
    GrantAnswered,
    GiveUpGrant,
    SettleGrant,
    Release,
    Force,
    Look,
    LandClear,
    LandCreate,
    LateCreate,
    Delete,
    Take,
}

fn id(number: u8) -> LeaseId {
    LeaseId::from([number; 16])
}

impl State {
    fn believes(&self) -> bool {
        self.now < self.deadline
    }

    fn is_alive(&self) -> bool {
        self.session.is_some_and(|session| session.lease)
    }

    /// What its process does about requests that it finds in its session's record: the key is lost, and given back.
    fn meet(&mut self, bug: Option<Wrong>) {
        if self.session.is_some_and(|session| session.asked) && bug != Some(Wrong::ForcedNotNoticed) {
            self.met = true;
            if self.holds {
                self.holds = false;
                self.free();
            }
        }
    }

    /// A release, which is settled at once here.
    fn free(&mut self) {
        if self.key.1 == By::Session {
            self.key = (self.key.0 + 1, By::Nobody);
        }
    }
}

impl Sessions {
    fn is(&self, bug: Wrong) -> bool {
        self.bug == Some(bug)
    }

    /// What the other process does about the session.
    fn look(&self, state: &mut State) -> Option<()> {
        let there = state.session.map(|session| session.lease.then(|| id(1)));
        match rules::session_standing(there, id(1)).unwrap() {
            SessionStanding::Ended => state.over = true,
            SessionStanding::Missing if self.is(Wrong::MissingIsEnded) => state.over = true,
            SessionStanding::Missing => state.creating = true,
            SessionStanding::Alive => {
                let session = state.session?;
                if state.now <= session.stamp + TTL {
                    return None;
                }
                if self.is(Wrong::LooksExpired) {
                    state.over = true;
                    return Some(());
                }
                state.clearing = Some(session.version);
                state.over |= self.is(Wrong::UnknownClear);
            }
        }
        Some(())
    }

    /// Whether the other process may take the key that it finds.
    fn may_take(&self, state: &State) -> bool {
        match state.key.1 {
            By::Nobody => true,
            By::Other => false,
            By::Session if self.is(Wrong::EndsByItsOwnTime) => state.now > TTL + 1,
            By::Session => rules::standing_under(id(1), state.over.then(|| id(1))).unwrap() == Standing::Ended,
        }
    }

    fn force(&self, state: &mut State) -> Option<()> {
        state.forced = true;
        if self.is(Wrong::ForceFrees) {
            state.free();
            return Some(());
        }
        // A write that leaves the session's own lease, and its beat, as they are.
        let session = state.session.filter(|session| session.lease)?;
        state.session = Some(SessionRecord { version: session.version + 1, asked: true, ..session });
        Some(())
    }

    fn renewal(&self, state: &mut State, action: Action) -> Option<()> {
        let flying = state.renewal?;
        match action {
            Action::LandRenewal => {
                let session = state.session.filter(|session| session.lease && session.version == flying.base)?;
                let version = session.version + 1;
                state.session = Some(SessionRecord { version, stamp: state.now, ..session });
                state.renewal = Some(Flying { landed: Some(version), ..flying });
            }
            Action::RenewalAnswered => {
                state.known = flying.landed?;
                // From before it was sent, however late the answer comes.
                state.deadline = state.deadline.max(flying.sent + TTL);
                state.renewal = None;
                if state.session.is_some_and(|session| session.version == state.known) {
                    state.meet(self.bug);
                }
            }
            _ => {
                let base_is_gone = state.session.is_none_or(|session| session.version != flying.base);
                if flying.landed.is_some() || !base_is_gone {
                    return None;
                }
                state.renewal = None;
                match state.session.filter(|session| session.lease) {
                    Some(session) => {
                        state.known = session.version;
                        state.meet(self.bug);
                    }
                    None => (state.deadline, state.holds) = (0, false),
                }
            }
        }
        Some(())
    }

    fn grant(&self, state: &mut State, action: Action) -> Option<()> {
        let flying = state.grant?;
        match action {
            Action::LandGrant => {
                if flying.landed.is_some() || state.key != (flying.base, By::Nobody) {
                    return None;
                }
                state.key = (flying.base + 1, By::Session);
                state.grant = Some(Flying { landed: Some(state.key.0), ..flying });
            }
            Action::GrantAnswered => {
                flying.landed.filter(|_| flying.wanted)?;
                state.grant = None;
                // Too late to be of use: it is freed, if anybody can still know of it.
                match state.believes() {
                    true => state.holds = true,
                    false => state.free(),
                }
            }
            Action::GiveUpGrant if self.is(Wrong::UnknownGrantLeft) && flying.landed.is_some() => state.grant = None,
            Action::GiveUpGrant => state.grant = Some(Flying { wanted: false, ..flying }),
            _ if flying.wanted => return None,
            _ => {
                state.grant = None;
                match flying.landed {
                    Some(_) => state.free(),
                    // Its base is written once more, so that it cannot land any more.
                    None if state.key.0 == flying.base => state.key.0 += 1,
                    None => {}
                }
            }
        }
        Some(())
    }
}

impl Model for Sessions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let session = SessionRecord { version: 1, lease: true, stamp: 0, asked: false };
        vec![State {
            now: 0,
            session: Some(session),
            late_create: self.world.sweep,
            key: (0, By::Nobody),
            deadline: TTL,
            known: 1,
            met: false,
            renewal: None,
            renewals: 0,
            grant: None,
            grants: 0,
            holds: false,
            over: false,
            clearing: None,
            creating: false,
            taken: false,
            forced: false,
        }]
    }

    fn actions(&self, _: &State, actions: &mut Vec<Action>) {
        use Action::*;
        actions.extend([Tick, Renew, LandRenewal, RenewalAnswered, RenewalLost, Grant, LandGrant, GrantAnswered]);
        actions.extend([
            GiveUpGrant,
            SettleGrant,
            Release,
            Force,
            Look,
            LandClear,
            LandCreate,
            LateCreate,
            Delete,
            Take,
        ]);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick if state.now < self.world.end => state.now += 1,
            Action::Renew if state.believes() && state.renewal.is_none() && state.renewals < self.world.renewals => {
                state.renewals += 1;
                state.renewal = Some(Flying { base: state.known, sent: state.now, landed: None, wanted: true });
            }
            Action::LandRenewal | Action::RenewalAnswered | Action::RenewalLost => self.renewal(&mut state, action)?,
            Action::Grant if state.believes() && !state.holds && state.grant.is_none() => {
                let free = state.key.1 == By::Nobody && state.grants < self.world.grants;
                state.grants += 1;
                let flying = Flying { base: state.key.0, sent: state.now, landed: None, wanted: true };
                state.grant = free.then_some(flying);
                state.grant?;
            }
            Action::LandGrant | Action::GrantAnswered | Action::GiveUpGrant | Action::SettleGrant => {
                self.grant(&mut state, action)?;
            }
            Action::Release if state.holds => {
                state.holds = false;
                state.free();
            }
            Action::Force if self.world.force && !state.forced && state.holds => self.force(&mut state)?,
            Action::Look if !state.over && state.clearing.is_none() && !state.creating => self.look(&mut state)?,
            Action::LandClear => {
                let base = state.clearing.take()?;
                if let Some(session) = state.session.filter(|session| session.version == base) {
                    state.session = Some(SessionRecord { version: base + 1, lease: false, ..session });
                    state.over = true;
                }
            }
            Action::LandCreate if state.creating => {
                state.creating = false;
                if state.session.is_none() {
                    state.session = Some(SessionRecord { version: 100, lease: false, stamp: state.now, asked: false });
                    state.over = true;
                }
            }
            Action::LateCreate if state.late_create && state.session.is_none() => {
                state.late_create = false;
                state.session = Some(SessionRecord { version: 50, lease: true, stamp: state.now, asked: false });
            }
            // Its process is gone. By hand at any time; by the sweeper long after the end was proven, when nothing of it is on
            // its way any more.
            Action::Delete
                if self.world.sweep
                    && !state.believes()
                    && state.renewal.is_none()
                    && !(state.over && state.late_create) =>
            {
                state.session = None;
            }
            Action::Take if !state.taken && self.may_take(&state) => {
                state.key = (state.key.0 + 1, By::Other);
                state.taken = true;
            }
            _ => return None,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one holder", |_, state: &State| !(state.holds && state.believes() && state.taken)),
            Property::always("an end is final", |_, state: &State| !(state.over && state.is_alive())),
            Property::always("nothing is left that nobody wants", |_, state: &State| {
                let idle = !state.holds && state.grant.is_none() && state.believes();
                !(idle && state.key.1 == By::Session)
            }),
            Property::always("a forced key is noticed", |_, state: &State| {
                let met = state.session.is_some_and(|session| session.asked && session.version == state.known);
                !(met && state.renewal.is_none() && state.holds && !state.met)
            }),
            Property::sometimes("a key of an ended session is taken", |_, state: &State| state.taken && state.over),
            Property::sometimes("a late renewal loses", |_, state: &State| {
                state.over && state.renewal.is_some_and(|renewal| renewal.landed.is_none())
            }),
        ];
        if self.world.force {
            properties.push(Property::sometimes("a forced key is given back", |_, state: &State| {
                state.forced && state.believes() && state.key.1 == By::Nobody
            }));
        }
        properties
    }
}

const PLAIN: World = World { end: 7, renewals: 3, grants: 2, force: false, sweep: false };
const FORCED: World = World { force: true, grants: 1, ..PLAIN };
const SWEPT: World = World { sweep: true, grants: 1, renewals: 2, ..PLAIN };

#[test]
fn no_order_of_renewals_clears_and_grants_gives_a_session_key_two_holders() {
    for world in [PLAIN, FORCED, SWEPT] {
        holds(&format!("sessions: {world:?}"), Sessions { bug: None, world });
    }
}

#[test]
fn the_session_model_finds_what_is_planted() {
    for (bug, breaks, world) in [
        (Wrong::LooksExpired, "one holder", PLAIN),
        (Wrong::UnknownClear, "one holder", PLAIN),
        (Wrong::EndsByItsOwnTime, "one holder", PLAIN),
        (Wrong::UnknownGrantLeft, "nothing is left that nobody wants", PLAIN),
        (Wrong::ForceFrees, "one holder", FORCED),
        (Wrong::ForcedNotNoticed, "a forced key is noticed", FORCED),
        (Wrong::MissingIsEnded, "an end is final", SWEPT),
    ] {
        finds(&format!("{bug:?}"), || Sessions { bug: Some(bug), world }, breaks);
    }
}
