//! A kind of record that only tests know is swept, checked, counted, reported and has a shared setting.

#[path = "../shared/notes.rs"]
mod notes;

use crate::{
    common::{key, request},
    processes::{Process, World, granted},
};
use leasehold::{
    Clock, Store,
    fsck::{Damage, FsckOptions},
    store::Probing,
    sweep::{StoppedBy, SweepOptions},
};
use notes::{NOTE_KEPT, Notes};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

const HOUR: Duration = Duration::from_secs(3600);

async fn open(world: &World) -> (Process, Arc<Notes>) {
    let notes = Notes::new(&world.objects);
    let builder = Store::builder().object_store(Arc::new(world.objects.clone())).shares_our_clock().lists_in_order();
    let builder = builder.probing(Probing::Never).clock(Arc::new(world.clock.clone()));
    let store = builder.kind(notes.clone()).open().await.unwrap();
    (Process::new(&world.clock, store), notes)
}

fn fast() -> SweepOptions {
    SweepOptions::new().op_delay(Duration::ZERO)
}

fn names(world: &World, part: &str) -> Vec<String> {
    world.objects.names().into_iter().filter(|name| name.contains(part)).collect()
}

#[tokio::test]
async fn its_records_are_swept_beside_those_of_the_others_and_told_apart() {
    let world = World::new();
    let (process, _) = open(&world).await;
    let soon = world.clock.wall().plus(Duration::from_secs(60));
    notes::write(&world.objects, "default", "ended", soon);
    notes::write(&world.objects, "other", "put-off", soon);
    let later = soon.plus(5 * HOUR);
    world.objects.put_object("other/note/put-off", format!("{} {}", soon.as_millis(), later.as_millis()));
    notes::write(&world.objects, "default", "gone", soon);
    world.objects.delete_object("default/note/gone");
    notes::write(&world.objects, "default", "bad", soon);
    world.objects.put_object("default/note/bad", "?");
    granted(process.leases.acquire(&key("x"), &request()).await);
    world.clock.advance(2 * HOUR);

    let dry = process.store.sweeper().run_once(fast().dry_run(true)).await.unwrap();
    assert_eq!(names(&world, "note").len(), 7, "a dry run changes nothing");
    let report = process.store.sweeper().run_once(fast()).await.unwrap();
    let notes = report.of("note");
    assert_eq!((notes.entries_seen, notes.deleted, notes.moved, notes.entries_kept), (4, 1, 1, 1), "{report:?}");
    assert_eq!((notes.entries_deleted, notes.failures, dry.of("note").deleted), (3, 1, 1), "{report:?}");
    assert_eq!((report.of("lease").cleared, report.of("lease").entries_deleted), (1, 1));
    assert_eq!((report.entries_deleted, report.entries_kept, report.failures), (4, 1, 1), "what they come to together");
    assert_eq!(process.store.stats().swept["note"], notes);
    assert_eq!(names(&world, "note/"), ["default/note/bad", "other/note/put-off"]);
    assert_eq!(names(&world, ".note-index/").len(), 2, "the bad one's, and the later one of the one put off");

    world.clock.advance(6 * HOUR);
    process.store.sweeper().run_once(fast()).await.unwrap();
    assert_eq!(names(&world, "put-off"), Vec::<String>::new());
}

#[tokio::test]
async fn an_entry_stays_until_everything_that_goes_first_is_known_to_be_gone() {
    use leasehold_testkit::{Answer, Fault, Op, Rule};
    let world = World::new();
    let (process, _) = open(&world).await;
    notes::write(&world.objects, "default", "ended", world.clock.wall());
    world.clock.advance(2 * HOUR);
    let refused = Fault::Refuse(Answer::Status(403));
    world.objects.faults().script(Rule::once(Op::Delete, refused).on("default/note/"));
    process.store.sweeper().run_once(fast()).await.unwrap();
    assert_eq!(names(&world, "ended").len(), 2);
    process.store.sweeper().run_once(fast()).await.unwrap();
    assert_eq!(names(&world, "ended").len(), 0);
}

