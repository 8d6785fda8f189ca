//! A store is trusted only after it has proved itself, all processes agree on what must be the same, and a mistake in
//! the configuration is named before anything is written.

use crate::{
    common::{Bed, noon, s3},
    processes::{MILLI, moving, start},
};
use leasehold::{
    ErrorKind, Key, Settings, Store,
    store::{Probing, RequestKind},
};
use leasehold_testkit::{
    Answer, Fault, FaultStore, Flaw, FlawedStore, Op, Rule, S3Server, SeededGenerator, TestClock, conformance,
    conformance_of,
};
use object_store::{ObjectStore, memory::InMemory};
use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

async fn server() -> (TestClock, S3Server) {
    let clock = TestClock::at(noon());
    let server = S3Server::start(Arc::new(clock.clone())).await.unwrap();
    (clock, server)
}

fn fault_store(clock: &TestClock) -> FaultStore {
    FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)))
}

fn file_url(folder: &tempfile::TempDir) -> String {
    url::Url::from_directory_path(folder.path()).unwrap().to_string()
}

#[tokio::test]
async fn memory_passes_the_probe() {
    Store::builder().url("memory://").probing(Probing::Always).open().await.unwrap();
}

#[tokio::test]
async fn a_local_directory_passes_the_probe() {
    let folder = tempfile::tempdir().unwrap();
    Store::builder().url(file_url(&folder)).probing(Probing::Always).open().await.unwrap();
}

#[tokio::test]
async fn s3_passes_the_probe() {
    let (clock, server) = server().await;
    s3(&server, &clock).open().await.unwrap();
}

/// At each of its writes.
#[tokio::test]
async fn the_probe_outlives_a_short_outage_and_gives_up_in_a_long_one() {
    let probed = |clock: TestClock, objects: FaultStore| async move {
        let store = Store::builder().object_store(Arc::new(objects)).probing(Probing::Always);
        moving(&[&clock], MILLI, store.clock(Arc::new(clock.clone())).open()).await
    };
    let count = |objects: &FaultStore, fault, after, times| {
        objects.faults().script(Rule::once(Op::Put, fault).on(".leasehold/probe/").after(after).times(times));
    };
    let writes = {
        let clock = TestClock::at(noon());
        let objects = fault_store(&clock);
        count(&objects, Fault::Delay(MILLI), 0, usize::MAX);
        probed(clock, objects.clone()).await.unwrap();
        usize::try_from(objects.faults().injected().values().sum::<u64>()).unwrap()
    };
    assert!(writes > 20, "{writes}");
    // Where one of the last race is still let through, that one wins.
    for after in 0..=writes - 8 {
        for status in [500, 403] {
            let clock = TestClock::at(noon());
            let objects = fault_store(&clock);
            // One writes alone five times; then eight race, and all of them are told the same.
            let times = match (status, after) {
                (403, _) => usize::MAX,
                (_, ..5) => 3,
                _ => 8,
            };
            count(&objects, Fault::Refuse(Answer::Status(status)), after, times);
            let opened = probed(clock.clone(), objects).await;
            assert_eq!(opened.is_ok(), status == 500, "{status} after {after} of {writes}: {:?}", opened.err());
        }
        let clock = TestClock::at(noon());
        let objects = fault_store(&clock);
        count(&objects, Fault::Refuse(Answer::Status(500)), after, usize::MAX);
        assert_eq!(probed(clock, objects).await.unwrap_err().kind(), ErrorKind::Unavailable, "after {after}");
    }
}

#[tokio::test]
async fn settings_that_may_not_be_written_are_asked_for_once() {
    let clock = TestClock::at(noon());
    let objects = fault_store(&clock);
    objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).on("store.json"));
    let store = Store::builder().object_store(Arc::new(objects.clone())).probing(Probing::Never);
    let error = moving(&[&clock], MILLI, store.clock(Arc::new(clock.clone())).open()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(objects.faults().injected().values().sum::<u64>(), 1);
}

