//! An archiver that dies at any step, is paused, or hears no answer leaves every message in exactly one file.

use super::{archived, archiver, each_once, files, publish_many};
use crate::{
    processes::{World, moving, start},
    stream::HOUR,
};
use leasehold::clock::Clock;
use leasehold_testkit::{Answer, Fault, Op, Rule, TestClock};
use std::time::Duration;

const RECORD: &str = "default/stream/events/000/archive.json";
const SECOND: Duration = Duration::from_secs(1);

/// The n-th write of an archiver fails for good, applied or not; another one goes on.
#[tokio::test]
async fn a_crash_at_every_step_leaves_every_message_in_one_file() {
    for applied in [false, true] {
        for step in 0..8 {
            let world = World::new();
            let first = world.process().await;
            let stream = archived(&first.store).await;
            publish_many(&stream, 10).await;
            let fault = if applied { Fault::Lose(Answer::Drop) } else { Fault::Refuse(Answer::Drop) };
            // From that write on nothing of the first one arrives.
            let faults = world.objects.faults();
            faults.script(Rule::once(Op::Put, fault).on("ar").after(step));
            faults.script(Rule::always(Op::Put, Fault::Refuse(Answer::Drop)).on("ar").after(step));
            faults.script(Rule::always(Op::Get, Fault::Refuse(Answer::Drop)).on("arch").after(step + 1));
            let _ = moving(&[&world.clock], SECOND, archiver(&first.store).flush()).await;
            faults.clear();
            // More has come: whoever plans anew would take it along.
            publish_many(&stream, 5).await;
            let second = world.process().await;
            let report = archiver(&second.store).flush().await.unwrap();
            assert_eq!(report.failures, Vec::<String>::new(), "{applied} {step}");
            each_once(&world, 15);
            assert_eq!(archiver(&second.store).verify().await.unwrap().problems, Vec::<String>::new());
        }
    }
}

/// A paused archiver wakes when another one has finished its plan and gone on.
#[tokio::test]
async fn a_paused_archiver_writes_no_second_file_and_moves_no_cursor() {
    for on in [RECORD, "archive/audit"] {
        for after in 0..3 {
            let world = World::new();
            let first = world.process().await;
            let stream = archived(&first.store).await;
            publish_many(&stream, 10).await;
            world
                .objects
                .faults()
                .script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(4))).on(on).after(after));
            let mut zombie = archiver(&first.store);
            let mut paused = Box::pin(zombie.flush());
            if futures_util::poll!(&mut paused).is_ready() {
                continue;
            }
            start(&mut paused).await;
            publish_many(&stream, 5).await;
            let second = world.process().await;
            archiver(&second.store).flush().await.unwrap();
            world.clock.advance(Duration::from_secs(4));
            let _ = paused.await;
            archiver(&second.store).flush().await.unwrap();
            each_once(&world, 15);
        }
    }
}

/// Stopped for longer than five minutes, it looks at its record before it writes a file.
#[tokio::test]
async fn an_archiver_that_was_stopped_reads_its_record_before_it_creates_a_file() {
    let world = World::new();
    let clock = TestClock::at(world.clock.wall());
    let first = world.process_on(&clock).await;
    let stream = archived(&world.process().await.store).await;
    publish_many(&stream, 10).await;
    // It is stopped when its plan is in the record.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Slow(4 * SECOND)).on(RECORD).after(2));
    let mut zombie = archiver(&first.store);
    let mut paused = Box::pin(zombie.flush());
    start(&mut paused).await;
    let second = world.process().await;
    archiver(&second.store).flush().await.unwrap();
    // The file was moved on since, to somewhere colder.
    let name = files(&world.objects).remove(0);
    world.objects.delete_object(&name);
    world.clock.advance(HOUR);
    clock.suspend(HOUR);
    let _ = moving(&[&world.clock, &clock], SECOND / 10, paused).await;
    assert!(files(&world.objects).is_empty(), "it does not write it again");
}

#[tokio::test]
async fn a_file_with_the_same_messages_is_done_and_a_foreign_one_stops_it() {
    let world = World::new();
    let process = world.process().await;
    let stream = archived(&process.store).await;
    publish_many(&stream, 10).await;
    // It dies when the file is there and the cursor is not moved.
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).on(RECORD).after(3));
    assert!(!archiver(&process.store).flush().await.unwrap().failures.is_empty());
    world.objects.faults().clear();
    let name = files(&world.objects).remove(0);
    let ours = world.objects.object(&name).unwrap().0;
    world.objects.put_object(&name, "somebody else's");
    let report = archiver(&process.store).flush().await.unwrap();
    assert!(report.failures[0].contains("with other messages"), "{report:?}");
    // Written by another version, which packs better.
    let mut packed = ours.to_vec();
    packed[8] = 2;
    world.objects.put_object(&name, packed.clone());
    assert!(archiver(&process.store).flush().await.unwrap().failures.is_empty());
    assert_eq!(world.objects.object(&name).unwrap().0, packed);
    each_once(&world, 10);
}

/// Two streams of one domain have the same offsets, and files of their own.
#[tokio::test]
async fn two_streams_of_one_domain_never_want_the_same_file() {
    let world = World::new();
    let process = world.process().await;
    for name in ["events", "events-000"] {
        let stream = process.store.stream(name).unwrap();
        stream.configure(crate::stream::an_hour().archive("audit").partitions(2)).await.unwrap();
        for key in 0..8 {
            stream.publish_draft(leasehold::stream::Draft::new("s", "1").key(key.to_string())).await.unwrap();
        }
    }
    let mut archiver = archiver(&process.store);
    assert!(archiver.flush().await.unwrap().failures.is_empty());
    let verified = archiver.verify().await.unwrap();
    assert_eq!((verified.files, verified.messages, verified.problems), (4, 16, vec![]));
}
