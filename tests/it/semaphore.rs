//! Semaphores: never more than n at once, rising fences, first come first served, and one n for everybody.

use crate::common::{Bed, Memory, calm, key, noon, s3};
use leasehold::{
    ErrorKind, Fence, Semaphores, Settings, Store, SystemClock,
    fsck::{Damage, FsckOptions},
    lease::{LossReason, Request},
    semaphore::{MAX_SIZE, Permit, Slot, SlotAcquired, SlotRenewed},
    store::{Probing, RequestKind},
    sweep::SweepOptions,
};
use leasehold_testkit::{Answer, Fault, Op, Rule, S3Server, TestClock};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(30);

/// When so much has passed since it was written, a slot of `TTL` has ended for everybody.
const ENDED: Duration = Duration::from_millis(30_000 + 30 + 1_000 + 1);

fn request() -> Request {
    Request::new(TTL).owner("test")
}

async fn open(memory: &Memory, seed: u64) -> Store {
    memory.builder(seed).open().await.unwrap()
}

async fn semaphores(memory: &Memory, seed: u64) -> Semaphores {
    open(memory, seed).await.semaphores("default").unwrap()
}

async fn try_one(semaphores: &Semaphores, size: u32) -> Option<Slot> {
    semaphores.acquire(&key("gpu"), size, &request(), Duration::ZERO).await.unwrap().granted()
}

async fn one(semaphores: &Semaphores) -> Slot {
    try_one(semaphores, 3).await.expect("a free slot")
}

fn waiting(semaphores: &Semaphores, wait: u64) -> JoinHandle<SlotAcquired> {
    let semaphores = semaphores.clone();
    tokio::spawn(
        async move { semaphores.acquire(&key("gpu"), 3, &request(), Duration::from_secs(wait)).await.unwrap() },
    )
}

async fn held(semaphores: &Semaphores) -> Vec<u32> {
    let status = semaphores.peek(&key("gpu")).await.unwrap().expect("it is there");
    status.held_by.iter().map(|holder| holder.slot).collect()
}

fn next_put(memory: &Memory, fault: Fault) {
    memory.store.faults().script(Rule::once(Op::Put, fault).on("/semaphore/"));
}

#[tokio::test]
async fn as_many_as_there_are_slots_hold_it_with_rising_fences_and_own_numbers() {
    let memory = Memory::new();
    let processes = [semaphores(&memory, 1).await, semaphores(&memory, 2).await];
    let mut slots = Vec::new();
    for turn in 0..3 {
        slots.push(one(&processes[turn % 2]).await);
    }
    assert!(slots.windows(2).all(|two| two[0].fence() < two[1].fence()));
    assert_eq!(slots.iter().map(Slot::number).collect::<Vec<_>>(), [0, 1, 2]);
    for process in &processes {
        let full = process.acquire(&key("gpu"), 3, &request(), Duration::ZERO).await.unwrap();
        let SlotAcquired::Full(full) = full else { panic!("a fourth") };
        assert_eq!((full.size, full.held_by.len()), (3, 3));
        assert!(full.to_string().starts_with("full: 3 of 3 slots are held, by test (fence "), "{full}");
    }
    // Whoever has the freed slot next has its number and a higher fence.
    processes[1].release_by_id(&key("gpu"), slots[1].lease_id()).await.unwrap();
    let next = one(&processes[0]).await;
    assert_eq!((next.number(), next.fence() > slots[2].fence()), (1, true));
    assert_eq!(held(&processes[1]).await, [0, 1, 2]);
}