#[tokio::test]
async fn the_probe_refuses_what_two_holders_could_come_from_and_names_the_rule() {
    let rules = [
        (Flaw::IgnoresPreconditions, "a create of an existing object fails"),
        (Flaw::ChecksThenWrites, "of racing creates exactly one wins"),
        (Flaw::UpdatesTheMissing, "an update of a missing object fails"),
        (Flaw::StaleReads, "a read after an overwrite"),
    ];
    for (flaw, rule) in rules {
        let clock = TestClock::at(noon());
        let flawed: Arc<dyn ObjectStore> = Arc::new(FlawedStore::new(Arc::new(fault_store(&clock)), flaw));
        let error = Store::builder().object_store(flawed).clock(Arc::new(clock)).open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(rule), "{flaw:?}: {error}");

        let (clock, server) = server().await;
        server.break_rule(flaw);
        let error = s3(&server, &clock).open().await.unwrap_err();
        assert!(error.to_string().contains(rule), "{flaw:?} over HTTP: {error}");
        assert!(!server.names().iter().any(|name| name.ends_with("store.json")), "an unsafe store is left alone");
    }
}

#[tokio::test]
async fn the_probe_refuses_a_store_in_which_what_won_a_race_is_not_there() {
    let clock = TestClock::at(noon());
    let objects = fault_store(&clock);
    let written = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&written);
    objects.set_observer(Box::new(move |applied| seen.lock().unwrap().push(applied.name.clone())));
    // Four reads come before that of the first race.
    objects.faults().script(Rule::once(Op::Get, Fault::Delay(MILLI)).on(".leasehold/probe/").after(4));
    let store = Store::builder().object_store(Arc::new(objects.clone())).clock(Arc::new(clock.clone()));
    let mut opening = pin!(store.open());
    start(&mut opening).await;
    let (first, raced) = {
        let written = written.lock().unwrap();
        (written.first().unwrap().clone(), written.last().unwrap().clone())
    };
    objects.put_object(&raced, objects.object(&first).unwrap().0);
    let error = moving(&[&clock], MILLI, opening).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("of racing creates exactly one wins"), "{error}");
}

#[tokio::test]
async fn the_probe_is_not_put_off_by_lost_answers() {
    for answer in [Answer::Status(500), Answer::Status(503), Answer::Drop] {
        for nth in [0, 2, 6, 12] {
            let (clock, server) = server().await;
            server.faults().script(Rule::once(Op::Put, Fault::Lose(answer)).after(nth));
            s3(&server, &clock).open().await.unwrap_or_else(|error| panic!("write {nth}, {answer:?}: {error}"));
        }
    }
}

#[tokio::test]
async fn the_probe_needs_neither_list_nor_delete() {
    let (clock, server) = server().await;
    server.deny(Op::List);
    server.deny(Op::Delete);
    s3(&server, &clock).open().await.unwrap();
}

#[tokio::test]
async fn a_known_store_is_opened_with_one_read() {
    let (clock, server) = server().await;
    s3(&server, &clock).open().await.unwrap();
    server.clear_requests();
    let store = s3(&server, &clock).open().await.unwrap();
    assert_eq!((store.requests().total(), store.requests().of(RequestKind::Get)), (1, 1));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_store_is_probed_again_after_a_week_and_at_another_place() {
    let (clock, server) = server().await;
    s3(&server, &clock).open().await.unwrap();
    clock.advance(Duration::from_secs(7 * 24 * 3600 - 1));
    assert_eq!(s3(&server, &clock).open().await.unwrap().requests().total(), 1);
    clock.advance(Duration::from_secs(1));
    assert!(s3(&server, &clock).open().await.unwrap().requests().total() > 20, "a week has passed");
    assert_eq!(s3(&server, &clock).open().await.unwrap().requests().total(), 1, "and the new probe is noted");

    // A copy of the bucket's contents under another prefix is another store.
    let record = server.object("some/prefix/.leasehold/store.json").unwrap();
    server.put_object("elsewhere/.leasehold/store.json", record);
    let copied = s3(&server, &clock).url("s3://bucket/elsewhere").open().await.unwrap();
    assert!(copied.requests().total() > 20, "a copy is probed");
}

#[tokio::test]
async fn a_store_that_was_handed_in_is_probed_each_time_unless_told_otherwise() {
    let clock = TestClock::at(noon());
    let inner = Arc::new(fault_store(&clock));
    let builder = || Store::builder().object_store(Arc::clone(&inner) as _).clock(Arc::new(clock.clone()));
    builder().open().await.unwrap();
    assert!(builder().open().await.unwrap().requests().total() > 20);
    let trusted = builder().probing(Probing::Never).open().await.unwrap();
    assert_eq!(trusted.requests().total(), 1);
    // Also where its time is known, and with it how long ago it was probed.
    for _ in 0..2 {
        assert!(builder().shares_our_clock().open().await.unwrap().requests().total() > 20);
    }
}

#[tokio::test]
async fn settings_are_written_also_to_a_store_that_fails_for_a_moment() {
    let clock = TestClock::at(noon());
    let objects = fault_store(&clock);
    objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Status(500))).on("store.json"));
    let store = Store::builder().object_store(Arc::new(objects.clone())).probing(Probing::Never);
    moving(&[&clock], MILLI, store.clock(Arc::new(clock.clone())).open()).await.unwrap();
    assert!(objects.object(".leasehold/store.json").is_some());
}

