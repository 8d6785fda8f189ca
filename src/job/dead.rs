//! Dead letters: jobs that will not run again by themselves, with all that they were and why they are dead.

use super::{
    core::Core,
    id::JobId,
    layout::LettersName,
    ledger::{Letters, Reason},
    redrive::{DeadPurge, Redriving},
    segment::{Entry, Segment, Table, Unreadable},
};
use crate::{
    Error, Fence, Hour, Result,
    clock::Timestamp,
    storage::{
        Name,
        bodies::{LONGEST_OBJECT, Way},
    },
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

/// Objects that are listed at once.
const PAGE: usize = 1000;
/// Dead letters in one page at the most.
const MOST: usize = 1000;
/// How much of an object is read for its table.
const FIRST_READ: usize = 64 << 10;

/// A job that is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its id; none where its segment could not be read.
    pub id: Option<JobId>,
    /// Why it is dead.
    pub reason: Reason,
    /// What its last attempt said, or why it is dead in words.
    pub error: String,
    /// Attempts that failed.
    pub attempts: u32,
    /// How often in a row it was alone with a process that died.
    pub stalls: u32,
    /// The fence of its last attempt.
    pub fence: Option<Fence>,
    /// What kind of job it is.
    pub kind: Option<String>,
    /// On whose behalf.
    pub tenant: Option<String>,
    /// By which it is limited.
    pub key: Option<String>,
    /// The caller's own id.
    pub caller_id: Option<String>,
    /// Lower ones come first.
    pub priority: i16,
    /// When it died, by the store's clock.
    #[serde(rename = "died_ms")]
    pub died_at: Timestamp,
    /// Until when it is kept, unless the queue has too many.
    #[serde(rename = "kept_until_ms")]
    pub kept_until: Timestamp,
    /// The object that it is in.
    pub object: String,
    /// How many jobs it stands for: more than one where a segment could not be read.
    pub jobs: u16,
}

/// A dead letter with everything that it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadJob {
    /// What is known of it.
    pub letter: DeadLetter,
    /// Its parts, by name.
    pub parts: BTreeMap<String, Bytes>,
}

/// Which dead letters are meant. All of them if nothing is said.
///
/// ```
/// use leasehold::job::{DeadFilter, DeadReason};
///
/// let poison = DeadFilter::all().kind("mail").reason(DeadReason::Stalled);
/// # let _ = poison;
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct DeadFilter {
    ids: Option<HashSet<JobId>>,
    kind: Option<String>,
    tenant: Option<String>,
    reason: Option<Reason>,
    before: Option<Timestamp>,
}

impl DeadFilter {
    /// All dead letters.
    pub fn all() -> Self {
        Self::default()
    }

    /// The one of this job.
    pub fn id(id: JobId) -> Self {
        Self::ids([id])
    }

    /// Those of these jobs.
    pub fn ids(ids: impl IntoIterator<Item = JobId>) -> Self {
        Self { ids: Some(ids.into_iter().collect()), ..Self::default() }
    }

    /// Only of this kind.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Only on behalf of this tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Only for this reason.
    pub fn reason(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Only what died before this time.
    pub fn died_before(mut self, at: Timestamp) -> Self {
        self.before = Some(at);
        self
    }

    /// Whether it means everything.
    pub(super) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn ids_left(&self, found: &HashSet<JobId>) -> bool {
        self.ids.as_ref().is_none_or(|ids| !ids.is_subset(found))
    }

    /// Whether an object of this shard can have some.
    pub(super) fn looks_at(&self, shard: u8) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.iter().any(|id| id.segment().shard() == shard))
    }

    pub(super) fn means(&self, letter: &DeadLetter) -> bool {
        self.ids.as_ref().is_none_or(|ids| letter.id.is_some_and(|id| ids.contains(&id)))
            && self.kind.as_ref().is_none_or(|kind| letter.kind.as_ref() == Some(kind))
            && self.tenant.as_ref().is_none_or(|tenant| letter.tenant.as_ref() == Some(tenant))
            && self.reason.is_none_or(|reason| letter.reason == reason)
            && self.before.is_none_or(|before| letter.died_at < before)
    }

    /// A redrive of everything leaves out what hangs on a transaction that nobody remembers: only somebody who knows
    /// whether it was committed can say that it is to run.
    pub(super) fn redrives(&self, letter: &DeadLetter) -> bool {
        let named = self.ids.is_some() || self.reason == Some(Reason::Forgotten);
        self.means(letter) && (letter.reason != Reason::Forgotten || named)
    }
}

