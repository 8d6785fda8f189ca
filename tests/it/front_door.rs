//! The front door: one line for a lock that is kept alive, that stops its work when it is lost, and that shows its fence.

use crate::{
    memory::{Memory, SECOND, settle},
    said::Said,
};
use leasehold::{
    Error, ErrorKind, Key,
    lease::{Guard, LossReason},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

#[tokio::test]
async fn a_lock_is_kept_alive_for_as_long_as_its_guard_lives() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").await.unwrap();
    let fence = guard.fence();
    memory.pass(600, SECOND).await;
    assert_eq!(guard.check().unwrap(), fence, "ten minutes later");
    assert!(memory.other().await.try_lock("orders/42").await.unwrap().is_none(), "nobody else can have it");
    guard.release().await.unwrap();
    let next = memory.other().await.try_lock("orders/42").await.unwrap().expect("it is free");
    assert!(next.fence() > fence);
}

#[tokio::test]
async fn what_is_not_said_has_a_default() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").await.unwrap();
    let grant = guard.grant();
    assert_eq!((grant.namespace().as_str(), grant.ttl()), ("default", Duration::from_secs(30)));
    assert!(grant.owner().ends_with(&format!(":{}", std::process::id())), "{}", grant.owner());
}

#[tokio::test]
async fn the_default_ttl_bends_to_the_stores_limits_and_a_named_one_does_not() {
    use leasehold::{Settings, Store, store::Probing};
    let memory = Memory::new().await;
    let mut settings = Settings::default();
    settings.min_ttl = Duration::from_secs(60);
    let builder = Store::builder().object_store(Arc::new(memory.objects.clone())).shares_our_clock();
    let builder = builder.clock(Arc::new(memory.clock.clone())).probing(Probing::Never).settings(settings);
    let store = builder.open().await.unwrap();
    assert_eq!(store.lock("a").await.unwrap().grant().ttl(), Duration::from_secs(60));
    let error = store.lock("b").ttl(Duration::from_secs(30)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn what_is_said_is_what_others_see() {
    let memory = Memory::new().await;
    let lock = memory.store.try_lock(String::from("orders/42")).ttl(7 * SECOND).owner("worker-7");
    let guard = lock.note("rebuild").namespace("billing").await.unwrap().expect("granted");
    assert_eq!(guard.grant().namespace().as_str(), "billing");
    let seen = memory.store.leases("billing").unwrap().peek(&guard.key()).await.unwrap().holder.unwrap();
    assert_eq!((seen.owner.as_str(), seen.ttl, seen.fence), ("worker-7", 7 * SECOND, guard.fence()));
    assert_eq!(seen.note.as_deref(), Some(b"rebuild".as_slice()));
}

#[tokio::test]
async fn text_bytes_and_keys_name_the_same_lock() {
    let memory = Memory::new().await;
    let key = Key::new("a").unwrap();
    let guard = memory.store.lock("a").await.unwrap();
    let leases = &memory.leases;
    for other in [leases.try_lock(&key), leases.try_lock(String::from("a")), leases.try_lock(vec![b'a'])] {
        assert!(other.await.unwrap().is_none());
    }
    let text = String::from("a");
    for other in [leases.try_lock(b"a"), leases.try_lock([b'a'].as_slice()), leases.try_lock(&text)] {
        assert!(other.await.unwrap().is_none());
    }
    assert_eq!(guard.key(), key);
}

#[tokio::test]
async fn what_was_said_wrongly_is_an_error_when_it_is_awaited_and_sends_nothing() {
    let memory = Memory::new().await;
    let before = memory.store.requests();
    let (store, long) = (&memory.store, "x".repeat(5000));
    let wrong = [
        (store.try_lock(""), "a key must not be empty"),
        (store.try_lock(long.clone()), "too long"),
        (store.try_lock("a").namespace(".hidden"), "the namespace"),
        (store.try_lock("a").ttl(Duration::ZERO), "TTL must be between"),
        (store.try_lock("a").ttl(Duration::from_secs(86_400)), "TTL must be between"),
        (store.try_lock("a").owner(long.clone()), "an owner of 5000 bytes"),
        (store.try_lock("a").note(long.clone()), "a note of 5000 bytes"),
        (store.try_lock("a").owner("me").request_id(long), "a request id of 5000 bytes"),
        (store.try_lock("a").request_id("r"), "needs an owner"),
    ];
    for (lock, said) in wrong {
        let error = lock.await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(memory.store.requests().since(&before).total(), 0);
}

#[tokio::test]
async fn a_repeated_request_is_given_its_lease_again() {
    let memory = Memory::new().await;
    let first = memory.store.try_lock("a").owner("me").request_id("r1").await.unwrap().unwrap();
    let again = memory.other().await.try_lock("a").owner("me").request_id("r1").await.unwrap().expect("the same");
    assert_eq!((first.fence(), first.grant().lease_id()), (again.fence(), again.grant().lease_id()));
}

#[tokio::test]
async fn a_lock_held_for_longer_than_one_waits_is_an_error_naming_the_holder() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").owner("worker-7").await.unwrap();
    let other = memory.other().await;
    let waiting = tokio::spawn(async move { other.lock("orders/42").within(5 * SECOND).await });
    memory.pass(7, SECOND).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Held, true));
    let held = error.held().expect("it carries the holder");
    assert_eq!(held.by.as_ref().unwrap().fence, guard.fence());
    let said = error.to_string();
    let begins = format!("orders/42 is held by worker-7 (fence {}) until 2026-01-01T00:", guard.fence());
    assert!(said.starts_with(&begins) && said.contains("Z; retry in "), "{said}");
    assert!(error.loss().is_none());
}