#[tokio::test]
async fn a_second_handle_is_for_listing_and_the_first_for_what_must_be_quick() {
    let clock = TestClock::at(noon());
    let (first, second) = (fault_store(&clock), fault_store(&clock));
    let new = Store::builder().object_store(Arc::new(first.clone())).shares_our_clock().probing(Probing::Never);
    new.clock(Arc::new(clock.clone())).open().await.unwrap();
    for store in [&first, &second] {
        store.put_object("orders/meta/a.pb", "");
    }
    first.faults().script(Rule::always(Op::List, Fault::Refuse(Answer::Status(403))));
    for op in [Op::Get, Op::Put] {
        second.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(403))));
    }
    let builder = Store::builder().object_store(Arc::new(first)).bulk_store(Arc::new(second));
    let store = builder.shares_our_clock().clock(Arc::new(clock)).probing(Probing::Never).open().await.unwrap();
    assert_eq!(store.namespaces().await.unwrap(), [leasehold::Namespace::new("orders").unwrap()]);
}

#[tokio::test]
async fn more_namespaces_than_fit_on_a_page_are_all_found() {
    let (clock, server) = server().await;
    s3(&server, &clock).probing(Probing::Never).open().await.unwrap();
    for number in 0..1001 {
        server.put_object(&format!("some/prefix/n-{number:04}/meta/a.pb"), "");
    }
    let store = s3(&server, &clock).probing(Probing::Never).open().await.unwrap();
    let before = store.requests();
    assert_eq!(store.namespaces().await.unwrap().len(), 1001);
    assert_eq!(store.requests().since(&before).of(RequestKind::List), 2);
}

#[tokio::test]
async fn the_first_process_decides_what_all_agree_on() {
    let (clock, server) = server().await;
    let settings = |skew: Option<u64>| {
        let mut settings = Settings::default();
        settings.max_clock_skew = skew.map(Duration::from_millis);
        settings
    };
    s3(&server, &clock).settings(settings(Some(2500))).open().await.unwrap();
    let silent = s3(&server, &clock).settings(settings(None)).open().await.unwrap();
    assert_eq!(silent.shared_settings().max_clock_skew, Duration::from_millis(2500));
    s3(&server, &clock).settings(settings(Some(2500))).open().await.unwrap();
    let error = s3(&server, &clock).settings(settings(Some(1000))).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(text.contains("1 s in this process") && text.contains("2 s 500 ms in the store"), "{text}");
}

#[tokio::test]
async fn processes_that_open_a_new_store_at_once_agree() {
    let (clock, server) = server().await;
    let opened = futures_util::future::join_all((0..6).map(|number| {
        let mut settings = Settings::default();
        settings.max_ttl = (number % 2 == 0).then_some(Duration::from_secs(1800));
        s3(&server, &clock).settings(settings).open()
    }))
    .await;
    let agreed: Vec<_> = opened.iter().flatten().map(|store| store.shared_settings().clone()).collect();
    assert!(agreed.windows(2).all(|pair| pair[0] == pair[1]), "{agreed:?}");
    // Those that named a value are refused if a silent one was first.
    for error in opened.iter().filter_map(|opened| opened.as_ref().err()) {
        assert!(error.to_string().contains("max_ttl is 30 min in this process and 1 h in the store"), "{error}");
    }
}

