//! Queues of jobs: enqueuing them, running a command for each, and looking after them.

mod dead;
mod enqueue;
mod inflight;
mod job;
mod queue;
mod set;
mod work;

pub(crate) use dead::Command as DeadCommand;
pub(crate) use enqueue::{Enqueue, base64, time};
pub(crate) use inflight::Inflight;
pub(crate) use job::Command as JobCommand;
pub(crate) use queue::Command as QueueCommand;
pub(crate) use work::Work;

use crate::{config::Config, exit::Failure, target::Embedded, view::printable};
use leasehold::job::Queue;

/// A queue of the namespace that is configured.
pub(crate) fn queue(opened: &Embedded, config: &Config, name: &str) -> Result<Queue, Failure> {
    Ok(opened.store.queue(name)?.namespace(config.namespace.value.clone())?)
}

/// A queue that somebody has used before: looking at one must not make it where its name is misspelt.
async fn existing(opened: &Embedded, config: &Config, name: &str) -> Result<Queue, Failure> {
    let queue = queue(opened, config, name)?;
    let names = opened.store.queues(config.namespace.value.clone())?.list().await?;
    if names.iter().any(|known| known == name) {
        return Ok(queue);
    }
    let known = match names.len() {
        0 => "there are none yet".to_owned(),
        1..=5 => format!("there are: {}", names.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", ")),
        count => format!("there are {count}: {}", config.command(&["queue", "list"])),
    };
    let namespace = &config.namespace.value;
    let name = printable(name);
    Err(Failure::failed(format!(
        "there is no queue {name} in the namespace {namespace} ({known}): the first enqueue makes it"
    )))
}

/// A text that a job may have.
fn text(text: Option<&str>) -> String {
    text.map(printable).unwrap_or_default()
}
