//! Many locks for one renewal: held for as long as their session lives, lost with it, and never held by two.

use crate::{
    common::{MILLI, SECOND, key, noon, secs, settle},
    memory::process,
};
use futures_util::FutureExt;
use leasehold::{
    ErrorKind, Fence, Leases, Store,
    lease::{Campaign, Guard, Locked, LossReason, Request},
    session::{RECORD_FORMAT, Session},
    store::RequestKind::{Get, Put},
    sweep::SweepOptions,
};
use leasehold_testkit::{Answer, Fault, FaultStore, Op, Rule, SeededGenerator, TestClock};
use std::{sync::Arc, time::Duration};
use tokio::runtime::{Builder, Runtime};

/// The session's own record, wherever it is named.
const RECORDS_OF_SESSIONS: &str = "meta/session!2fleases";

struct World {
    clock: TestClock,
    objects: FaultStore,
}

impl World {
    /// A store that allows sessions.
    async fn new() -> Self {
        let clock = TestClock::at(noon());
        let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
        let world = Self { clock, objects };
        world.process().await.0.allow_record_format(RECORD_FORMAT, "test").await.unwrap();
        world
    }

    async fn process(&self) -> (Store, Leases) {
        process(&self.objects, &self.clock).await
    }

    async fn session(&self) -> (Store, Session) {
        let (store, _) = self.process().await;
        let session = store.session().owner("holder").await.unwrap();
        (store, session)
    }

    async fn pass(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(SECOND);
            self.clock.advance(step);
            settle().await;
            left -= step;
        }
    }

    fn session_records(&self) -> Vec<String> {
        self.objects.names().into_iter().filter(|name| name.contains(RECORDS_OF_SESSIONS)).collect()
    }

    /// A process of its own, which can be killed: everything that it runs stops, and nothing is given back.
    fn victim(&self) -> Victim {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        Victim { runtime, objects: self.objects.clone(), clock: self.clock.clone() }
    }
}

struct Victim {
    runtime: Runtime,
    objects: FaultStore,
    clock: TestClock,
}

impl Victim {
    async fn hold(&self, keys: Vec<String>) -> (Store, Session, Vec<Guard>) {
        let (objects, clock) = (self.objects.clone(), self.clock.clone());
        let holding = self.runtime.spawn(async move {
            let (store, _) = process(&objects, &clock).await;
            let session = store.session().owner("victim").await.unwrap();
            let mut guards = Vec::new();
            for key in keys {
                guards.push(session.lock(key).await.unwrap());
            }
            (store, session, guards)
        });
        holding.await.unwrap()
    }

    /// Whatever it holds is never given back.
    fn kill<T>(self, held: T) {
        // Waited for, so that its keeper cannot renew once more while the clock is moved.
        std::thread::spawn(move || self.runtime.shutdown_timeout(secs(10))).join().unwrap();
        std::mem::forget(held);
    }
}

async fn take(leases: &Leases, name: &str) -> Option<Fence> {
    let guard = leases.try_lock(name).await.unwrap()?;
    let fence = guard.fence();
    guard.release().await.unwrap();
    Some(fence)
}

/// Takes the key when it can be had, within this time.
async fn take_within(world: &World, leases: &Leases, name: &str, time: Duration) -> Option<Fence> {
    let mut left = time;
    loop {
        if let Some(fence) = take(leases, name).await {
            return Some(fence);
        }
        left = left.checked_sub(SECOND)?;
        world.pass(SECOND).await;
    }
}

