//! What an operator sees of a queue, and does to it.

use super::shared::{World, jobs, one, work_down};
use crate::common::calm;
use leasehold::{
    Clock, ErrorKind,
    job::{Backoff, JobChange, JobState, KindSettings, NewJob, QueueSettings},
};
use std::time::Duration;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn depth_counts_every_state_and_says_what_is_exact() {
    let world = World::new();
    let queue = world.queue(1).await;
    assert!(queue.depth().await.unwrap().is_exact());
    queue.enqueue_many(jobs(5)).await.unwrap();
    queue.enqueue(NewJob::new("soon").due_in(seconds(1800))).await.unwrap();
    queue.enqueue(NewJob::new("late").due_in(seconds(7200))).await.unwrap();
    let depth = queue.depth().await.unwrap();
    assert_eq!((depth.available, depth.scheduled, depth.scheduled_next_hour), (5, 2, 1), "from the inbox alone");
    let mut claimed = queue.claim(3).await.unwrap();
    assert!(claimed.remove(0).fail("again").await.unwrap().is_accepted());
    assert!(claimed.remove(0).fail_for_good("never").await.unwrap().is_accepted());
    calm().await;
    let depth = queue.depth().await.unwrap();
    assert_eq!((depth.available, depth.running, depth.retrying, depth.dead), (2, 1, 1, 1));
    assert!(depth.dead_bytes > 0 && depth.is_exact(), "{depth:?}");
    let now = world.0.clock.wall();
    assert!(depth.next_due.unwrap() > now && depth.next_due.unwrap() < now.plus(seconds(2)), "the retry");
    world.pass(seconds(10)).await;
    let depth = queue.depth().await.unwrap();
    assert!(depth.oldest_age >= seconds(10) && depth.oldest_age < seconds(12), "{:?}", depth.oldest_age);
    assert_eq!((depth.available, depth.load()), (3, 4), "what is due later and dead letters are no load");
}

#[tokio::test]
async fn what_runs_is_listed_with_its_owner_since_when_and_its_fence() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(3)).await.unwrap();
    queue.enqueue(NewJob::new("later").kind("k").tenant("t").due_in(seconds(7200))).await.unwrap();
    let job = one(&queue).await;
    let other = world.queue(2).await;
    let running = other.list(JobState::Running).await.unwrap().jobs;
    assert_eq!((running.len(), running[0].id), (1, job.id()));
    assert_eq!((running[0].owner.as_deref(), running[0].fence), (Some("process-1"), Some(job.fence())));
    assert!(running[0].running_since.is_some());
    assert_eq!(other.list(JobState::Available).await.unwrap().jobs.len(), 2);
    let scheduled = other.list(JobState::Scheduled).await.unwrap().jobs;
    assert_eq!((scheduled[0].kind.as_deref(), scheduled[0].tenant.as_deref()), (Some("k"), Some("t")));
    assert!(job.fail("no").await.unwrap().is_accepted());
    let retrying = other.list(JobState::Retrying).await.unwrap().jobs;
    assert_eq!((retrying.len(), retrying[0].last_error.as_deref()), (1, Some("no")));
    let error = other.list(JobState::Finished).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn pages_of_jobs_show_each_once_wherever_it_waits() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.update_settings(|settings| settings.shards = 3).await.unwrap();
    let mut ids = std::collections::BTreeSet::new();
    for round in 0..6 {
        ids.extend(queue.enqueue_many(jobs(7)).await.unwrap());
        if round == 2 {
            // Some are in ledgers now, the others stay in the inbox.
            for job in queue.claim(2).await.unwrap() {
                assert!(job.release().await.unwrap().is_accepted());
            }
        }
    }
    for limit in [1, 5, 1000] {
        let (mut shown, mut next, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = queue.list(JobState::Available).limit(limit).after(next).await.unwrap();
            assert!(page.jobs.len() <= limit);
            shown.extend(page.jobs.iter().map(|job| job.id));
            next = page.next;
            pages += 1;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(shown.len(), 42, "{pages} pages of {limit}");
        assert_eq!(shown.into_iter().collect::<std::collections::BTreeSet<_>>(), ids);
    }
    assert!(queue.list(JobState::Available).after("nonsense".to_owned()).await.is_err());
}

