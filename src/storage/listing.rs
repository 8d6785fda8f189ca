//! One walk over names in byte order, a page at a time, in which no page pays again for what an earlier one has found.
//!
//! A store that pages by itself is asked for one page after the other. One that lists as a lazy stream is listed once,
//! and the stream is read on with every page: on a local directory that means that a folder is read and sorted once
//! for the whole walk. One that lists in no order is listed once, and the sorted names are kept until the walk ends:
//! some 100 bytes for each name.

use super::{
    Backend, Name,
    page::{Lister, Page},
};
use crate::{Result, clock::Moment, sync::Locked as _};
use futures_util::{StreamExt, stream::BoxStream};
use object_store::ObjectMeta;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// How many walks of users are kept between two pages.
const KEPT: usize = 4;

/// How long a walk is kept that is not continued.
const UNUSED: Duration = Duration::from_secs(60);

/// How old a walk may become: who goes on with one that is older begins a new one behind the last name.
const OLDEST: Duration = Duration::from_secs(600);

/// For how many beginnings of names it is remembered when the last walk began.
const REMEMBERED: usize = 1000;

/// A walk over all names that begin with `start`, in byte order.
///
/// What was there when it began, and is still there, is found. What is written meanwhile may be missed until the next
/// walk, as in every listing that comes in pages.
pub(crate) struct Walk {
    start: String,
    after: Option<Name>,
    ahead: Ahead,
    /// Which walk of its store this is, and when it began; for those that are kept.
    number: u64,
    begun: Moment,
}

/// What has been listed and not been handed out.
enum Ahead {
    Nothing,
    /// A lazy listing in order, with the name that was read to see whether there are more.
    Stream(BoxStream<'static, object_store::Result<ObjectMeta>>, Option<Name>),
    /// Everything that is left, in order.
    Names(VecDeque<Name>),
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("start", &self.start).field("after", &self.after).finish_non_exhaustive()
    }
}

impl Walk {
    /// Asks for nothing yet. `start` is a folder with its slash, or more; only names after `after` are listed.
    pub(crate) fn new(start: impl Into<String>, after: Option<Name>) -> Self {
        Self { start: start.into(), after, ahead: Ahead::Nothing, number: 0, begun: Moment::default() }
    }

    /// Forgets what was listed and not handed out: the next page asks the store what is left. For whoever knows that
    /// others have deleted much of it.
    pub(crate) fn renew(&mut self, after: Option<Name>) {
        (self.after, self.ahead) = (after, Ahead::Nothing);
    }

    /// The next `limit` names. Each request has a deadline of its own; the walk as a whole has none.
    pub(crate) async fn next(&mut self, backend: &Backend, limit: usize) -> Result<Page> {
        let resumed = !matches!(self.ahead, Ahead::Nothing);
        let mut answer = self.try_next(backend, limit).await;
        if answer.is_err() && resumed {
            // A connection that was open for minutes may have been closed: that is no failure of the store.
            self.ahead = Ahead::Nothing;
            answer = self.try_next(backend, limit).await;
        }
        match answer {
            Ok(page) => {
                if let Some(last) = page.names.last() {
                    self.after = Some(last.clone());
                }
                Ok(page)
            }
            Err(error) => {
                self.ahead = Ahead::Nothing;
                Err(backend.explain(error, "listing", &Name::new(&self.start)))
            }
        }
    }

    async fn try_next(&mut self, backend: &Backend, limit: usize) -> object_store::Result<Page> {
        match &backend.lister {
            Lister::Paged(store) => {
                backend.page_of_request(store.as_ref(), &self.start, self.after.as_ref(), limit).await
            }
            Lister::Ordered => self.read_on(backend, limit).await,
            Lister::Unordered => self.take(backend, limit).await,
        }
    }

    /// A page of a listing that is in order and lazy.
    async fn read_on(&mut self, backend: &Backend, limit: usize) -> object_store::Result<Page> {
        if matches!(self.ahead, Ahead::Nothing) {
            self.ahead = Ahead::Stream(backend.list(&self.start, self.after.as_ref()), None);
        }
        let Ahead::Stream(stream, first) = &mut self.ahead else { return Ok(Page { names: vec![], more: false }) };
        let mut names: Vec<Name> = first.take().into_iter().collect();
        while let Some(object) = backend.within(backend.bulk_timeout, next_of(stream)).await? {
            let Some(name) = backend.prefix.strip(object.location.as_ref()) else { continue };
            if !name.as_str().starts_with(&self.start) {
                if name.as_str() > self.start.as_str() {
                    break;
                }
                continue;
            }
            if names.len() == limit {
                *first = Some(name);
                return Ok(Page { names, more: true });
            }
            names.push(name);
        }
        self.ahead = Ahead::Nothing;
        Ok(Page { names, more: false })
    }

