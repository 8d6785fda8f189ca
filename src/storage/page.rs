//! How a store is asked for names: a page, everything in a folder, or what lies directly in one.

use super::{Backend, Name};
use crate::Result;
use futures_util::stream::BoxStream;
use object_store::{
    ListResult, ObjectMeta,
    list::{PaginatedListOptions, PaginatedListStore},
    path::Path,
};
use std::{collections::BTreeSet, fmt, sync::Arc};

/// How a store lists.
#[derive(Clone)]
pub(crate) enum Lister {
    /// In order, a page of any size per request.
    #[cfg_attr(not(feature = "_cloud"), allow(dead_code, reason = "only clouds have pages"))]
    Paged(Arc<dyn PaginatedListStore>),
    /// In order, as one lazy stream.
    Ordered,
    /// In no order that may be relied on.
    Unordered,
}

impl fmt::Debug for Lister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paged(_) => "Paged",
            Self::Ordered => "Ordered",
            Self::Unordered => "Unordered",
        })
    }
}

/// Names in byte order.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) names: Vec<Name>,
    /// Whether there are names behind the last one. Never inferred from a short page: Azure's can be one short.
    pub(crate) more: bool,
}

impl Backend {
    /// The first `limit` names that begin with `start` (a folder with its slash, or more) and come after `after`. Whoever
    /// goes on after the last of them within a minute goes on with the same listing.
    pub(crate) async fn page(&self, start: &str, after: Option<&Name>, limit: usize) -> Result<Page> {
        tracing::debug!(name = start, "list");
        let mut listing = self.walks.take(start, after, self.clock.monotonic());
        let page = listing.next(self, limit).await?;
        if page.more {
            self.walks.keep(listing, self.clock.monotonic());
        }
        Ok(page)
    }

    /// One page of a store that pages by itself.
    pub(super) async fn page_of_request(
        &self,
        store: &dyn PaginatedListStore,
        start: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> object_store::Result<Page> {
        let prefix = self.prefix.raw(start);
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                offset: after.map(|name| self.prefix.raw(name.as_str())),
                max_keys: Some(limit),
                page_token: page_token.take(),
                ..Default::default()
            };
            let answer = self.within(self.bulk_timeout, store.list_paginated(Some(&prefix), options)).await?;
            let names = self.names(answer.result.objects, start, after);
            // A page may be empty and still not be the last one.
            if !names.is_empty() || answer.page_token.is_none() {
                return Ok(Page { names, more: answer.page_token.is_some() });
            }
            page_token = answer.page_token;
        }
    }

    /// Everything in the folder of `start` after a name, as the store lists it.
    pub(super) fn list(
        &self,
        start: &str,
        after: Option<&Name>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let folder = self.folder(start);
        match after {
            Some(after) => self.bulk.list_with_offset(folder.as_ref(), &self.prefix.path(after)),
            None => self.bulk.list(folder.as_ref()),
        }
    }

    /// Sorted and without repeats, whatever order they came in.
    fn names(&self, objects: Vec<ObjectMeta>, start: &str, after: Option<&Name>) -> Vec<Name> {
        let names: BTreeSet<Name> = objects
            .into_iter()
            .filter_map(|object| self.prefix.strip(object.location.as_ref()))
            .filter(|name| name.as_str().starts_with(start) && after.is_none_or(|after| name > after))
            .collect();
        names.into_iter().collect()
    }

    /// The folder that holds everything that begins with `start`.
    fn folder(&self, start: &str) -> Option<Path> {
        let folder = start.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = self.prefix.path(&Name::new(folder));
        (!path.as_ref().is_empty()).then_some(path)
    }

    /// The names of the folders directly inside `folder` (empty, or ending in a slash), in order.
    pub(crate) async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        Ok(self.level(folder).await?.0)
    }

    /// The folders, and the objects that lie beside them.
    pub(crate) async fn level(&self, folder: &str) -> Result<(Vec<String>, Vec<Name>)> {
        let (mut folders, mut objects) = (BTreeSet::new(), BTreeSet::new());
        let mut page_token = None;
        loop {
            // Each request has a deadline of its own.
            let answer = self.within(self.bulk_timeout, self.part_of_level(folder, page_token)).await;
            let (found, next) = answer.map_err(|error| self.explain(error, "listing", &Name::new(folder)))?;
            let inside = |path: &Path| self.prefix.strip(path.as_ref());
            folders.extend(found.common_prefixes.iter().filter_map(inside).map(|name| name.last().to_owned()));
            let beside = found.objects.iter().filter_map(|object| inside(&object.location));
            objects.extend(beside.filter(|name| name.as_str().starts_with(folder)));
            page_token = next;
            if page_token.is_none() {
                return Ok((folders.into_iter().collect(), objects.into_iter().collect()));
            }
        }
    }

    /// What one request finds of it, and how the next one goes on.
    async fn part_of_level(
        &self,
        folder: &str,
        page_token: Option<String>,
    ) -> object_store::Result<(ListResult, Option<String>)> {
        let Lister::Paged(store) = &self.lister else {
            return Ok((self.bulk.list_with_delimiter(self.folder(folder).as_ref()).await?, None));
        };
        let options = PaginatedListOptions { delimiter: Some("/".into()), page_token, ..Default::default() };
        let answer = store.list_paginated(Some(&self.prefix.raw(folder)), options).await?;
        Ok((answer.result, answer.page_token))
    }
}
