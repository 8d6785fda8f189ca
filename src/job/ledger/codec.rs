//! How a ledger is written down and read.

mod plans;
mod schedules;

use super::{
    Backoff, Bits, Claim, ClaimId, Counters, Duplicate, Ended, Finished, Item, JobEvents, KindPolicy, Ledger, Limit,
    Millis, Policy, Range, Row, Session, SessionId, Shape, Tokens, Unique, Unread, columns, wire,
};
use crate::{
    Fence,
    clock::Timestamp,
    job::{
        id::{JobId, SegmentId},
        layout::{Minute, Place, SegmentName},
    },
};
use bytes::{BufMut, Bytes, BytesMut};
use plans::{
    read_dead, read_event, read_letters, read_move, read_ref, write_dead, write_event, write_letters, write_move,
    write_ref,
};
use prost::Message;
use schedules::{read_schedule, write_schedule};
use std::{fmt, time::Duration};

/// The format that this version writes. Later ones are never rewritten.
pub(crate) const FORMAT: u32 = 1;

/// Tag and wire type of the checksum, which is always the last field: five bytes with its value.
pub(crate) const CHECKSUM_TAG: u8 = 15 << 3 | 5;
const CHECKSUM_SIZE: usize = 5;

/// No ledger is longer.
pub(crate) const LONGEST: usize = 1 << 20;

/// Why bytes are no ledger for us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    Damaged(String),
    /// A later version of leasehold wrote it.
    Later(u32),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(why) => write!(f, "the ledger is damaged: {why}"),
            Self::Later(format) => {
                write!(
                    f,
                    "the ledger has format {format}, this version writes {FORMAT}: use a newer version of leasehold"
                )
            }
        }
    }
}

