//! The objects of an opened store by their names, through the requests that the library makes.

use crate::{
    Error, Result, Store, WriteId,
    storage::{Backend, Name},
};
use bytes::Bytes;
use std::sync::Arc;

/// Reads, writes, lists and deletes objects below a store's prefix as the library does: with its deadlines, its retries,
/// its two handles and its count of requests.
#[derive(Debug, Clone)]
pub struct Objects(Arc<Backend>);

impl Objects {
    /// Those of this store.
    pub fn new(store: &Store) -> Self {
        Self(Arc::clone(store.backend()))
    }

    /// A fresh id, by the store's generator.
    pub fn fresh_id(&self) -> WriteId {
        WriteId::random(&*self.0.generator)
    }

    /// Writes an object without a condition.
    pub async fn put(&self, name: &str, body: Bytes) -> Result<()> {
        self.0.put_hint(&Name::new(name), body).await
    }

    /// What an object holds; `None` if it is missing.
    pub async fn get(&self, name: &str) -> Result<Option<Bytes>> {
        Ok(self.0.get(&Name::new(name)).await?.map(|fetched| fetched.body))
    }

    /// What each of the store's two handles reads of an object, in one request each.
    pub async fn get_by_each_handle(&self, name: &str) -> Result<[Option<Bytes>; 2]> {
        let name = Name::new(name);
        let mut bodies = [None, None];
        for (body, handle) in bodies.iter_mut().zip([&self.0.coordination, &self.0.bulk]) {
            *body = self.0.get_once(&name, handle).await?.map(|fetched| fetched.body);
        }
        Ok(bodies)
    }

    /// Deletes objects, of which any may be missing.
    ///
    /// # Errors
    /// At least one may still be there.
    pub async fn delete(&self, names: &[String]) -> Result<()> {
        let names: Vec<Name> = names.iter().map(Name::new).collect();
        let deleted = self.0.delete(&names).await;
        match deleted.error {
            Some(error) => Err(error),
            None if names.iter().all(|name| deleted.gone.contains(name)) => Ok(()),
            None => Err(Error::unavailable(format!("{} of {} deletes were done", deleted.gone.len(), names.len()))),
        }
    }

    /// One page of names that begin with `start`, after a name; and whether more names follow.
    pub async fn page(&self, start: &str, after: Option<&str>, limit: usize) -> Result<(Vec<String>, bool)> {
        let page = self.0.page(start, after.map(Name::new).as_ref(), limit).await?;
        Ok((page.names.iter().map(Name::to_string).collect(), page.more))
    }

    /// The folders right below a folder.
    pub async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        self.0.folders(folder).await
    }

    /// Waits before another try, longer with every retry.
    pub async fn pause(&self, retries: u32) {
        self.0.pause(retries).await;
    }
}
