//! Leases and elections over HTTP: acquire, renew, release, get, list, check.

use super::{
    App,
    answer::{Json, line},
    auth::Access,
    board,
    board::seen,
    input::{self, Body, Query},
    limits, log,
    places::{Place, Waiting},
};
use crate::wire::{
    self, Acquire, Campaign, Check, Checked, ForceRelease, ForceReleased, HeldBy, KeyList, KeyStatus, Leader, Lease,
    Problem, Release, Renew,
};
use axum::{
    body::{Body as HttpBody, Bytes},
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use leasehold::{
    Clock, Fence, Key, Leases, Namespace,
    lease::{Acquired, Grant, Renewed, Request},
};
use std::time::Duration;

/// Acquire a lease, waiting for it if asked to.
///
/// Send an `Idempotency-Key` to be safe from lost answers: the same key and owner get the same lease again while it is
/// alive. Without one, a lease whose answer could not be handed to the connection is given back.
#[utoipa::path(post, path = "/v1/acquire", tag = "leases", request_body = Acquire,
    params(("Idempotency-Key" = Option<String>, Header, description = "The caller's own name for this request, up to 256 characters")),
    responses((status = 200, body = Lease, description = "It is yours")))]
pub(super) async fn acquire(
    State(app): State<App>,
    access: Access,
    headers: HeaderMap,
    Body(body): Body<Acquire>,
) -> Result<Response, Problem> {
    let key = wire::key(body.key, body.key_b64)?;
    let wanted = Wanted {
        namespace: access.namespace(body.namespace.as_deref())?,
        key,
        owner: body.owner,
        ttl: body.ttl_ms.map(Duration::from_millis),
        wait: Duration::from_millis(body.wait_ms.into()),
        note: body.note,
    };
    grant(app, &headers, wanted).await
}

/// Stand in an election, and wait to lead if asked to. Renew and resign by the lease.
#[utoipa::path(post, path = "/v1/elections/campaign", tag = "elections", request_body = Campaign,
    params(("Idempotency-Key" = Option<String>, Header, description = "The caller's own name for this request, up to 256 characters")),
    responses((status = 200, body = Lease, description = "You lead")))]
pub(super) async fn campaign(
    State(app): State<App>,
    access: Access,
    headers: HeaderMap,
    Body(body): Body<Campaign>,
) -> Result<Response, Problem> {
    let wanted = Wanted {
        namespace: access.namespace(body.namespace.as_deref())?,
        key: Key::new(body.name)?,
        owner: body.candidate,
        ttl: body.ttl_ms.map(Duration::from_millis),
        wait: Duration::from_millis(body.wait_ms.into()),
        note: body.note,
    };
    grant(app, &headers, wanted).await
}

struct Wanted {
    namespace: Namespace,
    key: Key,
    owner: String,
    ttl: Option<Duration>,
    wait: Duration,
    note: Option<String>,
}

async fn grant(app: App, headers: &HeaderMap, wanted: Wanted) -> Result<Response, Problem> {
    let came = app.clock.monotonic();
    let leases = app.store.leases(wanted.namespace.clone())?;
    let mut request = Request::new(wanted.ttl.unwrap_or(app.default_ttl)).owner(wanted.owner.clone());
    if let Some(note) = &wanted.note {
        request = request.note(note.clone());
    }
    let id = input::idempotency_key(headers)?;
    if let Some(id) = id {
        request = request.request_id(id);
    }
    let wait = wanted.wait.min(app.max_wait);
    let continues = headers.get(wire::WAIT).is_some_and(|value| value == wire::CONTINUES);
    let place = id.map(|id| Place {
        namespace: wanted.namespace,
        key: wanted.key.clone(),
        owner: wanted.owner,
        id: id.to_owned(),
    });
    let kept = place.as_ref().and_then(|place| app.places.take(place));
    let acquired = match (place, kept) {
        (Some(place), kept) if kept.is_some() || continues && !wait.is_zero() => {
            in_line(&app, &leases, (place, kept), &request, wait, continues).await?
        }
        _ if wait.is_zero() => leases.acquire(&wanted.key, &request).await?,
        _ => {
            let _seat = app.seat()?;
            tokio::select! {
                biased;
                acquired = leases.acquire_within(&wanted.key, &request, wait) => acquired?,
                () = app.draining.cancelled() => return Err(Problem::draining()),
            }
        }
    };
    match acquired {
        Acquired::Held(held) => Err(Problem::held(&held, !wanted.wait.is_zero())),
        Acquired::Granted(grant) => {
            let before = app.board.granted(app.clock.wall(), &grant, wanted.note.as_deref());
            log::granted(&grant, before.as_ref());
            // First how long it was here: what passes between the two makes the lease seem shorter.
            let waited = app.clock.monotonic().since(came);
            let body = line(&Lease::of(&grant, waited));
            let owed = id.is_none().then(|| Owed { app, leases, grant: Some(grant) });
            Ok(hand_over(body.into(), owed))
        }
    }
}

