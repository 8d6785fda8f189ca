//! A group's messages are delivered at least once, to one consumer at a time, and are kept until it has read them.

use super::{HOUR, an_hour, drafts, everything, publish, segments, texts_of};
use crate::processes::World;
use leasehold::clock::Clock;
use leasehold::{
    ErrorKind,
    stream::{Consumer, Position, Stream},
};
use leasehold_testkit::{Answer, Fault, Op, Rule, TestClock};
use std::time::Duration;

const GROUP: &str = "default/stream/events/000/group/";
const META: &str = "default/stream/events/000/meta.json";

async fn consume(stream: &Stream) -> Consumer {
    stream.group("g").unwrap().consume(0).await.unwrap().expect("nobody else consumes")
}

async fn next(consumer: &mut Consumer) -> Vec<String> {
    texts_of(&consumer.next().await.unwrap().expect("a batch"))
}

#[tokio::test]
async fn what_is_not_acknowledged_is_delivered_again() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    for text in ["a", "b", "c"] {
        publish(&stream, text).await;
    }
    let mut consumer = consume(&stream).await;
    let batch = consumer.next().await.unwrap().unwrap();
    assert_eq!(texts_of(&batch), ["a"]);
    consumer.ack(&batch).await.unwrap();
    assert_eq!(next(&mut consumer).await, ["b"]);
    consumer.close().await.unwrap();
    let mut consumer = consume(&stream).await;
    assert_eq!(next(&mut consumer).await, ["b"]);
    assert_eq!(next(&mut consumer).await, ["c"]);
    let lag = stream.group("g").unwrap().lag(0).await.unwrap().unwrap();
    assert_eq!((lag.offset, lag.messages, lag.expired), (1, 2, None));
    assert!(stream.group("other").unwrap().lag(0).await.unwrap().is_none());
}

#[tokio::test]
async fn one_process_consumes_at_a_time_and_another_takes_over_when_it_dies() {
    let world = World::new();
    let (one, other) = (world.process().await, world.process().await);
    let (one, other) = (one.store.stream("events").unwrap(), other.store.stream("events").unwrap());
    publish(&one, "a").await;
    let mut first = consume(&one).await;
    assert_eq!(next(&mut first).await, ["a"]);
    assert!(other.group("g").unwrap().consume(0).await.unwrap().is_none());
    drop(first);
    crate::processes::settle().await;
    world.clock.advance(Duration::from_secs(40));
    let mut second = consume(&other).await;
    assert_eq!(next(&mut second).await, ["a"]);
}

/// Its lease has ended and another one has its fence in the record, before it has read anything.
#[tokio::test]
async fn an_acknowledgement_that_comes_after_a_takeover_moves_nothing() {
    let world = World::new();
    let clock = TestClock::at(world.clock.wall());
    let paused = world.process_on(&clock).await.store.stream("events").unwrap();
    let other = world.process().await.store.stream("events").unwrap();
    publish(&other, "a").await;
    publish(&other, "b").await;
    let mut zombie = consume(&paused).await;
    let batch = zombie.next().await.unwrap().unwrap();
    world.clock.advance(Duration::from_secs(60));
    let mut taker = consume(&other).await;
    assert!(taker.fence() > zombie.fence());
    let error = zombie.ack(&batch).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(next(&mut taker).await, ["a"]);
    assert_eq!(other.group("g").unwrap().lag(0).await.unwrap().unwrap().messages, 2);
}

#[tokio::test]
async fn an_acknowledgement_whose_answer_was_lost_is_recognised() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    publish(&stream, "a").await;
    let mut consumer = consume(&stream).await;
    let batch = consumer.next().await.unwrap().unwrap();
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Status(500))).on(GROUP));
    consumer.ack(&batch).await.unwrap();
    assert_eq!(stream.group("g").unwrap().lag(0).await.unwrap().unwrap().messages, 0);
}

#[tokio::test]
async fn a_message_that_is_given_up_goes_to_the_dead_letters_with_its_reason() {
    let world = World::new();
    let process = world.process().await;
    let stream = process.store.stream("events").unwrap();
    stream.publish_many(drafts(["{\"a\":1}", "\u{1}"])).await.unwrap();
    let mut consumer = consume(&stream).await;
    let batch = consumer.next().await.unwrap().unwrap();
    for message in &batch.messages {
        consumer.dead_letter(message, "cannot be parsed").await.unwrap();
    }
    consumer.ack(&batch).await.unwrap();
    let dead = everything(&process.store.stream("events.dead").unwrap()).await;
    let letter: serde_json::Value = serde_json::from_str(&dead[0]).unwrap();
    assert_eq!(
        (letter["reason"].as_str(), letter["group"].as_str(), &letter["payload"]["a"]),
        (Some("cannot be parsed"), Some("g"), &1.into())
    );
    let letter: serde_json::Value = serde_json::from_str(&dead[1]).unwrap();
    assert_eq!(
        (letter["payload_b64"].as_str(), letter["message_id"].as_str()),
        (Some("AQ=="), Some(batch.messages[1].id.to_string().as_str()))
    );
    assert!(consumer.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_group_keeps_what_it_has_not_acknowledged() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b", "c"] {
        publish(&stream, text).await;
    }
    let mut consumer = consume(&stream).await;
    let batch = consumer.next().await.unwrap().unwrap();
    consumer.ack(&batch).await.unwrap();
    world.clock.advance(2 * HOUR);
    publish(&stream, "d").await;
    let trimmed = stream.trim().await.unwrap();
    assert_eq!((trimmed[0].segments, trimmed[0].held_by.as_deref()), (1, Some("group g")));
    assert_eq!(segments(&world), ["1", "2", "3"]);
}