#[tokio::test]
async fn its_chores_are_done_a_step_at_a_time_and_count_as_operations() {
    let world = World::new();
    let (process, notes) = open(&world).await;
    notes.chore_takes.store(5, SeqCst);
    let report = process.store.sweeper().run_once(fast()).await.unwrap();
    assert_eq!((report.chores, report.stopped_by), (5, Some(StoppedBy::Complete)));
    assert_eq!(notes.steps.load(SeqCst), 5);

    // Without an end it would go on for ever: the run's own limits hold for it.
    notes.chore_takes.store(u64::MAX, SeqCst);
    let mut settings = leasehold::Settings::default();
    settings.sweep.idle_grace = Duration::ZERO;
    settings.sweep.op_delay = Duration::ZERO;
    settings.sweep.max_ops_per_run = 40;
    let builder = Store::builder().object_store(Arc::new(world.objects.clone())).shares_our_clock().settings(settings);
    let builder = builder.probing(Probing::Never).clock(Arc::new(world.clock.clone())).kind(notes.clone());
    let store = builder.open().await.unwrap();
    let sweeper = store.sweeper();
    let running = sweeper.start();
    while sweeper.state().runs.is_empty() {
        crate::processes::pass(&[&world.clock], Duration::from_secs(30), Duration::from_secs(10)).await;
    }
    running.stop().await;
    let run = &sweeper.state().runs[0].report;
    assert_eq!((run.stopped_by, run.chores + run.lists + run.entries_seen), (Some(StoppedBy::Ops), 40), "{run:?}");
}

#[tokio::test]
async fn fsck_finds_its_damage_and_repairs_it() {
    let world = World::new();
    let (process, _) = open(&world).await;
    granted(process.leases.acquire(&key("x"), &request()).await);
    notes::write(&world.objects, "default", "unfiled", world.clock.wall());
    assert!(names(&world, ".note-index/").iter().all(|name| world.objects.delete_object(name)));
    notes::write(&world.objects, "default", "bad", world.clock.wall());
    world.objects.put_object("default/note/bad", "?");

    let report = process.store.fsck(FsckOptions::new()).await.unwrap();
    assert_eq!((report.kinds["note"].records, report.kinds["note"].entries), (2, 1), "{report:?}");
    assert_eq!((report.kinds["lease"].records, report.records), (1, 3));
    let found = |damage| report.found.get(&damage).copied().unwrap_or_default();
    assert_eq!((found(Damage::MissingEntry), found(Damage::Unreadable), found(Damage::UnknownName)), (1, 1, 0));
    let repaired = process.store.fsck(FsckOptions::new().repair("alice")).await.unwrap();
    assert_eq!((repaired.repaired, repaired.open), (1, 1));
    assert_eq!(process.store.fsck(FsckOptions::new()).await.unwrap().open, 1, "only the one that nobody can read");
    // Without the kind its folders are unknown.
    let other = world.process().await.store.fsck(FsckOptions::new()).await.unwrap();
    assert!(other.findings.iter().any(|finding| finding.name == "default/note/"), "{other:?}");
}

#[tokio::test]
async fn its_shared_setting_stands_in_the_store_and_all_must_have_it_alike() {
    let world = World::new();
    let (process, _) = open(&world).await;
    let json: serde_json::Value =
        serde_json::from_slice(&world.objects.object(".leasehold/store.json").unwrap().0).unwrap();
    assert_eq!(json["note_kept_ms"], 60_000);
    assert_eq!(process.store.shared_settings().of(&NOTE_KEPT), Duration::from_secs(60));
    let builder = || {
        let builder = Store::builder().object_store(Arc::new(world.objects.clone())).probing(Probing::Never);
        builder.kind(Notes::new(&world.objects)).shared_setting(&NOTE_KEPT, Duration::from_secs(90))
    };
    let error = builder().open().await.unwrap_err();
    assert!(error.to_string().contains("note_kept is 1 min 30 s in this process and 1 min in the store"), "{error}");
    let change = leasehold::store::SharedSettingsChange::default().set(&NOTE_KEPT, Duration::from_secs(90));
    process.store.change_shared_settings(&change, "alice").await.unwrap();
    builder().open().await.unwrap();
    // A process that does not know the kind neither minds nor loses its setting.
    let stranger = world.process().await.store;
    let skew = leasehold::store::SharedSettingsChange::default()
        .set(&leasehold::store::MAX_CLOCK_SKEW, Duration::from_secs(2));
    stranger.change_shared_settings(&skew, "bob").await.unwrap();
    assert_eq!(builder().open().await.unwrap().shared_settings().epoch, 3);
    // A store that was made before there was such a kind has the default.
    let older = World::new();
    older.process().await;
    assert_eq!(open(&older).await.0.store.shared_settings().of(&NOTE_KEPT), Duration::from_secs(60));
}
