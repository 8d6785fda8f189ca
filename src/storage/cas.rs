//! Compare-and-swap that tells the truth. The one place that makes conditional writes.
//!
//! A store's answer to a conditional write cannot be taken at its word. A write that landed comes back as a conflict
//! when the client sent it twice, S3's 409 on a create does not mean that anything exists, and a timed-out write may
//! land seconds later. So every record carries a [`WriteId`] that is fresh for each attempt, and any answer but Ok is
//! settled by reading back:
//!
//! | what is there | verdict |
//! |---|---|
//! | an id that this operation tried | won, with the ticket of that very attempt |
//! | the base still (or still nothing, after a create) | unknown: the write may yet land; a retry on the same base settles it |
//! | something older than the base | unknown: the store has regressed |
//! | anything else | lost, with what is there now; nothing of this operation can land any more |
//!
//! "Lost" says that this operation can no longer change the record, not that its write never landed: it may have
//! landed and been replaced since. What that means is judged above.

use super::{Backend, Fetched, Name, Version};
use crate::{Error, ErrorKind, Result, WriteId, clock::Timestamp};
use bytes::Bytes;
use object_store::PutMode;
use std::{fmt::Debug, sync::Arc, time::Duration};

/// What the records of all kinds have in common.
pub(crate) trait Record: Debug + Send + Sync {
    /// Who wrote it: fresh with every attempt.
    fn write_id(&self) -> WriteId;

    /// One more with every write.
    fn revision(&self) -> u64;

    /// Whether the attempt with this id is still to be seen in the record.
    fn carries(&self, id: WriteId) -> bool {
        self.write_id() == id
    }
}

/// The place of one record: its name and how it is written down.
pub(crate) trait Slot: Debug + Send + Sync {
    type Record: Record;

    fn name(&self) -> Name;

    fn encode(&self, record: &Self::Record) -> Result<Bytes>;

    /// Fails closed: what cannot be read is an error and never "nothing".
    fn decode(&self, body: Bytes) -> Result<Self::Record>;
}

/// A record as it was read or won, with the version that a write on it must name. Nothing else makes one, so a blind
/// overwrite does not compile.
#[derive(Debug, Clone)]
pub(crate) struct Seen<R> {
    record: R,
    version: Version,
    modified: Option<Timestamp>,
}

impl<R> Seen<R> {
    pub(crate) fn record(&self) -> &R {
        &self.record
    }

    /// When it was written by the store's own clock; `None` after a write of ours, whose answer does not say.
    pub(crate) fn modified(&self) -> Option<Timestamp> {
        self.modified
    }

    pub(crate) fn version(&self) -> &Version {
        &self.version
    }

    pub(super) fn decode<S: Slot<Record = R>>(slot: &S, fetched: Fetched) -> Result<Self> {
        let Fetched { body, version, modified } = fetched;
        Ok(Self { record: slot.decode(body)?, version, modified: Some(modified) })
    }
}

/// What every new record must carry; handed out by [`Cas::attempt`] only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) write_id: WriteId,
    pub(crate) revision: u64,
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Outcome<R, T> {
    /// This operation's write is in the store, with the ticket of the attempt that landed.
    Won(Seen<R>, T),
    /// No write of this operation can land any more; this is there now.
    Lost(Option<Seen<R>>),
    /// The last attempt, or one before it, may have landed or may yet land.
    Unknown(Error),
}

/// One operation's conditional writes on one record: all on the same base, each recognised if it landed.
///
/// `T` is the ticket of an attempt: what its maker must know about it if it is the one that landed, such as the
/// clock readings before it was sent.
#[derive(Debug)]
pub(crate) struct Cas<S: Slot, T> {
    backend: Arc<Backend>,
    slot: S,
    base: Option<Arc<Seen<S::Record>>>,
    /// What the base is called by now, if that is another version than it was read with.
    renamed: Option<Version>,
    tried: Vec<(WriteId, T)>,
    /// An answer to one of them said neither yes nor no.
    doubtful: bool,
    limit: Duration,
}

impl<S: Slot, T: Clone> Cas<S, T> {
    /// `base` is what was read, or `None` for a create.
    pub(crate) fn new(backend: Arc<Backend>, slot: S, base: Option<Seen<S::Record>>) -> Self {
        Self::sharing(backend, slot, base.map(Arc::new))
    }