#[tokio::test]
async fn another_number_of_slots_is_refused_with_both_named_until_it_is_resized() {
    let memory = Memory::new();
    let (ours, theirs) = (semaphores(&memory, 1).await, semaphores(&memory, 2).await);
    let slots = [one(&ours).await, one(&ours).await, one(&theirs).await];
    let asked = |process: &Semaphores, size: u32| {
        let process = process.clone();
        async move { process.acquire(&key("gpu"), size, &request(), Duration::ZERO).await }
    };
    let error = asked(&theirs, 5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("has 3 slots, and 5 were asked for"), "{error}");
    assert_eq!(ours.resize(&key("gpu"), 4).await.unwrap(), 4);
    assert_eq!(asked(&theirs, 3).await.unwrap_err().kind(), ErrorKind::Config);
    let fourth = asked(&theirs, 4).await.unwrap().granted().expect("a fourth slot");
    assert_eq!(fourth.number(), 3);
    // Made smaller, it takes effect as holders leave.
    assert_eq!(theirs.resize(&key("gpu"), 2).await.unwrap(), 2);
    assert_eq!(held(&ours).await, [0, 1, 2, 3], "nobody is robbed");
    for slot in [&slots[0], &slots[1]] {
        ours.release_by_id(&key("gpu"), slot.lease_id()).await.unwrap();
        assert!(asked(&ours, 2).await.unwrap().granted().is_none(), "there are still two");
    }
    ours.release_by_id(&key("gpu"), fourth.lease_id()).await.unwrap();
    assert_eq!(asked(&ours, 2).await.unwrap().granted().expect("one of two").number(), 0);
    for wrong in [0, MAX_SIZE + 1] {
        assert_eq!(asked(&ours, wrong).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let none = ours.resize(&key("nobody's"), 2).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_dead_holders_slot_is_taken_over_after_it_has_ended_and_never_earlier() {
    let memory = Memory::new();
    let (dead, others) = (semaphores(&memory, 1).await, semaphores(&memory, 2).await);
    let first = one(&dead).await;
    let _ = (one(&others).await, one(&others).await);
    memory.clock.advance(ENDED - Duration::from_millis(2));
    // The other two are kept by nobody either, but were granted later by as much as nothing: all three end together.
    assert!(try_one(&others, 3).await.is_none(), "too early");
    memory.clock.advance(Duration::from_millis(3));
    let next = one(&others).await;
    assert!(next.fence() > first.fence() && !first.is_valid());
    assert!(matches!(dead.renew(&first).await.unwrap(), SlotRenewed::Lost(_)));
}

#[tokio::test]
async fn who_was_granted_in_one_write_with_a_shorter_slot_does_not_end_with_it() {
    let memory = Memory::new();
    let (ours, theirs) = (semaphores(&memory, 1).await, semaphores(&memory, 2).await);
    let short = Request::new(Duration::from_secs(1)).owner("short");
    let (name, long) = (key("gpu"), request());
    let (short, long) =
        tokio::join!(ours.acquire(&name, 2, &short, Duration::ZERO), ours.acquire(&name, 2, &long, Duration::ZERO),);
    let (_short, long) = (short.unwrap().granted().unwrap(), long.unwrap().granted().unwrap());
    let waits = |seconds: u64| {
        let (theirs, name) = (theirs.clone(), name.clone());
        tokio::spawn(async move { theirs.acquire(&name, 2, &request(), Duration::from_secs(seconds)).await.unwrap() })
    };
    // They watch both, which have one beat: the one ends, and the other does not.
    let (first, second) = (waits(20), waits(20));
    memory.pass(Duration::from_secs(21)).await;
    assert!(first.await.unwrap().granted().is_some());
    assert!(second.await.unwrap().granted().is_none(), "its holder believes in it: {:?}", long.time_left());
    assert!(long.is_valid());
}

#[tokio::test]
async fn writes_of_others_do_not_lengthen_the_life_of_a_dead_holder() {
    let memory = Memory::new();
    let (dead, other) = (semaphores(&memory, 1).await, semaphores(&memory, 2).await);
    let _dead = one(&dead).await;
    let mut alive = [one(&other).await, one(&other).await];
    // The record is written all the time; the beat of the dead one keeps the stamp that it had.
    for _ in 0..6 {
        memory.clock.advance(Duration::from_secs(5));
        for slot in &mut alive {
            let SlotRenewed::Renewed(renewed) = other.renew(slot).await.unwrap() else { panic!("lost") };
            *slot = renewed;
        }
        assert!(try_one(&other, 3).await.is_none(), "the third may believe in its slot");
    }
    memory.clock.advance(ENDED - Duration::from_secs(30));
    assert_eq!(one(&other).await.number(), 0);
    assert!(alive.iter().all(Slot::is_valid));
}

#[tokio::test]
async fn a_permit_is_kept_alive_and_all_of_a_process_in_one_write() {
    let bed = Bed::new().await;
    let semaphore = bed.store.semaphore("gpu", 3).ttl(TTL);
    let mut permits = Vec::new();
    let (first, made) = bed.counting(semaphore.acquire()).await;
    assert_eq!((made.of(RequestKind::Put), made.of(RequestKind::Get)), (2, 1), "a read, an entry and a swap");
    permits.push(first.unwrap());
    let (second, made) = bed.counting(semaphore.try_acquire()).await;
    assert_eq!(made.total(), 1, "one swap");
    permits.push(second.unwrap().unwrap());
    let (third, _) = bed.counting(semaphore.acquire()).await;
    permits.push(third.unwrap());
    let before = bed.store.requests();
    for _ in 0..10 {
        bed.clock.advance(Duration::from_millis(10_100));
        let renewed = bed.store.stats().slots_renewed;
        while bed.store.stats().slots_renewed < renewed + 3 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(bed.store.requests().since(&before).total(), 10, "one write for all three");
    assert!(permits.iter().all(Permit::is_valid));
    for permit in permits {
        let (released, made) = bed.counting(permit.release()).await;
        released.unwrap();
        assert_eq!(made.total(), 1);
    }
}

#[tokio::test]
async fn a_permit_that_cannot_be_renewed_is_lost_in_time_and_says_why() {
    let memory = Memory::new();
    let store = open(&memory, 1).await;
    let permit = store.semaphore("gpu", 2).ttl(TTL).acquire().await.unwrap();
    memory.store.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Drop)).on("/semaphore/"));
    let work = permit.run(std::future::pending::<()>());
    let watch = async {
        memory.pass(TTL + Duration::from_secs(1)).await;
        permit.lost().await
    };
    let (worked, loss) = tokio::join!(work, watch);
    assert_eq!(worked.unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(&loss.reason, LossReason::Expired { failing: Some(_) }), "{loss}");
    assert_eq!(permit.check().unwrap_err().kind(), ErrorKind::Lost);
    memory.store.faults().clear();
    let (released, ()) = tokio::join!(permit.release(), memory.pass(Duration::from_secs(20)));
    released.unwrap();
}

#[tokio::test]
async fn those_who_wait_are_served_in_the_order_of_their_coming_across_processes() {
    let memory = Memory::new();
    let holder = semaphores(&memory, 1).await;
    let slots = [one(&holder).await, one(&holder).await, one(&holder).await];
    let mut line = Vec::new();
    for seed in 2..6 {
        line.push(waiting(&semaphores(&memory, seed).await, 3600));
        memory.pass(Duration::from_millis(300)).await;
    }
    for slot in slots {
        holder.release_by_id(&key("gpu"), slot.lease_id()).await.unwrap();
        // Whoever comes later, even the process that has just left, finds it taken or reserved.
        assert!(try_one(&holder, 3).await.is_none());
        memory.pass(Duration::from_secs(5)).await;
        let done: Vec<bool> = line.iter().map(JoinHandle::is_finished).collect();
        let served = done.iter().filter(|done| **done).count();
        assert!(done[..served].iter().all(|done| *done), "in their order: {done:?}");
        assert!(try_one(&holder, 3).await.is_none());
    }
    assert_eq!(line.iter().filter(|waiting| waiting.is_finished()).count(), 3);
    line.pop().unwrap().abort();
}

#[tokio::test]
async fn who_waits_in_one_process_is_served_in_the_order_of_asking() {
    let memory = Memory::new();
    let (holder, process) = (semaphores(&memory, 1).await, semaphores(&memory, 2).await);
    let slots = [one(&holder).await, one(&holder).await, one(&holder).await];
    let mut line = Vec::new();
    for _ in 0..3 {
        line.push(waiting(&process, 3600));
        calm().await;
    }
    memory.pass(Duration::from_secs(1)).await;
    for slot in slots {
        holder.release_by_id(&key("gpu"), slot.lease_id()).await.unwrap();
        memory.pass(Duration::from_secs(3)).await;
    }
    let mut fences: Vec<Fence> = Vec::new();
    for waiting in line {
        fences.push(waiting.await.unwrap().granted().expect("served").fence());
    }
    assert!(fences.is_sorted(), "{fences:?}");
}

#[tokio::test]
async fn a_process_that_died_in_line_is_passed_over() {
    let memory = Memory::new();
    let holder = semaphores(&memory, 1).await;
    let slots = [one(&holder).await, one(&holder).await, one(&holder).await];
    // Its process ends in the line: whatever it has started ends with its runtime.
    let builder = memory.builder(2);
    let died = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let process = builder.open().await.unwrap().semaphores("default").unwrap();
            let (name, request) = (key("gpu"), request());
            let asking = process.acquire(&name, 3, &request, Duration::from_secs(3600));
            tokio::select! {
                biased;
                _ = asking => panic!("there is none"),
                () = calm() => {}
            }
        });
    });
    died.join().unwrap();
    assert_eq!(holder.peek(&key("gpu")).await.unwrap().unwrap().waiting, 1);
    let behind = waiting(&semaphores(&memory, 3).await, 3600);
    memory.pass(Duration::from_secs(1)).await;
    holder.release_by_id(&key("gpu"), slots[0].lease_id()).await.unwrap();
    memory.pass(Duration::from_secs(12)).await;
    assert!(behind.is_finished());
}