#[tokio::test]
async fn without_a_deadline_one_waits_for_as_long_as_it_takes() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").await.unwrap();
    let other = memory.other().await;
    let waiting = tokio::spawn(async move { other.lock("orders/42").await });
    memory.pass(1000, 10 * SECOND).await;
    assert!(!waiting.is_finished(), "almost three hours later");
    guard.release().await.unwrap();
    memory.pass(10, SECOND).await;
    assert!(waiting.await.unwrap().unwrap().is_valid());
}

/// Sets the flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Work that never ends by itself, run under the guard; and whether it was dropped.
fn running(guard: Guard) -> (tokio::task::JoinHandle<(Guard, Error)>, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Dropped(Arc::clone(&dropped));
    let task = tokio::spawn(async move {
        let work = async move {
            let _flag = flag;
            pending::<()>().await;
        };
        let error = guard.run(work).await.unwrap_err();
        (guard, error)
    });
    (task, dropped)
}

#[tokio::test]
async fn losing_the_lease_stops_the_work_at_once_and_says_how_it_was_lost() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").await.unwrap();
    let (task, dropped) = running(guard);
    memory.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    memory.pass(29, SECOND).await;
    assert!(!dropped.load(SeqCst), "it is ours for 30 seconds");
    memory.pass(2, SECOND).await;
    assert!(dropped.load(SeqCst), "not a second longer");
    let (guard, error) = task.await.unwrap();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Lost, false));
    assert!(matches!(error.loss().unwrap().reason, LossReason::Expired { failing: Some(_) }), "{error}");
    assert!(error.to_string().starts_with("the lease on orders/42 is lost: its time was over"), "{error}");
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn work_that_takes_longer_than_the_guard_may_hold_is_stopped() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").max_hold(5 * SECOND).await.unwrap();
    let (task, dropped) = running(guard);
    memory.pass(6, SECOND).await;
    assert!(dropped.load(SeqCst));
    assert_eq!(task.await.unwrap().1.loss().unwrap().reason, LossReason::MaxHold);
}

#[tokio::test]
async fn work_is_neither_begun_nor_called_done_under_a_lease_that_is_over() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").await.unwrap();
    // The process is paused in the middle of the work, and no keeper has run since.
    let late = guard.run(async { memory.clock.advance(31 * SECOND) }).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
    let begun: leasehold::Result<()> = guard.run(async { panic!("it is lost already") }).await;
    assert_eq!(begun.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn work_that_ends_in_time_gives_its_value() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").await.unwrap();
    assert_eq!(guard.run(async { 42 }).await.unwrap(), 42);
    settle().await;
    assert_eq!(guard.run(async { Err::<(), _>("its own") }).await.unwrap(), Err("its own"));
}

#[tokio::test]
async fn a_lock_on_a_store_that_stays_down_is_logged_once() {
    let said = Said::default();
    let _heard = tracing::subscriber::set_default(said.clone());
    let memory = Memory::new().await;
    let warnings = || said.count(&["the store is unavailable", "orders/42"]);
    for op in [Op::Get, Op::Put] {
        memory.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(503))));
    }
    let waiting = tokio::spawn(memory.store.lock("orders/42").into_future());
    settle().await;
    assert_eq!(warnings(), 0, "one failure is no news");
    memory.pass(600, SECOND).await;
    assert!(!waiting.is_finished());
    assert_eq!(warnings(), 1, "in ten minutes");
    memory.objects.faults().clear();
    memory.pass(60, SECOND).await;
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// The names and units that the program and the service have too.
#[tokio::test]
async fn what_programs_are_told_of_a_grant_and_a_store_is_in_milliseconds() {
    let memory = Memory::new().await;
    let guard = memory.store.lock("orders/42").owner("worker-7").ttl(SECOND).await.unwrap();
    let grant = serde_json::to_value(guard.grant()).unwrap();
    let expected = serde_json::json!({
        "namespace": "default",
        "key": "orders/42",
        "lease_id": guard.grant().lease_id().to_string(),
        "owner": "worker-7",
        "fence": guard.fence().get(),
        "expires_ms": guard.grant().expires_at().as_millis(),
        "ttl_ms": 1000,
    });
    assert_eq!(grant, expected);

    let info = serde_json::to_value(memory.store.info().await.unwrap()).unwrap();
    let shared = &info["shared_settings"];
    assert_eq!((&shared["epoch"], &shared["max_clock_skew_ms"]), (&1.into(), &1000.into()), "{info}");
    assert!(info["spread_ms"].is_u64() && shared["max_ttl_ms"].is_u64(), "{info}");
}

#[tokio::test]
async fn what_programs_are_told_of_a_diagnosis_says_what_failed_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let diagnosis = leasehold::Store::builder().url(&url).diagnose().await.unwrap();
    let told = serde_json::to_value(&diagnosis).unwrap();
    assert_eq!(told["checks"][0]["name"], diagnosis.checks[0].name, "{told}");
    assert!(told["checks"].as_array().unwrap().iter().all(|check| check["ok"] == true && check.get("error").is_none()));
    assert!(told["reads"]["p50_ms"].is_f64() && told["max_clock_skew_ms"].is_u64(), "{told}");
}
