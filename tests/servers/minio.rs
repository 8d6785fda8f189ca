//! Credentials, permissions and clocks that are wrong, on a server that checks them. `servers.py` makes the users.

#![allow(clippy::disallowed_methods, reason = "drives a real process")]

use crate::{
    place::{self, Kind, Place, brief, granted, key, long_ago, now, request, settings, until_brief_ones_have_ended},
    said::Said,
};
use leasehold::{
    ErrorKind, Settings,
    decision::{Decided, Decision},
    store::{Probing, RequestKind::List},
    sweep::SweepOptions,
};
use leasehold_testkit::TestClock;
use std::{
    env,
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

mod clocks;

const SECRET: &str = "leasehold-secret";

/// From the first call on, every warning of all tests of this process is heard.
fn listen() -> Said {
    static SAID: OnceLock<Said> = OnceLock::new();
    let hear = || {
        let said = Said::default();
        tracing::subscriber::set_global_default(said.clone()).unwrap();
        said
    };
    SAID.get_or_init(hear).clone()
}

macro_rules! tests {
    ($($test:ident),+ $(,)?) => {
        $(
            #[test]
            #[ignore = "needs MinIO: see tests/servers/run"]
            fn $test() {
                place::run(Kind::given, on::$test);
            }
        )+
    };
}

tests! {
    a_missing_bucket_is_named,
    a_wrong_secret_is_a_matter_of_credentials,
    an_unknown_user_is_a_matter_of_credentials,
    a_signature_by_a_clock_20_minutes_off_is_refused_and_the_message_says_so,
    who_may_only_read_can_look_and_cannot_lock,
    who_may_not_list_can_lock_and_the_sweeper_says_once_that_it_may_not,
    who_may_not_delete_can_lock_and_the_sweeper_says_once_that_it_may_not,
}

fn at_once() -> SweepOptions {
    SweepOptions::new().op_delay(Duration::ZERO)
}

/// A sweeper that runs whenever it is allowed to.
fn eager() -> Settings {
    let mut eager = settings();
    (eager.sweep.idle_grace, eager.sweep.op_delay, eager.sweep.rest_spread) =
        (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    eager
}

/// The kind of an error, and words that its message must have.
fn expect(error: &leasehold::Error, kind: ErrorKind, words: &[&str]) {
    let text = error.to_string();
    println!("{kind:?}: {text}");
    assert_eq!(error.kind(), kind, "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

mod on {
    use super::*;

    pub(super) async fn a_missing_bucket_is_named(place: Arc<Place>) {
        let mut url = place.url().clone();
        url.set_host(Some("no-such-bucket")).unwrap();
        let error = place.builder_at(&url).open().await.unwrap_err();
        expect(&error, ErrorKind::Config, &["s3://no-such-bucket/", "NoSuchBucket", "create it"]);
    }

    pub(super) async fn a_wrong_secret_is_a_matter_of_credentials(place: Arc<Place>) {
        let error = place.as_user("leasehold", "not-the-secret").builder().open().await.unwrap_err();
        expect(&error, ErrorKind::Denied, &["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"]);
    }

    pub(super) async fn an_unknown_user_is_a_matter_of_credentials(place: Arc<Place>) {
        let error = place.as_user("nobody", SECRET).builder().open().await.unwrap_err();
        expect(&error, ErrorKind::Denied, &["InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"]);
    }

    /// In a process of its own, whose wall clock is wrong.
    pub(super) async fn a_signature_by_a_clock_20_minutes_off_is_refused_and_the_message_says_so(_: Arc<Place>) {
        let library = env::var("LEASEHOLD_TEST_FAKETIME").expect("tests/servers/run says where libfaketime is");
        for shift in ["-20m", "+20m"] {
            let child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "minio::opening_with_a_wrong_clock", "--ignored", "--nocapture"])
                .envs([("LD_PRELOAD", library.as_str()), ("FAKETIME", shift), ("LEASEHOLD_TEST_WRONG_CLOCK", "1")])
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
            assert!(said.contains("Config: ") && said.contains("RequestTimeTooSkewed"), "{said}");
        }
    }

    pub(super) async fn who_may_only_read_can_look_and_cannot_lock(place: Arc<Place>) {
        let writer = place.open().await.leases("default").unwrap();
        let grant = granted(writer.acquire(&key("a"), &request()).await);
        let reader = place.as_user("may-only-read", SECRET);
        let error = reader.builder().probing(Probing::Always).open().await.unwrap_err();
        expect(&error, ErrorKind::Denied, &["AccessDenied", "grant the missing permission"]);
        let store = reader.builder().probing(Probing::Never).open().await.unwrap();
        let leases = store.leases("default").unwrap();
        assert_eq!(leases.peek(&key("a")).await.unwrap().holder.unwrap().lease_id, grant.lease_id());
        assert_eq!(leases.list(b"", None, 10).await.unwrap().keys.len(), 1);
        let error = leases.acquire(&key("b"), &request()).await.unwrap_err();
        expect(&error, ErrorKind::Denied, &["AccessDenied", "grant the missing permission"]);
        let error = leases.release(&grant).await.unwrap_err();
        expect(&error, ErrorKind::Denied, &["AccessDenied"]);
        assert!(writer.peek(&key("b")).await.unwrap().last_fence.is_none());
    }

    pub(super) async fn who_may_not_list_can_lock_and_the_sweeper_says_once_that_it_may_not(place: Arc<Place>) {
        let said = listen();
        let limited = place.as_user("may-not-list", SECRET);
        let store = limited.builder().probing(Probing::Always).open().await.unwrap();
        works(&store).await;
        let error = store.sweeper().run_once(at_once()).await.unwrap_err();
        expect(&error, ErrorKind::Denied, &["AccessDenied", "grant the missing permission"]);
        let tries = sweep_for_hours(&limited).await;
        assert!(tries >= 3, "it tries again once an hour: {tries}");
        assert_eq!(said.count(&["the sweeper may not list", place.url().path()]), 1);
    }

    pub(super) async fn who_may_not_delete_can_lock_and_the_sweeper_says_once_that_it_may_not(place: Arc<Place>) {
        let said = listen();
        granted(place.open_at(&long_ago()).await.leases("default").unwrap().acquire(&key("old"), &brief()).await);
        until_brief_ones_have_ended().await;
        let limited = place.as_user("may-not-delete", SECRET);
        let store = limited.builder().probing(Probing::Always).open().await.unwrap();
        works(&store).await;
        let report = store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!((report.of("lease").cleared, report.entries_deleted, report.failures), (1, 0, 1), "{report:?}");
        assert!(report.last_error.as_ref().is_some_and(|error| error.contains("AccessDenied")), "{report:?}");
        store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!(said.count(&["the sweeper may not delete", place.url().path()]), 1);
        sweep_for_hours(&limited).await;
        assert_eq!(
            said.count(&["the sweeper may not delete", place.url().path()]),
            2,
            "another process says it once too"
        );
    }

    /// Leases and decisions, from the first to the last step.
    async fn works(store: &leasehold::Store) {
        let leases = store.leases("default").unwrap();
        for _ in 0..3 {
            let grant = granted(leases.acquire(&key("a"), &request()).await);
            let _ = leases.renew(&grant).await.unwrap();
            leases.release(&grant).await.unwrap();
        }
        let txn = store.decisions().begin();
        let decided = store.decisions().decide(txn, Decision::Commit).await.unwrap();
        assert_eq!(decided, Decided::Decision(Decision::Commit));
    }

    fn runs(store: &leasehold::Store) -> u64 {
        store.stats().sweeps_complete + store.stats().sweeps_failed
    }

    /// Lets a sweeper run for some hours of a clock that is moved by hand. Returns how often it listed.
    async fn sweep_for_hours(place: &Place) -> u64 {
        let clock = TestClock::at(now());
        let store = place.builder_on(&clock).settings(eager()).probing(Probing::Never).open().await.unwrap();
        let sweeper = store.sweeper().start();
        for _ in 0..5 {
            clock.wait_for_sleepers(1).await;
            let before = runs(&store);
            clock.advance(Duration::from_secs(2 * 3600));
            while runs(&store) == before {
                tokio::task::yield_now().await;
            }
        }
        sweeper.stop().await;
        store.requests().of(List)
    }
}

#[test]
#[ignore = "started by a test above"]
fn opening_with_a_wrong_clock() {
    if env::var_os("LEASEHOLD_TEST_WRONG_CLOCK").is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = env::var("LEASEHOLD_TEST_STORE").unwrap();
    let error = runtime.block_on(leasehold::Store::open(url)).unwrap_err();
    expect(&error, ErrorKind::Config, &["set this machine's clock"]);
}
