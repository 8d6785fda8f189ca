//! One walk over all shelves, and what a page of one has come to.

use super::{Shelf, Sweepable};
use crate::{
    Error,
    store::{Name, Walk},
};
use std::{collections::VecDeque, sync::Arc};

/// One walk over all shelves. It lives across runs, so that entries that were left behind are met again by the next pass
/// and do not stall this one.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) stops: Vec<Stop>,
    /// Whose turn it is: one page each, so that none starves.
    pub(super) next: usize,
    /// Why a shelf was left out of it: one that cannot be listed must not keep the others waiting.
    pub(super) failed: Option<Error>,
}

impl Pass {
    /// Others have swept in the meantime: what was listed before is not looked at, but listed again.
    pub(super) fn list_again(&mut self) {
        self.stops.iter_mut().for_each(Stop::list_again);
    }

    /// A shelf is done.
    pub(super) fn leave(&mut self, at: usize) {
        self.stops.remove(at);
        self.next = at;
    }
}

/// A shelf, and how far it has been walked.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) kind: Arc<dyn Sweepable>,
    pub(super) shelf: Arc<Shelf>,
    listing: Walk,
    /// What was listed and not looked at, and whether there is more behind it.
    pub(super) names: VecDeque<Name>,
    pub(super) more: bool,
    /// The last name that was looked at.
    cursor: Option<Name>,
}

impl Stop {
    pub(super) fn new(kind: Arc<dyn Sweepable>, shelf: Shelf) -> Self {
        let listing = Walk::new(&shelf.folder, None);
        Self { kind, shelf: Arc::new(shelf), listing, names: VecDeque::new(), more: true, cursor: None }
    }

    /// Lists the next page.
    pub(super) async fn list(&mut self, backend: &crate::store::Backend, limit: usize) -> crate::Result<()> {
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
    /// Objects that go first, each with its entry.
    pub(super) over: Vec<(Name, Name)>,
}

/// How the walk over a page ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Walked {
    AllOfIt,
    /// What is left is not over yet.
    ToThePresent,
    Stopped(super::StoppedBy),
}
