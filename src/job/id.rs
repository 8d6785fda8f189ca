//! The ids of jobs and segments: a job's id says where the job is to be looked for.
//!
//! Both are UUIDs of version 7. The last 16 bits of a job's id are its index in its segment, before them stand 8 bits of
//! shard and 2 bits of class; with the index cleared it is the id of the segment. 48 random bits are left, and 36 of
//! them follow the 12 that make the ids of one process rise.

use crate::{Error, Generator, Result, clock::Timestamp, generator::GeneratorExt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr};
use uuid::Uuid;

const INDEX_BITS: u32 = 16;
const SHARD_BITS: u32 = 8;
const CLASS_BITS: u32 = 2;
/// Index, shard and class: what a segment's id does not draw at random.
const PLACE_BITS: u32 = INDEX_BITS + SHARD_BITS + CLASS_BITS;
const INDEX_MASK: u128 = 0xffff;
const VERSION_MASK: u128 = 0xf << 76;
const VERSION_7: u128 = 7 << 76;
const VARIANT_MASK: u128 = 3 << 62;
const VARIANT: u128 = 2 << 62;
/// The 36 random bits between the variant and the class.
const TAIL_MASK: u128 = ((1 << 36) - 1) << PLACE_BITS;
const MINUTE_MILLIS: i64 = 60_000;

/// Whether a job is taken before all others. Each class has a folder of its own, so urgent jobs are found by a look of
/// their own however long the rest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// Priority below 0.
    Urgent,
    /// Every other priority.
    Normal,
}

impl Class {
    pub(crate) const ALL: [Self; 2] = [Self::Urgent, Self::Normal];

    pub(crate) fn of(priority: i16) -> Self {
        if priority < 0 { Self::Urgent } else { Self::Normal }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Urgent => 0,
            Self::Normal => 1,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.number() == number)
    }
}

/// Names one segment: an immutable object with many jobs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentId(u128);

/// Names one job, for as long as it lives: a UUID of version 7.
///
/// ```
/// use leasehold::job::JobId;
///
/// assert!("not an id".parse::<JobId>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(u128);

impl TryFrom<String> for JobId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.to_string()
    }
}

fn is_ours(number: u128) -> bool {
    number & VERSION_MASK == VERSION_7
        && number & VARIANT_MASK == VARIANT
        && Class::from_number((number >> (INDEX_BITS + SHARD_BITS)) as u8 & 3).is_some()
}

/// `stamp` is 48 bits of milliseconds and the 12 bits after them; `tail` gives the 36 bits after the variant.
fn assemble(stamp: u64, tail: u64, shard: u8, class: Class) -> SegmentId {
    let millis = u128::from(stamp >> 12) << 80;
    let after = u128::from(stamp & 0xfff) << 64;
    let tail = u128::from(tail) << PLACE_BITS & TAIL_MASK;
    let place = u128::from(class.number()) << (INDEX_BITS + SHARD_BITS) | u128::from(shard) << INDEX_BITS;
    SegmentId(millis | VERSION_7 | after | VARIANT | tail | place)
}

fn millis_of(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0).min((1 << 48) - 1)
}

impl SegmentId {
    /// Of jobs that are due later: its time is the minute in which the first of them is due, the milliseconds random
    /// within it, so that a million segments for one midnight do not meet.
    pub(crate) fn delayed(due: Timestamp, shard: u8, class: Class, generator: &dyn Generator) -> Self {
        let random = u64::from_le_bytes(generator.bytes());
        let start = due.as_millis().div_euclid(MINUTE_MILLIS).saturating_mul(MINUTE_MILLIS);
        let within = i64::from((random >> 48) as u16) * MINUTE_MILLIS / (1 << 16);
        let millis = millis_of(Timestamp::from_millis(start.saturating_add(within)));
        assemble(millis << 12 | random & 0xfff, random >> 12, shard, class)
    }

    /// Of the `part`-th segment of a call with a request id: all of it comes from the request, its time too, so that a
    /// repeat with another clock has the same name.
    pub(crate) fn of_request(queue: &str, request_id: &str, part: u32, shard: u8, class: Class) -> Self {
        let hash = hash(&[b"request", queue.as_bytes(), request_id.as_bytes(), &part.to_le_bytes()]);
        Self::from_hash(hash, shard, class)
    }

