//! Acquiring a lease: read what is there and file the index entry at once, then grant by one write.

use super::{
    ended::State,
    engine::Engine,
    keys::KeyEntry,
    late::free_late,
    operation::{Intent, Operation, Swapped, file, file_under},
    others,
    plan::{self, Now, Wanted},
    release::resolve_doubt,
    state::KeyState,
    tell::{before, fail_others, tell_others, turn},
    tries::{Asked, Turn},
    types::{Acquired, Grant, Held, Request},
};
use crate::{
    Error, Hour, LeaseId, Result, Ttl, WriteId,
    record::{Known, Right},
    storage::cas,
};
use std::sync::Arc;

/// One try. The caller has marked activity.
pub(super) async fn acquire(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, request: &Request) -> Result<Acquired> {
    engine.trust_clock().await?;
    let state = match turn(engine, entry, |answer| Asked::to_try(request, answer)).await? {
        Turn::Told(held) => return Ok(Acquired::Held(held)),
        Turn::Ours(state) => state,
    };
    let id = LeaseId::random(&*engine.backend.generator);
    acquire_locked(engine, state, entry, request, id, None).await
}

/// One try with the key locked. `watched` is a beat that was watched for long enough to be taken over.
pub(super) async fn acquire_locked(
    engine: &Arc<Engine>,
    state: Right<KeyState>,
    entry: &Arc<KeyEntry>,
    request: &Request,
    id: LeaseId,
    watched: Option<WriteId>,
) -> Result<Acquired> {
    let mut operation = start_grant(engine, state, entry, request, id);
    let before = before(&operation);
    let acquired = acquire_by(&mut operation, request, id, watched).await;
    match &acquired {
        Err(error) if !operation.is_in_doubt() => fail_others(&operation, before, error),
        _ => tell_others(&operation, before),
    }
    acquired
}

async fn acquire_by(
    operation: &mut Operation,
    request: &Request,
    id: LeaseId,
    watched: Option<WriteId>,
) -> Result<Acquired> {
    let engine = &Arc::clone(&operation.engine);
    let ttl = engine.limits.clamp(request.ttl_or_default()?)?;
    let now = engine.now();
    if let Some(until) = operation.known().stay_back.filter(|until| *until > now.moment) {
        let again = match request.request_id {
            Some(_) => regrant(operation, request).await?,
            None => None,
        };
        let held = Held { by: None, retry_after: until.since(now.moment) };
        return Ok(again.map_or(Acquired::Held(held), Acquired::Granted));
    }
    let first = read_and_file(operation, request, ttl, now).await?;
    others::second_look(operation, watched).await?;
    let (mut takes_over, mut held) = (false, None);
    let swapped = operation.swap(first, |view| {
        engine.check_clock(view.readings.now.wall)?;
        takes_over = matches!(view.state(watched), State::Ended(_));
        let plan = plan::grant(view, Wanted { request, ttl, id, under: request.under() }, watched)?;
        held = matches!(plan, plan::Plan::Stop(())).then(|| engine.held_by(view));
        Ok(plan)
    });
    match swapped.await? {
        // It may be held by the very write that is in doubt.
        Swapped::Stopped(()) if operation.is_in_doubt() => {
            let key = &operation.entry.slot.key;
            Err(Error::unknown(format!("whether {key} was granted is not known: repeat the request")))
        }
        Swapped::Stopped(()) => {
            engine.counters.refused(1);
            let held = held.unwrap_or_else(|| engine.held_by(&operation.view_now()));
            Ok(Acquired::Held(held))
        }
        Swapped::Won(now) => {
            engine.counters.cleared_by_operation(u64::from(takes_over));
            let granted = finish_grant(operation, now, ttl);
            // Won too late to be of use. To others it may be alive, or be what no sweep finds any more. A lease that was
            // only asked for again is not ours alone to free.
            let late = operation.known().lease();
            if let (Err(_), Some(lease)) = (&granted, late.filter(|lease| lease.id == id)) {
                free_late(engine, &operation.entry, lease);
            }
            granted.map(Acquired::Granted)
        }
    }
}

pub(super) fn start_grant(
    engine: &Arc<Engine>,
    state: Right<KeyState>,
    entry: &Arc<KeyEntry>,
    request: &Request,
    id: LeaseId,
) -> Operation {
    let keep = request.request_id.is_some();
    let mut operation = Operation::new(engine, entry, state).intends(Intent::Grant { id, keep }, resolve_doubt);
    operation.under = [request.under().map(|under| under.name), None];
    operation
}

/// Grants the lease again that this very request was granted before, if it is alive; never a new one.
pub(super) async fn regrant(operation: &mut Operation, request: &Request) -> Result<Option<Grant>> {
    let ttl = operation.engine.limits.clamp(request.ttl_or_default()?)?;
    operation.read().await?;
    match operation.swap(None, |view| plan::regrant(view, request, ttl)).await? {
        Swapped::Stopped(()) => Ok(None),
        Swapped::Won(now) => finish_grant(operation, now, ttl).map(Some),
    }
}

/// Finds out what is there, where what is known is not good enough to base a write on. For a key of which nothing is known
/// the index entry is written at the same time. Returns the clock readings by which it was, if it was.
async fn read_and_file(operation: &mut Operation, request: &Request, ttl: Ttl, now: Now) -> Result<Option<Now>> {
    match operation.known().cached.known() {
        Known::Nothing if request.new_key => operation.state().cached.assume_absent(),
        // A repeated request most often finds its own lease, filed already: reading first saves the entry.
        Known::Nothing if request.request_id.is_some() => operation.read().await?,
        Known::Nothing => {
            let expires = ttl.expiry(now.wall)?;
            let (hour, under) = (Hour::of(expires)?, request.under());
            let (engine, slot) = (&operation.engine, &operation.entry.slot);
            let time = engine.backend.latest_stamp();
            let filing = async {
                match under {
                    Some(under) => file_under(engine, slot, under.name, under.expires).await,
                    None => file(engine, slot, hour, expires).await,
                }
            };
            let (there, filed) = tokio::join!(biased; cas::read(&engine.backend, slot), filing);
            operation.state().learn(there?)?;
            operation.state().time = time;
            if filed.is_ok() {
                match under {
                    Some(under) => operation.state().indexed_under = Some(under.name.id),
                    None => operation.state().indexed = Some(hour),
                }
                return Ok(Some(now));
            }
        }
        Known::Record(_) => {
            // A lease of another process was most likely renewed or released since it was seen. One whose last beat is
            // our own and that has ended was not, or the write will find out.
            let ended = match operation.view(now).state(None) {
                State::Free => true,
                State::Ended(lease) => operation.known().own.is_some_and(|(beat, _)| beat == lease.beat),
                State::Held(_) | State::MayHaveEnded(_) => false,
            };
            if !ended {
                operation.read().await?;
            }
        }
        Known::Absent => {}
    }
    Ok(None)
}

/// What was won, if it is still worth anything.
fn finish_grant(operation: &mut Operation, now: Now, ttl: Ttl) -> Result<Grant> {
    let Some(lease) = operation.known().lease().cloned() else {
        let key = &operation.entry.slot.key;
        return Err(Error::unavailable(format!("the lease on {key} was freed as soon as it was granted")));
    };
    let grant = operation.make_grant(&lease, now.moment, ttl, None);
    if grant.is_valid() {
        operation.engine.counters.granted(1);
        return Ok(grant);
    }
    Err(Error::unavailable(format!(
        "the lease on {} was granted too late to be of use: it ended at {}",
        operation.entry.slot.key, grant.expires
    )))
}