#[tokio::test]
async fn who_gives_up_leaves_neither_a_slot_nor_a_place_in_the_line() {
    let memory = Memory::new();
    let (holder, process) = (semaphores(&memory, 1).await, semaphores(&memory, 2).await);
    let slots = [one(&holder).await, one(&holder).await, one(&holder).await];
    let asked = waiting(&process, 2);
    memory.pass(Duration::from_secs(3)).await;
    let SlotAcquired::Full(full) = asked.await.unwrap() else { panic!("there was none") };
    assert_eq!(full.held_by.len(), 3);
    memory.pass(Duration::from_secs(1)).await;
    assert_eq!(holder.peek(&key("gpu")).await.unwrap().unwrap().waiting, 0);
    // Dropped in the middle of its write, which lands.
    holder.release_by_id(&key("gpu"), slots[0].lease_id()).await.unwrap();
    next_put(&memory, Fault::Slow(Duration::from_secs(2)));
    let asked = waiting(&process, 0);
    memory.pass(Duration::from_millis(500)).await;
    asked.abort();
    assert_eq!(held(&holder).await.len(), 3, "it has landed");
    memory.pass(Duration::from_secs(5)).await;
    assert_eq!(held(&holder).await, [1, 2], "nobody wanted it");
}

#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_granted_once() {
    for answer in [Answer::Drop, Answer::Status(500), Answer::Status(412)] {
        let memory = Memory::new();
        let process = semaphores(&memory, 1).await;
        next_put(&memory, Fault::Lose(answer));
        let slot = one(&process).await;
        assert_eq!((slot.number(), held(&process).await.len()), (0, 1));
        next_put(&memory, Fault::Lose(answer));
        assert!(matches!(process.renew(&slot).await.unwrap(), SlotRenewed::Renewed(_)));
        next_put(&memory, Fault::Lose(answer));
        process.release_by_id(&key("gpu"), slot.lease_id()).await.unwrap();
        assert_eq!(held(&process).await.len(), 0);
    }
}