#[tokio::test]
async fn a_hundred_locks_are_renewed_by_one_write_and_freed_by_one() {
    let world = World::new().await;
    let (store, session) = world.session().await;
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(session.lock(format!("key-{number}")).await.unwrap());
    }
    let before = store.requests();
    world.pass(secs(3600)).await;
    let made = store.requests().since(&before);
    // Every ten seconds, and an index entry for each new hour.
    assert!((355..=363).contains(&made.of(Put)), "{made:?}");
    assert_eq!(made.of(Get), 0, "{made:?}");
    assert!(guards.iter().all(Guard::is_valid) && session.held() == 100);

    let (_, other) = world.process().await;
    assert!(take(&other, "key-7").await.is_none());
    let before = store.requests();
    session.release().await.unwrap();
    assert_eq!(store.requests().since(&before).total(), 1);
    for guard in &guards {
        assert!(!guard.is_valid());
        assert_eq!(guard.lost().await.reason, LossReason::SessionReleased);
    }
    world.pass(secs(3)).await;
    for (number, guard) in guards.iter().enumerate() {
        let fence = take(&other, &format!("key-{number}")).await;
        assert!(fence > Some(guard.fence()), "key-{number}: {fence:?}");
    }
}

#[tokio::test]
async fn everything_under_a_session_is_lost_with_it_and_at_once() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let one = session.lock("one").await.unwrap();
    let two = session.lock("two").await.unwrap();
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    world.pass(secs(29)).await;
    assert!(one.is_valid() && two.is_valid() && session.lost().now_or_never().is_none());
    world.pass(secs(2)).await;
    for guard in [&one, &two] {
        assert!(!guard.is_valid() && guard.check().is_err());
        assert!(matches!(guard.lost().now_or_never().unwrap().reason, LossReason::Expired { failing: Some(_) }));
        assert!(guard.cancellation().is_cancelled());
    }
    assert!(session.lost().now_or_never().is_some() && !session.is_valid());
    world.objects.faults().clear();
    world.pass(secs(5)).await;
    let error = session.lock("three").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    // Its own record was freed at once, so nobody waits for clocks.
    let (_, other) = world.process().await;
    assert!(take(&other, "one").await > Some(one.fence()));
    assert!(!one.is_valid() && !session.is_valid(), "over for good");
}

#[tokio::test]
async fn what_a_killed_process_held_can_be_taken_with_higher_fences_and_not_before() {
    let world = World::new().await;
    let victim = world.victim();
    let (store, session, guards) = victim.hold((0..20).map(|number| format!("key-{number}")).collect()).await;
    let fences: Vec<Fence> = guards.iter().map(Guard::fence).collect();
    victim.kill((store, session, guards));
    let (_, other) = world.process().await;
    world.pass(secs(29)).await;
    for number in 0..20 {
        assert!(take(&other, &format!("key-{number}")).await.is_none(), "believed in");
    }
    let first = take_within(&world, &other, "key-0", secs(90)).await;
    assert!(first > Some(fences[0]), "{first:?}");
    for (number, before) in fences.iter().enumerate().skip(1) {
        let fence = take(&other, &format!("key-{number}")).await;
        assert!(fence > Some(*before), "key-{number}: {fence:?}");
    }
}

/// Whatever the dead process has sent is a swap on the record that it knew. So that record must be gone before anything is
/// taken over; the model has the renewals that land late.
#[tokio::test]
async fn a_renewal_that_lands_late_never_revives_a_session() {
    let world = World::new().await;
    let victim = world.victim();
    let held = victim.hold(vec!["one".to_owned(), "two".to_owned()]).await;
    let record = world.session_records().pop().unwrap();
    let known = world.objects.object(&record).unwrap().0;
    victim.kill(held);
    let (_, other) = world.process().await;
    let mut taken = None;
    for _ in 0..60 {
        taken = other.try_lock("one").await.unwrap();
        if taken.is_some() {
            break;
        }
        assert_eq!(world.objects.object(&record).unwrap().0, known, "cleared, and not taken");
        world.pass(SECOND).await;
    }
    assert!(taken.is_some_and(|one| one.is_valid()));
    let cleared = world.objects.object(&record).unwrap().0;
    assert_ne!(cleared, known, "a renewal on its way would land, and revive what was taken over");
    let (_, third) = world.process().await;
    assert!(take(&third, "two").await.is_some());
    assert_eq!(world.objects.object(&record).unwrap().0, cleared, "once for all its keys");
}

