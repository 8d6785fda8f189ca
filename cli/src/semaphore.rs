//! semaphore: how many may hold a key at once, and who does.

use crate::{
    config::Config,
    exit::{Failure, Outcome},
    output,
    target::Embedded,
    view::Holder,
};
use clap::Subcommand;
use leasehold::{Key, semaphore::Status};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show how many slots a semaphore has, who holds them, and how many processes wait
    Show {
        /// The name of the semaphore: any text
        key: Key,
    },
    /// Change how many slots a semaphore has, for everybody. If there are fewer than before, holders keep theirs until they
    /// give them back
    Resize {
        /// The name of the semaphore: any text
        key: Key,
        /// How many may hold it at once
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
        slots: u32,
    },
}

#[derive(Debug, Serialize)]
struct Shown {
    key: String,
    slots: u32,
    held_by: Vec<Slot>,
    waiting: usize,
}

#[derive(Debug, Serialize)]
struct Slot {
    slot: u32,
    #[serde(flatten)]
    holder: Holder,
}

impl Shown {
    fn new(status: &Status) -> Self {
        let held_by = status.held_by.iter().map(|by| Slot { slot: by.slot, holder: Holder::from(&by.holder) });
        Self { key: status.name.to_string(), slots: status.size, held_by: held_by.collect(), waiting: status.waiting }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows =
            vec![("key", self.key.clone()), ("slots", self.slots.to_string()), ("waiting", self.waiting.to_string())];
        rows.extend(self.held_by.iter().map(|Slot { slot, holder }| {
            let owner = if holder.owner.is_empty() { "an unnamed owner" } else { &holder.owner };
            ("held", format!("slot {slot} by {owner}, fence {}, until {}", holder.fence, holder.expires_at))
        }));
        rows
    }
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let embedded = Embedded::existing(config).await?;
        let semaphores = embedded.store.semaphores(config.namespace.value.clone())?;
        let key = match self {
            Self::Show { key } => key,
            Self::Resize { key, slots } => {
                semaphores.resize(key, *slots).await?;
                key
            }
        };
        let none = || Failure::failed(format!("there is no semaphore {key} yet: the first `lock -n` makes it"));
        let shown = Shown::new(&semaphores.peek(key).await?.ok_or_else(none)?);
        output::object(config.output.value, &shown, &shown.rows())?;
        Ok(0)
    }
}
