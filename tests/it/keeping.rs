//! Nothing starves or ends the keeping of a lease but the store itself, and whatever is lost is told, once.

use crate::{
    common::{MILLI, Memory, SECOND, calm, granted, key, request},
    said::Said,
    waiting::{acquire, wait},
};
use futures_util::FutureExt;
use leasehold::{
    Leases,
    lease::{Acquired, Guard, Locked, LossReason, Renewed, Request},
    store::RequestKind,
};
use leasehold_testkit::{Answer, Applied, Fault, Op, Rule};
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// How long the store takes for a request.
const LATENCY: Duration = Duration::from_millis(20);

async fn lock(leases: &Leases, name: &str, request: &Request) -> Guard {
    match leases.lock_within(&key(name), request, Duration::ZERO).await.unwrap() {
        Locked::Granted(guard) => guard,
        Locked::Held(held) => panic!("{held:?}"),
    }
}

fn lasting(ttl: Duration) -> Request {
    Request::new(ttl).owner("holder")
}

/// A key that is held and kept alive, and many clients of the same process that each try it, or look at it, and pause for
/// a second. Returns how many answers they got and how many reads that took.
async fn crowd(clients: u32, spread: Duration, ttl: Duration, passes: Duration) -> (usize, u64) {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let guard = lock(&leases, "a", &lasting(ttl)).await;
    for op in [Op::Get, Op::Put] {
        memory.store.faults().script(Rule::always(op, Fault::Slow(LATENCY)));
    }
    let before = store.requests();
    let answers = Arc::new(AtomicUsize::new(0));
    for client in 0..clients {
        let (leases, clock, answers) = (leases.clone(), memory.clock.clone(), Arc::clone(&answers));
        tokio::spawn(async move {
            use leasehold::Clock;
            clock.sleep(spread * client / clients).await;
            loop {
                match client % 10 {
                    0 => assert!(leases.get(&key("a")).await.unwrap().holder.is_some()),
                    1 => {
                        let asked = request().request_id(format!("job-{client}"));
                        assert!(leases.acquire(&key("a"), &asked).await.unwrap().granted().is_none());
                    }
                    _ => assert!(leases.acquire(&key("a"), &request()).await.unwrap().granted().is_none()),
                }
                answers.fetch_add(1, Relaxed);
                clock.sleep(SECOND).await;
            }
        });
    }
    let mut passed = Duration::ZERO;
    while passed < passes {
        memory.clock.advance(LATENCY);
        passed += LATENCY;
        calm().await;
        assert!(guard.is_valid(), "lost after {passed:?}");
    }
    assert_eq!(store.stats().leases_lost, 0);
    (answers.load(Relaxed), store.requests().since(&before).of(RequestKind::Get))
}

#[tokio::test]
async fn three_hundred_polling_clients_do_not_cost_a_holder_a_lease_of_three_seconds() {
    let (answers, reads) = crowd(300, Duration::ZERO, 3 * SECOND, 10 * SECOND).await;
    assert!(answers >= 300 * 8, "{answers}");
    assert!(reads <= 500, "{reads} reads in the time of 500");
}

#[tokio::test]
async fn eight_hundred_polling_clients_do_not_cost_a_holder_a_lease_of_ten_seconds() {
    let (answers, _) = crowd(800, SECOND, 10 * SECOND, 21 * SECOND).await;
    assert!(answers >= 800 * 17, "{answers}");
}

#[tokio::test]
async fn three_thousand_clients_one_by_one_do_not_cost_a_holder_a_30_second_lease() {
    let (answers, _) = crowd(3000, 16 * SECOND, 30 * SECOND, 36 * SECOND).await;
    assert!(answers >= 3000 * 17, "{answers}");
}

#[tokio::test]
async fn all_who_try_during_one_read_share_its_answer_and_later_ones_the_next() {
    let memory = Memory::new();
    let (store, others) = (memory.builder(1).open().await.unwrap(), memory.process(2).await);
    let leases = store.leases("default").unwrap();
    let theirs = acquire(&others).await;
    memory.store.faults().script(Rule::always(Op::Get, Fault::Slow(SECOND)));
    let before = store.requests();
    let reads = || store.requests().since(&before).of(RequestKind::Get);
    let tried = |number: u32| {
        let leases = leases.clone();
        tokio::spawn(async move {
            match number % 2 {
                0 => leases.acquire(&key("a"), &request()).await.unwrap().granted().is_none(),
                _ => leases.get(&key("a")).await.unwrap().holder.is_some(),
            }
        })
    };
    let moment = SECOND + 50 * MILLI;
    // The first one reads; the others come while it does, and what it reads is too old for them.
    let first = tried(0);
    calm().await;
    let second: Vec<_> = (0..100).map(tried).collect();
    memory.pass(moment).await;
    assert!(first.await.unwrap(), "granted, or free");
    assert_eq!(reads(), 1);
    assert!(second.iter().all(|task| !task.is_finished()), "an old answer");
    // It is given back while they wait for what was read before: that is still the right answer for them.
    others.release(&theirs).await.unwrap();
    let third: Vec<_> = (0..100).map(|_| tried(1)).collect();
    memory.pass(SECOND).await;
    for task in second {
        assert!(task.await.unwrap(), "granted, or free");
    }
    assert_eq!(reads(), 2, "one for all");
    memory.pass(moment).await;
    for task in third {
        assert!(!task.await.unwrap(), "an old answer");
    }
    assert_eq!(reads(), 3, "whoever came later is not answered by it");
}

