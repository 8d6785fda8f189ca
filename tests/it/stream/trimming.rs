//! What is trimmed is old enough, and wanted by nobody.

use super::{HOUR, an_hour, drafts, everything, publish, segments};
use crate::processes::World;
use leasehold::{
    stream::{Patterns, Position, Retention, StreamSettings},
    sweep::SweepOptions,
    testkit::{Answer, Fault, Op, Rule},
};
use std::time::Duration;

const META: &str = "default/stream/events/000/meta.json";

#[tokio::test]
async fn age_is_never_early_and_the_last_segment_stays() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b", "c"] {
        publish(&stream, text).await;
        world.clock.advance(Duration::from_secs(20 * 60));
    }
    assert_eq!(stream.trim().await.unwrap()[0].segments, 0, "the first is an hour old exactly");
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(stream.trim().await.unwrap()[0].segments, 1);
    world.clock.advance(100 * HOUR);
    assert_eq!(stream.trim().await.unwrap()[0].segments, 1);
    assert_eq!(everything(&stream).await, ["c"]);
    assert_eq!(publish(&stream, "d").await, 3, "offsets go on");
}

#[tokio::test]
async fn bytes_and_counts_keep_at_least_what_they_say() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    for n in 0..10 {
        stream.publish_many(drafts(vec![format!("{n}").as_str(); 10])).await.unwrap();
    }
    let mut retention = Retention::forever();
    retention.max_messages = Some(35);
    stream.configure(StreamSettings::default().retention(retention)).await.unwrap();
    assert_eq!(stream.trim().await.unwrap()[0].segments, 0, "nothing is an hour old");
    world.clock.advance(2 * HOUR);
    let trimmed = stream.trim().await.unwrap();
    assert_eq!((trimmed[0].segments, trimmed[0].first_offset), (6, 60));
    let mut retention = Retention::forever();
    retention.max_bytes = Some(1);
    stream.configure(StreamSettings::default().retention(retention)).await.unwrap();
    assert_eq!(stream.trim().await.unwrap()[0].first_offset, 90);
}

#[tokio::test]
async fn nothing_is_deleted_while_it_is_not_known_whether_the_boundary_was_raised() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    for text in ["a", "b"] {
        publish(&stream, text).await;
    }
    world.clock.advance(2 * HOUR);
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(500))).on(META));
    assert!(crate::processes::moving(&[&world.clock], Duration::from_secs(1), stream.trim()).await.is_err());
    assert_eq!(segments(&world).len(), 2);
    world.objects.faults().clear();
    // The boundary is raised and the trimmer dies: whoever comes next deletes what is below it.
    world.objects.faults().script(Rule::once(Op::Delete, Fault::Refuse(Answer::Status(403))));
    assert!(stream.trim().await.is_err());
    assert_eq!(segments(&world).len(), 2);
    assert_eq!(everything(&stream).await, ["b"], "nobody reads below the boundary");
    assert_eq!(stream.trim().await.unwrap()[0].segments, 1);
}

#[tokio::test]
async fn what_cannot_be_read_is_never_taken_for_permission_to_delete() {
    for name in ["stream.json", "000/meta.json", "000/group/g.json", "000/archive.json"] {
        let world = World::new();
        let stream = world.process().await.store.stream("events").unwrap();
        stream.configure(an_hour().archive("audit")).await.unwrap();
        publish(&stream, "a").await;
        publish(&stream, "b").await;
        stream.group("g").unwrap().start(Position::Latest).consume(0).await.unwrap().unwrap();
        world.clock.advance(2 * HOUR);
        world.objects.put_object(&format!("default/stream/events/{name}"), "?");
        assert!(stream.trim().await.is_err(), "{name}");
        assert_eq!(segments(&world).len(), 2, "{name}");
    }
}

/// The domain of an archive was just named, and the trimmer has read the settings before that.
#[tokio::test]
async fn a_trimmer_with_old_settings_takes_nothing_from_a_domain_that_was_just_named() {
    let world = World::new();
    let stream = world.process().await.store.stream("events").unwrap();
    stream.configure(an_hour()).await.unwrap();
    publish(&stream, "a").await;
    publish(&stream, "b").await;
    world.clock.advance(2 * HOUR);
    let trimmer = world.process().await.store.stream("events").unwrap();
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(4))).on(META));
    let mut trimming = Box::pin(trimmer.trim());
    crate::processes::start(&mut trimming).await;
    stream.configure(an_hour().archive("audit")).await.unwrap();
    world.clock.advance(Duration::from_secs(4));
    assert_eq!(trimming.await.unwrap()[0].segments, 0);
    assert_eq!(segments(&world).len(), 2);
    assert_eq!(
        stream.trim().await.unwrap()[0].held_by.as_deref(),
        Some("the archiver"),
        "there is none: nothing is archived"
    );
}

#[tokio::test]
async fn sweeping_trims_every_stream_and_a_dry_run_changes_nothing() {
    let world = World::new();
    let process = world.process().await;
    for name in ["events", "jobs.mail"] {
        let stream = process.store.stream(name).unwrap();
        stream.configure(an_hour().partitions(2)).await.unwrap();
        for n in 0..8 {
            stream.publish_draft(leasehold::stream::Draft::new("s", "x").key(format!("{n}"))).await.unwrap();
        }
    }
    world.clock.advance(2 * HOUR);
    let count = || world.objects.names().iter().filter(|name| name.contains("/log/")).count();
    let before = count();
    let options = || SweepOptions::new().op_delay(Duration::ZERO);
    process.store.sweeper().run_once(options().dry_run(true)).await.unwrap();
    assert_eq!(count(), before);
    let report = process.store.sweeper().run_once(options()).await.unwrap();
    assert!(report.chores >= 4, "{report:?}");
    assert_eq!(count(), 4, "the last one of each partition");
}

#[tokio::test]
async fn rules_by_pattern_change_the_settings_of_the_streams_that_fit() {
    let world = World::new();
    let process = world.process().await;
    for name in ["events.audit.login", "events.task", "jobs"] {
        publish(&process.store.stream(name).unwrap(), "a").await;
    }
    let of = |days: u64| StreamSettings::default().retention(Retention::of_age(Duration::from_secs(days * 86400)));
    let rules = [("events.>", 30), ("events.audit.*", 7)].map(|(pattern, days)| (pattern.parse().unwrap(), of(days)));
    let rules = Patterns::new(rules).unwrap();
    let streams = process.store.streams("default").unwrap();
    assert_eq!(streams.apply(&rules).await.unwrap().len(), 2);
    assert_eq!(streams.apply(&rules).await.unwrap().len(), 0, "they are as they should be");
    let settings = process.store.stream("events.audit.login").unwrap().settings().await.unwrap();
    assert_eq!(settings.retention.max_age, Some(Duration::from_secs(7 * 86400)));
    assert_eq!(process.store.stream("jobs").unwrap().settings().await.unwrap(), StreamSettings::default());
}