    /// Of the segment that takes a job to another queue: it follows from the job's id alone, so a repeat of the move
    /// makes the same name.
    pub(crate) fn of_move(job: JobId, shard: u8, class: Class) -> Self {
        Self::from_hash(hash(&[b"move", &job.0.to_be_bytes()]), shard, class)
    }

    /// Of the row that a schedule inserts for one slot.
    pub(crate) fn of_slot(schedule: &[u8; 16], slot: Timestamp, shard: u8, class: Class) -> Self {
        let hash = hash(&[b"slot", schedule, &slot.as_millis().to_be_bytes()]);
        let bits = u128::from_be_bytes(hash);
        assemble(millis_of(slot) << 12 | (bits & 0xfff) as u64, (bits >> 12) as u64, shard, class)
    }

    fn from_hash(hash: [u8; 16], shard: u8, class: Class) -> Self {
        let bits = u128::from_be_bytes(hash);
        // The top bit stays clear: such times are far away, but a signed reader still counts them.
        assemble((bits >> 68) as u64 & (u64::MAX >> 5), bits as u64, shard, class)
    }

    pub(crate) fn job(self, index: u16) -> JobId {
        JobId(self.0 | u128::from(index))
    }

    pub(crate) fn shard(self) -> u8 {
        (self.0 >> INDEX_BITS) as u8
    }

    pub(crate) fn class(self) -> Class {
        // Every way to make one has looked at these bits.
        Class::from_number((self.0 >> (INDEX_BITS + SHARD_BITS)) as u8 & 3).unwrap_or(Class::Normal)
    }

    /// The time in the id: when it was made, or for a delayed one within the minute of its first job.
    pub(crate) fn time(self) -> Timestamp {
        Timestamp::from_millis(i64::try_from(self.0 >> 80).unwrap_or(i64::MAX))
    }

    pub(crate) fn number(self) -> u128 {
        self.0
    }

    pub(crate) fn from_number(number: u128) -> Option<Self> {
        (is_ours(number) && number & INDEX_MASK == 0).then_some(Self(number))
    }

    /// From 32 lower-case hexadecimal digits, and nothing else.
    pub(crate) fn from_digits(digits: &str) -> Option<Self> {
        let plain = digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        Self::from_number(u128::from_str_radix(digits, 16).ok().filter(|_| plain)?)
    }
}

impl JobId {
    pub(crate) fn segment(self) -> SegmentId {
        SegmentId(self.0 & !INDEX_MASK)
    }

    pub(crate) fn index(self) -> u16 {
        (self.0 & INDEX_MASK) as u16
    }

    pub(crate) fn number(self) -> u128 {
        self.0
    }

    pub(crate) fn from_number(number: u128) -> Option<Self> {
        is_ours(number).then_some(Self(number))
    }
}

/// 16 bytes of SHA-256 over the parts, each with its length in front.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize()[..16]);
    short
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_u128(self.0), f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // Only the usual spelling, so that no job has two names.
        let uuid = Uuid::try_parse(text).ok().filter(|uuid| uuid.to_string() == text);
        uuid.and_then(|uuid| Self::from_number(uuid.as_u128()))
            .ok_or_else(|| Error::invalid(format!("{text:?} is no job's id: take one that enqueue has returned")))
    }
}

/// Makes the ids of what one process enqueues for now: they rise, whatever its clock does.
#[derive(Debug, Default)]
pub(crate) struct RisingIds {
    last: u64,
}