#[tokio::test]
async fn a_grant_that_nobody_can_say_anything_about_is_unknown_and_freed() {
    let memory = Memory::new();
    let process = semaphores(&memory, 1).await;
    memory.store.faults().script(Rule::always(Op::Put, Fault::Lose(Answer::Hang)).on("/semaphore/").times(1));
    memory.store.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Hang)).on("/semaphore/").after(1));
    let asked = tokio::spawn({
        let process = process.clone();
        async move { process.acquire(&key("gpu"), 3, &request(), Duration::ZERO).await }
    });
    memory.pass(Duration::from_secs(40)).await;
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    memory.store.faults().clear();
    memory.pass(Duration::from_secs(10)).await;
    assert_eq!(held(&process).await.len(), 0, "freed by its process, long before its time");
}

#[tokio::test]
async fn a_slot_that_was_given_back_or_taken_is_lost_to_its_permit() {
    let memory = Memory::new();
    let (ours, theirs) = (open(&memory, 1).await, semaphores(&memory, 2).await);
    let permit = ours.semaphore("gpu", 3).ttl(TTL).acquire().await.unwrap();
    theirs.release_by_id(&key("gpu"), permit.slot().lease_id()).await.unwrap();
    memory.pass(Duration::from_secs(11)).await;
    assert_eq!(permit.lost().await.reason, LossReason::Released);
    let longest = ours.semaphore("gpu", 3).ttl(TTL).max_hold(Duration::from_secs(15)).acquire().await.unwrap();
    memory.pass(Duration::from_secs(14)).await;
    assert!(longest.is_valid());
    memory.pass(Duration::from_secs(2)).await;
    assert_eq!(longest.lost().await.reason, LossReason::MaxHold);
}

