//! An operator changes what all processes have alike.

use crate::processes::{MILLI, World, moving};
use leasehold::{
    ErrorKind, Settings, Store,
    decision::{self, Decided, Decision, MARKER_RETENTION, MAX_TXN_AGE},
    lease::MAX_TTL,
    store::{MARGIN, Probing, SharedSettingsChange},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::{sync::Arc, time::Duration};

fn longer(hours: u64) -> SharedSettingsChange {
    SharedSettingsChange::default().set(&MAX_TTL, Duration::from_secs(3600 * hours))
}

#[tokio::test]
async fn a_change_raises_the_epoch_and_leaves_the_rest_and_old_settings_are_refused() {
    let world = World::new();
    let store = world.process().await.store;
    let old = store.info().await.unwrap();
    let new = store.change_shared_settings(&longer(2), "alice").await.unwrap();
    assert_eq!((new.epoch, new.of(&MAX_TTL), new.margin), (2, Duration::from_secs(7200), old.shared_settings.margin));

    let again = world.process().await.store;
    assert_eq!(*again.shared_settings(), new);
    assert_eq!(again.info().await.unwrap().revision, old.revision + 1);
    let mut settings = Settings::default();
    settings.max_ttl = Some(Duration::from_secs(3600));
    let refused = Store::builder().object_store(Arc::new(world.objects.clone())).probing(Probing::Never);
    assert_eq!(refused.settings(settings).open().await.unwrap_err().kind(), ErrorKind::Config);
    let noted = world.objects.names().into_iter().find(|name| name.starts_with(".leasehold/repairs/")).unwrap();
    let text = String::from_utf8_lossy(&world.objects.object(&noted).unwrap().0).into_owned();
    assert!(text.contains("settings_changed") && text.contains("alice") && text.contains("max_ttl 2 h"), "{text}");
    again.change_shared_settings(&longer(3), "bob").await.unwrap();
    assert_eq!(world.process().await.store.info().await.unwrap().revision, old.revision + 2);
}

#[tokio::test]
async fn what_no_process_could_work_with_is_refused_and_nothing_is_changed() {
    let world = World::new();
    let store = world.process().await.store;
    let before = world.objects.object(".leasehold/store.json").unwrap().0;
    let change = SharedSettingsChange::default().set(&MARGIN, Duration::from_secs(60));
    let error = store.change_shared_settings(&change, "alice").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert_eq!(world.objects.object(".leasehold/store.json").unwrap().0, before);
}

#[tokio::test]
async fn of_two_who_change_it_at_once_one_is_told() {
    let world = World::new();
    let (one, two) = (world.process().await.store, world.process().await.store);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(1))).on("store.json"));
    let (two_hours, three_hours) = (longer(2), longer(3));
    let slow = one.change_shared_settings(&two_hours, "alice");
    let fast = two.change_shared_settings(&three_hours, "bob");
    let (slow, fast) = moving(&[&world.clock], Duration::from_millis(100), async { tokio::join!(slow, fast) }).await;
    assert_eq!(fast.unwrap().of(&MAX_TTL), Duration::from_secs(3 * 3600));
    assert!(slow.unwrap_err().to_string().contains("another process"), "the first one was not told");
    assert_eq!(world.process().await.store.shared_settings().epoch, 2);
}

#[tokio::test]
async fn a_change_whose_answer_was_lost_is_known_as_done_and_made_once() {
    let world = World::new();
    let store = world.process().await.store;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("store.json"));
    let change = longer(2);
    let new = moving(&[&world.clock], MILLI, store.change_shared_settings(&change, "alice")).await.unwrap();
    assert_eq!(new.epoch, 2);
    assert_eq!(world.process().await.store.shared_settings().epoch, 2);
}

#[tokio::test]
async fn a_change_outlives_a_short_outage_and_is_given_up_in_a_long_one() {
    let world = World::new();
    let store = world.process().await.store;
    let failed = || Fault::Refuse(Answer::Status(500));
    world.objects.faults().script(Rule::once(Op::Put, failed()).on("store.json").times(3));
    let change = longer(2);
    let new = moving(&[&world.clock], MILLI, store.change_shared_settings(&change, "alice")).await.unwrap();
    assert_eq!(new.epoch, 2);
    for fault in [failed(), Fault::Refuse(Answer::Status(403))] {
        world.objects.faults().clear();
        world.objects.faults().script(Rule::always(Op::Put, fault).on("store.json"));
        let (change, store) = (longer(3), world.process().await.store);
        moving(&[&world.clock], MILLI, store.change_shared_settings(&change, "alice")).await.unwrap_err();
    }
    world.objects.faults().clear();
    assert_eq!(world.process().await.store.shared_settings().epoch, 2);
}

#[tokio::test]
async fn ten_years_is_the_longest_time_that_can_be_agreed_on() {
    let world = World::new();
    let longest = Duration::from_secs(10 * 365 * 24 * 3600);
    let keep = |time| SharedSettingsChange::default().set(&MARKER_RETENTION, time);
    let error = world.process().await.store.change_shared_settings(&keep(longest + MILLI), "alice").await.unwrap_err();
    assert!(error.to_string().contains("ten years"), "{error}");
    let agreed = world.process().await.store.change_shared_settings(&keep(longest), "alice").await.unwrap();
    assert_eq!(agreed.of(&MARKER_RETENTION), longest);
}

#[tokio::test]
async fn a_store_that_must_be_there_is_not_made() {
    let world = World::new();
    let open = || Store::builder().object_store(Arc::new(world.objects.clone())).probing(Probing::Never).must_exist();
    let error = open().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("there is no store"), "{error}");
    assert_eq!(world.objects.names(), Vec::<String>::new());
    world.process().await;
    open().open().await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/typo", folder.path().display());
    let error = Store::builder().url(&url).must_exist().open().await.unwrap_err();
    assert!(error.to_string().contains("there is no store"), "{error}");
    assert!(!folder.path().join("typo").exists());
}

#[tokio::test]
async fn another_transaction_age_neither_revives_nor_voids_a_decision() {
    let world = World::new();
    let hour = Duration::from_secs(3600);
    let decisions = world.process().await.store.decisions();
    let (gone, stands) = (decisions.begin(), decisions.begin());
    let _ = decisions.decide(gone, Decision::Commit).await.unwrap();
    world.clock.advance(Duration::from_secs(50 * 60));
    let _ = decisions.decide(stands, Decision::Commit).await.unwrap();
    world.clock.advance(Duration::from_secs(26 * 60));
    decisions.forget(gone).await.unwrap();

    let age = |age| SharedSettingsChange::default().set(&MAX_TXN_AGE, age);
    let old = world.process().await.store.shared_settings().clone();
    for shorter in [hour / 6, hour - MILLI] {
        let error = world.process().await.store.change_shared_settings(&age(shorter), "alice").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    let stop = |change: SharedSettingsChange| change.needs_a_stop_of(&old).unwrap();
    let (stop, other) = (stop(age(12 * hour)).time, stop(longer(2)));
    assert_eq!((stop, other.time, other.why), (12 * hour + old.margin, hour + old.margin, "max_ttl + margin"));
    world.clock.advance(stop);
    world.process().await.store.change_shared_settings(&age(12 * hour), "alice").await.unwrap();
    let decisions = world.process().await.store.decisions();
    assert_eq!(decisions.decide(gone, Decision::Abort).await.unwrap(), Decided::TooOld);
    assert_eq!(decisions.get(gone).await.unwrap(), decision::Answer::Forgotten);
    assert_eq!(decisions.get(stands).await.unwrap(), decision::Answer::Committed);
}
