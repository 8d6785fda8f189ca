//! Listings in name order, a page at a time: one request where the store lists in order, a sorted scan elsewhere.

use super::{Backend, Name};
use crate::Result;
use futures_util::TryStreamExt;
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
    #[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "only clouds have pages"))]
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
    /// The first `limit` names that begin with `start` (a folder with its slash, or more) and come after `after`.
    pub(crate) async fn page(&self, start: &str, after: Option<&Name>, limit: usize) -> Result<Page> {
        let listed = async {
            match &self.lister {
                Lister::Paged(store) => self.page_of_request(store.as_ref(), start, after, limit).await,
                Lister::Ordered => self.page_of_stream(start, after, limit).await,
                Lister::Unordered => self.page_of_scan(start, after, limit).await,
            }
        };
        let answer = self.within(self.bulk_timeout, listed).await;
        answer.map_err(|error| self.explain(error, "listing", &Name::new(start)))
    }

    async fn page_of_request(
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
            let answer = store.list_paginated(Some(&prefix), options).await?;
            let names = self.names(answer.result.objects, start, after);
            // A page may be empty and still not be the last one.
            if !names.is_empty() || answer.page_token.is_none() {
                return Ok(Page { names, more: answer.page_token.is_some() });
            }
            page_token = answer.page_token;
        }
    }

    async fn page_of_stream(&self, start: &str, after: Option<&Name>, limit: usize) -> object_store::Result<Page> {
        let folder = self.folder(start);
        let mut stream = match after {
            Some(after) => self.bulk.list_with_offset(folder.as_ref(), &self.prefix.path(after)),
            None => self.bulk.list(folder.as_ref()),
        };
        let mut names = Vec::new();
        while let Some(object) = stream.try_next().await? {
            let Some(name) = self.prefix.strip(object.location.as_ref()) else { continue };
            if name.as_str() > start && !name.as_str().starts_with(start) {
                break;
            }
            if !name.as_str().starts_with(start) {
                continue;
            }
            if names.len() == limit {
                return Ok(Page { names, more: true });
            }
            names.push(name);
        }
        Ok(Page { names, more: false })
    }

    async fn page_of_scan(&self, start: &str, after: Option<&Name>, limit: usize) -> object_store::Result<Page> {
        let objects: Vec<ObjectMeta> = self.bulk.list(self.folder(start).as_ref()).try_collect().await?;
        let mut names = self.names(objects, start, after);
        let more = names.len() > limit;
        names.truncate(limit);
        Ok(Page { names, more })
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

    /// The same, with the objects that lie beside those folders.
    pub(crate) async fn level(&self, folder: &str) -> Result<(Vec<String>, Vec<Name>)> {
        let listed = async {
            let (mut folders, mut objects) = (BTreeSet::new(), BTreeSet::new());
            let mut add = |found: ListResult| {
                let inside = |path: &Path| self.prefix.strip(path.as_ref());
                folders.extend(found.common_prefixes.iter().filter_map(inside).map(|name| name.last().to_owned()));
                let beside = found.objects.iter().filter_map(|object| inside(&object.location));
                objects.extend(beside.filter(|name| name.as_str().starts_with(folder)));
            };
            if let Lister::Paged(store) = &self.lister {
                let prefix = self.prefix.raw(folder);
                let mut page_token = None;
                loop {
                    let options = PaginatedListOptions {
                        delimiter: Some("/".into()),
                        page_token: page_token.take(),
                        ..Default::default()
                    };
                    let answer = store.list_paginated(Some(&prefix), options).await?;
                    add(answer.result);
                    page_token = answer.page_token;
                    if page_token.is_none() {
                        break;
                    }
                }
            } else {
                add(self.bulk.list_with_delimiter(self.folder(folder).as_ref()).await?);
            }
            Ok((folders.into_iter().collect(), objects.into_iter().collect()))
        };
        let answer = self.within(self.bulk_timeout, listed).await;
        answer.map_err(|error| self.explain(error, "listing", &Name::new(folder)))
    }
}
