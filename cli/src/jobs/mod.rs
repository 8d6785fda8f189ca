//! Queues of jobs: enqueuing them, running a command for each, and looking after them.

mod enqueue;
mod work;

pub(crate) use enqueue::Enqueue;
pub(crate) use work::Work;

use crate::{config::Config, exit::Failure, target::Embedded};
use leasehold::job::Queue;

/// A queue of the namespace that is configured.
pub(crate) fn queue(opened: &Embedded, config: &Config, name: &str) -> Result<Queue, Failure> {
    Ok(opened.store.queue(name)?.namespace(config.namespace.value.clone())?)
}
