//! The loop: attempt, and on a conflict or an answer that leaves doubt attempt again, within bounds.

use crate::{
    Error, ErrorKind, Result,
    storage::{
        Backend,
        cas::{Outcome, Seen, Slot},
    },
};
use std::time::Duration;

/// How long a change goes on trying.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// No attempt is sent later than this after the first.
    pub(crate) within: Duration,
    /// How many writes in a row may come too late because of another one.
    pub(crate) conflicts: u32,
}

/// How a change ended.
pub(crate) enum Changed<R, T, O> {
    /// The record is in the store, with the ticket of the attempt that landed.
    Won(Seen<R>, T),
    /// The plan had nothing to write.
    Stopped(O),
}

/// How one attempt ended.
pub(crate) enum Attempted<R, T, O> {
    /// There is nothing to write: this is the outcome.
    Stopped(O),
    /// A write was sent.
    Sent(Outcome<R, T>),
    /// What has to be done before the write failed, so that it was not sent.
    NotSent(Error),
}

/// An operation that changes one record, attempt by attempt.
pub(crate) trait Attempts {
    /// Where the record is.
    type Slot: Slot;
    /// What its maker must know of an attempt if that is the one that landed.
    type Ticket;
    /// What it comes to if there is nothing to write.
    type Outcome;

    /// Plans on what is known, and sends one write. An error ends the change.
    async fn attempt(&mut self) -> Result<Attempted<<Self::Slot as Slot>::Record, Self::Ticket, Self::Outcome>>;

    /// Another write came first, so that none of this operation can land any more: this is there now.
    fn lost(&mut self, there: Option<Seen<<Self::Slot as Slot>::Record>>) -> Result<()>;

    /// What is changed, and the word for that, in "whether ... was changed is not known".
    fn what(&self) -> (String, &'static str);
}

type ChangedBy<A> = Changed<<<A as Attempts>::Slot as Slot>::Record, <A as Attempts>::Ticket, <A as Attempts>::Outcome>;

/// Attempts until a write has landed, there is nothing to write, or the patience is over.
///
/// An error says `Unknown` if a write may have landed, but for [`ErrorKind::Regressed`], which is told as it is.
pub(crate) async fn repeat<A: Attempts>(
    backend: &Backend,
    patience: Patience,
    attempts: &mut A,
) -> Result<ChangedBy<A>> {
    let give_up = backend.clock.monotonic().plus(patience.within);
    let (mut conflicts, mut retries) = (0, 0);
    // Whether a write may have landed. One that was refused has not, whatever it was refused for.
    let mut doubtful = false;
    let in_doubt = |error: Error, doubtful: bool, attempts: &A| match doubtful {
        true => {
            let (what, done) = attempts.what();
            error.in_doubt(true, what, done)
        }
        false => error,
    };
    loop {
        let error = match attempts.attempt().await {
            Ok(Attempted::Stopped(outcome)) => return Ok(Changed::Stopped(outcome)),
            Ok(Attempted::Sent(Outcome::Won(seen, ticket))) => return Ok(Changed::Won(seen, ticket)),
            Ok(Attempted::Sent(Outcome::Lost(there))) => {
                doubtful = false;
                attempts.lost(there)?;
                conflicts += 1;
                if conflicts == patience.conflicts {
                    let (what, _) = attempts.what();
                    return Err(Error::unavailable(format!(
                        "{what} changes too fast: {conflicts} writes in a row came too late; try again later"
                    )));
                }
                backend.pause(conflicts / 4).await;
                continue;
            }
            Ok(Attempted::Sent(Outcome::Unknown(error))) => {
                doubtful |= error.leaves_doubt();
                error
            }
            Ok(Attempted::NotSent(error)) => error,
            Err(error) => return Err(in_doubt(error, doubtful, attempts)),
        };
        if error.kind() == ErrorKind::Regressed {
            return Err(error);
        }
        if !error.is_retryable() || backend.clock.monotonic() >= give_up {
            return Err(in_doubt(error, doubtful, attempts));
        }
        backend.pause(retries).await;
        retries += 1;
    }
}