impl From<JobId> for DeadFilter {
    fn from(id: JobId) -> Self {
        Self::id(id)
    }
}

/// The dead letters of a queue.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::job::DeadFilter;
///
/// # let store = leasehold::Store::open("memory://").await?;
/// # let queue = store.queue("emails")?;
/// # queue.enqueue("x").await?;
/// # queue.claim(1).await?.remove(0).fail_for_good("no such address").await?;
/// # store.drain().await;
/// for letter in queue.dead().list().await?.letters {
///     println!("{:?} is dead after {} attempts: {}", letter.id, letter.attempts, letter.error);
/// }
/// // The cause is mended: run them again, ten a second.
/// let redriven = queue.dead().redrive(DeadFilter::all()).per_second(10).await?;
/// assert_eq!(redriven.jobs, 1);
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeadLetters {
    pub(super) core: Arc<Core>,
}

impl DeadLetters {
    /// A page of them, those that expire first in front.
    pub fn list(&self) -> DeadList {
        DeadList { core: Arc::clone(&self.core), filter: DeadFilter::all(), limit: 100, after: None }
    }

    /// One of them, with all its parts. Reads the tables of the dead letters of its shard until it is found.
    pub async fn get(&self, id: JobId) -> Result<Option<DeadJob>> {
        let mut walk = Walk::new(&self.core, None);
        let filter = DeadFilter::id(id);
        while let Some((path, name)) = walk.next().await? {
            if !filter.looks_at(name.shard) {
                continue;
            }
            let Some(object) = read_table(&self.core, &path, name).await? else { continue };
            let taken = walk.taken(name).await?;
            let letters = object.letters(taken.as_ref());
            let Some((index, letter)) = letters.into_iter().find(|(_, letter)| filter.means(letter)) else { continue };
            let parts = match read_whole(&self.core, &path, name).await? {
                Some(Whole { segment: Some(segment), .. }) => parts(&segment, index)?,
                Some(_) => Vec::new(),
                None => continue,
            };
            let parts = parts.into_iter().map(|(name, body)| (name.as_ref().to_owned(), body)).collect();
            return Ok(Some(DeadJob { letter, parts }));
        }
        Ok(None)
    }

    /// Puts them back into the queue, each once, with their attempts forgotten and fences that go on rising.
    pub fn redrive(&self, which: impl Into<DeadFilter>) -> Redriving {
        Redriving::new(Arc::clone(&self.core), which.into())
    }

    /// Gives them up for good.
    pub fn purge(&self, which: impl Into<DeadFilter>) -> DeadPurge {
        DeadPurge::new(Arc::clone(&self.core), which.into())
    }
}

/// A page of dead letters that is read when it is awaited.
#[must_use = "nothing is read until it is awaited"]
#[derive(Debug)]
pub struct DeadList {
    core: Arc<Core>,
    filter: DeadFilter,
    limit: usize,
    after: Option<String>,
}

/// Some dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct DeadPage {
    /// Those that expire first in front.
    pub letters: Vec<DeadLetter>,
    /// Where the next page begins, for [`DeadList::after`]; none on the last one.
    pub next: Option<String>,
}

impl DeadList {
    /// Only these.
    pub fn filter(mut self, filter: impl Into<DeadFilter>) -> Self {
        self.filter = filter.into();
        self
    }

    /// So many at the most: 1 to 1,000 (100).
    pub fn limit(mut self, most: usize) -> Self {
        self.limit = most.clamp(1, MOST);
        self
    }

    /// Goes on where a page has ended; from the start for none.
    pub fn after(mut self, next: impl Into<Option<String>>) -> Self {
        self.after = next.into();
        self
    }
}

impl IntoFuture for DeadList {
    type Output = Result<DeadPage>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(list(self))
    }
}