    /// A page of what was found by listing everything.
    async fn take(&mut self, backend: &Backend, limit: usize) -> object_store::Result<Page> {
        if matches!(self.ahead, Ahead::Nothing) {
            let mut stream = backend.list(&self.start, None);
            let mut names = Vec::new();
            while let Some(object) = backend.within(backend.bulk_timeout, next_of(&mut stream)).await? {
                let name = backend.prefix.strip(object.location.as_ref());
                let after = self.after.as_ref();
                let wanted = |name: &Name| name.as_str().starts_with(&self.start) && after.is_none_or(|at| name > at);
                names.extend(name.filter(wanted));
            }
            names.sort_unstable();
            names.dedup();
            self.ahead = Ahead::Names(names.into());
        }
        let Ahead::Names(left) = &mut self.ahead else { return Ok(Page { names: vec![], more: false }) };
        let names: Vec<Name> = left.drain(..limit.min(left.len())).collect();
        let more = !left.is_empty();
        if !more {
            self.ahead = Ahead::Nothing;
        }
        Ok(Page { names, more })
    }
}

/// The next object of a listing.
async fn next_of(
    stream: &mut BoxStream<'static, object_store::Result<ObjectMeta>>,
) -> object_store::Result<Option<ObjectMeta>> {
    stream.next().await.transpose()
}

/// Walks of users between two of their pages: each page is a call of its own, which says only where the last one ended.
///
/// A walk is never given to whoever began a later one, who would miss what was written in between: the first page of a
/// walk ends all earlier ones of the same names.
#[derive(Debug, Default)]
pub(crate) struct Walks(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    kept: Vec<(Walk, Moment)>,
    last_number: u64,
    /// Earlier walks than these are over, by what their names begin with.
    newest: BTreeMap<String, u64>,
    /// Earlier walks than this are over, whatever their names begin with.
    over: u64,
}

impl Walks {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.locked()
    }

    /// The walk that goes on after this name, or a new one.
    pub(super) fn take(&self, start: &str, after: Option<&Name>, now: Moment) -> Walk {
        let inner = &mut *self.lock();
        inner.forget(now);
        let found = inner.kept.iter().position(|(kept, _)| kept.start == start && kept.after.as_ref() == after);
        if let Some(at) = found.filter(|_| after.is_some()) {
            return inner.kept.swap_remove(at).0;
        }
        inner.last_number += 1;
        let number = inner.last_number;
        if after.is_none() {
            inner.kept.retain(|(kept, _)| kept.start != start);
            if inner.newest.len() >= REMEMBERED {
                inner.newest.clear();
                inner.kept.clear();
                inner.over = number;
            }
            inner.newest.insert(start.to_owned(), number);
        }
        Walk { number, begun: now, ..Walk::new(start, after.cloned()) }
    }

    /// Keeps a walk for its next page.
    pub(super) fn keep(&self, listing: Walk, now: Moment) {
        let inner = &mut *self.lock();
        let newest = inner.newest.get(&listing.start).copied().unwrap_or_default().max(inner.over);
        if listing.number < newest || matches!(listing.ahead, Ahead::Nothing) {
            return;
        }
        inner.forget(now);
        if inner.kept.len() >= KEPT {
            inner.kept.remove(0);
        }
        inner.kept.push((listing, now));
    }

    /// Drops walks that are not continued.
    pub(crate) fn forget(&self, now: Moment) {
        self.lock().forget(now);
    }
}

