//! What the program shows of leases: the fields of its JSON, stable whatever stands behind them.

use crate::{
    duration::{millis, relative},
    wire,
};
use leasehold::{
    Key,
    clock::{Clock, SystemClock, Timestamp},
    layout::KeyJson,
    lease,
};
use serde::Serialize;

/// A lease that was granted or renewed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Grant {
    #[serde(flatten)]
    pub(crate) key: KeyJson,
    pub(crate) lease_id: String,
    pub(crate) fence: u64,
    pub(crate) owner: String,
    pub(crate) ttl_ms: u64,
    pub(crate) expires_at: String,
    #[serde(skip)]
    ends: Timestamp,
    #[serde(skip)]
    shown: String,
}

impl From<&lease::Grant> for Grant {
    fn from(grant: &lease::Grant) -> Self {
        Self {
            key: grant.key().clone().into(),
            lease_id: grant.lease_id().to_string(),
            fence: grant.fence().get(),
            owner: grant.owner().to_owned(),
            ttl_ms: millis(grant.ttl()),
            expires_at: grant.expires_at().to_string(),
            ends: grant.expires_at(),
            shown: grant.key().to_string(),
        }
    }
}

impl TryFrom<&wire::Lease> for Grant {
    type Error = leasehold::Error;

    fn try_from(lease: &wire::Lease) -> leasehold::Result<Self> {
        let key = wire::key(lease.key.clone(), lease.key_b64.clone())?;
        let ends = Timestamp::from_millis(lease.expires_ms);
        Ok(Self {
            shown: key.to_string(),
            key: key.into(),
            lease_id: lease.lease_id.clone(),
            fence: lease.fence,
            owner: lease.owner.clone(),
            ttl_ms: lease.ttl_ms,
            expires_at: ends.to_string(),
            ends,
        })
    }
}

impl Grant {
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        vec![
            ("key", self.shown.clone()),
            ("lease_id", self.lease_id.clone()),
            ("fence", self.fence.to_string()),
            ("owner", self.owner.clone()),
            ("ttl", humantime::format_duration(std::time::Duration::from_millis(self.ttl_ms)).to_string()),
            ("expires_at", relative(self.ends, now())),
        ]
    }
}

/// Who holds a key.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Holder {
    pub(crate) lease_id: String,
    pub(crate) fence: u64,
    pub(crate) owner: String,
    pub(crate) granted_at: String,
    pub(crate) expires_at: String,
    pub(crate) ttl_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    #[serde(skip)]
    pub(crate) ends: Timestamp,
    #[serde(skip)]
    began: Timestamp,
}

impl From<&lease::Holder> for Holder {
    fn from(holder: &lease::Holder) -> Self {
        Self {
            lease_id: holder.lease_id.to_string(),
            fence: holder.fence.get(),
            owner: holder.owner.clone(),
            granted_at: holder.granted_at.to_string(),
            expires_at: holder.expires_at.to_string(),
            ttl_ms: millis(holder.ttl),
            note: holder.note.as_ref().map(|note| String::from_utf8_lossy(note).into_owned()),
            ends: holder.expires_at,
            began: holder.granted_at,
        }
    }
}

impl From<&wire::HeldBy> for Holder {
    fn from(holder: &wire::HeldBy) -> Self {
        let (began, ends) = (Timestamp::from_millis(holder.granted_ms), Timestamp::from_millis(holder.expires_ms));
        Self {
            lease_id: holder.lease_id.clone(),
            fence: holder.fence,
            owner: holder.owner.clone(),
            granted_at: began.to_string(),
            expires_at: ends.to_string(),
            ttl_ms: holder.ttl_ms,
            note: holder.note.clone(),
            ends,
            began,
        }
    }
}

impl Holder {
    /// `alice@laptop until 2026-… (in 20s)`.
    pub(crate) fn who(&self) -> String {
        let owner = if self.owner.is_empty() { "an unnamed owner".to_owned() } else { printable(&self.owner) };
        format!("{owner} until {}", relative(self.ends, now()))
    }
}

/// What is known of a key.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Status {
    #[serde(flatten)]
    pub(crate) key: KeyJson,
    pub(crate) state: &'static str,
    pub(crate) holder: Option<Holder>,
    pub(crate) last_fence: Option<u64>,
    pub(crate) waited_for: bool,
    pub(crate) written_at: Option<String>,
    #[serde(skip)]
    pub(crate) shown: String,
}

impl From<&lease::Status> for Status {
    fn from(status: &lease::Status) -> Self {
        Self {
            key: status.key.clone().into(),
            state: if status.holder.is_some() { "held" } else { "free" },
            holder: status.holder.as_ref().map(Holder::from),
            last_fence: status.last_fence.map(leasehold::Fence::get),
            waited_for: status.waited_for,
            written_at: status.written_at.map(|at| at.to_string()),
            shown: status.key.to_string(),
        }
    }
}

impl TryFrom<&wire::KeyStatus> for Status {
    type Error = leasehold::Error;

    fn try_from(status: &wire::KeyStatus) -> leasehold::Result<Self> {
        let key = wire::key(status.key.clone(), status.key_b64.clone())?;
        Ok(Self {
            shown: key.to_string(),
            key: key.into(),
            state: if status.holder.is_some() { "held" } else { "free" },
            holder: status.holder.as_ref().map(Holder::from),
            last_fence: status.last_fence,
            waited_for: status.waited_for,
            written_at: status.written_ms.map(|at| Timestamp::from_millis(at).to_string()),
        })
    }
}

impl Status {
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![("key", self.shown.clone()), ("state", self.state.to_owned())];
        if let Some(holder) = &self.holder {
            rows.push(("owner", printable(&holder.owner)));
            rows.push(("lease_id", holder.lease_id.clone()));
            rows.push(("granted_at", relative(holder.began, now())));
            rows.push(("expires_at", relative(holder.ends, now())));
            rows.extend(holder.note.as_ref().map(|note| ("note", printable(note))));
        }
        let fence = self.last_fence.map_or_else(|| "none: never granted".to_owned(), |fence| fence.to_string());
        rows.push(("last_fence", fence));
        if self.waited_for {
            rows.push(("waited_for", "yes".to_owned()));
        }
        rows
    }

    /// A line of a listing.
    pub(crate) fn line(&self) -> [String; 5] {
        let holder = self.holder.as_ref();
        [
            self.shown.clone(),
            self.state.to_owned(),
            holder.map_or_else(String::new, |holder| printable(&holder.owner)),
            self.last_fence.map_or_else(String::new, |fence| fence.to_string()),
            holder.map_or_else(String::new, |holder| relative(holder.ends, now())),
        ]
    }
}

/// Control characters in what others wrote must not reach a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

pub(crate) fn key(key: &Key) -> KeyJson {
    key.clone().into()
}

pub(crate) fn now() -> Timestamp {
    SystemClock::new().wall()
}