#[tokio::test]
async fn a_forced_key_is_asked_for_lost_and_given_back_and_the_rest_goes_on() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let (one, two) = (session.lock("one").await.unwrap(), session.lock("two").await.unwrap());
    let (_, other) = world.process().await;
    let forced = other.force_release(&key("one"), "it hangs", "alice").await.unwrap().unwrap();
    assert!(forced.asked && forced.taken_from.unwrap().session == Some(session.id()));
    assert!(one.is_valid() && take(&other, "one").await.is_none(), "never two");
    world.pass(secs(12)).await;
    assert!(!one.is_valid() && two.is_valid() && session.is_valid());
    let loss = one.lost().await;
    assert_eq!(loss.reason, LossReason::Forced { by: "alice".to_owned(), reason: "it hangs".to_owned() });
    assert!(take(&other, "one").await > Some(one.fence()));
    // The request does not stand there for ever, and the same key can be had again.
    world.pass(secs(12)).await;
    let again = session.lock("one").await.unwrap();
    world.pass(secs(40)).await;
    assert!(again.is_valid() && two.is_valid());
}

#[tokio::test]
async fn the_holder_of_a_key_forced_at_once_learns_of_it_with_the_next_renewal() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let one = session.lock("one").await.unwrap();
    let (_, other) = world.process().await;
    let forced = other.force_release_now(&key("one"), "it hangs", "alice").await.unwrap().unwrap();
    assert!(!forced.asked && forced.fence > one.fence());
    let mine = other.lock("one").await.unwrap();
    world.pass(secs(12)).await;
    assert!(!one.is_valid() && session.is_valid());
    drop(one);
    world.pass(secs(5)).await;
    assert!(mine.is_valid() && take(&other, "one").await.is_none(), "what the other holds was freed");
}

#[tokio::test]
async fn a_grant_in_doubt_is_settled_however_long_the_store_is_down() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let faults = world.objects.faults();
    faults.script(Rule::once(Op::Put, Fault::Lose(Answer::Status(503))).on("meta/one"));
    faults.script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))).on("meta/one"));
    // The first read finds that nobody has it.
    faults.script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))).on("meta/one").after(1));
    let mut asking = Box::pin(session.try_lock("one").into_future());
    // It is dropped in the middle of its write.
    for _ in 0..50 {
        assert!(asking.as_mut().now_or_never().is_none());
        world.clock.advance(MILLI * 20);
        settle().await;
    }
    drop(asking);
    world.pass(secs(600)).await;
    assert!(session.is_valid());
    faults.clear();
    world.pass(secs(10)).await;
    let (_, other) = world.process().await;
    assert!(take(&other, "one").await.is_some(), "held by nobody, for as long as the session lives");
}

#[tokio::test]
async fn a_release_that_the_store_did_not_answer_is_tried_until_it_works() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let one = session.lock("one").await.unwrap();
    let faults = world.objects.faults();
    for op in [Op::Put, Op::Get] {
        faults.script(Rule::always(op, Fault::Refuse(Answer::Status(503))).on("meta/one"));
    }
    drop(one);
    // Longer than any lease by itself is tried to be given back.
    world.pass(secs(3700)).await;
    faults.clear();
    world.pass(secs(10)).await;
    assert!(session.is_valid());
    let (_, other) = world.process().await;
    assert!(take(&other, "one").await.is_some());
}

