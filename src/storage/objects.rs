//! Objects that are written once under a name that others may want too, and listings that say more than names.
//!
//! A create whose answer was not Ok is settled by reading the object back: ours has won, anything else came first, and
//! nothing at all means that the same create has to be sent again.

use super::{Backend, Fetched, Name, page::Lister};
use crate::{Result, clock::Timestamp};
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::{ObjectMeta, PutMode, list::PaginatedListOptions};
use std::time::Duration;

/// The largest object of many messages.
const LARGEST_OBJECT: u64 = 256 << 20;

/// How a create ended.
#[derive(Debug)]
pub(crate) enum Created {
    /// The object is there, and it is ours.
    Won,
    /// Another one came first: this is there.
    Taken(Fetched),
}

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: Name,
    pub(crate) size: u64,
    /// When the store received it.
    pub(crate) modified: Timestamp,
}

impl Backend {
    /// Creates an object, and finds out what became of it whatever the answers are. `is_ours` recognises it.
    ///
    /// `within` bounds how long it is retried; an error says `Unknown` if the object may have been created, or may yet be.
    pub(crate) async fn create_settled(
        &self,
        name: &Name,
        body: &Bytes,
        is_ours: impl Fn(&Fetched) -> bool,
        within: Duration,
    ) -> Result<Created> {
        let give_up = self.clock.monotonic().plus(within);
        let (mut in_doubt, mut retries) = (false, 0);
        loop {
            let refusal = match self.put(name, body.clone(), PutMode::Create, self.request_timeout).await {
                Ok(_) => return Ok(Created::Won),
                Err(refusal) => refusal,
            };
            in_doubt |= refusal.error.leaves_doubt();
            let error = match self.get_large(name).await {
                Ok(Some(there)) if is_ours(&there) => return Ok(Created::Won),
                Ok(Some(there)) => return Ok(Created::Taken(there)),
                // S3's 409 does not say that anything exists.
                Ok(None) => refusal.error,
                Err(error) => error,
            };
            if self.clock.monotonic() >= give_up || !error.is_retryable() {
                return Err(error.in_doubt(in_doubt, name, "created"));
            }
            self.pause(retries).await;
            retries += 1;
        }
    }

    /// Reads an object that may be larger than a record.
    pub(crate) async fn get_large(&self, name: &Name) -> Result<Option<Fetched>> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.get_up_to(name, &self.coordination, LARGEST_OBJECT).await {
                Err(error) if error.is_retryable() && tries < 3 => self.pause(tries - 1).await,
                done => return done,
            }
        }
    }

    /// Reads over the second connection: what one connection has damaged on its way, the other need not have.
    pub(crate) async fn get_large_again(&self, name: &Name) -> Result<Option<Fetched>> {
        self.get_up_to(name, &self.bulk, LARGEST_OBJECT).await
    }

    /// The first `limit` objects of a folder (with its slash) that come after `after`, in the order of their names, and
    /// whether there are more.
    pub(crate) async fn objects(
        &self,
        folder: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<(Vec<Listed>, bool)> {
        let listed = async {
            let Lister::Paged(store) = &self.lister else {
                let found = self.within(self.bulk_timeout, self.list(folder, after).try_collect::<Vec<_>>()).await?;
                return Ok((found, false));
            };
            let (prefix, mut page_token) = (self.prefix.raw(folder), None);
            loop {
                let options = PaginatedListOptions {
                    offset: after.map(|name| self.prefix.raw(name.as_str())),
                    max_keys: Some(limit),
                    page_token,
                    ..Default::default()
                };
                let answer = self.within(self.bulk_timeout, store.list_paginated(Some(&prefix), options)).await?;
                page_token = answer.page_token;
                if !answer.result.objects.is_empty() || page_token.is_none() {
                    return Ok((answer.result.objects, page_token.is_some()));
                }
            }
        };
        let listed: object_store::Result<(Vec<ObjectMeta>, bool)> = listed.await;
        let (found, more) = listed.map_err(|error| self.explain(error, "listing", &Name::new(folder)))?;
        let mut objects: Vec<Listed> = found
            .into_iter()
            .filter_map(|meta| {
                let name = self.prefix.strip(meta.location.as_ref())?;
                let wanted = name.as_str().starts_with(folder) && after.is_none_or(|after| name > *after);
                wanted.then(|| Listed { name, size: meta.size, modified: Timestamp::from(meta.last_modified) })
            })
            .collect();
        objects.sort_by(|one, other| one.name.cmp(&other.name));
        objects.dedup_by(|one, other| one.name == other.name);
        let more = more || objects.len() > limit;
        objects.truncate(limit);
        Ok((objects, more))
    }
}
