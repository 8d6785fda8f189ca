//! The queues of a namespace.

use super::{Queue, Shared};
use crate::{Decoded, Key, Namespace, Result};
use std::sync::Arc;

/// The queues of one namespace.
#[derive(Debug, Clone)]
pub struct Queues {
    shared: Arc<Shared>,
    namespace: Namespace,
}

impl Queues {
    pub(crate) fn new(shared: &Arc<Shared>, namespace: Namespace) -> Self {
        Self { shared: Arc::clone(shared), namespace }
    }

    /// The names of all queues that were ever made, in order: one listing.
    pub async fn list(&self) -> Result<Vec<String>> {
        let folders = self.shared.backend.folders(&super::kind::root(self.namespace.as_str())).await?;
        let mut names: Vec<String> = folders.iter().filter_map(|folder| name_of(folder)).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Makes the ledgers of a queue again that were lost, from the segments that are there. Jobs may run twice; none is lost.
    /// Stop its workers first if you can: what runs now runs again.
    pub async fn rebuild(&self, name: impl AsRef<str>) -> Result<super::Rebuilt> {
        super::rebuild::rebuild(&self.queue(name)?.core).await
    }

    /// How many dead letters this process has dropped because a queue had more than it may keep.
    pub fn dead_dropped(&self) -> u64 {
        self.shared.dead_dropped.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// A queue of this namespace. Nothing is sent.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<Queue> {
        super::open_queue(&self.shared, self.namespace.clone(), name.as_ref())
    }
}

/// The name of a queue from that of its folder.
pub(super) fn name_of(folder: &str) -> Option<String> {
    match Key::from_name(folder) {
        Ok(Decoded::Key(key)) => String::from_utf8(key.as_bytes().to_vec()).ok(),
        _ => None,
    }
}