#[tokio::test]
async fn ended_holders_are_swept_with_their_entries_and_the_fence_stays() {
    let memory = Memory::new();
    let store = open(&memory, 1).await;
    let process = store.semaphores("default").unwrap();
    let slots = [one(&process).await, one(&process).await];
    let entries = || memory.store.names().into_iter().filter(|name| name.contains(".semaphore-index")).count();
    assert_eq!(entries(), 1);
    memory.clock.advance(Duration::from_secs(2 * 3600));
    let sweeper = open(&memory, 2).await;
    let options = || SweepOptions::new().op_delay(Duration::ZERO);
    let dry = sweeper.sweeper().run_once(options().dry_run(true)).await.unwrap();
    assert_eq!((dry.kinds["semaphore"].cleared, entries()), (1, 1));
    let swept = sweeper.sweeper().run_once(options()).await.unwrap();
    assert_eq!((swept.kinds["semaphore"].cleared, swept.failures, entries()), (1, 0, 0));
    assert_eq!(held(&process).await, [0_u32; 0]);
    assert!(one(&process).await.fence() > slots[1].fence());
}

#[tokio::test]
async fn fsck_finds_a_slot_without_its_entry_and_a_record_that_cannot_be_read() {
    let memory = Memory::new();
    let store = open(&memory, 1).await;
    let process = store.semaphores("default").unwrap();
    one(&process).await;
    let entry = memory.store.names().into_iter().find(|name| name.contains(".semaphore-index")).unwrap();
    assert!(store.fsck(FsckOptions::new()).await.unwrap().findings.is_empty());
    memory.store.delete_object(&entry);
    let found = store.fsck(FsckOptions::new()).await.unwrap().findings;
    assert_eq!((found.len(), found[0].damage), (1, Damage::MissingEntry));
    let found = store.fsck(FsckOptions::new().repair("test")).await.unwrap().findings;
    assert!(found[0].repaired.is_some() && memory.store.object(&entry).is_some());
    let (body, _) = memory.store.object("default/semaphore/gpu.pb").unwrap();
    memory.store.put_object("default/semaphore/gpu.pb", body.slice(1..));
    let found = store.fsck(FsckOptions::new()).await.unwrap().findings;
    assert_eq!((found.len(), found[0].damage), (1, Damage::Unreadable));
    let error = open(&memory, 2).await.semaphore("gpu", 3).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_on_a_server_never_hold_more_than_there_are() {
    let server = S3Server::start(Arc::new(SystemClock::new())).await.unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let fences = Arc::new(Mutex::new(BTreeSet::new()));
    let mut workers = Vec::new();
    for _ in 0..6 {
        let mut settings = Settings::default();
        settings.poll_interval = Duration::from_millis(2);
        settings.max_poll_interval = Duration::from_millis(10);
        settings.request_timeout = Duration::from_secs(30);
        let builder = s3(&server, &TestClock::at(noon())).settings(settings).clock(Arc::new(SystemClock::new()));
        let store = builder.probing(Probing::Never).open().await.unwrap();
        let (inside, fences) = (Arc::clone(&inside), Arc::clone(&fences));
        workers.push(tokio::spawn(async move {
            for _ in 0..5 {
                let permit = store.semaphore("busy", 2).acquire().await.unwrap();
                let now = inside.fetch_add(1, SeqCst) + 1;
                assert!(now <= 2, "{now} at once");
                assert!(fences.lock().unwrap().insert(permit.fence()), "a fence twice");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, SeqCst);
                permit.release().await.unwrap();
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(fences.lock().unwrap().len(), 30);
}