/// Waits in the place that was kept for this client, or at the end of the line, and keeps it when the time is up.
async fn in_line(
    app: &App,
    leases: &Leases,
    (place, kept): (Place, Option<Waiting>),
    request: &Request,
    wait: Duration,
    continues: bool,
) -> Result<Acquired, Problem> {
    let mut waiting = match kept {
        Some(waiting) => waiting,
        None => Waiting::new(leases, &place.key, request.clone(), app.seat()?),
    };
    let done = tokio::select! {
        biased;
        done = waiting.within(app, wait) => done,
        () = app.draining.cancelled() => return Err(Problem::draining()),
    };
    match done {
        Some(acquired) => Ok(acquired?),
        None if continues => {
            app.places.keep(app, place, waiting);
            Err(Problem::new("timed_out", "another one holds it: ask again at once, the place in the line is kept"))
        }
        None => {
            drop(waiting);
            // To say who has it.
            Ok(leases.acquire(&place.key, request).await?)
        }
    }
}

/// A grant that its client has not been told of. Dropped, it is given back: nobody else knows that it is there.
struct Owed {
    app: App,
    leases: Leases,
    grant: Option<Grant>,
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(grant) = self.grant.take() else { return };
        let (app, leases) = (self.app.clone(), self.leases.clone());
        // Counted among what is waited for before the service ends.
        self.app.tasks.spawn(async move {
            if let Err(error) = leases.release(&grant).await {
                tracing::warn!(%error, "a lease whose client has gone could not be given back: it will expire");
            }
            app.board.released(app.clock.wall(), board::name_of(&grant), &grant.lease_id().to_string());
        });
    }
}

/// The answer to one who was granted something. The debt is paid when the connection takes the body.
fn hand_over(body: Bytes, owed: Option<Owed>) -> Response {
    let length = body.len();
    let once = stream::once(async move {
        if let Some(mut owed) = owed {
            owed.grant = None;
        }
        Ok::<_, std::convert::Infallible>(body)
    });
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, HttpBody::from_stream(once)).into_response()
}

/// Renew a lease. One that has ended is lost, even if nobody took it.
#[utoipa::path(post, path = "/v1/renew", tag = "leases", request_body = Renew,
    responses((status = 200, body = Lease, description = "It is still yours")))]
pub(super) async fn renew(
    State(app): State<App>,
    access: Access,
    Body(body): Body<Renew>,
) -> Result<Json<Lease>, Problem> {
    let came = app.clock.monotonic();
    let namespace = access.namespace(body.namespace.as_deref())?;
    let key = wire::key(body.key, body.key_b64)?;
    let name = board::name(&namespace, &key);
    let ttl = body.ttl_ms.map(Duration::from_millis);
    match app.store.leases(namespace)?.renew_by_id(&key, wire::lease_id(&body.lease_id)?, ttl).await? {
        Renewed::Renewed(grant) => {
            app.board.renewed(app.clock.wall(), &grant);
            let waited = app.clock.monotonic().since(came);
            Ok(Json(Lease::of(&grant, waited)))
        }
        Renewed::Lost(loss) => {
            let problem = Problem::lost(&loss);
            app.board.lost(app.clock.wall(), name, &body.lease_id, &problem);
            Err(problem)
        }
    }
}

/// Give a lease back. Giving back what one does not have is fine.
#[utoipa::path(post, path = "/v1/release", tag = "leases", request_body = Release,
    responses((status = 200, body = Released, description = "It is not yours any more")))]
pub(super) async fn release(
    State(app): State<App>,
    access: Access,
    Body(body): Body<Release>,
) -> Result<Json<Released>, Problem> {
    let namespace = access.namespace(body.namespace.as_deref())?;
    let key = wire::key(body.key, body.key_b64)?;
    let name = board::name(&namespace, &key);
    app.store.leases(namespace)?.release_by_id(&key, wire::lease_id(&body.lease_id)?).await?;
    log::released(&key, &body.lease_id);
    app.board.released(app.clock.wall(), name, &body.lease_id);
    Ok(Json(Released { released: true }))
}

/// Step down, so that another one can lead at once.
#[utoipa::path(post, path = "/v1/elections/resign", tag = "elections", request_body = Release,
    responses((status = 200, body = Released, description = "You do not lead any more")))]
pub(super) async fn resign(state: State<App>, access: Access, body: Body<Release>) -> Result<Json<Released>, Problem> {
    release(state, access, body).await
}

/// The answer to a release.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
pub(super) struct Released {
    pub(super) released: bool,
}

/// What there is on a key. A lease that has ended is cleared on the way, unless `peek` is true.
#[utoipa::path(get, path = "/v1/lease", tag = "leases",
    params(("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out"),
           ("key" = String, Query, min_length = 1, max_length = 1024, description = "The key, percent-encoded if it is not UTF-8"),
           ("peek" = Option<bool>, Query, description = "Write nothing, and do not count as activity")),
    responses((status = 200, body = KeyStatus, description = "Who holds it, if anybody does")))]
