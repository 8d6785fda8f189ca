//! A reader finds everything once, polls the end with one request, and is told what was trimmed.

use super::{HOUR, LOG, MINUTE, an_hour, drafts, everything, publish, rest, segments, texts_of};
use crate::processes::World;
use leasehold::{ErrorKind, clock::Clock, fsck::FsckOptions, stream::Position};
use leasehold_testkit::{Fault, Op, Rule};

#[tokio::test]
async fn reading_begins_at_either_end_at_an_offset_or_at_a_time() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    let mut times = Vec::new();
    for n in 0..9 {
        world.clock.advance(MINUTE);
        times.push(world.clock.wall());
        stream.publish_many(drafts([format!("{n}a").as_str(), format!("{n}b").as_str()])).await.unwrap();
    }
    let from = async |position| rest(&mut stream.read(position).await.unwrap()).await;
    assert_eq!(from(Position::Earliest).await.len(), 18);
    assert_eq!(from(Position::Latest).await.len(), 0);
    for offset in 0..=18 {
        let texts = from(Position::Offset(offset)).await;
        assert_eq!(texts.len() as u64, 18 - offset);
    }
    assert_eq!(from(Position::Offset(7)).await[0], "3b", "in the middle of a segment");
    assert_eq!(from(Position::Time(times[4])).await[0], "4a");
    assert_eq!(from(Position::Time(times[8].plus(MINUTE))).await.len(), 0);
    assert_eq!(stream.read(Position::Offset(19)).await.unwrap_err().kind(), ErrorKind::Invalid);
    let mut latest = stream.read(Position::Latest).await.unwrap();
    publish(&stream, "new").await;
    assert_eq!(rest(&mut latest).await, ["new"]);
}

#[tokio::test]
async fn a_reader_below_the_boundary_is_told_how_many_messages_it_missed() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    publish(&stream, "a").await;
    let mut reader = stream.read(Position::Earliest).await.unwrap();
    assert_eq!(texts_of(&reader.next().await.unwrap().unwrap()), ["a"]);
    stream.publish_many(drafts(["b", "c"])).await.unwrap();
    publish(&stream, "d").await;
    world.clock.advance(2 * HOUR);
    publish(&stream, "e").await;
    stream.trim().await.unwrap();
    let batch = reader.next().await.unwrap().unwrap();
    assert_eq!((texts_of(&batch), batch.missed), (vec!["e".to_owned()], 3));
    let batch = stream.read(Position::Offset(2)).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!((texts_of(&batch), batch.missed), (vec!["e".to_owned()], 2));
}

/// It has read a segment a minute ago; that one and all after it are trimmed in one go. What is missing is not the end.
#[tokio::test]
async fn a_slow_reader_does_not_take_what_was_trimmed_for_the_end_of_the_log() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b", "c"] {
        publish(&stream, text).await;
    }
    world.clock.advance(2 * HOUR);
    let mut reader = stream.read(Position::Earliest).await.unwrap();
    assert_eq!(texts_of(&reader.next().await.unwrap().unwrap()), ["a"]);
    publish(&stream, "d").await;
    stream.trim().await.unwrap();
    assert_eq!(segments(&world), ["3"]);
    world.clock.advance(MINUTE);
    let batch = reader.next().await.unwrap().unwrap();
    assert_eq!((texts_of(&batch), batch.missed), (vec!["d".to_owned()], 2));
}

/// What a stale appender leaves below the boundary, just where a reader goes on, is not read.
#[tokio::test]
async fn a_reader_does_not_believe_what_a_stale_appender_left_behind() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    let stale = world.process().await.store.stream("events").unwrap();
    publish(&stale, "a").await;
    for text in ["b", "c"] {
        publish(&stream, text).await;
    }
    world.clock.advance(2 * HOUR);
    let mut reader = stream.read(Position::Earliest).await.unwrap();
    assert_eq!(texts_of(&reader.next().await.unwrap().unwrap()), ["a"]);
    publish(&stream, "d").await;
    stream.trim().await.unwrap();
    publish(&stale, "e").await;
    assert_eq!(segments(&world), ["1", "3", "4"], "number 1 is what the stale one created first");
    let batch = reader.next().await.unwrap().unwrap();
    assert_eq!((texts_of(&batch), batch.missed), (vec!["d".to_owned()], 2));
    assert_eq!(rest(&mut reader).await, ["e"]);
}

#[tokio::test]
async fn a_bit_that_flips_on_its_way_is_read_again_and_one_in_the_store_is_reported() {
    let world = World::new();
    let process = world.process().await;
    let stream = process.store.stream("events").unwrap();
    publish(&stream, "a").await;
    publish(&stream, "b").await;
    world.objects.faults().script(Rule::once(Op::Get, Fault::Corrupt).on(LOG));
    assert_eq!(everything(&stream).await, ["a", "b"]);
    let name = format!("{LOG}00000000000000000001");
    let mut body = world.objects.object(&name).unwrap().0.to_vec();
    body[20] ^= 1;
    world.objects.put_object(&name, body);
    let mut reader = stream.read(Position::Earliest).await.unwrap();
    reader.next().await.unwrap();
    assert_eq!(reader.next().await.unwrap_err().kind(), ErrorKind::Corrupt);
    let report = process.store.fsck(FsckOptions::new()).await.unwrap();
    assert_eq!(report.open, 1, "{report:?}");
    assert!(report.findings.iter().any(|finding| finding.name == name), "{report:?}");
}

#[tokio::test]
async fn fsck_knows_every_object_of_a_stream() {
    let world = World::new();
    let process = world.process().await;
    let stream = process.store.stream("events").unwrap();
    publish(&stream, "a").await;
    stream.group("g").unwrap().consume(0).await.unwrap().unwrap().close().await.unwrap();
    let report = process.store.fsck(FsckOptions::new()).await.unwrap();
    assert_eq!((report.open, report.kinds["stream"].records), (0, 4), "{report:?}");
    world.objects.put_object("default/stream/events/000/other", "x");
    let report = process.store.fsck(FsckOptions::new()).await.unwrap();
    assert_eq!(report.open, 1, "{report:?}");
}