#[tokio::test]
async fn of_many_who_find_a_key_free_one_gets_it_and_the_others_need_no_read() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    leases.release(&acquire(&leases).await).await.unwrap();
    memory.store.faults().script(Rule::always(Op::Put, Fault::Slow(LATENCY)));
    let before = store.requests();
    // Another operation is busy with the key while they come.
    let mut tries = Vec::new();
    for _ in 0..100 {
        let leases = leases.clone();
        tries.push(tokio::spawn(async move { leases.acquire(&key("a"), &request()).await.unwrap() }));
    }
    memory.pass(SECOND).await;
    let (mut won, mut told) = (Vec::new(), Vec::new());
    for task in tries {
        match task.await.unwrap() {
            Acquired::Granted(grant) => won.push(grant),
            Acquired::Held(held) => told.push(held.by.unwrap().lease_id),
        }
    }
    assert_eq!(won.len(), 1);
    assert!(told.len() == 99 && told.iter().all(|id| *id == won[0].lease_id()));
    let made = store.requests().since(&before);
    assert!(made.of(RequestKind::Get) <= 1 && made.of(RequestKind::Put) == 1, "{made:?}");
    assert_eq!(store.stats().acquires_refused, 99);
}

#[tokio::test]
async fn tries_with_a_request_id_are_judged_each_on_its_own() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let asked = |id: &str| request().request_id(id);
    let mine = granted(leases.acquire(&key("a"), &asked("mine")).await);
    memory.store.faults().script(Rule::always(Op::Get, Fault::Slow(LATENCY)));
    let tried = |id: &'static str| {
        let (leases, asked) = (leases.clone(), asked(id));
        tokio::spawn(async move { leases.acquire(&key("a"), &asked).await.unwrap().granted() })
    };
    let tries: Vec<_> = ["other", "mine", "other", "mine"].into_iter().map(tried).collect();
    memory.pass(SECOND).await;
    let mut ids = Vec::new();
    for task in tries {
        ids.push(task.await.unwrap().map(|grant| grant.lease_id()));
    }
    assert_eq!(ids, [None, Some(mine.lease_id()), None, Some(mine.lease_id())]);
}

#[tokio::test]
async fn whoever_gives_up_while_it_finds_out_for_all_leaves_that_to_the_next() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let _theirs = acquire(&others).await;
    memory.store.faults().script(Rule::always(Op::Get, Fault::Slow(SECOND)));
    let mut tries: Vec<_> = (0..10)
        .map(|_| {
            let leases = leases.clone();
            tokio::spawn(async move { leases.acquire(&key("a"), &request()).await.unwrap().granted() })
        })
        .collect();
    calm().await;
    for _ in 0..3 {
        tries.remove(0).abort();
        memory.pass(SECOND / 2).await;
    }
    memory.pass(2 * SECOND).await;
    for task in tries {
        assert!(task.await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_store_that_fails_is_told_to_all_who_wait_for_it_at_once() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    memory.store.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))));
    let before = store.requests();
    let tries: Vec<_> = (0..50)
        .map(|_| {
            let leases = leases.clone();
            tokio::spawn(async move { leases.get(&key("a")).await.map(drop) })
        })
        .collect();
    memory.pass(10 * SECOND).await;
    for task in tries {
        assert!(task.is_finished(), "one after the other");
        assert!(task.await.unwrap().unwrap_err().is_retryable());
    }
    let reads = store.requests().since(&before).of(RequestKind::Get);
    assert!(reads <= 12, "{reads} reads for all of them");
}

#[tokio::test]
async fn a_panic_in_a_store_does_not_end_the_keeping_of_all_leases() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let good = lock(&leases, "good", &request()).await;
    let boom = lock(&leases, "boom", &request()).await;
    memory.store.set_observer(Box::new(|applied: &Applied| assert!(!applied.name.contains("meta/boom"))));
    memory.pass(12 * SECOND).await;
    memory.store.set_observer(Box::new(|_: &Applied| {}));
    leases.release(&acquire(&leases).await).await.unwrap(); // the store is well
    memory.pass(30 * SECOND).await;
    let told = good.lost().now_or_never().is_some();
    assert!(good.is_valid() || told, "not valid, and nobody is told");
    assert!(good.is_valid() && boom.is_valid(), "one panic costs nobody a lease");
}

