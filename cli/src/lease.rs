//! acquire, renew, release, get, watch, list.

use crate::{
    config::{Config, Origin},
    duration,
    exit::{FAILED, Failure, HELD, LOST, Outcome, TIMED_OUT, UNAVAILABLE},
    output::{self, Format},
    signals::Signals,
    target::{Asked, Embedded, GOODBYE, SHORT_GOODBYE, Target, Wanted, in_time, to_ask, to_open},
    view::{self, Holder, printable},
    waiting,
};
use clap::Args;
use leasehold::{Key, LeaseId};
use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// What to lock: any text
    key: Key,
    #[command(flatten)]
    asked: Asking,
    /// Wait for it if somebody else holds it: 10s, or forever
    #[arg(long, value_name = "TIME", value_parser = duration::parse_wait)]
    wait: Option<Duration>,
    /// A name for this request, which makes it safe to repeat: while its lease is alive, the same id gets it again
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

/// What `acquire`, `lock` and `elect` have in common.
#[derive(Debug, Clone, Args)]
pub(crate) struct Asking {
    /// How long it lasts without being renewed [env: LEASEHOLD_TTL] [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Who you are, for people who look [env: LEASEHOLD_OWNER] [default: user@host]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// A word for whoever looks at the lease, up to 4 KiB
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl Asking {
    fn ttl(&self, config: &Config) -> Option<Duration> {
        self.ttl.or_else(|| (config.ttl.origin != Origin::Default).then_some(config.ttl.value))
    }

    pub(crate) fn owner(&self, config: &Config) -> String {
        self.owner.clone().unwrap_or_else(|| config.owner.value.clone())
    }

    pub(crate) fn wanted(&self, config: &Config) -> Wanted {
        Wanted { ttl: self.ttl(config), owner: self.owner(config), note: self.note.clone(), request_id: None }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// The key
    key: Key,
    /// Which lease, as acquire printed it
    #[arg(long, value_name = "ID", env = "LEASEHOLD_LEASE", hide_env_values = true)]
    lease: LeaseId,
    /// Another time to live than it has
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The key
    key: Key,
    /// Which lease, as acquire printed it
    #[arg(long, value_name = "ID", env = "LEASEHOLD_LEASE", hide_env_values = true, required_unless_present = "force")]
    lease: Option<LeaseId>,
    /// Take it away from whoever holds it. Its holder goes on until it notices: only a fence keeps it out
    #[arg(long, requires = "reason")]
    force: bool,
    /// Why, for the record that is kept in the store
    #[arg(long, value_name = "TEXT", requires = "force")]
    reason: Option<String>,
    /// Of a lease that is held under a session, whose process is otherwise asked to give it back: take it away at once.
    /// Two may run until that process has next renewed its session
    #[arg(long, requires = "force")]
    now: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The key
    key: Key,
    /// End with 4 if it is held, and with 0 if it is free
    #[arg(long)]
    exit_code: bool,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Every key that was ever used, free ones as well
    #[arg(long, conflicts_with = "held")]
    all: bool,
    /// Only keys that are held now, as without it
    #[arg(long, hide = true)]
    held: bool,
}

impl Acquire {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let wanted = Wanted { request_id: self.request_id.clone(), ..self.asked.wanted(config) };
        let target = in_time(config, to_open(config, self.wait), Target::open(config)).await?;
        let mut signals = Signals::new()?;
        let asking = target.acquire(&self.key, &wanted, self.wait.unwrap_or_default());
        let asking = waiting::told(&target, &self.key, self.wait, asking);
        let asked = tokio::select! {
            biased;
            asked = in_time(config, to_ask(config, self.wait), asking) => Ok(asked),
            signal = signals.next() => Err(signal),
        };
        let asked = match asked {
            Ok(Ok(asked)) => asked,
            Ok(Err(failure)) => {
                if failure.code == UNAVAILABLE && self.wait.is_some() {
                    target.say_goodbye(&self.key, SHORT_GOODBYE).await;
                }
                return Err(failure);
            }
            Err(signal) => {
                target.say_goodbye(&self.key, GOODBYE).await;
                return Ok(signal.exit_code());
            }
        };
        match asked {
            Asked::Granted(grant) => {
                output::object(config.output.value, &grant, &grant.rows())?;
                Ok(0)
            }
            Asked::Held(holder, again) => Err(held(config, &self.key, holder.as_ref(), again, self.wait)),
        }
    }
}

/// Why a key was not granted, and what to do: after waiting, the time is over.
pub(crate) fn held(
    config: &Config,
    key: &Key,
    holder: Option<&Holder>,
    again: Duration,
    waited: Option<Duration>,
) -> Failure {
    let who = match holder {
        Some(holder) => format!("{key} is held by {}", holder.who()),
        None => format!("{key} is free, and another process's turn: ask again in {}", duration::short(again)),
    };
    let failure = match waited {
        Some(waited) => Failure::new(TIMED_OUT, format!("{who}; waited {} for it", duration::short(waited))),
        None => {
            let look = look(config, key);
            Failure::new(HELD, format!("{who}; wait for it with --wait 1m, or look with: {look}"))
        }
    };
    Failure { holder: holder.cloned().map(Box::new), ..failure }
}

/// The command that shows who holds a key. Whatever was on our own command line is text.
fn look(config: &Config, key: &Key) -> String {
    let text = String::from_utf8_lossy(key.as_bytes());
    match text.starts_with('-') {
        true => config.command(&["get", "--", &text]),
        false => config.command(&["get", &text]),
    }
}

impl Renew {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let grant = Target::existing(config).await?.renew(&self.key, self.lease, self.ttl).await?;
        output::object(config.output.value, &grant, &grant.rows())?;
        Ok(0)
    }
}

