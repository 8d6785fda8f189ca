//! What was acknowledged is in the log, once and in its place, whatever became of answers and processes.

use super::{HOUR, LOG, an_hour, dated_process, drafts, everything, publish, segments};
use crate::processes::{World, start};
use leasehold::{
    ErrorKind,
    clock::Clock,
    stream::{Draft, MessageId, Position, StreamSettings},
    testkit::{Answer, Fault, Op, Rule, TestClock},
};
use std::{collections::BTreeSet, time::Duration};

#[tokio::test]
async fn messages_come_back_in_order_with_all_that_they_say() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    let id: MessageId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
    let draft = Draft::new("events.login", "{}").key("alice").trace_id("t1").id(id).time(world.clock.wall());
    let published = stream.publish_draft(draft).await.unwrap();
    assert_eq!((published.id, published.partition, published.offset), (id, 0, 0));
    stream.publish_many(drafts(["b", "c"])).await.unwrap();
    let mut reader = stream.read(Position::Earliest).await.unwrap();
    let batch = reader.next().await.unwrap().unwrap();
    let message = &batch.messages[0];
    assert_eq!(
        (message.subject.as_str(), message.key.as_deref(), message.trace_id.as_deref()),
        ("events.login", Some("alice"), Some("t1"))
    );
    assert_eq!((message.time, message.id, message.offset), (world.clock.wall(), id, 0));
    let batch = reader.next().await.unwrap().unwrap();
    assert_eq!(batch.messages.iter().map(|message| message.offset).collect::<Vec<_>>(), [1, 2]);
    assert!(reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn what_arrives_while_a_segment_is_under_way_goes_into_the_next_one() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    publish(&stream, "first").await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(1))).on(LOG));
    let publishing: Vec<_> = (0..50)
        .map(|n| {
            tokio::spawn({
                let stream = stream.clone();
                async move { publish(&stream, &n.to_string()).await }
            })
        })
        .collect();
    world.clock.wait_for_sleepers(1).await;
    crate::processes::settle().await;
    world.clock.advance(Duration::from_secs(1));
    let mut offsets = BTreeSet::new();
    for publishing in publishing {
        offsets.insert(publishing.await.unwrap());
    }
    assert_eq!(offsets, (1..51).collect());
    assert_eq!(segments(&world).len(), 3, "one that was under way, and one for all others");
}

#[tokio::test]
async fn two_processes_that_race_both_append_and_leave_no_gap() {
    let world = World::new();
    let (one, other) = (world.process().await, world.process().await);
    let (one, other) = (one.store.stream("events").unwrap(), other.store.stream("events").unwrap());
    for round in 0..5 {
        publish(&one, &format!("one {round}")).await;
        publish(&other, &format!("other {round}")).await;
    }
    let all = everything(&one).await;
    assert_eq!(all.len(), 10);
    assert_eq!(all, everything(&other).await);
}

#[tokio::test]
async fn a_lost_answer_is_recognised_as_our_own_append() {
    for fault in [
        Fault::Lose(Answer::Status(500)),
        Fault::Lose(Answer::Drop),
        Fault::Duplicate,
        Fault::Refuse(Answer::Status(409)),
    ] {
        let world = World::new();
        let stream = world.process().await.store.stream("events").unwrap();
        publish(&stream, "a").await;
        world.objects.faults().script(Rule::once(Op::Put, fault).on(LOG));
        assert_eq!(publish(&stream, "b").await, 1);
        assert_eq!(publish(&stream, "c").await, 2);
        assert_eq!(everything(&stream).await, ["a", "b", "c"], "{fault:?}");
    }
}

#[tokio::test]
async fn an_append_that_cannot_be_settled_is_unknown_and_may_land_later() {
    let world = World::new();
    let process = world.process().await;
    let stream = process.store.stream("events").unwrap();
    publish(&stream, "a").await;
    let late = Fault::Late(Duration::from_secs(300), Answer::Status(500));
    world.objects.faults().script(Rule::once(Op::Put, late).on(LOG));
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(500))).on(LOG));
    let error =
        crate::processes::moving(&[&world.clock], Duration::from_secs(1), stream.publish("s", "b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    world.objects.faults().clear();
    // Another one takes the number first: what lands late then comes to nothing.
    assert_eq!(publish(&stream, "c").await, 1);
    world.clock.advance(HOUR);
    crate::processes::settle().await;
    assert_eq!(everything(&stream).await, ["a", "c"]);
}

#[tokio::test]
async fn an_append_whose_caller_went_away_is_carried_on_and_not_doubled() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    publish(&stream, "a").await;
    // It is in the store, and its caller goes away before it hears of it.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Slow(Duration::from_secs(2))).on(LOG));
    {
        let mut dropped = Box::pin(stream.publish("s", "b"));
        start(&mut dropped).await;
    }
    assert_eq!(publish(&stream, "c").await, 2);
    assert_eq!(everything(&stream).await, ["a", "b", "c"]);
}