    /// Attempts on a base that the caller keeps as well; see [`new`](Self::new).
    pub(crate) fn sharing(backend: Arc<Backend>, slot: S, base: Option<Arc<Seen<S::Record>>>) -> Self {
        let limit = backend.request_timeout;
        Self { backend, slot, base, renamed: None, tried: Vec::new(), doubtful: false, limit }
    }

    /// Waits no longer than this for one answer to a write.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    pub(crate) fn base(&self) -> Option<&S::Record> {
        self.base.as_deref().map(Seen::record)
    }

    /// The base, with when the store received it.
    pub(crate) fn seen(&self) -> Option<&Seen<S::Record>> {
        self.base.as_deref()
    }

    /// All attempts so far.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = (WriteId, &T)> {
        self.tried.iter().map(|(id, ticket)| (*id, ticket))
    }

    /// The ticket of an attempt.
    pub(crate) fn ticket(&self, id: WriteId) -> Option<&T> {
        self.tried.iter().find_map(|(tried, ticket)| (*tried == id).then_some(ticket))
    }

    /// What the next attempt's record must carry.
    pub(crate) fn stamp(&self) -> Result<Stamp> {
        let Some(revision) = self.base().map_or(0, Record::revision).checked_add(1) else {
            let name = self.slot.name();
            return Err(Error::corrupt(format!("{name} has no revision left: no write of ours led there")));
        };
        Ok(Stamp { write_id: WriteId::random(&*self.backend.generator), revision })
    }

    /// Sends one write. `build` makes the record from the base and the stamp that it must carry.
    pub(crate) async fn attempt(
        &mut self,
        ticket: T,
        build: impl FnOnce(Option<&S::Record>, Stamp) -> S::Record,
    ) -> Outcome<S::Record, T> {
        match self.stamp() {
            Ok(stamp) => {
                let record = build(self.base(), stamp);
                self.send(ticket, record).await
            }
            Err(error) => Outcome::Unknown(error),
        }
    }

    /// Sends one write of a record that carries a [stamp](Self::stamp) which no attempt had before.
    pub(crate) async fn send(&mut self, ticket: T, record: S::Record) -> Outcome<S::Record, T> {
        let body = match self.slot.encode(&record) {
            Ok(body) => body,
            Err(error) => return Outcome::Unknown(error),
        };
        let mode = match &self.base {
            None => PutMode::Create,
            Some(base) => PutMode::Update(self.renamed.as_ref().unwrap_or(&base.version).into()),
        };
        // Tried from before it is sent: dropping this future must not make us forget it.
        self.tried.push((record.write_id(), ticket.clone()));
        match self.backend.put(&self.slot.name(), body, mode, self.limit).await {
            Ok(version) => Outcome::Won(Seen { record, version, modified: None }, ticket),
            Err(refusal) => {
                self.doubtful |= refusal.error.leaves_doubt();
                self.settle(refusal.error).await
            }
        }
    }

    /// Whether an attempt so far may have landed, or may yet. One that was refused has not, whatever it was refused for.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubtful
    }

    /// Reads back what became of the attempts so far; `doubt` is why they are in doubt.
    pub(crate) async fn settle(&mut self, doubt: Error) -> Outcome<S::Record, T> {
        let outcome = self.read_back(doubt).await;
        let counters = &self.backend.counters;
        match &outcome {
            Outcome::Won(..) => counters.doubts_won(1),
            Outcome::Lost(_) => counters.doubts_lost(1),
            Outcome::Unknown(_) => counters.doubts_open(1),
        }
        outcome
    }

    async fn read_back(&mut self, doubt: Error) -> Outcome<S::Record, T> {
        let there = match read(&self.backend, &self.slot).await {
            Ok(there) => there,
            // Neither answer is known. Report the write's, which came first, unless reading found what no retry mends:
            // real damage, or a format that this version does not know.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Config) => {
                return Outcome::Unknown(error);
            }
            Err(_) => return Outcome::Unknown(doubt),
        };
        let tried: Vec<_> = self.tried.iter().map(|(id, _)| *id).collect();
        match (shown(self.base(), there.as_ref().map(Seen::record), &tried), there) {
            (ReadBack::Mine(at), Some(seen)) => Outcome::Won(seen, self.tried[at].1.clone()),
            (ReadBack::Base, there) => {
                // The same record under another version (a copied or restored object): the next attempt must name it.
                self.renamed = there.map(|seen| seen.version);
                Outcome::Unknown(doubt)
            }
            (ReadBack::Older, there) => {
                let revision = |seen: Option<&Seen<S::Record>>| seen.map_or(0, |seen| seen.record.revision());
                Outcome::Unknown(Error::new(
                    ErrorKind::Regressed,
                    format!(
                        "{} went back from revision {} to {}: a backup was restored, or something in between answers from a cache",
                        self.slot.name(),
                        revision(self.base.as_deref()),
                        revision(there.as_ref()),
                    ),
                ))
            }
            (ReadBack::Mine(_) | ReadBack::Other, there) => Outcome::Lost(there),
        }
    }
}