#[tokio::test]
async fn the_loser_of_a_lost_answer_keeps_its_own_settings() {
    let (clock, server) = server().await;
    server.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Status(503))).on("store.json"));
    s3(&server, &clock).open().await.unwrap();
    assert!(server.object("some/prefix/.leasehold/store.json").is_some());
}

#[tokio::test]
async fn a_damaged_store_json_is_named_and_left_alone() {
    let (clock, server) = server().await;
    server.put_object("some/prefix/.leasehold/store.json", "{\"format\":1,");
    let error = s3(&server, &clock).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(".leasehold/store.json"), "{error}");
    assert_eq!(server.names().len(), 1);
}

#[test]
fn a_key_that_cannot_be_is_refused_and_one_that_looks_dangerous_is_only_a_name() {
    assert!(Key::new("").unwrap_err().to_string().contains("empty"));
    let error = Key::new("x".repeat(2048)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("2048") && error.to_string().contains("1024"), "{error}");
    let name = Key::new("../../etc/passwd").unwrap().name();
    assert_eq!(name, "!2e!2e!2f!2e!2e!2fetc!2fpasswd");
}

#[tokio::test]
async fn a_url_that_names_no_store_is_refused_with_an_example() {
    let cases = [
        ("ftp://host/x", "use s3://, gs://, az:// or file://"),
        ("s3:///prefix", "s3://bucket/prefix"),
        ("s3://", "s3://bucket/prefix"),
        ("gs:///x", "gs://bucket/prefix"),
        ("file://host/x", "file:///absolute/folder"),
        ("memory://host", "memory:///prefix"),
        ("just-a-name", "s3://bucket/prefix"),
        ("memory://?speed=11", "unknown option \"speed\""),
        ("s3://bucket?endpiont=http://x", "unknown option \"endpiont\""),
        ("s3://bucket?secret_access_key=hush", "environment"),
        ("s3://key:hush@bucket/prefix", "environment"),
    ];
    for (url, words) in cases {
        let error = Store::builder().url(url).without_environment().open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(error.to_string().contains(words), "{url}: {error}");
        assert!(!error.to_string().contains("hush"), "a secret in a message: {error}");
    }
    let error = Store::builder().open().await.unwrap_err();
    assert!(error.to_string().contains("no store was named"), "{error}");
}

#[tokio::test]
async fn a_missing_bucket_is_named_and_nothing_is_written() {
    let (clock, server) = server().await;
    let error = s3(&server, &clock).url("s3://wrong/prefix").open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("NoSuchBucket") && text.contains("s3://wrong/prefix") && text.contains("create it"),
        "{text}"
    );
    assert!(server.names().is_empty());
}

#[tokio::test]
async fn wrong_credentials_are_named_and_nothing_is_written() {
    let (clock, server) = server().await;
    let error = s3(&server, &clock).option("access_key_id", "somebody-else").open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    assert!(text.contains("InvalidAccessKeyId") && text.contains("AWS_ACCESS_KEY_ID"), "{text}");
    assert!(server.names().is_empty());
}

#[tokio::test]
async fn credentials_that_may_only_read_are_told_apart() {
    let (clock, server) = server().await;
    server.deny(Op::Put);
    let error = s3(&server, &clock).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("writing") && error.to_string().contains("permission"), "{error}");
    assert!(server.names().is_empty());
    // A store that another process has opened before can be read.
    server.allow(Op::Put);
    s3(&server, &clock).open().await.unwrap();
    server.deny(Op::Put);
    s3(&server, &clock).open().await.unwrap();
}