#[tokio::test]
async fn only_its_own_process_gives_back_or_keeps_what_is_held_under_a_session() {
    let world = World::new().await;
    let (store, session) = world.session().await;
    let one = session.lock("one").await.unwrap();
    let (_, other) = world.process().await;
    for refused in [
        other.release_by_id(&key("one"), one.grant().lease_id()).await.unwrap_err(),
        other.renew_by_id(&key("one"), one.grant().lease_id(), None).await.unwrap_err(),
        store.leases("default").unwrap().renew(&one.grant()).await.unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains("session"), "{refused}");
    }
    assert!(one.is_valid());
    // In its own process the guard is told before it is given back.
    store.leases("default").unwrap().release(&one.grant()).await.unwrap();
    assert!(!one.is_valid());
    assert!(take(&other, "one").await.is_some());
    drop(one);
    for refused in [
        session.lock("two").ttl(secs(5)).await.unwrap_err(),
        session.lock("two").max_hold(secs(5)).await.unwrap_err(),
        session.lock("two").owner("me").request_id("once").await.unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_allow_the_format_refuses_and_says_who_can_allow_it() {
    let clock = TestClock::at(noon());
    let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
    let (store, _) = process(&objects, &clock).await;
    let before = objects.object(".leasehold/store.json").unwrap().0;
    assert!(!String::from_utf8_lossy(&before).contains("record_format"), "as it always was");
    let error = store.session().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("leasehold store set --record-format 3"), "{error}");
    let (operator, _) = process(&objects, &clock).await;
    assert!(operator.allow_record_format(4, "alice").await.is_err());
    operator.allow_record_format(RECORD_FORMAT, "alice").await.unwrap();
    operator.allow_record_format(RECORD_FORMAT, "alice").await.unwrap();
    assert!(operator.allow_record_format(2, "alice").await.is_err(), "it cannot be taken back");
    // Without being opened again.
    store.session().await.unwrap().lock("one").await.unwrap().release().await.unwrap();
    let (later, _) = process(&objects, &clock).await;
    assert_eq!(later.shared_settings().record_format, RECORD_FORMAT);
}

#[tokio::test]
async fn a_session_whose_record_is_gone_has_ended_once_a_record_was_made() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let one = session.lock("one").await.unwrap();
    let record = world.session_records().pop().unwrap();
    assert!(world.objects.delete_object(&record));
    let (_, other) = world.process().await;
    assert!(other.peek(&key("one")).await.unwrap().may_have_ended, "looking makes nothing");
    assert!(world.session_records().is_empty());
    assert!(take(&other, "one").await > Some(one.fence()));
    assert_eq!(world.session_records(), [record]);
    world.pass(secs(12)).await;
    assert!(!session.is_valid() && !one.is_valid(), "a renewal finds what was made");
}

#[tokio::test]
async fn a_session_whose_record_cannot_be_read_counts_as_alive() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let _one = session.lock("one").await.unwrap();
    let record = world.session_records().pop().unwrap();
    world.objects.put_object(&record, "nothing that we wrote");
    let (_, other) = world.process().await;
    let error = other.try_lock("one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("counts as held"), "{error}");
    assert!(other.peek(&key("one")).await.unwrap().holder.is_some());
    assert!(other.get(&key("one")).await.unwrap().holder.is_some());
}

#[tokio::test]
async fn a_clear_in_doubt_ends_nothing() {
    let world = World::new().await;
    let victim = world.victim();
    let held = victim.hold(vec!["one".to_owned()]).await;
    victim.kill(held);
    world.pass(secs(40)).await;
    let faults = world.objects.faults();
    faults.script(Rule::always(Op::Put, Fault::Refuse(Answer::Drop)).on(RECORDS_OF_SESSIONS));
    let (_, other) = world.process().await;
    let asking = tokio::spawn({
        let other = other.clone();
        async move { other.try_lock("one").await }
    });
    world.pass(secs(120)).await;
    assert!(asking.await.unwrap().is_err(), "taken without a clear");
    faults.clear();
    world.pass(secs(5)).await;
    assert!(take(&other, "one").await.is_some());
}

#[tokio::test]
async fn those_who_wait_are_served_within_and_between_sessions() {
    let world = World::new().await;
    let (store, session) = world.session().await;
    let (_, other) = world.process().await;
    let one = session.lock("one").await.unwrap();
    let here = tokio::spawn(session.lock("one").into_future());
    let plain = tokio::spawn(store.lock("one").into_future());
    settle().await;
    let before = store.requests();
    let first = one.fence();
    one.release().await.unwrap();
    let second = here.await.unwrap().unwrap();
    assert_eq!(store.requests().since(&before).total(), 1, "handed over in one write");
    assert!(second.fence() > first && second.is_valid());
    let there = tokio::spawn(other.lock("one").into_future());
    world.pass(secs(3)).await;
    second.release().await.unwrap();
    let third = plain.await.unwrap().unwrap();
    assert_eq!(third.grant().ttl(), secs(30), "a lease of its own, renewed by itself");
    world.pass(secs(40)).await;
    assert!(third.is_valid() && session.is_valid());
    third.release().await.unwrap();
    world.pass(secs(5)).await;
    assert!(there.await.unwrap().unwrap().is_valid());
}

