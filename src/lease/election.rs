//! Leader election: a lease that candidates compete for, and that can be read by all.

use super::{
    Leases, Locked,
    guard::Guard,
    loss::Loss,
    types::{Grant, Holder, Request},
    watch::Watch,
};
use crate::{Error, Fence, Key, LeaseId, Result};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// One candidate in an election. The holder of the lease on its key leads.
///
/// There is at most one leader at a time by the clocks of all candidates, but a leader that is paused can wake up and act before it
/// notices that there is another one. So what it leads must check its [fence](Leadership::fence).
///
/// ```
/// use leasehold::{Store, lease::Campaign};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let leases = Store::open("memory://").await?.leases("default")?;
/// let election = leases.election("scheduler", "node-1", Duration::from_secs(10))?;
///
/// let Campaign::Leader(leadership) = election.campaign(Duration::from_secs(1)).await? else { panic!("others lead") };
/// assert!(leadership.is_valid());
/// assert_eq!(election.leader().await?.unwrap().owner, "node-1");
///
/// let other = leases.election("scheduler", "node-2", Duration::from_secs(10))?;
/// let Campaign::Follower(Some(leader)) = other.campaign(Duration::ZERO).await? else { panic!("two leaders") };
/// assert_eq!(leader.owner, "node-1");
///
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Election {
    leases: Leases,
    key: Key,
    request: Request,
}

/// How a campaign ended.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub enum Campaign {
    /// You lead, until you resign or lose it.
    Leader(Leadership),
    /// This one does. `None` if there is no leader just now and another process has the first turn: campaign again.
    Follower(Option<Holder>),
}

/// Being the leader, kept alive like a [`Guard`]. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership(Guard);

impl Leases {
    /// An election in which `candidate` can stand; all who stand in it name the same key. A leader that dies is
    /// followed by another one `ttl` and [`max_clock_skew`](crate::store::SharedSettings::max_clock_skew) after its last
    /// sign of life.
    pub fn election<K>(&self, name: K, candidate: impl Into<String>, ttl: Duration) -> Result<Election>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let key = name.try_into().map_err(Into::into)?;
        Ok(Election { leases: self.clone(), key, request: Request::new(ttl).owner(candidate) })
    }
}

/// An election whose leader leads for as long as the session of these leases lives.
pub(crate) fn election_under<K>(leases: Leases, name: K, candidate: impl Into<String>) -> Result<Election>
where
    K: TryInto<Key>,
    K::Error: Into<Error>,
{
    let key = name.try_into().map_err(Into::into)?;
    Ok(Election { leases, key, request: Request::default().owner(candidate) })
}

impl Election {
    /// A word to those who follow, such as the address at which the leader is reached; up to 4 KiB.
    #[must_use]
    pub fn note(mut self, note: impl Into<Bytes>) -> Self {
        self.request = self.request.note(note);
        self
    }

    /// The key that the candidates compete for.
    pub fn name(&self) -> &Key {
        &self.key
    }

    /// Tries to become the leader, for at most `wait`; once, if that is zero.
    pub async fn campaign(&self, wait: Duration) -> Result<Campaign> {
        Ok(match self.leases.lock_within(&self.key, &self.request, wait).await? {
            Locked::Granted(guard) => Campaign::Leader(Leadership(guard)),
            Locked::Held(held) => Campaign::Follower(held.by),
        })
    }

    /// Who leads now. One read, no activity.
    pub async fn leader(&self) -> Result<Option<Holder>> {
        Ok(self.leases.peek(&self.key).await?.holder)
    }

    /// Yields the current leader (or `None`), and then every change. Renewals by the same leader are not reported.
    ///
    /// Looks and fails as [`Leases::watch`] does: a leader who comes and goes between two looks is missed, and after an
    /// error the current leader is reported again.
    pub fn observe(&self) -> Leaders {
        Leaders { watch: self.leases.watch(&self.key), told: None }
    }
}

/// The leaders of an election, one after another; made by [`Election::observe`]. Dropping it ends the observing.
#[derive(Debug)]
#[must_use = "streams do nothing unless they are polled"]
pub struct Leaders {
    watch: Watch,
    /// Which lease led when it was last said; nothing if that was an error.
    told: Option<Option<LeaseId>>,
}

impl Stream for Leaders {
    type Item = Result<Option<Holder>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(seen) = ready!(self.watch.poll_next_unpin(context)) else { return Poll::Ready(None) };
            let leader = seen.map(|status| status.holder);
            let now = leader.as_ref().ok().map(|leader| leader.as_ref().map(|leader| leader.lease_id));
            let news = now.is_none() || self.told != now;
            self.told = now;
            if news {
                return Poll::Ready(Some(leader));
            }
        }
    }
}

impl Leadership {
    /// Rises with every new leader: hand it to whatever is led, and let that refuse lower ones than it has seen.
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// Whether this process may still believe that it leads; see [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// The fence, if this process may still believe that it leads; see [`Guard::check`].
    pub fn check(&self) -> Result<Fence> {
        self.0.check()
    }

    /// Runs `work` for as long as this process leads; see [`Guard::run`].
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        self.0.run(work).await
    }

    /// Resolves when leadership is lost, with what is known about it.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// Cancelled when leadership is lost: for code that stops by a token.
    pub fn cancellation(&self) -> CancellationToken {
        self.0.cancellation()
    }

    /// The lease behind it, as it stands.
    pub fn grant(&self) -> Grant {
        self.0.grant()
    }

    /// Steps down, so that another one can lead at once; see [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        self.0.release().await
    }
}