/// A process is paused between its look at the end of the log and its create; meanwhile its number is taken, grows
/// old and is trimmed.
async fn a_stale_appender(pause: impl Fn(&TestClock, Duration), dated: bool) {
    let world = World::new();
    let clock = TestClock::at(world.clock.wall());
    let paused = match dated {
        true => dated_process(&world, &clock).await,
        false => world.process_on(&clock).await.store,
    };
    let paused = paused.stream("events").unwrap();
    let other = world.process().await.store.stream("events").unwrap();
    other.configure(an_hour()).await.unwrap();
    publish(&paused, "a").await;
    // It looks, and is paused before its create leaves.
    for text in ["b", "c", "d"] {
        publish(&other, text).await;
    }
    pause(&clock, 3 * HOUR);
    world.clock.advance(3 * HOUR);
    publish(&other, "e").await;
    let trimmed = other.trim().await.unwrap();
    assert_eq!((trimmed[0].segments, trimmed[0].first_offset), (4, 4), "{trimmed:?}");
    assert_eq!(publish(&paused, "f").await, 5, "behind what is there, and not where it was");
    assert_eq!(everything(&other).await, ["e", "f"]);
    assert_eq!(segments(&world), ["1", "4", "5"], "what it created first lies below the beginning");
    other.trim().await.unwrap();
    assert_eq!(segments(&world), ["4", "5"]);
}

#[tokio::test]
async fn a_stale_appender_loses_no_acknowledged_message() {
    a_stale_appender(|clock, by| clock.advance(by), false).await;
}

#[tokio::test]
async fn a_stale_appender_whose_monotonic_clock_stood_still_loses_nothing() {
    a_stale_appender(|clock, by| clock.suspend(by), false).await;
}

#[tokio::test]
async fn a_stale_appender_whose_clocks_all_stood_still_goes_by_the_stores_dates() {
    a_stale_appender(|_, _| {}, true).await;
}

#[tokio::test]
async fn a_stale_appender_that_meets_what_another_one_left_does_not_build_on_it() {
    let world = World::new();
    let other = world.process().await.store.stream("events").unwrap();
    other.configure(an_hour()).await.unwrap();
    let (one, two) =
        (world.process().await.store.stream("events").unwrap(), world.process().await.store.stream("events").unwrap());
    publish(&one, "a").await;
    publish(&two, "b").await;
    // Both know that the log ends at 2 now, and the log goes on without them.
    publish(&one, "c").await;
    let wrong = segments(&world).len();
    assert_eq!(wrong, 3);
    for text in ["d", "e"] {
        publish(&other, text).await;
    }
    world.clock.advance(2 * HOUR);
    publish(&other, "f").await;
    other.trim().await.unwrap();
    assert_eq!(publish(&two, "g").await, 6);
    assert_eq!(publish(&one, "h").await, 7);
    assert_eq!(everything(&other).await, ["f", "g", "h"]);
}

#[tokio::test]
async fn a_store_that_tells_no_time_is_asked_for_the_boundary_after_every_append() {
    let world = World::new();
    let clock = TestClock::at(world.clock.wall());
    let paused = world.process_that_asks_the_time(&clock).await.store.stream("events").unwrap();
    let other = world.process().await.store.stream("events").unwrap();
    other.configure(an_hour()).await.unwrap();
    publish(&paused, "a").await;
    publish(&other, "b").await;
    world.clock.advance(2 * HOUR);
    publish(&other, "c").await;
    other.trim().await.unwrap();
    // Neither clock of the paused process has moved.
    assert_eq!(publish(&paused, "d").await, 3);
    assert_eq!(everything(&other).await, ["c", "d"]);
}

#[tokio::test]
async fn keys_stay_together_and_partitions_cannot_be_changed() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(StreamSettings::default().partitions(4)).await.unwrap();
    let mut places = BTreeSet::new();
    for round in 0..3 {
        let many = (0..20).map(|n| Draft::new("s", format!("{round}")).key(format!("key {n}")));
        for (n, published) in stream.publish_many(many).await.unwrap().iter().enumerate() {
            places.insert((n, published.partition));
        }
    }
    assert_eq!(places.len(), 20, "each key has one partition");
    assert!(places.iter().map(|(_, partition)| partition).collect::<BTreeSet<_>>().len() > 1);
    let error = stream.configure(StreamSettings::default().partitions(5)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(stream.read_partition(4, Position::Earliest).await.is_err());
}

#[tokio::test]
async fn what_breaks_a_rule_is_refused_before_anything_is_sent() {
    let world = World::new();
    let process = world.process().await;
    let stream = process.store.stream("events").unwrap();
    publish(&stream, "a").await;
    let before = process.store.requests();
    for draft in [Draft::new("", "x"), Draft::new("s", vec![0; (1 << 20) + 1]), Draft::new("s", "x").key("")] {
        assert_eq!(stream.publish_draft(draft).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(process.store.requests().since(&before).total(), 0);
    let large = stream.publish_many((0..3).map(|_| Draft::new("s", vec![0; 1 << 20]))).await.unwrap();
    assert_eq!(large[2].offset, 3);
}