async fn list(list: DeadList) -> Result<DeadPage> {
    let DeadList { core, filter, limit, after } = list;
    let after = after.as_deref().map(|text| cursor(&core, text)).transpose()?;
    let (name, first) = after.map_or((None, 0), |(name, first)| (Some(name), first));
    let mut walk = Walk::new(&core, name.clone());
    let mut page = DeadPage::default();
    while let Some((path, parsed)) = walk.next().await? {
        if !filter.looks_at(parsed.shard) {
            continue;
        }
        let Some(object) = read_table(&core, &path, parsed).await? else { continue };
        let taken = walk.taken(parsed).await?;
        let first = if name.as_ref() == Some(&path) { first } else { 0 };
        for (index, letter) in object.letters(taken.as_ref()) {
            if index < first || !filter.means(&letter) {
                continue;
            }
            if page.letters.len() >= limit {
                let below = path.as_str().strip_prefix(&core.layout.dead()).unwrap_or_default();
                page.next = Some(format!("{index}-{below}"));
                return Ok(page);
            }
            page.letters.push(letter);
        }
    }
    Ok(page)
}

fn cursor(core: &Core, text: &str) -> Result<(Name, u16)> {
    let wrong =
        || Error::invalid(format!("{text:?} is no place in a list of dead letters: use the one of the last page"));
    let (index, below) = text.split_once('-').ok_or_else(wrong)?;
    let name = format!("{}{below}", core.layout.dead());
    core.layout.parse_letters(&name).ok_or_else(wrong)?;
    Ok((Name::new(name), index.parse().map_err(|_| wrong())?))
}

/// All objects of dead letters of a queue, in the order of their expiry.
pub(super) struct Walk<'a> {
    core: &'a Arc<Core>,
    /// Listed and not handed out, the last first.
    names: Vec<Name>,
    after: Option<Name>,
    more: bool,
    /// What the ledgers say was taken out, by shard.
    ledgers: HashMap<u8, Vec<Letters>>,
}

impl<'a> Walk<'a> {
    /// From an object on, or from the first one.
    pub(super) fn new(core: &'a Arc<Core>, from: Option<Name>) -> Self {
        Self { core, names: from.clone().into_iter().collect(), after: from, more: true, ledgers: HashMap::new() }
    }

    pub(super) async fn next(&mut self) -> Result<Option<(Name, LettersName)>> {
        loop {
            while let Some(name) = self.names.pop() {
                if let Some(parsed) = self.core.layout.parse_letters(name.as_str()) {
                    return Ok(Some((name, parsed)));
                }
            }
            if !std::mem::take(&mut self.more) {
                return Ok(None);
            }
            let page = self.core.backend().page(&self.core.layout.dead(), self.after.as_ref(), PAGE).await?;
            self.more = page.more;
            self.after = page.names.last().cloned();
            self.names = page.names;
            self.names.reverse();
        }
    }

    /// What was taken out of an object before. One read of a ledger serves the whole walk.
    pub(super) async fn taken(&mut self, name: LettersName) -> Result<Option<Letters>> {
        if !self.ledgers.contains_key(&name.shard) {
            let ever = self.core.settings().await?.record().shards_ever;
            let letters = if u16::from(name.shard) < ever {
                self.core.shard(name.shard).look().await?.record().letters.clone()
            } else {
                Vec::new()
            };
            self.ledgers.insert(name.shard, letters);
        }
        let letters = self.ledgers.get(&name.shard).into_iter().flatten();
        Ok(letters.into_iter().find(|letters| letters.plan == name.plan).cloned())
    }
}

/// An object of dead letters without its parts.
pub(super) struct Tabled {
    path: Name,
    name: LettersName,
    /// None if it was buried as it is and cannot be read.
    table: Option<Table>,
}

/// An object of dead letters that was read whole.
pub(super) struct Whole {
    pub(super) tabled: Tabled,
    pub(super) segment: Option<Segment>,
}

