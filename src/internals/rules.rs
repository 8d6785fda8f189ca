//! The rules that everything depends on, as plain functions: what the code itself calls, and nothing else.
//!
//! A model of the protocol that had rules of its own would prove something about itself. `tests/models` takes them from
//! here, so that a rule which is changed in the code is changed in the models as well. Fences, times to live and hours
//! are public already.

use crate::{
    Fence, Hour, LeaseId, ProcessId, Result, SessionId, Settings, Ttl, WriteId,
    clock::{Moment, Timestamp},
    decision::{self, TxnId},
    lease::{
        ended::{self, State},
        plan::session,
        record::{Lease, Record, SessionName},
    },
    storage::{
        Clocks,
        cas::{self, ReadBack as Shown, Stamp},
    },
    store::{self, SharedSettings},
    sweep,
};
use std::time::Duration;

/// What every process shares that has these settings; refused where they would not be safe.
pub fn shared_settings(settings: &Settings) -> Result<SharedSettings> {
    store::propose(settings)
}

/// The state of a lease as processes other than its holder see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is none.
    Free,
    /// No other process may take the key.
    Held,
    /// The wall clock says that it is over, and the second witness does not: held.
    MayHaveEnded,
    /// The next operation on it clears it.
    Ended,
}

/// What the rule looks at of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// When it ends by its holder's clock.
    pub expires: Timestamp,
    /// How long it may be considered valid after its last renewal.
    pub lasts: Duration,
    /// When the store received its last beat, by the store's clock.
    pub beat_stamp: Timestamp,
}

/// The settling rule by the store's stamps, for a process whose wall clock says `wall`. `time` is the stamp of an object
/// that was written before the lease was read, and `stamp_slack` what stamps of one store may differ by.
pub fn standing(
    facts: Option<Facts>,
    wall: Timestamp,
    time: Option<Timestamp>,
    stamp_slack: Duration,
    max_clock_skew: Duration,
    max_ttl: Duration,
) -> Result<Standing> {
    let record = match facts {
        None => None,
        // Of a lease the rule looks at these only.
        Some(Facts { expires, lasts, beat_stamp }) => Some(held(
            Lease {
                id: LeaseId::from([0; 16]),
                request_id: None,
                owner: "".into(),
                process: ProcessId::from([0; 16]),
                note: None,
                fence: Fence::new(1)?,
                granted: wall,
                expires,
                ttl: Ttl::MIN,
                beat: WriteId::from([0; 16]),
                lasts: Some(lasts),
                boot: None,
                session: None,
            },
            beat_stamp,
        )),
    };
    let known = known(time);
    let bounds = ended::Bounds { max_clock_skew, max_ttl, stamp_slack: Some(stamp_slack) };
    Ok(match ended::judge(record.as_ref(), wall, &known, None, &bounds) {
        State::Free => Standing::Free,
        State::Held(_) => Standing::Held,
        State::MayHaveEnded(_) => Standing::MayHaveEnded,
        State::Ended(_) => Standing::Ended,
    })
}

fn known(time: Option<Timestamp>) -> ended::Known {
    ended::Known {
        modified: None,
        time,
        own: None,
        gone: None,
        session_over: None,
        now: Moment::default(),
        host: false,
        boot: None,
    }
}

/// What the record of a session says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStanding {
    /// For good.
    Ended,
    /// Making a record proves that it has ended.
    Missing,
    /// Whatever clocks say, until its record is cleared.
    Alive,
}

/// What its record says about the session with this lease: the id of the lease that is there, or none, or no record.
pub fn session_standing(there: Option<Option<LeaseId>>, lease: LeaseId) -> Result<SessionStanding> {
    let record = match there {
        None => None,
        Some(there) => {
            let stamp = Stamp { write_id: WriteId::from([1; 16]), revision: 1 };
            let lease = there.map(|id| some_lease(id, None)).transpose()?;
            Some(Record { lease, ..Record::without_lease(None, stamp, Timestamp::default()) })
        }
    };
    let name = SessionName { id: SessionId::from([0; 16]), lease };
    Ok(match session::standing(record.as_ref(), name) {
        session::Standing::Ended => SessionStanding::Ended,
        session::Standing::Missing => SessionStanding::Missing,
        session::Standing::Alive => SessionStanding::Alive,
    })
}

