//! What an archive file is called, what is in it, and how an archive is checked.

use super::{archived, archiver, each_once, files, lines, offsets, publish_many};
use crate::{common::Bed, processes::World, stream::drafts};
use leasehold::{
    archive::{ArchiveSettings, Days},
    clock::Clock,
    fsck::FsckOptions,
    store::RequestKind::{Get, Put},
    stream::{Draft, StreamSettings},
};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86400);

#[tokio::test]
async fn a_file_is_gzip_of_json_lines_below_its_domain_and_day() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    stream.publish_draft(Draft::new("events.a", r#"{"a":1}"#).trace_id("t")).await.unwrap();
    stream.publish_many(drafts(["\u{2}", "3"])).await.unwrap();
    let report = archiver(&process.store).flush().await.unwrap();
    let names = files(&world.objects);
    assert_eq!((names.len(), report.files.len(), report.files[0].count), (1, 1, 3));
    let parts: Vec<&str> = names[0].split('/').collect();
    assert_eq!((parts.len(), &parts[..5]), (6, &["archive", "audit", "2026", "01", "01"][..]), "{names:?}");
    let lines = lines(&world.objects, &names[0]);
    assert_eq!((lines[0]["payload"]["a"].as_u64(), lines[0]["trace_id"].as_str()), (Some(1), Some("t")));
    assert_eq!(lines[0]["timestamp"], "2026-01-01T00:30:00.000Z");
    assert_eq!(
        (lines[1]["payload_b64"].as_str(), lines[1].get("payload"), &lines[2]["payload"]),
        (Some("Ag=="), None, &3.into())
    );
    for (seq, line) in lines.iter().enumerate() {
        assert!(line["message_id"].is_string() && line["subject"].is_string(), "{line}");
        assert_eq!(line["seq"], seq);
    }
}

#[tokio::test]
async fn an_empty_stream_writes_nothing_and_two_batches_are_two_files() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    let mut archiver = archiver(&process.store);
    assert!(archiver.flush().await.unwrap().files.is_empty());
    assert!(files(&world.objects).is_empty());
    for count in [1, 2] {
        publish_many(&stream, 5).await;
        assert_eq!(archiver.flush().await.unwrap().files.len(), 1);
        assert_eq!(files(&world.objects).len(), count);
        assert_eq!(archiver.lag().await.unwrap().messages, 0);
    }
    each_once(&world, 10);
    assert_eq!(offsets(&world.objects), (0..10).collect::<Vec<_>>(), "names sort as offsets do");
}

#[tokio::test]
async fn archiving_1000_messages_in_segments_of_100_takes_13_requests() {
    let bed = Bed::new().await;
    let stream = archived(&bed.store).await;
    let mut archiver = archiver(&bed.store);
    archiver.step().await.unwrap();
    for _ in 0..10 {
        publish_many(&stream, 100).await;
    }
    let (report, made) = bed.counting(archiver.step()).await;
    let report = report.unwrap();
    assert_eq!((report.files.len(), report.files[0].count), (1, 1000));
    assert_eq!((made.of(Get), made.of(Put), made.total()), (10, 3, 13));
    let (report, made) = bed.counting(archiver.step()).await;
    assert!(report.unwrap().files.is_empty());
    assert_eq!((made.of(Get), made.total()), (1, 1), "a look at the end");
}

#[tokio::test]
async fn a_message_is_filed_under_its_own_day_unless_that_is_a_week_off() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    let now = world.clock.wall();
    for time in [now, now.minus(DAY), now.minus(6 * DAY), now.minus(400 * DAY), now.plus(4000 * DAY)] {
        stream.publish_draft(Draft::new("s", "1").time(time)).await.unwrap();
    }
    let mut archiver = archiver(&process.store);
    archiver.flush().await.unwrap();
    let days: Vec<String> =
        files(&world.objects).iter().map(|name| name["archive/audit/".len()..][..10].to_owned()).collect();
    assert_eq!(days, ["2025/12/26", "2025/12/31", "2026/01/01"]);
    let ends: Vec<String> =
        files(&world.objects).iter().map(|name| name.rsplit('/').next().unwrap().to_owned()).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "each says the whole range: {ends:?}");
    let verified = archiver.verify().await.unwrap();
    assert_eq!((verified.files, verified.messages, verified.problems), (3, 5, vec![]));
}

#[tokio::test]
async fn days_can_be_named_for_hive_and_files_go_to_another_store() {
    let (world, elsewhere) = (World::new(), World::new());
    let (process, other) = (world.process().await, elsewhere.process().await);
    let stream = archived(&process.store).await;
    publish_many(&stream, 3).await;
    let mut settings = ArchiveSettings::default();
    settings.days = Days::Hive;
    let mut archiver = process.store.archiver("audit", settings).unwrap().to(&other.store.destination());
    archiver.flush().await.unwrap();
    assert!(files(&world.objects).is_empty());
    assert!(files(&elsewhere.objects)[0].starts_with("archive/audit/dt=2026-01-01/events-000-"));
    assert_eq!(archiver.verify().await.unwrap().messages, 3);
}

#[tokio::test]
async fn streams_of_other_domains_are_left_alone_and_all_partitions_are_archived() {
    let world = World::new();
    let process = world.process().await;
    let audit = process.store.stream("events.audit").unwrap();
    audit.configure(StreamSettings::default().archive("audit").partitions(3)).await.unwrap();
    let other = process.store.stream("events.other").unwrap();
    other.configure(StreamSettings::default().archive("other")).await.unwrap();
    publish_many(&other, 1).await;
    publish_many(&process.store.stream("plain").unwrap(), 1).await;
    audit.publish_many((0..30).map(|n| Draft::new("s", "1").key(n.to_string()))).await.unwrap();
    let mut archiver = archiver(&process.store);
    archiver.flush().await.unwrap();
    let verified = archiver.verify().await.unwrap();
    assert_eq!((verified.files, verified.messages, verified.problems.len()), (3, 30, 0));
    assert!(files(&world.objects).iter().all(|name| name.contains("events.audit-")));
    let report = process.store.fsck(FsckOptions::new()).await.unwrap();
    assert_eq!((report.open, report.findings.len()), (0, 0), "{report:?}");
}

#[tokio::test]
async fn verify_finds_what_is_missing_double_or_damaged() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    let mut archiver = archiver(&process.store);
    for _ in 0..3 {
        publish_many(&stream, 5).await;
        archiver.flush().await.unwrap();
    }
    let names = files(&world.objects);
    let bodies: Vec<_> = names.iter().map(|name| world.objects.object(name).unwrap().0).collect();
    world.objects.delete_object(&names[1]);
    let problems = archiver.verify().await.unwrap().problems;
    assert!(problems.len() == 1 && problems[0].contains("nothing lies between"), "{problems:?}");
    world.objects.put_object(&names[1], bodies[2].clone());
    let problems = archiver.verify().await.unwrap().problems;
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("says more or others") || problem.contains("say more or others")),
        "{problems:?}"
    );
    let mut flipped = bodies[1].to_vec();
    let middle = flipped.len() - 12;
    flipped[middle] ^= 1;
    world.objects.put_object(&names[1], flipped);
    assert!(!archiver.verify().await.unwrap().problems.is_empty());
    world.objects.put_object(&names[1], bodies[1].clone());
    assert_eq!(archiver.verify().await.unwrap().problems, Vec::<String>::new());
}