#[tokio::test]
async fn people_who_look_see_the_session_and_when_it_is_over() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let one = session.lock("one").await.unwrap();
    let (_, other) = world.process().await;
    world.pass(secs(120)).await;
    for status in [
        other.peek(&key("one")).await.unwrap(),
        other.get(&key("one")).await.unwrap(),
        other.list(b"", None, 10).await.unwrap().keys.pop().unwrap().unwrap(),
    ] {
        let holder = status.holder.unwrap();
        assert_eq!((holder.session, holder.fence), (Some(session.id()), one.fence()));
        assert!(!status.may_have_ended, "its own time says nothing");
    }
    let held = other.lock_within(&key("one"), &Request::default(), Duration::ZERO).await.unwrap();
    let Locked::Held(held) = held else { panic!("two holders") };
    assert!(held.to_string().contains("under a session"), "{held}");
    session.release().await.unwrap();
    world.pass(secs(3)).await;
    assert!(other.peek(&key("one")).await.unwrap().holder.is_none());
    assert!(other.get(&key("one")).await.unwrap().holder.is_none());
}

#[tokio::test]
async fn an_election_can_be_won_under_a_session() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let election = session.election("scheduler", "node-1").unwrap();
    let Campaign::Leader(leadership) = election.campaign(Duration::ZERO).await.unwrap() else { panic!("others lead") };
    let (_, other) = world.process().await;
    let follower = other.election("scheduler", "node-2", secs(10)).unwrap();
    world.pass(secs(60)).await;
    let Campaign::Follower(Some(leader)) = follower.campaign(Duration::ZERO).await.unwrap() else {
        panic!("two leaders")
    };
    assert_eq!(leader.owner, "node-1");
    session.release().await.unwrap();
    assert!(!leadership.is_valid());
    world.pass(secs(3)).await;
    assert!(matches!(follower.campaign(Duration::ZERO).await.unwrap(), Campaign::Leader(_)));
}

#[tokio::test]
async fn what_an_ended_session_left_behind_is_swept_its_record_last() {
    let world = World::new().await;
    let (_store, session) = world.session().await;
    let guards = [session.lock("one").await.unwrap(), session.lock("two").namespace("billing").await.unwrap()];
    session.release().await.unwrap();
    drop(guards);
    world.pass(secs(5)).await;
    let left = |what: &str| world.objects.names().into_iter().filter(|name| name.contains(what)).count();
    assert_eq!((left(".session-index/"), left(RECORDS_OF_SESSIONS)), (2, 1));
    world.clock.advance(secs(3 * 3600));
    let (sweeper, leases) = world.process().await;
    let at_once = || SweepOptions::new().op_delay(Duration::ZERO);
    sweeper.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(left(RECORDS_OF_SESSIONS), 1, "last");
    for _ in 0..3 {
        sweeper.sweeper().run_once(at_once()).await.unwrap();
    }
    assert_eq!((left(".session-index/"), left(RECORDS_OF_SESSIONS)), (0, 0), "{:?}", world.objects.names());
    let status = leases.peek(&key("one")).await.unwrap();
    assert!(status.holder.is_none() && !status.may_have_ended && status.last_fence.is_some());
    let report = sweeper.fsck(leasehold::fsck::FsckOptions::new()).await.unwrap();
    assert!(report.findings.iter().all(|finding| !finding.is_open()), "{report:?}");
}

