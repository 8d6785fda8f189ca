//! Watching a key: by reading it now and then, less often while nothing happens, and when its lease should have ended.

use super::{Leases, ended::Watched, types::Status};
use crate::{Key, Result, generator::GeneratorExt};
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

/// How much slower than at its slowest a watch becomes while the store does not answer.
const SLOWER: u32 = 8;

impl Leases {
    /// What there is on a key, and then every change of it: of its holder, its fence or its expiry. A lease that runs
    /// out is told of when it has ended for others: by [`max_clock_skew`](crate::store::SharedSettings::max_clock_skew) after
    /// its expiry.
    ///
    /// Reads only, like [`peek`](Self::peek), and is no activity. It looks again after
    /// [`poll_interval`](crate::Settings::poll_interval), less and less often while nothing changes, down to
    /// [`max_poll_interval`](crate::Settings::max_poll_interval), and at the known expiry. So what comes and goes between
    /// two looks is missed; the fence still shows that it was there.
    ///
    /// If the store is unavailable, the stream yields one error, polls less often, and yields the current status once the
    /// store has recovered. Any other error is the last item.
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use leasehold::{Key, Store};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let leases = Store::open("memory://").await?.leases("default")?;
    /// let key = Key::new("orders/42")?;
    /// let mut changes = leases.watch(&key);
    /// assert!(changes.next().await.unwrap()?.holder.is_none());
    ///
    /// let guard = leases.lock(&key).owner("me").await?;
    /// assert_eq!(changes.next().await.unwrap()?.holder.unwrap().fence, guard.fence());
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch(&self, key: &Key) -> Watch {
        let interval = self.engine.settings.poll_interval;
        let (leases, key) = (self.clone(), key.clone());
        let watching = Watching { leases, key, told: None, interval, pause: None, state: State::Well, watched: None };
        let changes = stream::unfold(watching, |mut watching| async move {
            let item = watching.next().await?;
            Some((item, watching))
        });
        Watch(changes.boxed())
    }
}

/// What there is on a key, and then every change of it; made by [`Leases::watch`]. Dropping it ends the watching.
#[must_use = "streams do nothing unless they are polled"]
pub struct Watch(BoxStream<'static, Result<Status>>);

impl Stream for Watch {
    type Item = Result<Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

struct Watching {
    leases: Leases,
    key: Key,
    /// What was told last; nothing if that was an error.
    told: Option<Status>,
    interval: Duration,
    /// Before the next look.
    pause: Option<Duration>,
    state: State,
    /// The beat that is there, and since when: what does nothing for long enough has ended, whatever clocks say.
    watched: Option<Watched>,
}

#[derive(PartialEq, Eq)]
enum State {
    Well,
    Failing,
    Ended,
}

impl Watching {
    async fn next(&mut self) -> Option<Result<Status>> {
        while self.state != State::Ended {
            if let Some(pause) = self.pause.take() {
                self.leases.engine.backend.clock.sleep(pause).await;
            }
            let settings = &self.leases.engine.settings;
            let (fast, slow) = (settings.poll_interval, settings.max_poll_interval);
            match self.leases.peek_watched(&self.key, self.watched).await {
                Ok((status, beat)) => {
                    self.watched = beat.map(|beat| beat.or_since(self.watched));
                    self.state = State::Well;
                    let news = self.told.as_ref().is_none_or(|told| differs(told, &status));
                    self.interval = if news { fast } else { (self.interval * 3 / 2).min(slow) };
                    self.pause = Some(self.until_next(Some(&status)));
                    if news {
                        self.told = Some(status.clone());
                        return Some(Ok(status));
                    }
                }
                Err(error) if error.is_retryable() => {
                    self.told = None;
                    self.interval = self.interval.saturating_mul(2).clamp(slow, slow.saturating_mul(SLOWER));
                    self.pause = Some(self.until_next(None));
                    if mem::replace(&mut self.state, State::Failing) != State::Failing {
                        return Some(Err(error));
                    }
                }
                Err(error) => {
                    self.state = State::Ended;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// With jitter, so that those who watch one key do not all read it at once; not far beyond the end of its lease.
    fn until_next(&self, status: Option<&Status>) -> Duration {
        let engine = &self.leases.engine;
        let jittered = engine.backend.generator.between(self.interval / 2, self.interval);
        let held = status.is_some_and(|status| status.holder.is_some());
        match self.watched.filter(|_| held) {
            Some(watched) => {
                let soonest = engine.settings.poll_interval;
                let spread = engine.backend.generator.between(Duration::ZERO, soonest);
                jittered.min(watched.left(engine.now().moment).max(soonest).saturating_add(spread))
            }
            None => jittered,
        }
    }
}

/// A waiting mark, or a write that changed nothing else, is no news.
fn differs(one: &Status, other: &Status) -> bool {
    (&one.holder, one.last_fence) != (&other.holder, other.last_fence)
}
