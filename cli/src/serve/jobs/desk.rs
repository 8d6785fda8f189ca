//! Where those wait who want jobs of one queue: one claim is made for all of them, so that what the queue costs does not
//! depend on how many wait, and an enqueue through this service wakes it at once.

use super::{super::App, QueueName};
use crate::wire::Problem;
use leasehold::{
    Clock,
    job::{Job, Queue},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// How many jobs are claimed at once for all who wait.
const MOST: u32 = 1000;

/// How long one claim of the library waits before it is made again.
const WAIT: Duration = Duration::from_secs(300);

/// The desks at which somebody waits.
#[derive(Debug, Default)]
pub(in super::super) struct Desks(Mutex<HashMap<QueueName, Arc<Desk>>>);

/// Those who wait for jobs of one queue, in the order in which they came.
#[derive(Debug, Default)]
struct Desk {
    line: Mutex<VecDeque<Waiter>>,
    /// Somebody has gone.
    left: Notify,
}

#[derive(Debug)]
struct Waiter {
    most: u32,
    given: oneshot::Sender<Result<Vec<Job>, Problem>>,
}

impl Desk {
    fn line(&self) -> MutexGuard<'_, VecDeque<Waiter>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many jobs those want who are still here.
    fn wanted(&self) -> u32 {
        let mut line = self.line();
        line.retain(|waiter| !waiter.given.is_closed());
        line.iter().fold(0, |sum: u32, waiter| sum.saturating_add(waiter.most)).min(MOST)
    }

    /// Deals jobs out, one each in turn. Those for whom nobody waits any more are dropped, and go back to the queue.
    fn deal(&self, jobs: Vec<Job>) {
        let mut jobs = VecDeque::from(jobs);
        while !jobs.is_empty() {
            let waiters: Vec<Waiter> = {
                let mut line = self.line();
                line.retain(|waiter| !waiter.given.is_closed());
                let count = jobs.len().min(line.len());
                line.drain(..count).collect()
            };
            if waiters.is_empty() {
                return;
            }
            let shares = shares(jobs.len(), &waiters.iter().map(|waiter| waiter.most).collect::<Vec<_>>());
            for (waiter, share) in waiters.into_iter().zip(shares) {
                let given: Vec<Job> = jobs.drain(..share).collect();
                // One who left at this moment leaves them for the next.
                if let Err(Ok(back)) = waiter.given.send(Ok(given)) {
                    jobs.extend(back);
                }
            }
        }
    }

    fn fail(&self, problem: &Problem) {
        for waiter in self.line().drain(..) {
            // Who has gone need not be told.
            drop(waiter.given.send(Err(problem.clone())));
        }
    }
}

/// How many of `jobs` each gets who wants so many: one more each in turn.
fn shares(jobs: usize, wanted: &[u32]) -> Vec<usize> {
    let mut shares = vec![0; wanted.len()];
    let mut left = jobs;
    loop {
        let mut given = false;
        for (share, wanted) in shares.iter_mut().zip(wanted) {
            if left > 0 && *share < *wanted as usize {
                *share += 1;
                left -= 1;
                given = true;
            }
        }
        if !given {
            return shares;
        }
    }
}

/// Tells the desk when whoever waited is gone, for whatever reason.
struct Here(Arc<Desk>);

impl Drop for Here {
    fn drop(&mut self) {
        self.0.left.notify_one();
    }
}

impl Desks {
    fn all(&self) -> MutexGuard<'_, HashMap<QueueName, Arc<Desk>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait for jobs of a queue.
    pub(in super::super) fn waiting(&self, name: &QueueName) -> usize {
        let all = self.all();
        all.get(name).map_or(0, |desk| desk.line().iter().filter(|waiter| !waiter.given.is_closed()).count())
    }

    /// Joins the line at a desk; whether it was made for that.
    fn join(&self, name: &QueueName, waiter: Waiter) -> (Arc<Desk>, bool) {
        let mut all = self.all();
        let made = !all.contains_key(name);
        let desk = Arc::clone(all.entry(name.clone()).or_default());
        desk.line().push_back(waiter);
        (desk, made)
    }

    /// Closes a desk at which nobody waits.
    fn close(&self, name: &QueueName, desk: &Desk) -> bool {
        let mut all = self.all();
        let nobody = desk.wanted() == 0;
        if nobody {
            all.remove(name);
        }
        nobody
    }
}

/// Waits for up to `most` jobs for as long as that; none if there were none.
pub(super) async fn wait(
    app: &App,
    name: &QueueName,
    queue: &Queue,
    most: u32,
    wait: Duration,
) -> Result<Vec<Job>, Problem> {
    let (given, mut told) = oneshot::channel();
    let (desk, made) = app.work.desks.join(name, Waiter { most, given });
    let _here = Here(Arc::clone(&desk));
    if made {
        app.tasks.spawn(attend(app.clone(), name.clone(), queue.clone(), desk));
    }
    tokio::select! {
        biased;
        told = &mut told => told.unwrap_or_else(|_| Err(Problem::draining())),
        () = app.draining.cancelled() => Err(Problem::draining()),
        () = app.clock.sleep(wait) => {
            // Nobody can be told after this; what was told just before counts.
            told.close();
            told.try_recv().unwrap_or_else(|_| Ok(Vec::new()))
        }
    }
}

/// Claims for all who wait at a desk, until nobody does.
async fn attend(app: App, name: QueueName, queue: Queue, desk: Arc<Desk>) {
    loop {
        let wanted = desk.wanted();
        if wanted == 0 {
            if app.work.desks.close(&name, &desk) {
                return;
            }
            continue;
        }
        let mut claim = queue.claim(wanted).within(WAIT).into_future();
        let claimed = loop {
            tokio::select! {
                biased;
                claimed = &mut claim => break Some(claimed),
                () = app.draining.cancelled() => break None,
                // Dropped, the claim takes nothing.
                () = desk.left.notified() => if desk.wanted() == 0 { break None },
            }
        };
        match claimed {
            Some(Ok(jobs)) => desk.deal(jobs),
            Some(Err(error)) => desk.fail(&Problem::from(error)),
            None if app.draining.is_cancelled() => desk.fail(&Problem::draining()),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_dealt_in_turn_and_nobody_gets_more_than_it_wants() {
        for (jobs, wanted, dealt) in [
            (3, &[10, 10][..], &[2, 1][..]),
            (2, &[1, 1, 1], &[1, 1, 0]),
            (7, &[1, 10, 2], &[1, 4, 2]),
            (9, &[2, 2], &[2, 2]),
            (0, &[5], &[0]),
        ] {
            assert_eq!(shares(jobs, wanted), dealt, "{jobs} for {wanted:?}");
        }
    }
}
