//! What the page shows: what this process knows, and what the index says. No key is read for it.

use super::{
    App,
    board::{Event, SAMPLE_EVERY, Sample},
};
use crate::wire::{KeyStatus, Problem, SweepStatus, millis};
use axum::{Json, extract::State};
use leasehold::{
    Clock, KeyJson,
    clock::Moment,
    store::{AnswerKind, RequestKind},
};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// How many leases are shown; the page says how many there are.
const SHOWN: usize = 200;

/// How many index entries of each namespace are looked at, of how many namespaces, and how often at the most.
const ENTRIES: usize = 200;
const NAMESPACES: usize = 20;
const EVERY: Duration = Duration::from_secs(30);

/// Everything on the page.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Overview {
    now_ms: i64,
    version: &'static str,
    up_ms: u64,
    draining: bool,
    store: StoreHealth,
    /// Leases that this process knows to be held, those that end first.
    held: Vec<KeyStatus>,
    held_total: usize,
    /// Keys that may be held and that this process does not know to be.
    filed: Filed,
    events: Vec<Event>,
    sweeper: SweepStatus,
    sample_every_ms: u64,
    samples: Vec<Sample>,
    counts: Counts,
    waiting: usize,
    waiting_limit: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StoreHealth {
    place: String,
    clock_trusted: bool,
    skew_ms: Option<u64>,
    skew_allowed_ms: u64,
    max_ttl_ms: u64,
    get: u64,
    put: u64,
    list: u64,
    delete: u64,
    /// Requests that failed, or were not answered.
    failed: u64,
    throttled: u64,
}

#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(super) struct Filed {
    as_of_ms: i64,
    keys: Vec<FiledKey>,
    /// Whether there are more than these.
    more: bool,
    /// Why the index could not be read.
    problem: Option<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct FiledKey {
    namespace: String,
    #[serde(flatten)]
    #[schema(inline = false, value_type = Object)]
    key: KeyJson,
    hour: String,
    /// Whether this process has last seen it free. Another one may have taken it since.
    seen_free: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Counts {
    granted: u64,
    held: u64,
    renewed: u64,
    released: u64,
    lost: u64,
    cleared: u64,
    decisions: u64,
    doubts: u64,
}

/// The index, as it was a little while ago.
#[derive(Debug, Default)]
pub(super) struct Index(Option<(Moment, Filed)>);

/// Everything that the page shows. Not activity.
#[utoipa::path(get, path = "/v1/overview", tag = "page", responses((status = 200, body = Overview)))]
pub(super) async fn overview(State(app): State<App>) -> Result<Json<Overview>, Problem> {
    let now = app.clock.wall();
    app.board.prune(now);
    let (requests, stats, agreed) = (app.store.requests(), app.store.stats(), app.store.agreement());
    let mut filed = app.filed().await;
    filed.keys.retain_mut(|filed| {
        let known = app.board.knows(&filed.namespace, &filed.key);
        filed.seen_free = known == Some(false);
        known != Some(true)
    });
    Ok(Json(Overview {
        now_ms: now.as_millis(),
        version: env!("CARGO_PKG_VERSION"),
        up_ms: millis(app.clock.monotonic().since(app.started)),
        draining: app.draining.is_cancelled(),
        store: StoreHealth {
            place: app.store.to_string(),
            clock_trusted: app.store.trusts_clock(),
            skew_ms: app.store.skew().map(millis),
            skew_allowed_ms: millis(agreed.max_clock_skew),
            max_ttl_ms: millis(agreed.max_ttl),
            get: requests.of(RequestKind::Get),
            put: requests.of(RequestKind::Put),
            list: requests.of(RequestKind::List),
            delete: requests.of(RequestKind::Delete),
            failed: requests.answered(AnswerKind::Failed) + requests.answered(AnswerKind::None),
            throttled: requests.answered(AnswerKind::Throttled),
        },
        held: app.board.leases(SHOWN),
        held_total: app.board.held(),
        filed,
        events: app.board.events(),
        sweeper: app.sweep_status(),
        sample_every_ms: millis(SAMPLE_EVERY),
        samples: app.board.samples(),
        counts: Counts {
            granted: stats.leases_granted,
            held: stats.leases_held,
            renewed: stats.leases_renewed,
            released: stats.leases_released,
            lost: stats.leases_lost,
            cleared: stats.leases_cleared_by_operation + stats.leases_cleared_by_sweeper,
            decisions: stats.decisions_made,
            doubts: stats.doubts_won + stats.doubts_lost + stats.doubts_open,
        },
        waiting: app.max_waiting.saturating_sub(app.seats.available_permits()),
        waiting_limit: app.max_waiting,
    }))
}

impl App {
    /// What the index says, listed at most every so often and only while somebody looks.
    async fn filed(&self) -> Filed {
        let mut index = self.index.lock().await;
        if let Some((at, filed)) = &index.0
            && self.clock.monotonic().since(*at) < EVERY
        {
            return filed.clone();
        }
        let filed = self
            .list_filed()
            .await
            .unwrap_or_else(|error| Filed { problem: Some(error.to_string()), ..Filed::default() });
        index.0 = Some((self.clock.monotonic(), filed.clone()));
        filed
    }

    async fn list_filed(&self) -> leasehold::Result<Filed> {
        let namespaces = self.store.namespaces().await?;
        let mut filed = Filed { as_of_ms: self.clock.wall().as_millis(), ..Filed::default() };
        filed.more = namespaces.len() > NAMESPACES;
        for namespace in namespaces.into_iter().take(NAMESPACES) {
            let listed = self.store.leases(namespace.clone())?.filed(ENTRIES).await?;
            filed.more |= listed.more;
            filed.keys.extend(listed.keys.into_iter().filter_map(|entry| {
                Some(FiledKey {
                    namespace: namespace.to_string(),
                    key: entry.key?.into(),
                    hour: entry.hour.to_string(),
                    seen_free: false,
                })
            }));
        }
        Ok(filed)
    }
}