impl Inner {
    fn forget(&mut self, now: Moment) {
        self.kept.retain(|(kept, used)| now.since(*used) < UNUSED && now.since(kept.begun) < OLDEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Clock, SystemClock,
        clock::Timestamp,
        storage::RequestKind,
        store::{Probing, Store},
        testkit::{FaultStore, SeededGenerator, TestClock},
    };
    use std::{fs, sync::Arc};

    const FOLDER: &str = "default/meta/";

    async fn local(count: usize) -> (tempfile::TempDir, Store) {
        let dir = tempfile::TempDir::new().unwrap();
        let url = format!("file://{}", dir.path().display());
        let store = Store::builder().url(url).open().await.unwrap();
        fs::create_dir_all(dir.path().join(FOLDER)).unwrap();
        for number in 0..count {
            fs::write(dir.path().join(format!("{FOLDER}{number:06}.pb")), "x").unwrap();
        }
        (dir, store)
    }

    async fn memory(count: usize, ordered: bool) -> (FaultStore, Store) {
        let clock = Arc::new(TestClock::at(Timestamp::from_millis(1_767_225_600_000)));
        let objects = FaultStore::new(clock.clone(), Arc::new(SeededGenerator::new(1)));
        let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock().clock(clock);
        let builder = if ordered { builder.lists_in_order() } else { builder };
        let store = builder.probing(Probing::Never).open().await.unwrap();
        for number in 0..count {
            objects.put_object(&format!("{FOLDER}{number:06}.pb"), "x");
        }
        (objects, store)
    }

    /// All names, by calls that each know only where the last one ended.
    async fn page_by_page(backend: &Backend, limit: usize) -> Vec<Name> {
        let mut names: Vec<Name> = Vec::new();
        loop {
            let page = backend.page(FOLDER, names.last(), limit).await.unwrap();
            names.extend(page.names);
            if !page.more {
                return names;
            }
        }
    }

    async fn lists_once(store: &Store, count: usize) {
        for walks in 1..3 {
            let before = store.requests();
            let names = page_by_page(store.backend(), 250).await;
            assert!(names.len() == count && names.is_sorted(), "{} names in walk {walks}", names.len());
            assert_eq!(store.requests().since(&before).of(RequestKind::List), 1, "walk {walks}");
        }
    }

    #[tokio::test]
    async fn a_walk_of_many_pages_lists_a_local_folder_once() {
        let (_dir, store) = local(1100).await;
        lists_once(&store, 1100).await;
    }

    #[tokio::test]
    async fn a_walk_of_many_pages_lists_a_store_in_no_order_once() {
        let (_objects, store) = memory(1100, false).await;
        lists_once(&store, 1100).await;
    }

    #[tokio::test]
    async fn what_was_there_when_a_walk_began_is_found_whoever_else_walks() {
        for ordered in [true, false] {
            let (objects, store) = memory(30, ordered).await;
            let backend = store.backend();
            // One pauses after its first page.
            let first = backend.page(FOLDER, None, 10).await.unwrap();
            objects.put_object(&format!("{FOLDER}000015-new.pb"), "x");
            // A walk that begins now must see what is new, although both continue after the same name.
            let names = page_by_page(backend, 10).await;
            assert_eq!(names.len(), 31, "{ordered}");
            let rest = backend.page(FOLDER, first.names.last(), 100).await.unwrap();
            assert!(rest.names.len() >= 20 && !rest.more, "{ordered}");
        }
    }

    #[tokio::test]
    async fn an_older_walk_is_not_kept_once_a_newer_one_has_begun() {
        let (_objects, store) = memory(30, false).await;
        let (walks, now) = (Walks::default(), Moment::default());
        let mut older = walks.take(FOLDER, None, now);
        older.next(store.backend(), 10).await.unwrap();
        let after = older.after.clone();
        drop(walks.take(FOLDER, None, now));
        walks.keep(older, now);
        assert!(matches!(walks.take(FOLDER, after.as_ref(), now).ahead, Ahead::Nothing));
    }

    #[tokio::test]
    async fn a_walk_that_nobody_goes_on_with_is_let_go() {
        let (_objects, store) = memory(100, false).await;
        let (walks, now) = (Walks::default(), Moment::default());
        let begin = async |limit| {
            let mut walk = walks.take("", Some(&Name::new(" ")), now);
            walk.next(store.backend(), limit).await.unwrap();
            walks.keep(walk, now);
        };
        for limit in 1..10 {
            begin(limit).await;
        }
        assert_eq!(walks.lock().kept.len(), KEPT);
        walks.forget(now.plus(UNUSED - Duration::from_secs(1)));
        assert_eq!(walks.lock().kept.len(), KEPT);
        walks.forget(now.plus(UNUSED));
        assert_eq!(walks.lock().kept.len(), 0);
    }

    #[tokio::test]
    #[ignore = "measures real time; run by hand"]
    async fn a_page_of_a_large_local_folder_costs_little_more_than_one_of_a_small_one() {
        let mut each = Vec::new();
        for count in [1000, 300_000] {
            let (_dir, store) = local(count).await;
            let mut best = Duration::MAX;
            for _ in 0..3 {
                let began = SystemClock::new().monotonic();
                assert_eq!(page_by_page(store.backend(), 250).await.len(), count);
                best = best.min(SystemClock::new().monotonic().since(began));
            }
            each.push(best * 250 / u32::try_from(count).unwrap());
            println!("{count} keys: {best:?} for a walk, {:?} for a page of 250", each[each.len() - 1]);
        }
        assert!(each[1] <= 3 * each[0], "{each:?}");
    }
}