pub(super) async fn get(State(app): State<App>, query: Query) -> Result<Json<KeyStatus>, Problem> {
    let query = query.only(&["namespace", "key", "peek"])?;
    let (leases, key) = query.key(&app, "key")?;
    let status = if query.flag("peek")? { leases.peek(&key).await? } else { leases.get(&key).await? };
    Ok(Json(seen(&app.board, &wire::namespace(query.text("namespace")?)?, &status)))
}

/// List keys, a page at a time: one listing, and one read for each key. Not activity.
#[utoipa::path(get, path = "/v1/leases", tag = "leases",
    params(("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out"),
           ("prefix" = Option<String>, Query, description = "How the keys begin"),
           ("after" = Option<String>, Query, pattern = "^[a-z0-9!_-]{1,210}$", description = "`next` of the page before"),
           ("limit" = Option<u32>, Query, minimum = 1, maximum = 500, description = "100 if left out"),
           ("held" = Option<bool>, Query, description = "Only those that are held; pages may be shorter then")),
    responses((status = 200, body = KeyList, description = "A page of keys, and where the next one begins")))]
pub(super) async fn list(State(app): State<App>, query: Query) -> Result<Json<KeyList>, Problem> {
    let query = query.only(&["namespace", "prefix", "after", "limit", "held"])?;
    let (leases, only_held) = (query.leases(&app)?, query.flag("held")?);
    let namespace = wire::namespace(query.text("namespace")?)?;
    let after = query.text("after")?.map(|text| leases.cursor(text)).transpose()?;
    let limit = query.number("limit", 1, limits::PAGE)?.unwrap_or(100);
    let listing = leases.list(query.bytes("prefix").unwrap_or_default(), after.as_ref(), limit).await?;
    let (mut keys, mut unreadable) = (Vec::new(), Vec::new());
    for key in listing.keys {
        match key {
            Ok(status) if only_held && status.holder.is_none() => {}
            Ok(status) => keys.push(seen(&app.board, &namespace, &status)),
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    Ok(Json(KeyList { keys, unreadable, next: listing.next.map(|next| next.to_string()) }))
}

/// Whether a fence is that of the lease which is held now. Not activity.
///
/// For a resource that cannot remember the highest fence that it has seen. One that can is safer: a fence can become old
/// between this answer and the write.
#[utoipa::path(post, path = "/v1/check", tag = "leases", request_body = Check,
    responses((status = 200, body = Checked, description = "Whether it is, and the highest fence that is known")))]
pub(super) async fn check(
    State(app): State<App>,
    access: Access,
    Body(body): Body<Check>,
) -> Result<Json<Checked>, Problem> {
    let leases = app.store.leases(access.namespace(body.namespace.as_deref())?)?;
    let status = leases.peek(&wire::key(body.key, body.key_b64)?).await?;
    let current = status.holder.is_some_and(|holder| holder.fence == body.fence);
    Ok(Json(Checked { current, last_fence: status.last_fence.map(Fence::get) }))
}

/// Who leads. Not activity.
#[utoipa::path(get, path = "/v1/elections/leader", tag = "elections",
    params(("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out"),
           ("name" = String, Query, min_length = 1, max_length = 1024, description = "The election")),
    responses((status = 200, body = Leader, description = "The leader, or none")))]
pub(super) async fn leader(State(app): State<App>, query: Query) -> Result<Json<Leader>, Problem> {
    let query = query.only(&["namespace", "name"])?;
    let (leases, key) = query.key(&app, "name")?;
    Ok(Json(Leader { leader: leases.peek(&key).await?.holder.as_ref().map(HeldBy::from) }))
}

/// Take a lease away from whoever has it. Its holder is not told before it renews: two may run until then.
#[utoipa::path(post, path = "/v1/force-release", operation_id = "force_release", tag = "leases", request_body = ForceRelease,
    responses((status = 200, body = ForceReleased, description = "From whom it was taken, and where that is recorded")))]
pub(super) async fn force(
    State(app): State<App>,
    access: Access,
    Body(body): Body<ForceRelease>,
) -> Result<Json<ForceReleased>, Problem> {
    let namespace = access.namespace(body.namespace.as_deref())?;
    let key = wire::key(body.key, body.key_b64)?;
    if body.reason.trim().is_empty() || body.reason.chars().count() > 1024 || body.by.chars().count() > 256 {
        return Err(Problem::invalid("`reason` has 1 to 1024 characters, `by` at most 256"));
    }
    let by = if body.by.is_empty() { "the service" } else { &body.by };
    let Some(forced) = app.store.leases(namespace.clone())?.force_release(&key, &body.reason, by).await? else {
        return Err(Problem::new("not_found", format!("nobody has ever held {key}")));
    };
    tracing::warn!(%namespace, %key, reason = body.reason, by, "a lease was taken away");
    Ok(Json(ForceReleased {
        taken_from: forced.taken_from.as_ref().map(HeldBy::from),
        fence: forced.fence.get(),
        recorded: forced.recorded,
    }))
}