/// What a read shows of the writes that an operation has tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadBack {
    /// This one of them has landed.
    Mine(usize),
    /// What they were based on is there still, or still nothing: they may yet land.
    Base,
    /// Something older than what they were based on.
    Older,
    /// Something else, or nothing where there was something: none of them can land any more.
    Other,
}

/// The rule of the table above, for attempts that were all made on one base.
pub(crate) fn shown<R: Record>(base: Option<&R>, there: Option<&R>, tried: &[WriteId]) -> ReadBack {
    let Some(there) = there else {
        // A conditional update of a missing object cannot land; a create may.
        return if base.is_none() { ReadBack::Base } else { ReadBack::Other };
    };
    let landed = tried.iter().rposition(|id| there.carries(*id));
    if let Some(at) = landed {
        return ReadBack::Mine(at);
    }
    match base {
        Some(base) if there.write_id() == base.write_id() => ReadBack::Base,
        Some(base) if there.revision() < base.revision() => ReadBack::Older,
        _ => ReadBack::Other,
    }
}

/// Reads a record, with the version that a write on it must name.
///
/// One that cannot be read is read once more: it may have been damaged on its way here.
pub(crate) async fn read<S: Slot>(backend: &Backend, slot: &S) -> Result<Option<Seen<S::Record>>> {
    match read_once(backend, slot).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => read_once(backend, slot).await,
        read => read,
    }
}

async fn read_once<S: Slot>(backend: &Backend, slot: &S) -> Result<Option<Seen<S::Record>>> {
    backend.get(&slot.name()).await?.map(|fetched| Seen::decode(slot, fetched)).transpose()
}

/// Reads a record for a repair, over two connections, which must show the same bytes. A read that was damaged on its way
/// is no reason to replace anything.
pub(crate) async fn read_twice<S: Slot>(backend: &Backend, slot: &S) -> Result<Option<Seen<S::Record>>> {
    let name = slot.name();
    let first = backend.get_oversized(&name, &backend.coordination).await?;
    let second = backend.get_oversized(&name, &backend.bulk).await?;
    match (first, second) {
        (Some(first), Some(second)) if first.body == second.body && first.version == second.version => {
            Seen::decode(slot, second).map(Some)
        }
        (None, None) => Ok(None),
        _ => Err(Error::unavailable(format!("{name} changed while it was looked at: try again"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Plain(u8, u64);

    impl Record for Plain {
        fn write_id(&self) -> WriteId {
            [self.0; 16].into()
        }

        fn revision(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn a_read_shows_our_write_or_the_base_or_something_older_or_something_else() {
        let (base, tried) = (Plain(1, 5), [WriteId::from([2; 16]), WriteId::from([3; 16])]);
        let shows = |there: Option<&Plain>| shown(Some(&base), there, &tried);
        assert_eq!(shows(Some(&Plain(2, 6))), ReadBack::Mine(0));
        assert_eq!(shows(Some(&Plain(3, 6))), ReadBack::Mine(1));
        assert_eq!(shows(Some(&Plain(1, 5))), ReadBack::Base);
        assert_eq!(shows(Some(&Plain(9, 4))), ReadBack::Older);
        assert_eq!(shows(Some(&Plain(9, 5))), ReadBack::Other, "another one's, on what our base was based on");
        assert_eq!(shows(Some(&Plain(9, 6))), ReadBack::Other);
        assert_eq!(shows(None), ReadBack::Other, "an update of nothing cannot land");
        assert_eq!(shown::<Plain>(None, None, &tried), ReadBack::Base, "a create can");
        assert_eq!(shown(None, Some(&Plain(9, 1)), &tried), ReadBack::Other);
    }
}
