//! When files are written, and what happens while they cannot be.

use super::{archived, archiver, each_once, files, publish_many};
use crate::{
    processes::{World, pass, settle},
    stream::{HOUR, LOG, MINUTE, everything, segments},
};
use leasehold::{
    CancellationToken,
    archive::ArchiveSettings,
    testkit::{Answer, Fault, Op, Rule},
};
use std::time::Duration;

#[tokio::test]
async fn a_file_is_written_by_count_and_by_age_also_when_nothing_new_arrives() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    let mut archiver = archiver(&process.store);
    publish_many(&stream, 990).await;
    assert!(archiver.step().await.unwrap().files.is_empty());
    publish_many(&stream, 20).await;
    let report = archiver.step().await.unwrap();
    assert_eq!((report.files.len(), report.files[0].count), (1, 1000), "and ten are left");
    assert_eq!(archiver.step().await.unwrap().lag.messages, 10);
    world.clock.advance(Duration::from_secs(59));
    assert!(archiver.step().await.unwrap().files.is_empty());
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(archiver.step().await.unwrap().files[0].count, 10);
    each_once(&world, 1010);
}

#[tokio::test]
async fn a_file_is_written_when_its_bytes_are_enough() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    let mut settings = ArchiveSettings::default();
    settings.batch_bytes = 1000;
    let mut archiver = process.store.archiver("audit", settings).unwrap();
    publish_many(&stream, 5).await;
    assert!(archiver.step().await.unwrap().files.is_empty());
    publish_many(&stream, 50).await;
    assert_eq!(archiver.step().await.unwrap().files[0].count, 55);
}

#[tokio::test]
async fn a_running_archiver_takes_turns_by_a_lease_and_flushes_when_it_is_stopped() {
    let world = World::new();
    let (one, other) = (world.process().await, world.process().await);
    let stream = archived(&one.store).await;
    let stop = CancellationToken::new();
    let running: Vec<_> = [&one, &other]
        .map(|process| {
            let (mut archiver, stop) = (archiver(&process.store), stop.clone());
            tokio::spawn(async move { archiver.run(stop).await })
        })
        .into();
    pass(&[&world.clock], Duration::from_secs(5), Duration::from_secs(1)).await;
    publish_many(&stream, 7).await;
    pass(&[&world.clock], Duration::from_secs(5), Duration::from_secs(1)).await;
    assert!(files(&world.objects).is_empty());
    stop.cancel();
    for running in running {
        running.await.unwrap().unwrap();
    }
    each_once(&world, 7);
}

#[tokio::test]
async fn a_destination_that_is_down_for_an_hour_stops_trimming_and_not_publishing() {
    let (world, elsewhere) = (World::new(), World::new());
    let process = world.process().await;
    let other = elsewhere.process_on(&world.clock).await;
    let stream = archived(&process.store).await;
    let mut settings = ArchiveSettings::default();
    settings.events = Some("system".to_owned());
    let mut archiver = process.store.archiver("audit", settings).unwrap().to(&other.store.destination());
    publish_many(&stream, 10).await;
    archiver.flush().await.unwrap();
    elsewhere.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    let mut behind = 0;
    for _ in 0..130 {
        publish_many(&stream, 10).await;
        let report =
            crate::processes::moving(&[&world.clock, &elsewhere.clock], MINUTE / 2, archiver.step()).await.unwrap();
        behind += u64::from(report.is_behind);
        world.clock.advance(MINUTE / 2);
        stream.trim().await.unwrap();
    }
    assert!(behind > 0);
    assert!(segments(&world).len() >= 130, "nothing is trimmed that is not archived: {}", segments(&world).len());
    let events = everything(&process.store.stream("system").unwrap()).await;
    assert_eq!(events.iter().filter(|event| event.contains("archiver behind")).count(), 1, "said once: {events:?}");
    elsewhere.objects.faults().clear();
    let report = archiver.flush().await.unwrap();
    assert!(report.failures.is_empty() && !report.is_behind, "{report:?}");
    each_once(&elsewhere, 1310);
    world.clock.advance(2 * HOUR);
    stream.trim().await.unwrap();
    assert_eq!(segments(&world).len(), 1);
    let events = everything(&process.store.stream("system").unwrap()).await;
    assert!(events.iter().any(|event| event.contains("\"destination\":\"archive/audit/")), "{events:?}");
}

#[tokio::test]
async fn a_segment_that_cannot_be_read_is_copied_as_it_is_and_passed() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    for _ in 0..3 {
        publish_many(&stream, 5).await;
    }
    let name = format!("{LOG}00000000000000000001");
    let mut body = world.objects.object(&name).unwrap().0.to_vec();
    body[30] ^= 1;
    world.objects.put_object(&name, body.clone());
    let mut archiver = archiver(&process.store);
    archiver.flush().await.unwrap();
    let copies: Vec<String> = world.objects.names().into_iter().filter(|name| name.contains("_damaged/")).collect();
    assert_eq!(copies.len(), 1);
    assert_eq!(world.objects.object(&copies[0]).unwrap().0, body);
    let mut offsets = super::offsets(&world.objects);
    offsets.sort_unstable();
    assert_eq!(offsets, (0..5).chain(10..15).collect::<Vec<_>>());
    let problems = archiver.verify().await.unwrap().problems;
    assert!(problems.iter().any(|problem| problem.contains("was damaged")), "{problems:?}");
    settle().await;
}