#[tokio::test]
async fn a_lease_whose_renewals_all_panic_is_reported_lost_when_its_time_is_over() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let good = lock(&leases, "good", &request()).await;
    let boom = lock(&leases, "boom", &request()).await;
    memory.store.set_observer(Box::new(|applied: &Applied| assert!(!applied.name.contains("meta/boom"), "broken")));
    memory.pass(31 * SECOND).await;
    assert!(good.is_valid());
    let loss = boom.lost().now_or_never().expect("told");
    let LossReason::Expired { failing: Some(failing) } = &loss.reason else { panic!("{loss:?}") };
    assert!(failing.error.contains("broken"), "{failing:?}");
    assert_eq!(store.stats().leases_lost, 1);
}

#[tokio::test]
async fn a_waiter_with_a_request_id_is_not_sent_away_while_it_is_handed_the_lease() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    let waiting = wait(&leases, request().request_id("job-7"), 2 * SECOND);
    calm().await;
    memory.store.faults().script(Rule::once(Op::Get, Fault::Slow(SECOND)).on("meta/a"));
    let looking = tokio::spawn({
        let leases = leases.clone();
        async move { leases.get(&key("a")).await.map(drop) }
    });
    calm().await;
    memory.store.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Hang)).on("meta/a"));
    memory.store.faults().script(Rule::once(Op::Put, Fault::Slow(3 * SECOND)).on("meta/a"));
    let releasing = tokio::spawn({
        let leases = leases.clone();
        async move { leases.release(&mine).await }
    });
    memory.pass(12 * SECOND).await;
    looking.await.unwrap().unwrap();
    releasing.await.unwrap().unwrap();
    let (answer, there) = (waiting.await.unwrap(), leases.peek(&key("a")).await.unwrap().holder);
    assert!(matches!(answer, Ok(Acquired::Granted(_))) || there.is_none(), "a lease that nobody knows of");
}

/// Processor time of this thread: whatever else the machine does, it is the same.
#[cfg(unix)]
#[allow(clippy::disallowed_methods, reason = "what is measured is work, and not time")]
fn spent() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap(), now.tv_nsec.try_into().unwrap())
}

#[cfg(unix)]
#[tokio::test]
async fn forty_thousand_who_wait_leave_at_once() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let _theirs = acquire(&others).await;
    let (name, asked) = (key("a"), request());
    type Waiting<'a> = Pin<Box<dyn Future<Output = leasehold::Result<Acquired>> + 'a>>;
    let mut waiting: Vec<Waiting<'_>> = Vec::new();
    for _ in 0..40_000 {
        let mut one: Waiting<'_> = Box::pin(leases.acquire_within(&name, &asked, 600 * SECOND));
        assert!(futures_util::poll!(one.as_mut()).is_pending());
        waiting.push(one);
    }
    let before = spent();
    drop(waiting);
    let took = spent() - before;
    println!("left in {took:?}");
    // Under a tenth of a second on a machine that does nothing else; minutes before.
    assert!(took < Duration::from_millis(400), "{took:?}");
}

#[tokio::test]
async fn those_who_wait_in_many_processes_do_not_all_come_at_the_end_of_the_lease() {
    let memory = Memory::new();
    let theirs = acquire(&memory.process(100).await).await;
    let mut waiting = Vec::new();
    let mut stores = Vec::new();
    for seed in 1..=20 {
        let store = memory.builder(seed).open().await.unwrap();
        waiting.push(wait(&store.leases("default").unwrap(), request(), 600 * SECOND));
        stores.push(store);
    }
    let requests = || stores.iter().map(|store| store.requests().total()).sum::<u64>();
    // Until a moment before it can be taken over.
    memory.pass(theirs.ttl() + SECOND - 10 * MILLI).await;
    let mut most = 0;
    for _ in 0..30 {
        let before = requests();
        memory.pass(10 * MILLI).await;
        most = most.max(requests() - before);
    }
    assert!(most <= 20, "{most} requests within 10 ms");
    assert_eq!(waiting.iter().filter(|one| one.is_finished()).count(), 1, "and one of them has it");
}

