//! Dead letters: kept with all that they were, put back once, and given up only when that is asked for.

use super::shared::{World, jobs, one, work_down};
use crate::common::calm;
use leasehold::{
    Queue,
    job::{AttemptEnd, DeadFilter, DeadReason, JobChange, JobState, NewJob},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;

/// Buries all that is due.
async fn bury(queue: &Queue) {
    loop {
        let claimed = queue.claim(100).await.unwrap();
        if claimed.is_empty() {
            break;
        }
        for job in claimed {
            assert_eq!(job.fail_for_good("no such address").await.unwrap(), AttemptEnd::Dead);
        }
    }
    calm().await;
}

#[tokio::test]
async fn a_dead_letter_has_all_that_the_job_was_and_why_it_is_dead() {
    let world = World::new();
    let queue = world.queue(1).await;
    let job =
        NewJob::new("args").part("state", "s").kind("mail").tenant("t").key("k").caller_id("mine").max_attempts(2);
    let id = queue.enqueue(job).await.unwrap();
    for _ in 0..2 {
        assert!(one(&queue).await.fail("mailbox full").await.unwrap().is_accepted());
        world.pass(Duration::from_secs(3)).await;
    }
    let dead = world.queue(2).await.dead().get(id).await.unwrap().unwrap();
    let letter = &dead.letter;
    assert_eq!((letter.id, letter.reason, letter.error.as_str()), (Some(id), DeadReason::Exhausted, "mailbox full"));
    assert_eq!((letter.attempts, letter.kind.as_deref(), letter.tenant.as_deref()), (2, Some("mail"), Some("t")));
    assert_eq!((letter.key.as_deref(), letter.caller_id.as_deref()), (Some("k"), Some("mine")));
    assert_eq!(dead.parts["args"], "args");
    assert_eq!(dead.parts["state"], "s");
    assert_eq!(queue.dead().list().await.unwrap().letters, std::slice::from_ref(letter));
    assert!(queue.dead().get(queue.enqueue("other").await.unwrap()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_redriven_job_runs_once_with_its_id_and_a_higher_fence() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue(NewJob::new("x").part("state", "s").kind("mail")).await.unwrap();
    let job = one(&queue).await;
    let fence = job.fence();
    assert_eq!(job.fail_for_good("no").await.unwrap(), AttemptEnd::Dead);
    calm().await;
    let other = world.queue(2).await;
    let would = other.dead().redrive(id).dry_run(true).await.unwrap();
    assert_eq!((would.jobs, would.dry_run), (1, true));
    assert_eq!(other.dead().redrive(id).await.unwrap().jobs, 1);
    assert_eq!(other.dead().redrive(id).await.unwrap().jobs, 0, "there is none any more");
    assert_eq!(other.get(id).await.unwrap().unwrap().state, JobState::Available, "it is found by its id");
    let job = one(&queue).await;
    assert_eq!((job.id(), job.attempt(), job.kind()), (id, 1, Some("mail")), "its attempts are forgotten");
    assert_eq!(job.loaded_part("state").as_deref(), Some(&b"s"[..]));
    assert!(job.fence() > fence);
    assert!(job.finish().await.unwrap().is_accepted());
    calm().await;
    assert!(work_down(&queue).await.is_empty());
    assert_eq!((world.names("/dead/").len(), world.names("/seg/").len()), (0, 0), "nothing is left behind");
}

#[tokio::test]
async fn of_two_that_redrive_the_same_at_once_one_does() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    queue.enqueue_many(jobs(40)).await.unwrap();
    bury(&queue).await;
    let (dead, too) = (queue.dead(), other.dead());
    let (mine, theirs) =
        tokio::join!(async { dead.redrive(DeadFilter::all()).await }, async { too.redrive(DeadFilter::all()).await });
    assert_eq!(mine.unwrap().jobs + theirs.unwrap().jobs, 40);
    let mut run = work_down(&queue).await;
    run.sort();
    run.dedup();
    assert_eq!(run.len(), 40, "each once");
    assert!(work_down(&other).await.is_empty());
}

#[tokio::test]
async fn a_lost_answer_to_a_redrive_puts_nothing_back_twice() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(3)).await.unwrap();
    bury(&queue).await;
    world.fault(Rule::once(Op::Put, Fault::Lose(Answer::Status(500))).on("ledger/"));
    let first = queue.dead().redrive(DeadFilter::all()).await;
    let again = world.queue(2).await.dead().redrive(DeadFilter::all()).await.unwrap();
    assert_eq!(again.jobs, 0, "{first:?}");
    assert_eq!(work_down(&queue).await.len(), 3);
}

