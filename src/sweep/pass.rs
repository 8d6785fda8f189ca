//! One walk over all folders of the index, and what a page of one has come to.

use crate::{
    Error,
    kind::{Chore, Folder, Kind},
    storage::{Backend, Name, Walk},
};
use std::{collections::VecDeque, sync::Arc};

/// One walk over all folders of the index, and all chores. It lives across runs, so that entries that were left behind are met again by the next pass
/// and do not stall this one.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) stops: Vec<Stop>,
    /// Whose turn it is: one page each, so that none starves.
    pub(super) next: usize,
    /// Why one was left out of it: one that cannot be listed must not keep the others waiting.
    pub(super) failed: Option<Error>,
}

impl Pass {
    /// Others have swept in the meantime: what was listed before is not looked at, but listed again.
    pub(super) fn list_again(&mut self) {
        self.stops.iter_mut().for_each(Stop::list_again);
    }

    /// A folder or a chore is done.
    pub(super) fn leave(&mut self, at: usize) {
        self.stops.remove(at);
        self.next = at;
    }
}

/// A place that a pass comes by again and again, until it is done.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) kind: Arc<dyn Kind>,
    pub(super) work: Work,
}

/// What there is to do at a stop.
#[derive(Debug)]
pub(super) enum Work {
    Folder(Route),
    Chore(Chore),
}

impl Stop {
    pub(super) fn folder(kind: &Arc<dyn Kind>, folder: Folder) -> Self {
        Self { kind: Arc::clone(kind), work: Work::Folder(Route::new(folder)) }
    }

    pub(super) fn chore(kind: &Arc<dyn Kind>, chore: Chore) -> Self {
        Self { kind: Arc::clone(kind), work: Work::Chore(chore) }
    }

    pub(super) fn name(&self) -> &'static str {
        self.kind.declaration().name
    }

    fn list_again(&mut self) {
        if let Work::Folder(route) = &mut self.work {
            route.list_again();
        }
    }
}

/// A folder of the index, and how far it has been walked.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) folder: Arc<Folder>,
    listing: Walk,
    /// What was listed and not looked at, and whether there is more behind it.
    pub(super) names: VecDeque<Name>,
    pub(super) more: bool,
    /// The last name that was looked at.
    cursor: Option<Name>,
}

impl Route {
    fn new(folder: Folder) -> Self {
        let listing = Walk::new(&folder.path, None);
        Self { folder: Arc::new(folder), listing, names: VecDeque::new(), more: true, cursor: None }
    }

    /// Lists the next page.
    pub(super) async fn list(&mut self, backend: &Backend, limit: usize) -> crate::Result<()> {
        let page = self.listing.next(backend, limit).await?;
        (self.names, self.more) = (page.names.into(), page.more);
        Ok(())
    }

    /// The first name is being looked at.
    pub(super) fn advance(&mut self) {
        self.cursor = self.names.pop_front().or(self.cursor.take());
    }

    fn list_again(&mut self) {
        self.listing.renew(self.cursor.clone());
        self.names.clear();
        self.more = true;
    }
}

/// What one page has come to, to be deleted in one or two requests.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) entries: Vec<Name>,
    /// Objects that go first, with the entry that goes after them.
    pub(super) first: Vec<(Vec<Name>, Name)>,
}

/// How the walk over a page ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Walked {
    AllOfIt,
    /// What is left is not over yet.
    ToThePresent,
    Stopped(super::StoppedBy),
}