#[tokio::test]
async fn a_lease_lost_by_time_is_counted_and_logged_once_with_the_stores_failure() {
    let said = Said::default();
    let _hears = tracing::subscriber::set_default(said.clone());
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let guard = lock(&leases, "a", &lasting(30 * SECOND)).await;
    memory.store.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    memory.pass(31 * SECOND).await;
    let loss = guard.lost().now_or_never().expect("told");
    assert!(matches!(&loss.reason, LossReason::Expired { failing: Some(_) }), "{loss:?}");
    assert!(loss.to_string().starts_with("its time was over: the store failed since 2026-01-01T00:30:1"), "{loss}");
    assert!(!guard.is_valid());
    let Renewed::Lost(_) = leases.renew(&guard.grant()).await.unwrap() else { panic!("renewed") };
    drop(guard);
    calm().await;
    assert_eq!(store.stats().leases_lost, 1);
    let fence = loss.fence.unwrap().to_string();
    assert_eq!(said.count(&["a lease was lost", "key=a", "holder", &fence, "the store failed since"]), 1);
    assert_eq!(said.count(&["a lease was lost"]), 1);
}

#[tokio::test]
async fn a_guard_that_is_found_to_be_over_before_its_keeper_runs_is_counted_once() {
    for is_asked in [true, false] {
        let memory = Memory::new();
        let store = memory.builder(1).open().await.unwrap();
        let leases = store.leases("default").unwrap();
        let guard = lock(&leases, "a", &lasting(30 * SECOND)).await;
        memory.clock.advance(31 * SECOND);
        if is_asked {
            assert!(!guard.is_valid());
            assert_eq!(guard.lost().await.reason, LossReason::Expired { failing: None });
        }
        guard.release().await.unwrap();
        assert_eq!(store.stats().leases_lost, 1);
    }
}

#[tokio::test]
async fn a_guard_that_was_held_for_as_long_as_it_may_be_says_so() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let guard = lock(&leases, "a", &lasting(30 * SECOND).max_hold(5 * SECOND)).await;
    memory.pass(6 * SECOND).await;
    let loss = guard.lost().now_or_never().expect("told");
    assert_eq!((loss.reason, store.stats().leases_lost), (LossReason::MaxHold, 1));
}

#[tokio::test]
async fn a_guard_whose_lease_another_process_took_or_gave_back_says_so() {
    let memory = Memory::new();
    let (store, others) = (memory.builder(1).open().await.unwrap(), memory.process(2).await);
    let leases = store.leases("default").unwrap();
    let guard = lock(&leases, "a", &lasting(30 * SECOND)).await;
    others.release_by_id(&key("a"), guard.grant().lease_id()).await.unwrap();
    memory.pass(11 * SECOND).await;
    let loss = guard.lost().now_or_never().expect("told");
    assert_eq!((loss.reason, loss.taken_by), (LossReason::Released, None));

    let guard = lock(&leases, "b", &lasting(30 * SECOND)).await;
    others.release_by_id(&key("b"), guard.grant().lease_id()).await.unwrap();
    granted(others.acquire(&key("b"), &request()).await);
    memory.pass(11 * SECOND).await;
    let loss = guard.lost().now_or_never().expect("told");
    assert_eq!((&loss.reason, &loss.taken_by.as_ref().unwrap().owner[..]), (&LossReason::Taken, "test"));
    assert_eq!(store.stats().leases_lost, 2);
}

#[tokio::test]
async fn a_guard_whose_lease_an_operator_took_says_who_did_and_why() {
    let memory = Memory::new();
    let (store, others) = (memory.builder(1).open().await.unwrap(), memory.process(2).await);
    let leases = store.leases("default").unwrap();
    let guard = lock(&leases, "a", &lasting(30 * SECOND)).await;
    others.force_release(&key("a"), "host is gone", "alice").await.unwrap();
    memory.pass(11 * SECOND).await;
    let loss = guard.lost().now_or_never().expect("told");
    assert_eq!(loss.to_string(), "taken by force by alice: host is gone");
    assert_eq!(store.stats().leases_lost, 1);
}

#[tokio::test]
async fn a_lease_that_is_found_lost_by_its_id_again_and_again_is_counted_once() {
    let memory = Memory::new();
    let (store, others) = (memory.builder(1).open().await.unwrap(), memory.process(2).await);
    let leases = store.leases("default").unwrap();
    let grant = acquire(&leases).await;
    others.release_by_id(&key("a"), grant.lease_id()).await.unwrap();
    for _ in 0..3 {
        let Renewed::Lost(loss) = leases.renew_by_id(&key("a"), grant.lease_id(), None).await.unwrap() else {
            panic!("renewed");
        };
        assert_eq!(loss.reason, LossReason::Released);
    }
    assert_eq!(store.stats().leases_lost, 1);
}

#[tokio::test]
async fn a_guard_that_was_released_is_not_lost() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let guard = lock(&leases, "a", &lasting(30 * SECOND)).await;
    // A renewal is under way when it is given back.
    memory.store.faults().script(Rule::once(Op::Put, Fault::Slow(SECOND)).on("meta/a"));
    memory.pass(10 * SECOND + 500 * MILLI).await;
    let releasing = tokio::spawn(guard.release());
    memory.pass(40 * SECOND).await;
    releasing.await.unwrap().unwrap();
    assert_eq!(store.stats().leases_lost, 0);
}