#[tokio::test]
async fn a_pause_holds_for_every_process_and_ends_when_it_is_told_to() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    queue.enqueue_many(jobs(2)).await.unwrap();
    assert_eq!(other.claim(1).await.unwrap().len(), 1, "both know the queue, and the job goes back at once");
    calm().await;
    queue.pause().await.unwrap();
    assert!(other.claim(1).await.unwrap().is_empty());
    assert!(other.depth().await.unwrap().queue_paused);
    queue.resume().await.unwrap();
    assert_eq!(queue.claim(1).await.unwrap().len(), 1, "at once where it was resumed");
    calm().await;
    world.0.clock.advance(seconds(61));
    assert_eq!(
        other.claim(1).await.unwrap().len(),
        1,
        "within a minute elsewhere: a paused queue costs next to nothing"
    );
    calm().await;
    queue.pause_until(world.0.clock.wall().plus(seconds(60))).await.unwrap();
    assert!(other.claim(1).await.unwrap().is_empty());
    world.0.clock.advance(seconds(61));
    assert_eq!(other.claim(2).await.unwrap().len(), 2, "by itself");
}

#[tokio::test]
async fn one_job_is_held_back_wherever_it_waits_and_goes_on() {
    let world = World::new();
    let queue = world.queue(1).await;
    let ids = queue.enqueue_many(jobs(3)).await.unwrap();
    let later = queue.enqueue(NewJob::new("later").due_in(seconds(7200))).await.unwrap();
    assert_eq!(queue.pause_job(ids[1]).await.unwrap(), JobChange::Done, "in the inbox");
    assert_eq!(queue.pause_job(ids[1]).await.unwrap(), JobChange::Unchanged);
    assert_eq!(queue.pause_job(later).await.unwrap(), JobChange::Done, "due in two hours");
    assert_eq!(queue.get(later).await.unwrap().unwrap().state, JobState::Paused);
    assert_eq!(queue.depth().await.unwrap().paused, 2);
    let job = one(&queue).await;
    assert_eq!(queue.pause_job(job.id()).await.unwrap(), JobChange::Running);
    assert!(job.finish().await.unwrap().is_accepted());
    assert_eq!(work_down(&queue).await, ["job 2"]);
    assert_eq!(queue.resume_job(ids[1]).await.unwrap(), JobChange::Done);
    assert_eq!(work_down(&queue).await, ["job 1"]);
    assert_eq!(queue.pause_job(ids[1]).await.unwrap(), JobChange::AlreadyEnded);
    world.0.clock.advance(seconds(7300));
    assert!(work_down(&queue).await.is_empty(), "still held back");
    assert_eq!(queue.resume_job(later).await.unwrap(), JobChange::Done);
    assert_eq!(work_down(&queue).await, ["later"]);
}

#[tokio::test]
async fn a_retry_and_a_scheduled_job_run_now_when_asked() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue("x").await.unwrap();
    assert!(one(&queue).await.fail("no").await.unwrap().is_accepted());
    let later = queue.enqueue(NewJob::new("later").due_in(seconds(7200))).await.unwrap();
    assert!(work_down(&queue).await.is_empty());
    assert_eq!(queue.retry(id).await.unwrap(), JobChange::Done);
    let job = one(&queue).await;
    assert_eq!((job.id(), job.attempt()), (id, 2), "its attempts still count");
    assert!(job.finish().await.unwrap().is_accepted());
    assert_eq!(queue.retry(later).await.unwrap(), JobChange::Done);
    assert_eq!(work_down(&queue).await, ["later"]);
    assert_eq!(queue.retry(later).await.unwrap(), JobChange::NotFound);
}

