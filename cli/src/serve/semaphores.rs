//! Semaphores over HTTP: acquire, renew and release a slot, look, resize.

use super::{
    App,
    answer::{Json, line},
    auth::Access,
    input::{Body, Query},
    leases::Released,
};
use crate::wire::{self, AcquireSlot, Problem, ReleaseSlot, RenewSlot, ResizeSemaphore, SemaphoreStatus, Slot, millis};
use axum::{
    body::Body as HttpBody,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use leasehold::{
    Clock, Error, ErrorKind, Key, LeaseId, Ttl,
    lease::Request,
    semaphore::{Semaphores, SlotAcquired, SlotRenewed},
};
use std::time::Duration;

/// Acquire a slot of a semaphore, waiting for it if asked to.
///
/// A slot whose answer could not be handed to the connection is given back.
#[utoipa::path(post, path = "/v1/semaphores/acquire", operation_id = "acquire_slot", tag = "semaphores", request_body = AcquireSlot,
    responses((status = 200, body = Slot, description = "It is yours")))]
pub(super) async fn acquire(
    State(app): State<App>,
    access: Access,
    Body(body): Body<AcquireSlot>,
) -> Result<Response, Problem> {
    let came = app.clock.monotonic();
    let semaphores = app.store.semaphores(access.namespace(body.namespace.as_deref())?)?;
    let name = Key::new(body.name)?;
    let ttl = body.ttl_ms.map_or(app.default_ttl, Duration::from_millis);
    let request = Request::new(ttl).owner(body.owner);
    let wait = Duration::from_millis(body.wait_ms.into()).min(app.max_wait);
    let acquired = match wait.is_zero() {
        true => semaphores.acquire(&name, body.size, &request, wait).await.map_err(refused)?,
        false => {
            let _seat = app.seat()?;
            tokio::select! {
                biased;
                acquired = semaphores.acquire(&name, body.size, &request, wait) => acquired.map_err(refused)?,
                () = app.draining.cancelled() => return Err(Problem::draining()),
            }
        }
    };
    match acquired {
        SlotAcquired::Granted(slot) => {
            let body = line(&Slot::of(&slot, app.clock.monotonic().since(came)));
            let owed = Owed { app, semaphores, name, id: Some(slot.lease_id()) };
            Ok(hand_over(body, owed))
        }
        SlotAcquired::Full(full) => {
            let code = if wait.is_zero() { "held" } else { "timed_out" };
            let retry_after_ms = Some(millis(full.retry_after));
            let holder = full.held_by.first().map(|by| Box::new((&by.holder).into()));
            Err(Problem { retry_after_ms, holder, ..Problem::new(code, format!("the semaphore {name} is {full}")) })
        }
    }
}

/// Why no slot can be asked for: above all, that the semaphore has another number of slots.
fn refused(error: Error) -> Problem {
    match error.kind() {
        ErrorKind::Config => Problem::new("wrong_size", error.to_string()),
        _ => error.into(),
    }
}

/// A slot that its client has not been told of. Dropped, it is given back.
struct Owed {
    app: App,
    semaphores: Semaphores,
    name: Key,
    id: Option<LeaseId>,
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (semaphores, name) = (self.semaphores.clone(), self.name.clone());
        self.app.tasks.spawn(async move {
            if let Err(error) = semaphores.release_by_id(&name, id).await {
                tracing::warn!(%error, "a slot whose client has gone could not be given back: it will expire");
            }
        });
    }
}

/// The debt is paid when the connection takes the body.
fn hand_over(body: Vec<u8>, owed: Owed) -> Response {
    let length = body.len();
    let once = stream::once(async move {
        // As a whole: its field alone would be copied.
        let mut owed = owed;
        owed.id = None;
        Ok::<_, std::convert::Infallible>(body)
    });
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, HttpBody::from_stream(once)).into_response()
}

/// Renew a slot. One that has ended is lost, even if nobody took it.
#[utoipa::path(post, path = "/v1/semaphores/renew", operation_id = "renew_slot", tag = "semaphores", request_body = RenewSlot,
    responses((status = 200, body = Slot, description = "It is still yours")))]
pub(super) async fn renew(
    State(app): State<App>,
    access: Access,
    Body(body): Body<RenewSlot>,
) -> Result<Json<Slot>, Problem> {
    let came = app.clock.monotonic();
    let semaphores = app.store.semaphores(access.namespace(body.namespace.as_deref())?)?;
    let ttl = body.ttl_ms.map(|ttl| Ttl::new(Duration::from_millis(ttl))).transpose()?;
    match semaphores.renew_by_id(&Key::new(body.name)?, wire::lease_id(&body.lease_id)?, ttl).await? {
        SlotRenewed::Renewed(slot) => Ok(Json(Slot::of(&slot, app.clock.monotonic().since(came)))),
        SlotRenewed::Lost(loss) => Err(Problem::lost(&loss)),
    }
}

/// Give a slot back. Giving back what one does not have is fine.
#[utoipa::path(post, path = "/v1/semaphores/release", operation_id = "release_slot", tag = "semaphores", request_body = ReleaseSlot,
    responses((status = 200, body = Released, description = "It is not yours any more")))]
pub(super) async fn release(
    State(app): State<App>,
    access: Access,
    Body(body): Body<ReleaseSlot>,
) -> Result<Json<Released>, Problem> {
    let semaphores = app.store.semaphores(access.namespace(body.namespace.as_deref())?)?;
    semaphores.release_by_id(&Key::new(body.name)?, wire::lease_id(&body.lease_id)?).await?;
    Ok(Json(Released { released: true }))
}

/// Change how many slots a semaphore has, for everybody.
#[utoipa::path(post, path = "/v1/semaphores/resize", operation_id = "resize_semaphore", tag = "semaphores", request_body = ResizeSemaphore,
    responses((status = 200, body = SemaphoreStatus, description = "What there is now")))]
pub(super) async fn resize(
    State(app): State<App>,
    access: Access,
    Body(body): Body<ResizeSemaphore>,
) -> Result<Json<SemaphoreStatus>, Problem> {
    let semaphores = app.store.semaphores(access.namespace(body.namespace.as_deref())?)?;
    let name = Key::new(body.name)?;
    // There is nothing to resize where nobody has asked for a slot.
    look(&semaphores, &name).await?;
    semaphores.resize(&name, body.size).await?;
    look(&semaphores, &name).await
}

/// Who holds the slots of a semaphore. Not activity.
#[utoipa::path(get, path = "/v1/semaphore", operation_id = "semaphore", tag = "semaphores",
    params(("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out"),
           ("name" = String, Query, min_length = 1, max_length = 200, description = "The semaphore")),
    responses((status = 200, body = SemaphoreStatus, description = "Who holds its slots, and how many wait")))]
pub(super) async fn status(State(app): State<App>, query: Query) -> Result<Json<SemaphoreStatus>, Problem> {
    let query = query.only(&["namespace", "name"])?;
    let name = query.bytes("name").ok_or_else(|| Problem::invalid("\"name\" is missing"))?;
    let semaphores = app.store.semaphores(wire::namespace(query.text("namespace")?)?)?;
    look(&semaphores, &Key::new(name)?).await
}

async fn look(semaphores: &Semaphores, name: &Key) -> Result<Json<SemaphoreStatus>, Problem> {
    let status = semaphores.peek(name).await?;
    let none = || Problem::new("not_found", format!("nobody has ever asked for a slot of {name}"));
    status.as_ref().map(SemaphoreStatus::of).map(Json).ok_or_else(none)
}