impl Tabled {
    /// Its jobs by their index, without those that were taken out.
    pub(super) fn letters(&self, taken: Option<&Letters>) -> Vec<(u16, DeadLetter)> {
        let is_taken = |index: u16| taken.is_some_and(|letters| letters.is_taken(index));
        let Some(table) = &self.table else {
            let whole = (0, self.letter(None, Timestamp::default()));
            return if is_taken(0) { Vec::new() } else { vec![whole] };
        };
        let jobs = (0u16..).zip(&table.jobs).filter(|(index, _)| !is_taken(*index));
        jobs.map(|(index, entry)| {
            let mut letter = self.letter(Some(entry), table.made);
            letter.id = table.id(index);
            // What was buried as it is says nothing of why.
            if entry.history.reason.is_none() {
                letter.reason = if table.txn.is_some() { Reason::Forgotten } else { Reason::Damaged };
                letter.error = letter.reason.as_text().to_owned();
            }
            (index, letter)
        })
        .collect()
    }

    fn letter(&self, entry: Option<&Entry>, died_at: Timestamp) -> DeadLetter {
        let text = |text: fn(&Entry) -> Option<&Arc<str>>| Some(text(entry?)?.as_ref().to_owned());
        let history = entry.map(|entry| &entry.history);
        let reason = history.and_then(|history| history.reason).unwrap_or(Reason::Damaged);
        let error = history.and_then(|history| history.error.as_deref()).unwrap_or(reason.as_text()).to_owned();
        let kept_until = Hour::from_number(self.name.hour).map(Hour::end).unwrap_or_default();
        DeadLetter {
            id: None,
            reason,
            error,
            attempts: history.map_or(0, |history| history.attempts),
            stalls: history.map_or(0, |history| u32::from(history.stalls)),
            fence: history.and_then(|history| history.fence),
            kind: text(|entry| entry.kind.as_ref()),
            tenant: text(|entry| entry.tenant.as_ref()),
            key: text(|entry| entry.key.as_ref()),
            caller_id: text(|entry| entry.caller_id.as_ref()),
            priority: entry.map_or(0, |entry| entry.priority),
            died_at,
            kept_until,
            object: self.path.as_str().to_owned(),
            jobs: if entry.is_some() { 1 } else { self.name.jobs },
        }
    }
}

/// Reads the table of an object; nothing if it is gone.
pub(super) async fn read_table(core: &Core, path: &Name, name: LettersName) -> Result<Option<Tabled>> {
    let backend = core.backend();
    let Some(first) = backend.get_range(path, 0..FIRST_READ, Way::First).await? else { return Ok(None) };
    let table = match Table::decode(&first.body) {
        Err(Unreadable::Short(needed)) if needed <= LONGEST_OBJECT => {
            let Some(more) = backend.get_range(path, 0..needed, Way::First).await? else { return Ok(None) };
            Table::decode(&more.body)
        }
        table => table,
    };
    Ok(Some(tabled(path, name, table.ok())))
}

fn tabled(path: &Name, name: LettersName, table: Option<Table>) -> Tabled {
    // Its name says how many there are: a table that says otherwise is another object's.
    let table = table.filter(|table| table.jobs.len() == usize::from(name.jobs));
    Tabled { path: path.clone(), name, table }
}

/// Reads a whole object; nothing if it is gone.
pub(super) async fn read_whole(core: &Core, path: &Name, name: LettersName) -> Result<Option<Whole>> {
    let backend = core.backend();
    let Some(piece) = backend.get_range(path, 0..LONGEST_OBJECT, Way::First).await? else { return Ok(None) };
    let segment = Segment::decode(&piece.body).ok();
    let tabled = tabled(path, name, segment.as_ref().map(|segment| segment.table.clone()));
    let segment = segment.filter(|_| tabled.table.is_some());
    Ok(Some(Whole { tabled, segment }))
}

/// All parts of one job.
pub(super) fn parts(segment: &Segment, index: u16) -> Result<Vec<(Arc<str>, Bytes)>> {
    let gone = || Error::corrupt(format!("job {index} is not in its object of dead letters"));
    let entry = segment.table.jobs.get(usize::from(index)).ok_or_else(gone)?;
    let part = |name: &Arc<str>| Ok((Arc::clone(name), segment.part(index, name).ok_or_else(gone)?));
    entry.parts.iter().map(|(name, _)| part(name)).collect()
}
