//! watch: who holds a key, or all keys with a prefix, and every change.

use crate::{
    config::Config,
    duration,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Target,
    view::{self, Status},
};
use clap::Args;
use futures_util::StreamExt;
use leasehold::{Clock, Key, SystemClock};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The key
    #[arg(required_unless_present = "prefix", conflicts_with = "prefix")]
    key: Option<Key>,
    /// All keys that begin with this. They are listed again and again, with one read for each: see --every
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// How often to look at the keys with a prefix
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "10s", requires = "prefix")]
    every: Duration,
    /// Show renewals as well, not only who holds it
    #[arg(long)]
    renewals: bool,
    /// End when nobody holds it
    #[arg(long)]
    until_free: bool,
}

/// A status, with when it was seen.
#[derive(Debug, Serialize)]
struct Seen<'a> {
    at: String,
    #[serde(flatten)]
    status: &'a Status,
}

/// What was shown last of each key: the lease that holds it, and when that ends if renewals are shown.
#[derive(Debug, Default)]
struct Shown(BTreeMap<String, Option<(String, String)>>);

impl Shown {
    /// Whether there is something to tell, which is then told.
    fn is_news(&mut self, status: &Status, renewals: bool) -> bool {
        let expires = |holder: &view::Holder| if renewals { holder.expires_at.clone() } else { String::new() };
        let now = status.holder.as_ref().map(|holder| (holder.lease_id.clone(), expires(holder)));
        let before = self.0.insert(status.shown.clone(), now.clone());
        before.is_none_or(|before| before != now)
    }
}

impl Watch {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let target = Target::looking(config).await?;
        match (&self.key, &self.prefix) {
            (Some(key), _) => self.one(config, &target, key).await,
            (None, prefix) => self.many(config, &target, prefix.as_deref().unwrap_or_default()).await,
        }
    }

    async fn one(&self, config: &Config, target: &Target, key: &Key) -> Outcome {
        let mut seen = target.watch(key);
        let (mut failed, mut shown) = (None, Shown::default());
        while let Some(status) = seen.next().await {
            failed.take().iter().for_each(|failure| output::say(format_args!("warning: {failure}")));
            match status {
                Ok(status) => {
                    if shown.is_news(&status, self.renewals) {
                        show(config, &status)?;
                    }
                    if self.until_free && status.holder.is_none() {
                        return Ok(0);
                    }
                }
                Err(failure) => failed = Some(failure),
            }
        }
        // Only the last item ends it.
        failed.map_or(Ok(0), Err)
    }

    /// What is held at first, and then every change. Keys that were free from the beginning are no news.
    async fn many(&self, config: &Config, target: &Target, prefix: &str) -> Outcome {
        let clock = SystemClock::new();
        let (mut shown, mut failing) = (Shown::default(), false);
        loop {
            match listed(target, prefix).await {
                Ok(keys) => {
                    let held = keys.iter().any(|status| status.holder.is_some());
                    for status in &keys {
                        let known = status.holder.is_some() || shown.0.contains_key(&status.shown);
                        if shown.is_news(status, self.renewals) && known {
                            show(config, status)?;
                        }
                    }
                    if self.until_free && !held {
                        return Ok(0);
                    }
                    failing = false;
                }
                // Told once; a store that answers again shows what has changed.
                Err(failure) if failure.code == crate::exit::UNAVAILABLE => {
                    if !std::mem::replace(&mut failing, true) {
                        output::say(format_args!("warning: {failure}; trying again"));
                    }
                }
                Err(failure) => return Err(failure),
            }
            clock.sleep(self.every).await;
        }
    }
}

async fn listed(target: &Target, prefix: &str) -> Result<Vec<Status>, Failure> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let page = target.list(prefix.as_bytes(), after.as_deref()).await?;
        for status in page.keys {
            match status {
                Ok(status) => keys.push(status),
                Err(failure) => output::complain(&failure),
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(keys);
        }
    }
}

fn show(config: &Config, status: &Status) -> Result<(), Failure> {
    let at = view::now().to_string();
    match config.output.value {
        Format::Json => output::json(&Seen { at, status }),
        Format::Table => {
            let [key, state, owner, fence, until] = status.line();
            output::print([at, key, state, owner, fence, until].join("  ").trim_end())
        }
    }
}