impl RisingIds {
    pub(crate) fn next(&mut self, now: Timestamp, shard: u8, class: Class, generator: &dyn Generator) -> SegmentId {
        let random = u64::from_le_bytes(generator.bytes());
        let limit = u64::MAX >> 4;
        self.last = (millis_of(now) << 12 | random & 0xfff).max(self.last.saturating_add(1)).min(limit);
        assemble(self.last, random >> 12, shard, class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsGenerator;
    use proptest::prelude::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn an_id_says_its_shard_class_time_and_index() {
        let mut ids = RisingIds::default();
        for (shard, class) in [(0, Class::Urgent), (7, Class::Normal), (255, Class::Urgent)] {
            let segment = ids.next(at(1_767_227_400_123), shard, class, &OsGenerator::new());
            assert_eq!((segment.shard(), segment.class(), segment.time()), (shard, class, at(1_767_227_400_123)));
            for index in [0, 1, 1999, u16::MAX] {
                let job = segment.job(index);
                assert_eq!((job.segment(), job.index()), (segment, index));
                assert_eq!(job.to_string().parse::<JobId>().unwrap(), job);
                let uuid = Uuid::from_u128(job.number());
                assert_eq!((uuid.get_version_num(), uuid.get_variant()), (7, uuid::Variant::RFC4122));
            }
            assert_eq!(SegmentId::from_digits(&segment.to_string()), Some(segment));
        }
    }

    #[test]
    fn the_ids_of_a_process_rise_although_its_clock_goes_back() {
        let mut ids = RisingIds::default();
        let mut last = None;
        for millis in [5_000, 5_000, 4_000, 0, -1, 5_001, 1] {
            for _ in 0..5_000 {
                let id = ids.next(at(millis), 3, Class::Normal, &OsGenerator::new());
                assert!(Some(id) > last);
                last = Some(id);
            }
        }
        assert!(last.unwrap().time() < at(5_020), "it runs ahead by no more than it must");
    }

    #[test]
    fn a_delayed_id_stays_in_the_minute_of_its_first_job() {
        let due = at(1_767_227_459_999);
        let ids: Vec<_> = (0..1000).map(|_| SegmentId::delayed(due, 1, Class::Normal, &OsGenerator::new())).collect();
        for id in &ids {
            assert_eq!(id.time().as_millis().div_euclid(60_000), due.as_millis().div_euclid(60_000));
        }
        let distinct: std::collections::BTreeSet<_> = ids.iter().map(|id| id.time()).collect();
        assert!(distinct.len() > 500, "the milliseconds are random: {}", distinct.len());
    }

    #[test]
    fn the_same_request_makes_the_same_id_whenever_it_is_repeated() {
        let make = |queue, request, part| SegmentId::of_request(queue, request, part, 4, Class::Normal);
        assert_eq!(make("emails", "order-7", 0), make("emails", "order-7", 0));
        let others = [make("emails", "order-7", 1), make("emails", "order-8", 0), make("mails", "order-7", 0)];
        assert!(!others.contains(&make("emails", "order-7", 0)));
        assert_ne!(make("ab", "c", 0), make("a", "bc", 0), "lengths part the names");
        assert_eq!((make("q", "r", 0).shard(), make("q", "r", 0).class()), (4, Class::Normal));
        assert!(SegmentId::from_number(make("q", "r", 0).number()).is_some());
    }

    #[test]
    fn a_moved_job_has_one_target_and_another_one_when_it_moves_on() {
        let job = SegmentId::of_request("q", "r", 0, 0, Class::Normal).job(3);
        let target = SegmentId::of_move(job, 1, Class::Urgent);
        assert_eq!(target, SegmentId::of_move(job, 1, Class::Urgent));
        assert_ne!(target, SegmentId::of_move(job.segment().job(4), 1, Class::Urgent));
        assert_ne!(target, SegmentId::of_move(target.job(0), 1, Class::Urgent));
    }

    proptest! {
        #[test]
        fn any_number_is_an_id_of_ours_or_refused(number: u128) {
            for number in [number, number & !VERSION_MASK & !VARIANT_MASK | VERSION_7 | VARIANT] {
                if let Some(job) = JobId::from_number(number) {
                    prop_assert_eq!(job.number(), number);
                    prop_assert_eq!(job.segment().job(job.index()), job);
                    prop_assert_eq!(SegmentId::from_number(job.segment().number()), Some(job.segment()));
                }
                prop_assert!(SegmentId::from_number(number | 1).is_none());
            }
        }

        #[test]
        fn any_text_is_an_id_in_its_only_spelling_or_refused(text in "[0-9a-fA-F-]{30,40}") {
            if let Ok(job) = text.parse::<JobId>() {
                prop_assert_eq!(job.to_string(), text.clone());
            }
            if let Some(segment) = SegmentId::from_digits(&text) {
                prop_assert_eq!(segment.to_string(), text);
            }
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let good = SegmentId::of_request("q", "r", 0, 0, Class::Normal).job(3).to_string();
        for text in ["", "x", "7d444840-9dc0-41d1-b245-5ffdce74fad2", &good.to_uppercase(), &good.replace('-', "")] {
            assert!(text.parse::<JobId>().is_err(), "{text:?}");
        }
        assert!(good.parse::<JobId>().is_ok());
        assert!(SegmentId::from_digits("+1234567890123456789012345678901").is_none());
    }
}
