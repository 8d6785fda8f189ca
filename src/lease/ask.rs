//! Asking the process of a session for a lease that is held under it, by a request in the session's record.
//!
//! Its holder never touches the record of the key again while its session lives: what is taken from there is not noticed.
//! The session's own record it does touch, with its next renewal, which loses to the request and so meets it.

use super::{
    engine::Engine,
    plan::session::{NotAsked, ask as may_ask},
    record::{Asked, KeySlot, Record, SessionName},
};
use crate::{
    Error, Namespace, Result,
    record::{Change, Changed, Patience, Plan},
    storage::{
        cas::{self, Seen},
        layout::OURS,
    },
};
use std::sync::Arc;

/// How many writes in a row may come too late because of another one: the session is renewed now and then.
const CONFLICTS: u32 = 8;

/// Puts a request into the session's record, by a write that leaves the session's own lease as it is. False if the session
/// has ended, so that there is nobody to ask.
pub(super) async fn ask(engine: &Arc<Engine>, session: SessionName, asked: &Asked) -> Result<bool> {
    let slot = KeySlot { namespace: Namespace::trusted(OURS), key: session.key()? };
    let entry = engine.keys.get(&slot.namespace, &slot.key);
    // Nothing of this process comes in between.
    let mut state = engine.lock_key(&entry).await?;
    let base = cas::read(&engine.backend, &slot).await?;
    let patience = Patience { within: engine.operation_timeout(), conflicts: CONFLICTS };
    let mut change: Change<_, ()> = Change::new(&engine.backend, slot.clone(), base.map(Arc::new), patience);
    let changed = change.run(|there, stamp| {
        let record = there.map(Seen::record);
        if let Some(not) = may_ask(record, session, asked.away.lease) {
            return Ok(((), Plan::Stop(not)));
        }
        record.map_or(Ok(()), |record| engine.may_change(&slot.key, record))?;
        let modified = there.and_then(Seen::modified);
        if modified.is_none() && record.is_none_or(|record| record.beat_stamp.is_none()) {
            // Without the stamp of the base the session would look younger than it is.
            return Err(Error::unavailable(format!("the session {} was renewed just now: try again", session.id)));
        }
        let mut next = Record::after(record, modified, stamp, engine.now().wall);
        next.asked.push(asked.clone());
        Ok(((), Plan::Write(next.with_its_format())))
    });
    let changed = changed.await;
    state.forget();
    match changed? {
        Changed::Won(..) | Changed::Stopped(NotAsked::Already) => Ok(true),
        Changed::Stopped(NotAsked::Ended) => Ok(false),
        Changed::Stopped(NotAsked::TooMany) => Err(Error::unavailable(format!(
            "the process of the session {} has not answered earlier requests yet: try again after its next renewal",
            session.id
        ))),
    }
}