impl From<String> for Unusable {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

impl From<&str> for Unusable {
    fn from(why: &str) -> Self {
        Self::Damaged(why.to_owned())
    }
}

/// Writes a ledger down. It is for the caller to look at the length.
pub(crate) fn encode(ledger: &Ledger) -> Bytes {
    let message = write(ledger);
    let mut body = BytesMut::with_capacity(message.encoded_len() + CHECKSUM_SIZE);
    // Reserving enough is all that encoding can fail for.
    let _ = message.encode(&mut body);
    let checksum = crc32c::crc32c(&body);
    body.put_u8(CHECKSUM_TAG);
    body.put_u32_le(checksum);
    body.freeze()
}

/// Everything that a ledger must be. What its lists say of one another is looked at by [`Ledger::check`].
pub(crate) fn decode(body: &Bytes) -> Result<Ledger, Unusable> {
    let Some(length) = body.len().checked_sub(CHECKSUM_SIZE).filter(|length| *length <= 2 * LONGEST) else {
        return Err(format!("it has {} bytes", body.len()).into());
    };
    let (content, tail) = body.split_at(length);
    if tail[0] != CHECKSUM_TAG || tail[1..] != crc32c::crc32c(content).to_le_bytes() {
        return Err("its checksum is wrong".into());
    }
    let message = wire::Ledger::decode(body.clone()).map_err(|error| error.to_string())?;
    match message.format {
        0 => Err("it has no format".into()),
        format if format > FORMAT => Err(Unusable::Later(format)),
        _ => Ok(read(message)?),
    }
}

fn halves(id: SegmentId) -> (u64, u64) {
    ((id.number() >> 64) as u64, id.number() as u64)
}

fn segment(high: u64, low: u64) -> Result<SegmentId, String> {
    let number = u128::from(high) << 64 | u128::from(low);
    SegmentId::from_number(number).ok_or_else(|| format!("{number:032x} is no segment of ours"))
}

fn place(place: Place) -> (u32, u32) {
    match place {
        Place::Inbox => (0, 0),
        Place::At(minute) => (1, minute.number()),
        Place::Seg => (2, 0),
        Place::Inline => (3, 0),
    }
}

fn read_place(place: u32, minute: u32) -> Result<Place, String> {
    match (place, Minute::from_number(minute)) {
        (0, _) => Ok(Place::Inbox),
        (1, Some(minute)) => Ok(Place::At(minute)),
        (2, _) => Ok(Place::Seg),
        (3, _) => Ok(Place::Inline),
        _ => Err(format!("{place} is no place of a segment")),
    }
}

fn short<T: TryFrom<u32>>(what: &str, number: u32) -> Result<T, String> {
    T::try_from(number).map_err(|_| format!("the {what} {number} is too large"))
}

fn id16(what: &str, bytes: &Bytes) -> Result<[u8; 16], String> {
    <[u8; 16]>::try_from(bytes.as_ref()).map_err(|_| format!("its {what} is no id"))
}

fn fence(number: u64) -> Result<Fence, String> {
    Fence::new(number).map_err(|error| error.to_string())
}

fn some_fence(number: u64) -> Result<Option<Fence>, String> {
    if number == 0 { Ok(None) } else { fence(number).map(Some) }
}

/// A time that the clock cannot count must not come back as another one.
fn time(millis: i64) -> Result<Millis, String> {
    if Timestamp::from_millis(millis).as_millis() == millis {
        Ok(millis)
    } else {
        Err(format!("{millis} ms since 1970 is a time that no clock shows"))
    }
}

fn range(from: u32, length: u32) -> Result<Range, String> {
    let from: u16 = short("index", from)?;
    let length: u16 = short("length", length)?;
    let to = from.checked_add(length).filter(|_| length > 0).ok_or("a range has no jobs or too many")?;
    Ok(Range { from, to })
}

fn bytes(id: &[u8; 16]) -> Bytes {
    Bytes::copy_from_slice(id)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn all<A, B>(list: &[A], each: impl Fn(&A) -> B) -> Vec<B> {
    list.iter().map(each).collect()
}

fn try_all<A, B>(list: Vec<A>, each: impl Fn(A) -> Result<B, String>) -> Result<Vec<B>, String> {
    list.into_iter().map(each).collect()
}

fn write(ledger: &Ledger) -> wire::Ledger {
    wire::Ledger {
        format: FORMAT,
        queue: ledger.queue.as_ref().to_owned(),
        shard: u32::from(ledger.shard),
        write_id: bytes(ledger.write_id.as_bytes()),
        revision: ledger.revision,
        epoch: ledger.epoch,
        now_ms: ledger.now,
        fence_last: ledger.fence_last.map_or(0, Fence::get),
        gc_epoch: ledger.gc_epoch,
        next_row: ledger.next_row,
        settings: ledger.settings,
        policy: Some(write_policy(&ledger.policy)),
        rows: all(&ledger.rows, write_row),
        claims: all(&ledger.claims, write_claim),
        checksum: 0,
        sessions: all(&ledger.sessions, |session| wire::Session {
            id: bytes(&session.id.0),
            lease: bytes(&session.lease),
            owner: session.owner.as_ref().to_owned(),
            last_write: bytes(session.last_write.as_bytes()),
            until_ms: session.until,
            owns_until_ms: session.owns_until,
        }),
        ended: all(&ledger.ended, |ended| wire::Ended {
            session: bytes(&ended.session.0),
            at_ms: ended.at,
            held: ended.held,
        }),
        finished: all(&ledger.finished, write_finished),
        dead: all(&ledger.dead, write_dead),
        moves: all(&ledger.moves, write_move),
        cancelling: all(&ledger.cancelling, write_ref),
        unique: all(&ledger.unique, |unique| wire::Unique {
            hash: bytes(&unique.hash),
            job: Some(write_ref(&unique.job)),
            ended_ms: unique.ended,
            first: unique.first.as_ref().map(write_ref),
        }),
        limits: all(&ledger.limits, |limit| wire::Limit {
            key: limit.key,
            most: limit.most,
            name: limit.name.as_ref().to_owned(),
        }),
        schedules: all(&ledger.schedules, write_schedule),
        tokens_milli: ledger.tokens.milli,
        tokens_at_ms: ledger.tokens.at,
        turn: ledger.turn,
        outbox: all(&ledger.outbox, write_event),
        next_event: ledger.next_event,
        outbox_spills: all(&ledger.outbox_spills, |id| bytes(&id.number().to_be_bytes())),
        counters: Some(write_counters(&ledger.counters)),
        letters: all(&ledger.letters, write_letters),
        duplicates: all(&ledger.duplicates, |one| wire::Duplicate {
            job: Some(write_ref(&one.job)),
            of: Some(write_ref(&one.of)),
        }),
    }
}

fn read(message: wire::Ledger) -> Result<Ledger, String> {
    Ok(Ledger {
        queue: message.queue.into(),
        shard: short("shard", message.shard)?,
        write_id: id16("write_id", &message.write_id)?.into(),
        revision: message.revision,
        epoch: message.epoch,
        now: time(message.now_ms)?,
        fence_last: some_fence(message.fence_last)?,
        gc_epoch: message.gc_epoch,
        next_row: message.next_row,
        settings: message.settings,
        policy: read_policy(message.policy.ok_or("it has no policy")?)?,
        rows: try_all(message.rows, read_row)?,
        claims: try_all(message.claims, read_claim)?,
        sessions: try_all(message.sessions, |session| {
            Ok(Session {
                id: SessionId(id16("session", &session.id)?),
                lease: id16("lease", &session.lease)?,
                owner: session.owner.into(),
                last_write: id16("last write", &session.last_write)?.into(),
                until: time(session.until_ms)?,
                owns_until: time(session.owns_until_ms)?,
            })
        })?,
        ended: try_all(message.ended, |ended| {
            Ok(Ended { session: SessionId(id16("session", &ended.session)?), at: time(ended.at_ms)?, held: ended.held })
        })?,
        finished: try_all(message.finished, read_finished)?,
        dead: try_all(message.dead, read_dead)?,
        moves: try_all(message.moves, read_move)?,
        cancelling: try_all(message.cancelling, read_ref)?,
        unique: try_all(message.unique, |unique| {
            Ok(Unique {
                hash: id16("unique key", &unique.hash)?,
                job: read_ref(unique.job.ok_or("a unique key has no job")?)?,
                ended: unique.ended_ms.map(time).transpose()?,
                first: unique.first.map(read_ref).transpose()?,
            })
        })?,
        limits: try_all(message.limits, |limit| {
            Ok(Limit { key: limit.key, most: limit.most, name: limit.name.into() })
        })?,
        schedules: try_all(message.schedules, read_schedule)?,
        tokens: Tokens { milli: message.tokens_milli, at: time(message.tokens_at_ms)? },
        turn: message.turn,
        outbox: try_all(message.outbox, read_event)?,
        next_event: message.next_event,
        outbox_spills: try_all(message.outbox_spills, |id| {
            SegmentId::from_number(u128::from_be_bytes(id16("spill", &id)?)).ok_or_else(|| "a spill is none".to_owned())
        })?,
        counters: read_counters(message.counters.unwrap_or_default()),
        letters: try_all(message.letters, read_letters)?,
        duplicates: try_all(message.duplicates, |one| {
            let place = |job: Option<wire::JobRef>| read_ref(job.ok_or("a duplicate names no job")?);
            Ok(Duplicate { job: place(one.job)?, of: place(one.of)? })
        })?,
    })
}

fn write_finished(entry: &Finished) -> wire::Finished {
    let ((high, low), (place, minute)) = (halves(entry.name.id), place(entry.name.place));
    wire::Finished {
        high,
        low,
        place,
        minute,
        jobs: u32::from(entry.name.jobs),
        since_ms: entry.since,
        confirmed_ms: entry.confirmed,
        request: entry.request,
    }
}

fn read_finished(entry: wire::Finished) -> Result<Finished, String> {
    Ok(Finished {
        name: SegmentName {
            id: segment(entry.high, entry.low)?,
            place: read_place(entry.place, entry.minute)?,
            jobs: short("number of jobs", entry.jobs)?,
        },
        since: time(entry.since_ms)?,
        confirmed: entry.confirmed_ms.map(time).transpose()?,
        request: entry.request,
    })
}

fn write_backoff(backoff: &Backoff) -> wire::Backoff {
    wire::Backoff {
        shape: match backoff.shape {
            Shape::Polynomial => 0,
            Shape::Exponential => 1,
            Shape::Fixed => 2,
        },
        base_ms: millis(backoff.base),
        power: backoff.power,
        cap_ms: millis(backoff.cap),
        jitter_percent: backoff.jitter,
    }
}

fn read_backoff(backoff: wire::Backoff) -> Result<Backoff, String> {
    Ok(Backoff {
        shape: match backoff.shape {
            0 => Shape::Polynomial,
            1 => Shape::Exponential,
            2 => Shape::Fixed,
            other => return Err(format!("{other} is no shape of a backoff")),
        },
        base: Duration::from_millis(backoff.base_ms),
        power: backoff.power,
        cap: Duration::from_millis(backoff.cap_ms),
        jitter: backoff.jitter_percent,
    })
}

fn write_policy(policy: &Policy) -> wire::Policy {
    wire::Policy {
        paused: policy.paused,
        paused_until_ms: policy.paused_until,
        max_attempts: policy.max_attempts,
        backoff: Some(write_backoff(&policy.backoff)),
        kinds: all(&policy.kinds, |kind| wire::KindPolicy {
            kind: kind.kind.clone(),
            max_attempts: kind.max_attempts,
            backoff: kind.backoff.as_ref().map(write_backoff),
            dead_retention_ms: kind.dead_retention.map(millis),
        }),
        max_stalls: u32::from(policy.max_stalls),
        session_ttl_ms: millis(policy.session_ttl),
        dead_retention_ms: millis(policy.dead_retention),
        key_limit: policy.key_limit,
        skip_waiting: policy.skip_waiting,
        rate_milli: policy.rate_milli,
        unique_period_ms: millis(policy.unique_period),
        request_window_ms: millis(policy.request_window),
        events: match policy.events {
            JobEvents::Off => 0,
            JobEvents::Terminal => 1,
            JobEvents::All => 2,
        },
    }
}

fn read_policy(policy: wire::Policy) -> Result<Policy, String> {
    Ok(Policy {
        paused: policy.paused,
        paused_until: policy.paused_until_ms.map(time).transpose()?,
        max_attempts: policy.max_attempts,
        backoff: read_backoff(policy.backoff.ok_or("it has no backoff")?)?,
        kinds: try_all(policy.kinds, |kind| {
            Ok(KindPolicy {
                kind: kind.kind,
                max_attempts: kind.max_attempts,
                backoff: kind.backoff.map(read_backoff).transpose()?,
                dead_retention: kind.dead_retention_ms.map(Duration::from_millis),
            })
        })?,
        max_stalls: short("number of stalls", policy.max_stalls)?,
        session_ttl: Duration::from_millis(policy.session_ttl_ms),
        dead_retention: Duration::from_millis(policy.dead_retention_ms),
        key_limit: policy.key_limit,
        skip_waiting: policy.skip_waiting,
        rate_milli: policy.rate_milli,
        unique_period: Duration::from_millis(policy.unique_period_ms),
        request_window: Duration::from_millis(policy.request_window_ms),
        events: match policy.events {
            0 => JobEvents::Off,
            1 => JobEvents::Terminal,
            2 => JobEvents::All,
            other => return Err(format!("{other} says nothing about events")),
        },
    })
}

fn write_row(row: &Row) -> wire::Row {
    let ((high, low), (place, minute)) = (halves(row.name.id), place(row.name.place));
    let id = |id: JobId| bytes(&id.number().to_be_bytes());
    wire::Row {
        number: row.number,
        high,
        low,
        place,
        minute,
        jobs: u32::from(row.name.jobs),
        open: u32::from(row.open),
        request: row.request,
        unread: all(&row.unread, |unread| wire::Unread {
            from: u32::from(unread.range.from),
            length: u32::from(unread.range.len()),
            priority: i32::from(unread.priority),
            due_ms: unread.due,
        }),
        runs: columns::write(row.runs.iter()),
        moved: row.moved.iter().flat_map(|range| [u32::from(range.from), u32::from(range.len())]).collect(),
        least: row.span.map(|(least, _)| id(least)).unwrap_or_default(),
        greatest: row.span.map(|(_, greatest)| id(greatest)).unwrap_or_default(),
        inline: row.inline.clone(),
        tracked: row.tracked.clone(),
    }
}

fn read_row(row: wire::Row) -> Result<Row, String> {
    let job = |what: &str, id: &Bytes| {
        JobId::from_number(u128::from_be_bytes(id16(what, id)?)).ok_or_else(|| format!("the {what} is no job's"))
    };
    let (pairs, odd) = row.moved.as_chunks::<2>();
    if !odd.is_empty() {
        return Err("a range that moved has no length".to_owned());
    }
    Ok(Row {
        number: row.number,
        name: SegmentName {
            id: segment(row.high, row.low)?,
            place: read_place(row.place, row.minute)?,
            jobs: short("number of jobs", row.jobs)?,
        },
        open: short("number of open jobs", row.open)?,
        request: row.request,
        unread: try_all(row.unread, |unread| {
            Ok(Unread {
                range: range(unread.from, unread.length)?,
                priority: i16::try_from(unread.priority).map_err(|_| "a priority is beyond 16 bits")?,
                due: time(unread.due_ms)?,
            })
        })?,
        runs: columns::read(row.runs.as_ref())?,
        moved: pairs.iter().map(|pair| range(pair[0], pair[1])).collect::<Result<_, _>>()?,
        span: if row.least.is_empty() && row.greatest.is_empty() {
            None
        } else {
            Some((job("least id", &row.least)?, job("greatest id", &row.greatest)?))
        },
        inline: row.inline,
        tracked: row.tracked,
    })
}

fn write_claim(claim: &Claim) -> wire::Claim {
    let mut open = Vec::new();
    for item in &claim.items {
        item.open.put(item.run.len(), &mut open);
    }
    let alone = claim.items.iter().any(|item| item.alone);
    wire::Claim {
        id: claim.id.get(),
        session: bytes(&claim.session.0),
        fence: claim.fence.get(),
        at_ms: claim.at,
        items: columns::write(claim.items.iter().map(|item| &item.run)),
        rows: all(&claim.items, |item| item.row),
        open: open.into(),
        alone: if alone { all(&claim.items, |item| u32::from(item.alone)) } else { Vec::new() },
    }
}

fn read_claim(claim: wire::Claim) -> Result<Claim, String> {
    let runs = columns::read(claim.items.as_ref())?;
    let alone_fits = claim.alone.is_empty() || claim.alone.len() == runs.len();
    if claim.rows.len() != runs.len() || !alone_fits {
        return Err("the columns of a claim are not of one length".to_owned());
    }
    let mut bits = claim.open.as_ref();
    let mut items = Vec::with_capacity(runs.len());
    for (at, run) in runs.into_iter().enumerate() {
        items.push(Item {
            row: claim.rows[at],
            open: Bits::get(run.len(), &mut bits).ok_or("the bits of a claim are not those of its jobs")?,
            alone: claim.alone.get(at).is_some_and(|alone| *alone != 0),
            run,
        });
    }
    if !bits.is_empty() {
        return Err("a claim has bits of no job".to_owned());
    }
    Ok(Claim {
        id: ClaimId::new(claim.id).ok_or("a claim has no id")?,
        session: SessionId(id16("session of a claim", &claim.session)?),
        fence: fence(claim.fence)?,
        at: time(claim.at_ms)?,
        items,
    })
}

fn write_counters(counters: &Counters) -> wire::Counters {
    let Counters { absorbed, finished, dead, cancelled, duplicates, moved, failures, recovered, stalls, claimed } =
        *counters;
    wire::Counters { absorbed, finished, dead, cancelled, duplicates, moved, failures, recovered, stalls, claimed }
}

fn read_counters(counters: wire::Counters) -> Counters {
    let wire::Counters { absorbed, finished, dead, cancelled, duplicates, moved, failures, recovered, stalls, claimed } =
        counters;
    Counters { absorbed, finished, dead, cancelled, duplicates, moved, failures, recovered, stalls, claimed }
}
