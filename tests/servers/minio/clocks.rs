//! Machines whose wall clocks are wrong by seconds, on a real server: never two holders, whichever clock is wrong.

use super::{Command, Duration, env};
use crate::place::{self, Kind, Place, key};
use leasehold::{
    Clock, ErrorKind, Key, Store, SystemClock,
    lease::{Acquired, Locked, Request},
};
use std::{
    process::{Child, Stdio},
    sync::Arc,
};
use tokio::task::spawn_blocking;

const SHIFTS: [&str; 10] = ["-60s", "-45s", "-20s", "-5s", "-2s", "+2s", "+5s", "+20s", "+45s", "+60s"];
/// Longer than a lease without renewals can last, by every witness.
const TRIES_FOR: Duration = Duration::from_secs(12);

fn brief() -> Request {
    Request::new(Duration::from_secs(3))
}

/// What a holder with this clock holds, and what it takes when it has ended.
fn keys(shift: &str) -> (Key, Key) {
    (key(&format!("held{shift}")), key(&format!("done{shift}")))
}

/// A process of its own, whose wall clock is wrong.
fn child(place: &Place, shift: &str, does: &str) -> Child {
    let library = env::var("LEASEHOLD_TEST_FAKETIME").expect("tests/servers/run says where libfaketime is");
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "minio::clocks::in_a_process_with_a_wrong_clock", "--ignored", "--nocapture"])
        .envs([("LD_PRELOAD", library.as_str()), ("FAKETIME", shift), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")])
        .env("LEASEHOLD_TEST_WRONG_CLOCK", does)
        .env("LEASEHOLD_TEST_STORE", place.url().as_str())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// What it has printed when it has ended well.
async fn said(child: Child) -> String {
    let output = spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
#[ignore = "needs MinIO: see tests/servers/run"]
fn a_taker_whose_clock_is_wrong_does_not_get_a_lease_that_is_kept() {
    place::run(Kind::given, |place: Arc<Place>| async move {
        let leases = place.open().await.leases("default").unwrap();
        let Locked::Granted(kept) = leases.lock_within(&key("a"), &brief(), Duration::ZERO).await.unwrap() else {
            panic!("nobody else has it")
        };
        let takers = SHIFTS.map(|shift| (shift, child(&place, shift, "take")));
        for (shift, taker) in takers {
            let said = said(taker).await;
            println!(
                "{shift}: {}",
                said.lines().filter(|line| line.starts_with("clock")).collect::<Vec<_>>().join("; ")
            );
            assert!(said.contains("tried"), "{shift}: {said}");
            assert!(!said.contains("granted"), "{shift}: {said}");
            // Two seconds may be one, as far as a date in whole seconds can tell.
            if !shift.contains('2') || shift.contains("20") {
                assert!(said.contains("clock is wrong: true"), "{shift}: {said}");
            }
        }
        assert!(kept.is_valid(), "a lease that is kept was lost");
        kept.release().await.unwrap();
    });
}

#[test]
#[ignore = "needs MinIO: see tests/servers/run"]
fn a_holder_whose_clock_is_wrong_is_not_robbed_while_it_keeps_its_lease() {
    place::run(Kind::given, |place: Arc<Place>| async move {
        let leases = place.open().await.leases("default").unwrap();
        let clock = SystemClock::new();
        for shift in ["-5s", "+5s"] {
            let mut holder = Some(child(&place, shift, "hold"));
            let began = clock.monotonic();
            let mut refused = 0;
            let (held, done) = keys(shift);
            // The holder says by a second key that it has ended its work.
            while leases.peek(&done).await.unwrap().last_fence.is_none() {
                assert!(clock.monotonic().since(began) < Duration::from_secs(60), "{shift}: the holder did not end");
                if leases.peek(&held).await.unwrap().holder.is_some_and(|holder| holder.owner == "wrong") {
                    match leases.acquire(&held, &brief()).await.unwrap() {
                        Acquired::Held(_) => refused += 1,
                        Acquired::Granted(grant) => {
                            // Only what the holder itself gave back may be had.
                            let said = said(holder.take().expect("met once")).await;
                            assert!(said.contains("kept to the end"), "{shift}: {said}");
                            leases.release(&grant).await.unwrap();
                            refused += 1;
                            break;
                        }
                    }
                }
                clock.sleep(Duration::from_millis(100)).await;
            }
            if let Some(holder) = holder {
                let said = said(holder).await;
                assert!(said.contains("kept to the end"), "{shift}: {said}");
            }
            assert!(refused > 0, "{shift}: the lease was never met");
        }
    });
}

#[test]
#[ignore = "started by a test above"]
fn in_a_process_with_a_wrong_clock() {
    let Ok(does) = env::var("LEASEHOLD_TEST_WRONG_CLOCK") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = env::var("LEASEHOLD_TEST_STORE").unwrap();
    runtime.block_on(async {
        let store = Store::builder().url(&url).settings(place::settings()).open().await.unwrap();
        match does.as_str() {
            "take" => take(&store).await,
            _ => hold(&store).await,
        }
    });
}

async fn take(store: &Store) {
    let (leases, clock) = (store.leases("default").unwrap(), SystemClock::new());
    println!("clock is wrong: {}", store.clock_state().is_wrong);
    let began = clock.monotonic();
    while clock.monotonic().since(began) < TRIES_FOR {
        match leases.acquire(&key("a"), &brief()).await {
            Ok(Acquired::Granted(grant)) => println!("granted {}", grant.fence()),
            Ok(Acquired::Held(_)) => println!("tried: held"),
            Err(error) if error.kind() == ErrorKind::Clock => println!("tried: refused for the clock"),
            Err(error) => panic!("{error}"),
        }
        clock.sleep(Duration::from_millis(250)).await;
    }
}

async fn hold(store: &Store) {
    let (leases, clock) = (store.leases("default").unwrap(), SystemClock::new());
    // Long enough to be believed in by a clock that is five seconds ahead: no expiry is later than the store's time allows.
    let request = Request::new(Duration::from_secs(12)).owner("wrong");
    let (held, done) = keys(&env::var("FAKETIME").unwrap());
    let Locked::Granted(kept) = leases.lock_within(&held, &request, Duration::from_secs(10)).await.unwrap() else {
        panic!("nobody else has it")
    };
    clock.sleep(TRIES_FOR).await;
    assert!(kept.is_valid(), "a lease that is kept was lost");
    println!("kept to the end");
    kept.release().await.unwrap();
    let grant = leases.acquire(&done, &request).await.unwrap();
    let Acquired::Granted(grant) = grant else { panic!("nobody else has it") };
    leases.release(&grant).await.unwrap();
}