#[tokio::test]
async fn fsck_knows_leases_under_sessions_and_leaves_a_damaged_one_that_may_be_held() {
    let world = World::new().await;
    let (store, session) = world.session().await;
    let one = session.lock("one").await.unwrap();
    let options = || leasehold::fsck::FsckOptions::new();
    let report = store.fsck(options()).await.unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    world.objects.delete_object(&format!("default/.session-index/{}/one", session.id()));
    let report = store.fsck(options().repair("alice")).await.unwrap();
    assert!(report.findings.iter().any(|finding| finding.repaired.is_some()), "{report:?}");
    assert!(world.objects.names().contains(&format!("default/.session-index/{}/one", session.id())));
    world.objects.put_object("default/meta/one.pb", "damaged");
    let (operator, other) = world.process().await;
    let report = operator.fsck(options().repair("alice")).await.unwrap();
    assert!(report.findings.iter().any(|finding| finding.is_open()), "{report:?}");
    world.pass(secs(120)).await;
    assert!(one.is_valid() && other.try_lock("one").await.is_err(), "granted to a second one");
}

/// The resident memory of this process, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// At full size: `cargo test --release --test it -- --ignored --nocapture a_hundred_thousand`. It alone, for its memory.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn a_hundred_thousand_locks_cost_one_renewal_and_can_all_be_taken() {
    let count: usize = std::env::var("LEASEHOLD_LOCKS").map_or(100_000, |text| text.parse().unwrap());
    let world = World::new().await;
    let victim = world.victim();
    let names: Vec<String> = (0..count).map(|number| format!("key-{number:06}")).collect();
    let stored = resident();
    let held = victim.hold(names.clone()).await;
    let after = resident();
    let objects = world.objects.names().len();
    println!(
        "{count} locks: {} MiB resident more, with {objects} objects of the store in this process",
        (after - stored) >> 20
    );
    let fences: Vec<Fence> = held.2.iter().map(Guard::fence).collect();
    let before = held.0.requests();
    for _ in 0..3 * 3600 {
        world.clock.advance(SECOND);
        tokio::task::yield_now().await;
        if held.1.is_valid() {
            // Its keeper runs on a thread of its own.
            #[allow(clippy::disallowed_methods, reason = "a thread of real time")]
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    let made = held.0.requests().since(&before);
    println!("3 hours: {} writes, {} reads, {} in all", made.of(Put), made.of(Get), made.total());
    assert!(held.1.is_valid() && held.2.iter().all(Guard::is_valid));
    assert!(made.total() <= 1100, "{made:?}");
    victim.kill(held);
    world.clock.advance(secs(40));
    let (store, other) = world.process().await;
    let before = store.requests();
    for (name, fence) in names.iter().zip(&fences) {
        assert!(take(&other, name).await > Some(*fence), "{name}");
    }
    let made = store.requests().since(&before);
    println!("all taken and given back: {} writes, {} reads", made.of(Put), made.of(Get));
}

/// `LEASEHOLD_OLDER=path/to/leasehold`: a program of a version that knows nothing of sessions, beside this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a program of an older version"]
async fn an_older_program_refuses_a_key_under_a_session_and_says_why() {
    let Ok(older) = std::env::var("LEASEHOLD_OLDER") else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let store = Store::open(&url).await.unwrap();
    store.allow_record_format(RECORD_FORMAT, "test").await.unwrap();
    let session = store.session().ttl(secs(10)).await.unwrap();
    let guard = session.lock("orders/42").await.unwrap();
    let run = |arguments: &[&str]| {
        let ran = std::process::Command::new(&older).args(arguments).env("LEASEHOLD_STORE", &url).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        println!("{arguments:?}: {:?}\n{said}", ran.status.code());
        (ran.status.success(), said)
    };
    // Long after what an older version takes for its end.
    #[allow(clippy::disallowed_methods, reason = "a process of real time")]
    std::thread::sleep(secs(14));
    let (granted, said) = run(&["acquire", "orders/42", "--ttl", "30s"]);
    assert!(!granted && said.contains("format 3"), "{said}");
    run(&["get", "orders/42"]);
    let (_, said) = run(&["sweep", "--once"]);
    assert!(!said.is_empty());
    assert!(!run(&["release", "orders/42", "--force", "--reason", "test"]).0);
    assert!(guard.is_valid() && session.is_valid());
    guard.release().await.unwrap();
    assert!(run(&["acquire", "orders/42", "--ttl", "30s"]).0, "once it is free it is of the format that all know");
}