#[derive(Debug, Serialize)]
struct Released {
    #[serde(flatten)]
    key: leasehold::layout::KeyJson,
    released: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_from: Option<Holder>,
    /// The lowest that the next holder can have.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Release {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match (&self.reason, self.lease) {
            (Some(reason), _) if self.force => self.force(config, reason).await,
            (_, Some(lease)) => {
                Target::existing(config).await?.release(&self.key, lease).await?;
                let released =
                    Released { key: view::key(&self.key), released: true, taken_from: None, fence: None, reason: None };
                output::object(config.output.value, &released, &[("released", self.key.to_string())])?;
                Ok(0)
            }
            _ => Err(Failure::usage("say which lease with --lease, or take it away with --force --reason")),
        }
    }

    async fn force(&self, config: &Config, reason: &str) -> Outcome {
        let opened = Embedded::existing(config).await?;
        let by = &config.owner.value;
        let forced = match self.now {
            true => opened.leases.force_release_now(&self.key, reason, by).await?,
            false => opened.leases.force_release(&self.key, reason, by).await?,
        };
        let Some(forced) = forced else {
            return Err(Failure::new(LOST, format!("there is nothing to release: nobody holds {}", self.key)));
        };
        let taken_from = forced.taken_from.as_ref().map(Holder::from);
        let mut rows = vec![(if forced.asked { "asked_for" } else { "released" }, self.key.to_string())];
        rows.push((
            if forced.asked { "held_by" } else { "taken_from" },
            taken_from.as_ref().map_or_else(|| "not known".to_owned(), |holder| printable(&holder.owner)),
        ));
        match forced.asked {
            true => rows
                .push(("free", "when its process has next renewed its session, or the session has ended".to_owned())),
            false => rows.push(("fence", format!("{}: refuse lower ones", forced.fence))),
        }
        rows.push(("reason", reason.to_owned()));
        rows.push(("recorded", forced.recorded.clone()));
        if let Some(aside) = &forced.aside {
            rows.push(("aside", format!("{aside}: the record could not be read")));
        }
        let released = Released {
            key: view::key(&self.key),
            released: !forced.asked,
            taken_from,
            fence: Some(forced.fence.get()).filter(|_| !forced.asked),
            reason: Some(reason.to_owned()),
        };
        output::object(config.output.value, &released, &rows)?;
        Ok(0)
    }
}

impl Get {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let status = Target::looking(config).await?.get(&self.key).await?;
        output::object(config.output.value, &status, &status.rows())?;
        Ok(if self.exit_code && status.holder.is_some() { HELD } else { 0 })
    }
}

impl List {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let target = Target::looking(config).await?;
        let (mut keys, mut failures, mut after) = (Vec::new(), 0, None);
        loop {
            let page = target.list(self.prefix.as_bytes(), after.as_deref()).await?;
            for status in page.keys {
                match status {
                    Ok(status) if !self.all && status.holder.is_none() => {}
                    Ok(status) => keys.push(status),
                    Err(failure) => {
                        output::complain(&failure);
                        failures += 1;
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        match config.output.value {
            Format::Json => output::json(&keys)?,
            Format::Table if keys.is_empty() && failures > 0 => {}
            Format::Table if keys.is_empty() && self.all => output::say("no keys"),
            Format::Table if keys.is_empty() => output::say("nothing is held"),
            Format::Table => {
                let lines = keys.iter().map(view::Status::line);
                output::table(["KEY", "STATE", "OWNER", "FENCE", "EXPIRES"], lines)?;
            }
        }
        Ok(if failures == 0 { 0 } else { FAILED })
    }
}