#[tokio::test]
async fn a_purge_ends_what_waits_and_leaves_what_runs() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(10)).await.unwrap();
    let mut claimed = queue.claim(3).await.unwrap();
    let running = claimed.remove(0);
    assert!(claimed.remove(0).fail("again").await.unwrap().is_accepted());
    assert!(claimed.remove(0).fail_for_good("dead").await.unwrap().is_accepted());
    queue.enqueue_many(jobs(4)).await.unwrap();
    queue.enqueue(NewJob::new("later").due_in(seconds(7200))).await.unwrap();
    calm().await;
    let waiting = 7 + 1 + 4 + 1;
    let would = queue.purge().dry_run(true).await.unwrap();
    assert_eq!((would.jobs, would.dry_run), (waiting, true));
    assert_eq!(queue.purge().await.unwrap().jobs, waiting);
    assert_eq!(queue.purge().await.unwrap().jobs, 0);
    let depth = queue.depth().await.unwrap();
    assert_eq!((depth.load(), depth.running, depth.scheduled, depth.dead), (1, 1, 0, 1));
    assert!(running.finish().await.unwrap().is_accepted());
    calm().await;
    assert_eq!((world.names("/in/").len(), world.names("/at/").len()), (0, 0), "its segments are deleted");
    queue.enqueue("new").await.unwrap();
    assert_eq!(work_down(&queue).await, ["new"]);
}

#[tokio::test]
async fn a_kinds_values_come_before_the_queues_and_a_jobs_own_before_both() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue
        .update_settings(|settings| {
            let mail = KindSettings {
                max_attempts: Some(2),
                backoff: Some(Backoff::fixed(seconds(100)).jitter(0)),
                dead_retention: Some(seconds(3600)),
                timeout: Some(seconds(9)),
                ..KindSettings::default()
            };
            settings.kinds.insert("mail".to_owned(), mail);
        })
        .await
        .unwrap();
    let settings = queue.settings().await.unwrap();
    assert_eq!((settings.timeout_of(Some("mail")), settings.timeout_of(None)), (Some(seconds(9)), None));
    let mail = queue.enqueue(NewJob::new("mail").kind("mail")).await.unwrap();
    assert!(one(&queue).await.fail("no").await.unwrap().is_accepted());
    world.pass(seconds(99)).await;
    assert!(queue.claim(1).await.unwrap().is_empty(), "the kind's backoff");
    world.pass(seconds(2)).await;
    assert!(one(&queue).await.fail("no").await.unwrap().is_accepted());
    calm().await;
    let letter = queue.dead().get(mail).await.unwrap().unwrap().letter;
    let kept = letter.kept_until.since(world.0.clock.wall());
    assert!(kept <= seconds(2 * 3600), "the kind's retention: {kept:?}");
    queue.enqueue(NewJob::new("own").kind("mail").max_attempts(1)).await.unwrap();
    assert_eq!(one(&queue).await.fail("no").await.unwrap(), leasehold::job::AttemptEnd::Dead);
}

#[tokio::test]
async fn two_that_change_different_settings_at_once_both_have_their_way() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    other.settings().await.unwrap();
    queue.update_settings(|settings| settings.max_attempts = 7).await.unwrap();
    other.update_settings(|settings| settings.max_stalls = 9).await.unwrap();
    let now = world.queue(3).await.settings().await.unwrap();
    assert_eq!((now.max_attempts, now.max_stalls), (7, 9));
    let error = queue.change_settings(QueueSettings { shards: 0, ..now }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn the_queues_of_a_namespace_are_listed_by_the_names_that_they_have() {
    let world = World::new();
    let store = world.process(1).await;
    for name in ["emails", "a/b c", "Zahlen-ß", "..", "x%2Fy"] {
        store.queue(name).unwrap().enqueue("x").await.unwrap();
    }
    let mut names = store.queues("default").unwrap().list().await.unwrap();
    names.sort();
    assert_eq!(names, ["..", "Zahlen-ß", "a/b c", "emails", "x%2Fy"]);
    assert!(store.queues("other").unwrap().list().await.unwrap().is_empty());
}
