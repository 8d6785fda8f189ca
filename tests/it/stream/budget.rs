//! What each operation on a stream costs, in HTTP attempts counted at both ends.

use super::drafts;
use crate::common::Bed;
use leasehold::{
    store::RequestKind::{Get, Put},
    stream::Position,
};
use std::time::Duration;

#[tokio::test]
async fn an_append_is_one_request_for_any_number_of_messages_that_fit() {
    let bed = Bed::new().await;
    let stream = bed.store.stream("events").unwrap();
    stream.publish("s", "first").await.unwrap();
    let (published, made) = bed.counting(stream.publish("s", "x")).await;
    published.unwrap();
    assert_eq!((made.of(Put), made.total()), (1, 1));
    let (published, made) = bed.counting(stream.publish_many(drafts(vec!["x"; 1000]))).await;
    published.unwrap();
    assert_eq!((made.of(Put), made.total()), (1, 1));
    let (_, made) = bed.counting(futures_util::future::join_all((0..100).map(|_| stream.publish("s", "x")))).await;
    assert!(made.total() <= 2, "{made:?}");
}

#[tokio::test]
async fn an_append_after_an_hour_of_silence_also_reads_the_boundary() {
    let bed = Bed::new().await;
    let stream = bed.store.stream("events").unwrap();
    stream.publish("s", "first").await.unwrap();
    bed.clock.advance(Duration::from_secs(3600));
    let (published, made) = bed.counting(stream.publish("s", "x")).await;
    published.unwrap();
    assert_eq!((made.of(Put), made.of(Get), made.total()), (1, 1, 2));
}

#[tokio::test]
async fn reading_is_one_request_a_segment_and_a_poll_of_the_end_is_one() {
    let bed = Bed::new().await;
    let stream = bed.store.stream("events").unwrap();
    for _ in 0..10 {
        stream.publish_many(drafts(vec!["x"; 100])).await.unwrap();
        bed.clock.advance(Duration::from_secs(120));
    }
    let mut reader = stream.read(Position::Earliest).await.unwrap();
    let (read, made) = bed.counting(super::rest(&mut reader)).await;
    assert_eq!((read.len(), made.of(Get), made.total()), (1000, 11, 11), "ten segments, and the end");
    for _ in 0..100 {
        bed.clock.advance(Duration::from_secs(60));
        let (polled, made) = bed.counting(reader.next()).await;
        assert!(polled.unwrap().is_none());
        assert_eq!((made.of(Get), made.total()), (1, 1));
    }
}

#[tokio::test]
async fn an_acknowledgement_is_one_request() {
    let bed = Bed::new().await;
    let stream = bed.store.stream("events").unwrap();
    for _ in 0..3 {
        stream.publish_many(drafts(vec!["x"; 100])).await.unwrap();
    }
    bed.clock.advance(Duration::from_secs(10));
    let mut consumer = stream.group("g").unwrap().consume(0).await.unwrap().unwrap();
    for _ in 0..3 {
        let (batch, made) = bed.counting(consumer.next()).await;
        assert_eq!((made.of(Get), made.total()), (1, 1));
        let (acked, made) = bed.counting(consumer.ack(&batch.unwrap().unwrap())).await;
        acked.unwrap();
        assert_eq!((made.of(Put), made.total()), (1, 1));
    }
}