/// The trimmer has read that there is no group; a group is made and told that it holds everything; the trimmer goes on.
#[tokio::test]
async fn a_group_made_while_a_trimmer_looks_around_keeps_what_it_was_promised() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b"] {
        publish(&stream, text).await;
    }
    world.clock.advance(2 * HOUR);
    publish(&stream, "c").await;
    let trimmer = world.process().await.store.stream("events").unwrap();
    trimmer.settings().await.unwrap();
    // Its swap of the partition's record is under way for a minute.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(4))).on(META));
    let mut trimming = Box::pin(trimmer.trim());
    crate::processes::start(&mut trimming).await;
    let mut consumer = consume(&stream).await;
    world.clock.advance(Duration::from_secs(4));
    let trimmed = trimming.await.unwrap();
    assert_eq!(trimmed[0].segments, 0, "it has lost, and deletes nothing");
    assert_eq!(next(&mut consumer).await, ["a"]);
    assert_eq!(next(&mut consumer).await, ["b"]);
}

/// The same for a cursor that is moved back, and for settings that begin to keep messages.
#[tokio::test]
async fn a_seek_back_while_a_trimmer_looks_around_keeps_what_it_was_promised() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b"] {
        publish(&stream, text).await;
    }
    let mut consumer = consume(&stream).await;
    while let Some(batch) = consumer.next().await.unwrap() {
        consumer.ack(&batch).await.unwrap();
    }
    world.clock.advance(2 * HOUR);
    publish(&stream, "c").await;
    let trimmer = world.process().await.store.stream("events").unwrap();
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(4))).on(META));
    let mut trimming = Box::pin(trimmer.trim());
    crate::processes::start(&mut trimming).await;
    consumer.seek(Position::Earliest).await.unwrap();
    world.clock.advance(Duration::from_secs(4));
    assert_eq!(trimming.await.unwrap()[0].segments, 0);
    crate::processes::settle().await;
    let texts = consumer.next().await.map(|batch| texts_of(&batch.unwrap()));
    // Its lease may have ended by now, but nothing is gone.
    assert!(texts.is_err() || texts.unwrap() == ["a"]);
    assert_eq!(everything(&stream).await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_process_that_died_while_it_made_a_group_leaves_one_that_the_next_settles() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b"] {
        publish(&stream, text).await;
    }
    // It dies before it has touched the partition's record.
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).on(META));
    assert!(stream.group("g").unwrap().consume(0).await.is_err());
    world.objects.faults().clear();
    world.clock.advance(2 * HOUR);
    publish(&stream, "c").await;
    let trimmed = stream.trim().await.unwrap();
    assert_eq!((trimmed[0].segments, trimmed[0].held_by.as_deref()), (0, Some("group g")));
    assert_eq!(next(&mut consume(&stream).await).await, ["a"]);
}

#[tokio::test]
async fn a_group_without_a_consumer_for_a_week_is_named_and_stops_keeping_messages() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b", "c"] {
        publish(&stream, text).await;
    }
    let mut consumer = consume(&stream).await;
    let batch = consumer.next().await.unwrap().unwrap();
    consumer.ack(&batch).await.unwrap();
    consumer.close().await.unwrap();
    world.clock.advance(7 * 24 * HOUR);
    publish(&stream, "d").await;
    let trimmed = stream.trim().await.unwrap();
    assert!(trimmed[0].expired.is_empty() && trimmed[0].held_by.is_some(), "not a moment too early: {trimmed:?}");
    world.clock.advance(HOUR);
    publish(&stream, "e").await;
    let trimmed = stream.trim().await.unwrap();
    let expired = &trimmed[0].expired[0];
    assert_eq!((expired.group.as_str(), expired.unacknowledged_from, expired.lag), ("g", 1, 4));
    assert_eq!(trimmed[0].held_by, None);
    assert!(trimmed[0].segments > 0);
    assert!(stream.group("g").unwrap().lag(0).await.unwrap().unwrap().expired.is_some());
    // One that comes back is told what is gone, and keeps messages again.
    let mut back = consume(&stream).await;
    let batch = back.next().await.unwrap().unwrap();
    assert_eq!((batch.missed, batch.messages[0].offset), (trimmed[0].first_offset - 1, trimmed[0].first_offset));
    world.clock.advance(3 * HOUR);
    publish(&stream, "f").await;
    assert_eq!(stream.trim().await.unwrap()[0].held_by.as_deref(), Some("group g"));
}

#[tokio::test]
async fn a_removed_group_stops_keeping_messages_at_once_and_its_consumer_is_told() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    publish(&stream, "a").await;
    let mut consumer = consume(&stream).await;
    let batch = consumer.next().await.unwrap().unwrap();
    stream.group("g").unwrap().remove().await.unwrap();
    let error = consumer.ack(&batch).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("expired"), "{error}");
}

#[tokio::test]
async fn a_consumer_that_finds_nothing_new_for_days_shows_that_it_lives() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    publish(&stream, "a").await;
    let mut consumer = consume(&stream).await;
    let batch = consumer.next().await.unwrap().unwrap();
    consumer.ack(&batch).await.unwrap();
    for _ in 0..14 {
        // Its lease is kept alive by a task, which needs time in small steps: here it is taken again.
        consumer.close().await.unwrap();
        world.clock.advance(24 * HOUR);
        consumer = consume(&stream).await;
        assert!(consumer.next().await.unwrap().is_none());
    }
    assert!(stream.trim().await.unwrap()[0].expired.is_empty());
}