/// The settling rule for a lease that is held under a session, for a process that knows this one to have ended. Neither the
/// latest clock nor a beat that was watched says anything about it.
pub fn standing_under(session: LeaseId, over: Option<LeaseId>) -> Result<Standing> {
    let name = |lease| SessionName { id: SessionId::from([0; 16]), lease };
    let late = Timestamp::from_millis(4_000_000_000_000);
    let record = held(some_lease(LeaseId::from([0; 16]), Some(name(session)))?, Timestamp::default());
    let known = ended::Known { session_over: over.map(name), ..known(Some(late)) };
    let bounds =
        ended::Bounds { max_clock_skew: Duration::ZERO, max_ttl: Duration::ZERO, stamp_slack: Some(Duration::ZERO) };
    let watched = Some(WriteId::from([0; 16]));
    Ok(match ended::judge(Some(&record), late, &known, watched, &bounds) {
        State::Ended(_) => Standing::Ended,
        _ => Standing::Held,
    })
}

fn some_lease(id: LeaseId, session: Option<SessionName>) -> Result<Lease> {
    Ok(Lease {
        id,
        request_id: None,
        owner: "".into(),
        process: ProcessId::from([0; 16]),
        note: None,
        fence: Fence::new(1)?,
        granted: Timestamp::default(),
        expires: Timestamp::default(),
        ttl: Ttl::MIN,
        beat: WriteId::from([0; 16]),
        lasts: Some(Duration::ZERO),
        boot: None,
        session,
    })
}

fn held(lease: Lease, beat_stamp: Timestamp) -> Record {
    let stamp = Stamp { write_id: lease.beat, revision: 1 };
    Record { lease: Some(lease), beat_stamp: Some(beat_stamp), ..Record::without_lease(None, stamp, beat_stamp) }
}

/// When the sweeper may look at an hour, by its own clock and by the store's.
pub fn due(hour: Hour, hour_grace: Duration) -> Timestamp {
    sweep::due(hour, hour_grace)
}

/// What a compare-and-swap knows of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Who wrote it.
    pub id: WriteId,
    /// Who last granted or renewed the lease in it.
    pub beat: Option<WriteId>,
    /// One more with every write.
    pub revision: u64,
}

impl cas::Record for Written {
    fn write_id(&self) -> WriteId {
        self.id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn carries(&self, id: WriteId) -> bool {
        self.id == id || self.beat == Some(id)
    }
}

/// What a read says about the writes that an operation tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBack {
    /// This one of them has landed.
    Won(usize),
    /// None of them can land any more.
    Lost,
    /// They may have landed, or may yet.
    Unknown,
}

/// How a compare-and-swap settles whatever was not answered with Ok.
pub fn read_back(base: Option<&Written>, there: Option<&Written>, tried: &[WriteId]) -> ReadBack {
    match cas::shown(base, there, tried) {
        Shown::Mine(at) => ReadBack::Won(at),
        Shown::Base | Shown::Older => ReadBack::Unknown,
        Shown::Other => ReadBack::Lost,
    }
}

/// The age rule of one transaction.
#[derive(Debug, Clone, Copy)]
pub struct Ages(decision::Ages);

impl Ages {
    /// Those of this transaction.
    pub fn of(txn: TxnId, shared: &SharedSettings) -> Self {
        Self(decision::Ages::of(txn, &decision::Bounds::of(shared)))
    }

    /// From here on no decision may be written.
    pub fn closes(&self) -> Timestamp {
        self.0.closes()
    }

    /// From here on what is not there is forgotten.
    pub fn ends(&self) -> Timestamp {
        self.0.ends()
    }

    /// From here on no verdict is believed.
    pub fn verdict_by(&self) -> Timestamp {
        self.0.verdict_by()
    }

    /// Until when a marker lives that is written now.
    pub fn expiry(&self, decided: Timestamp) -> Timestamp {
        self.0.expiry(decided)
    }

    /// Whether a marker that the store received at this time counts for nothing.
    pub fn is_void(&self, modified: Timestamp) -> bool {
        self.0.is_void(Some(modified))
    }

    /// Whether it can no longer be decided, by this clock and the store's.
    pub fn are_over(&self, wall: Timestamp, store: Timestamp) -> bool {
        self.0.are_over(&clocks(wall, store))
    }
}

/// Whether a time is past by this clock and by the store's.
pub fn are_past(at: Timestamp, wall: Timestamp, store: Timestamp) -> bool {
    clocks(wall, store).are_past(at)
}

fn clocks(wall: Timestamp, store: Timestamp) -> Clocks {
    Clocks { wall, store: Some(store), grain: Duration::ZERO }
}