#[tokio::test]
async fn one_of_an_object_is_redriven_and_the_others_stay_dead() {
    let world = World::new();
    let queue = world.queue(1).await;
    let ids = queue.enqueue_many(jobs(5)).await.unwrap();
    let claimed = queue.claim(5).await.unwrap();
    // One commit buries them, so they are in one object.
    let ends = claimed.into_iter().map(|job| job.fail_for_good("no"));
    for end in futures_util::future::join_all(ends.map(IntoFuture::into_future)).await {
        assert_eq!(end.unwrap(), AttemptEnd::Dead);
    }
    calm().await;
    let objects = world.names("/dead/").len();
    assert_eq!(queue.retry(ids[3]).await.unwrap(), JobChange::Done);
    assert_eq!(queue.depth().await.unwrap().dead, 4);
    assert_eq!(queue.dead().list().await.unwrap().letters.len(), 4);
    assert_eq!(queue.retry(ids[3]).await.unwrap(), JobChange::Unchanged, "it is due");
    assert_eq!(work_down(&queue).await, ["job 3"]);
    assert_eq!(queue.retry(ids[3]).await.unwrap(), JobChange::NotFound);
    assert_eq!(world.names("/dead/").len(), objects);
    assert_eq!(queue.dead().purge(ids[0]).await.unwrap().jobs, 1);
    assert_eq!(queue.dead().purge(DeadFilter::all()).dry_run(true).await.unwrap().jobs, 3);
    assert_eq!(queue.dead().purge(DeadFilter::all()).await.unwrap().jobs, 3);
    assert_eq!(world.names("/dead/"), Vec::<String>::new());
    assert_eq!(queue.dead().redrive(DeadFilter::all()).await.unwrap().jobs, 0);
}

#[tokio::test]
async fn filters_choose_and_pages_show_each_letter_once() {
    let world = World::new();
    let queue = world.queue(1).await;
    for number in 0..12 {
        let kind = if number % 3 == 0 { "mail" } else { "sms" };
        queue.enqueue(NewJob::new(format!("{kind} {number}")).kind(kind)).await.unwrap();
    }
    bury(&queue).await;
    let (mut shown, mut next) = (Vec::new(), None);
    loop {
        let page = queue.dead().list().limit(5).after(next).await.unwrap();
        assert!(page.letters.len() <= 5);
        shown.extend(page.letters.into_iter().filter_map(|letter| letter.id));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    shown.sort();
    shown.dedup();
    assert_eq!(shown.len(), 12);
    assert!(queue.dead().list().after("0-nonsense".to_owned()).await.is_err());
    let mail = || DeadFilter::all().kind("mail");
    assert_eq!(queue.dead().list().filter(mail()).await.unwrap().letters.len(), 4);
    assert_eq!(queue.dead().redrive(mail()).limit(3).await.unwrap().jobs, 3);
    assert_eq!(queue.dead().purge(mail()).await.unwrap().jobs, 1);
    assert_eq!(queue.dead().redrive(mail().reason(DeadReason::Stalled)).await.unwrap().jobs, 0);
    assert_eq!(queue.depth().await.unwrap().dead, 8);
    assert!(work_down(&queue).await.iter().all(|args| args.starts_with("mail")));
}

#[tokio::test]
async fn a_rate_spreads_a_redrive_without_anybody_staying_for_it() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(30)).await.unwrap();
    bury(&queue).await;
    assert_eq!(queue.dead().redrive(DeadFilter::all()).per_second(10).await.unwrap().jobs, 30);
    let other = world.queue(2).await;
    let first = work_down(&other).await.len();
    assert!((1..=2).contains(&first), "{first}");
    world.pass(Duration::from_secs(1)).await;
    let second = work_down(&other).await.len();
    assert!((9..=11).contains(&second), "{second}");
    world.pass(Duration::from_secs(3)).await;
    assert_eq!(first + second + work_down(&other).await.len(), 30);
}

#[tokio::test]
async fn a_unique_key_that_is_taken_again_keeps_its_dead_job_dead() {
    let world = World::new();
    let queue = world.queue(1).await;
    let job = || NewJob::new("x").unique_key("order 7");
    queue.enqueue(job()).await.unwrap();
    bury(&queue).await;
    queue.enqueue(job()).await.unwrap();
    let running = one(&queue).await;
    let redriven = queue.dead().redrive(DeadFilter::all()).await.unwrap();
    assert_eq!((redriven.jobs, redriven.left), (0, 1));
    assert!(running.finish().await.unwrap().is_accepted());
    assert_eq!(queue.dead().redrive(DeadFilter::all()).await.unwrap().jobs, 1);
    assert_eq!(work_down(&queue).await, ["x"]);
    calm().await;
    assert_eq!(world.names("/seg/"), Vec::<String>::new(), "what was written in vain is deleted too");
}
