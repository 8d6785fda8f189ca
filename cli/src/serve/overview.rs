//! What the page shows: what this process knows, and what the index says. No key is read for it.

use super::{
    App,
    answer::Json,
    board::{Board, Event, SAMPLE_EVERY, Sample},
    clock::WrongClock,
    input::Query,
};
use crate::wire::{KeyStatus, Problem, SweepStatus, millis};
use axum::extract::State;
use leasehold::{
    Clock,
    clock::Moment,
    layout::KeyJson,
    lease::MAX_TTL,
    store::{AnswerKind, RequestKind},
};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// No key, namespace or owner is longer.
const LONGEST_FIND: usize = 1024;

/// How many leases a page of them has.
const SHOWN: usize = 100;

/// How many keys of other processes are named; the rest are counted.
const NAMED: usize = 200;

/// How many index entries of each namespace are looked at, of how many namespaces, and how often at the most: one listing
/// each.
const ENTRIES: usize = 1000;
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
    /// Leases that this process knows to be held and that fit `find`, from `skip` on, in the order of their keys.
    held: Vec<KeyStatus>,
    /// How many fit.
    held_found: usize,
    held_total: usize,
    /// All namespaces that there are in the store.
    namespaces: Vec<String>,
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
    wrong_clock: Option<WrongClock>,
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
    /// Those that this process has never seen first.
    keys: Vec<FiledKey>,
    /// How many of those that were looked at this process has never seen, held or free.
    unseen: usize,
    /// How many were free when this process last saw them. Another one may have taken them since.
    seen_free: usize,
    /// How many have a name so long that the index does not tell it.
    unnamed: usize,
    /// Whether the index has more than was looked at: then there may be any number of others.
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

/// The index and the namespaces, as they were a little while ago.
#[derive(Debug, Default)]
pub(super) struct Index(Option<(Moment, Filed, Vec<String>)>);

/// Everything that the page shows. Not activity.
#[utoipa::path(get, path = "/v1/overview", tag = "page",
    params(("find" = Option<String>, Query, max_length = 1024, description = "What the namespace, the key or the owner of a lease must have in it, upper case or lower"),
           ("skip" = Option<u32>, Query, minimum = 0, maximum = 1_000_000, description = "How many of the leases that fit to leave out")),
    responses((status = 200, body = Overview, description = "What this process knows, and what the index says")))]
pub(super) async fn overview(State(app): State<App>, query: Query) -> Result<Json<Overview>, Problem> {
    let query = query.only(&["find", "skip"])?;
    let find = query.text("find")?.unwrap_or_default();
    if find.chars().count() > LONGEST_FIND {
        return Err(Problem::invalid(format!("\"find\" has at most {LONGEST_FIND} characters")));
    }
    let skip = query.number("skip", 0, 1_000_000)?.unwrap_or(0);
    let now = app.clock.wall();
    app.board.prune(now);
    let (requests, stats, agreed) = (app.store.requests(), app.store.stats(), app.store.shared_settings());
    let (mut filed, namespaces) = app.filed().await;
    filed.compare(&app.board);
    let (held, held_found) = app.board.leases(find, skip, SHOWN);
    Ok(Json(Overview {
        now_ms: now.as_millis(),
        version: env!("CARGO_PKG_VERSION"),
        up_ms: millis(app.clock.monotonic().since(app.started)),
        draining: app.draining.is_cancelled(),
        store: StoreHealth {
            place: app.store.to_string(),
            clock_trusted: app.store.trusts_clock(),
            wrong_clock: WrongClock::of(&app.store),
            skew_ms: app.store.skew().map(millis),
            skew_allowed_ms: millis(agreed.max_clock_skew),
            max_ttl_ms: millis(agreed.of(&MAX_TTL)),
            get: requests.of(RequestKind::Get),
            put: requests.of(RequestKind::Put),
            list: requests.of(RequestKind::List),
            delete: requests.of(RequestKind::Delete),
            failed: requests.answered(AnswerKind::Failed) + requests.answered(AnswerKind::None),
            throttled: requests.answered(AnswerKind::Throttled),
        },
        held,
        held_found,
        held_total: app.board.held(),
        namespaces,
        filed,
        events: app.board.events(),
        sweeper: app.sweep_status(),
        sample_every_ms: millis(SAMPLE_EVERY),
        samples: app.board.samples(),
        counts: Counts {
            granted: stats.leases_granted,
            held: stats.acquires_refused,
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
    async fn filed(&self) -> (Filed, Vec<String>) {
        let mut index = self.index.lock().await;
        if let Some((at, filed, namespaces)) = &index.0
            && self.clock.monotonic().since(*at) < EVERY
        {
            return (filed.clone(), namespaces.clone());
        }
        // What could not be listed now is still known from before.
        let before = index.0.take().map(|(_, _, namespaces)| namespaces).unwrap_or_default();
        let (filed, namespaces) = self
            .list_filed()
            .await
            .unwrap_or_else(|error| (Filed { problem: Some(error.to_string()), ..Filed::default() }, before));
        index.0 = Some((self.clock.monotonic(), filed.clone(), namespaces.clone()));
        (filed, namespaces)
    }

    async fn list_filed(&self) -> leasehold::Result<(Filed, Vec<String>)> {
        let namespaces = self.store.namespaces().await?;
        let mut filed = Filed { as_of_ms: self.clock.wall().as_millis(), ..Filed::default() };
        filed.more = namespaces.len() > NAMESPACES;
        for namespace in namespaces.iter().take(NAMESPACES) {
            let listed = self.store.leases(namespace.clone())?.filed(ENTRIES).await?;
            filed.more |= listed.more;
            for entry in listed.keys {
                let Some(key) = entry.key else {
                    filed.unnamed += 1;
                    continue;
                };
                let (namespace, hour) = (namespace.to_string(), entry.hour.to_string());
                filed.keys.push(FiledKey { namespace, key: key.into(), hour, seen_free: false });
            }
        }
        // One that was renewed into the next hour is filed twice: the later one counts, and comes first.
        let name = |filed: &FiledKey| (filed.namespace.clone(), filed.key.key.clone(), filed.key.key_b64.clone());
        filed.keys.sort_by_cached_key(|filed| (name(filed), std::cmp::Reverse(filed.hour.clone())));
        filed.keys.dedup_by_key(|filed| name(filed));
        Ok((filed, namespaces.iter().map(ToString::to_string).collect()))
    }
}

impl Filed {
    /// Leaves out what this process knows to be held, and counts the rest.
    fn compare(&mut self, board: &Board) {
        self.keys.retain_mut(|filed| {
            let known = board.knows(&filed.namespace, &filed.key);
            filed.seen_free = known == Some(false);
            known != Some(true)
        });
        self.seen_free = self.keys.iter().filter(|filed| filed.seen_free).count();
        self.unseen = self.keys.len() - self.seen_free;
        self.keys.sort_by_key(|filed| filed.seen_free);
        self.keys.truncate(NAMED);
    }
}