#[tokio::test]
async fn a_signature_by_a_wrong_clock_is_a_matter_of_the_clock() {
    let (clock, server) = server().await;
    server.check_signature_time(true);
    let error = s3(&server, &clock).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("clock"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let (clock, server) = server().await;
    let builder = s3(&server, &clock).probing(Probing::Never);
    drop(server);
    let moving = tokio::spawn({
        let clock = clock.clone();
        async move {
            loop {
                clock.wait_for_sleepers(1).await;
                clock.advance(Duration::from_millis(50));
                tokio::task::yield_now().await;
            }
        }
    });
    let error = builder.open().await.unwrap_err();
    moving.abort();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn the_stores_time_is_known_after_opening_and_a_wrong_clock_is_seen() {
    let (clock, server) = server().await;
    server.set_date(-120_000);
    let store = s3(&server, &clock).open().await.unwrap();
    let skew = store.skew().unwrap();
    assert!((119..=121).contains(&skew.as_secs()), "{skew:?}");

    // A store that was handed in tells its time by an object.
    let inner = fault_store(&clock);
    inner.set_offset_millis(5000);
    let store = Store::builder().object_store(Arc::new(inner)).clock(Arc::new(clock)).open().await.unwrap();
    assert_eq!(store.skew().unwrap(), Duration::from_secs(5));
}

#[tokio::test]
async fn every_store_keeps_the_contract() {
    let bed = Bed::new().await;
    let folder = tempfile::tempdir().unwrap();
    let local = Store::open(file_url(&folder)).await.unwrap();
    let memory = Store::open("memory://").await.unwrap();
    let mut results = vec![
        ("s3", conformance_of(&bed.store).await),
        ("local", conformance_of(&local).await),
        ("memory", conformance_of(&memory).await),
        ("handed in", conformance(Arc::new(InMemory::new())).await.unwrap()),
    ];
    results.push(("fault store", conformance(Arc::new(fault_store(&bed.clock))).await.unwrap()));
    for (store, checks) in results {
        assert_eq!(checks.len(), 12);
        for check in checks {
            assert!(check.result.is_ok(), "{store}: {check}");
        }
    }
}

#[tokio::test]
async fn the_contract_finds_a_store_that_breaks_it() {
    for flaw in [Flaw::IgnoresPreconditions, Flaw::ChecksThenWrites, Flaw::UpdatesTheMissing, Flaw::StaleReads] {
        let clock = TestClock::at(noon());
        let flawed = FlawedStore::new(Arc::new(fault_store(&clock)), flaw);
        let broken = match conformance(Arc::new(flawed)).await {
            Ok(checks) => checks.iter().filter(|check| check.result.is_err()).count(),
            Err(_) => 1,
        };
        assert!(broken > 0, "{flaw:?}");
    }
}

#[tokio::test]
async fn a_prefix_counts_wherever_it_is_said_and_is_refused_beside_a_url() {
    let clock = TestClock::at(noon());
    let objects = fault_store(&clock);
    let builder = || Store::builder().clock(Arc::new(clock.clone())).probing(Probing::Never);
    let before = builder().prefix("locks").shares_our_clock().object_store(Arc::new(objects.clone()));
    let after = builder().object_store(Arc::new(objects.clone())).shares_our_clock().prefix("locks");
    let key = Key::new("a").unwrap();
    let request = leasehold::lease::Request::new(Duration::from_secs(30));
    let mut granted = 0;
    for store in [before, after] {
        let leases = store.open().await.unwrap().leases("default").unwrap();
        granted += usize::from(leases.acquire(&key, &request).await.unwrap().granted().is_some());
    }
    assert_eq!(granted, 1, "two stores of one");
    assert!(objects.names().iter().all(|name| name.starts_with("locks/")), "{:?}", objects.names());
    for builder in [builder().prefix("a"), builder().lists_in_order(), builder().shares_our_clock()] {
        let error = builder.url("memory://").open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[tokio::test]
async fn of_two_endpoints_the_later_is_used_whatever_it_is_called() {
    let ((clock, wanted), (_, other)) = (server().await, server().await);
    for name in ["aws_endpoint_url_s3", "aws_endpoint"] {
        let builder = s3(&wanted, &clock).option(name, other.endpoint());
        let url = format!("s3://bucket/{name}?endpoint={}", wanted.endpoint());
        builder.url(url).open().await.unwrap();
    }
    assert_eq!(other.requests().len(), 0);
}
