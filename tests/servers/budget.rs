//! What each operation costs in requests: HTTP attempts where there is HTTP, calls elsewhere.

use crate::place::{
    Place, away_from_the_end_of_an_hour, brief, granted, key, long_ago, now, request, sweep,
    until_brief_ones_have_ended,
};
use leasehold::{
    Hour, Key, Store,
    decision::Decision,
    lease::Renewed,
    store::{
        AnswerKind::{self, Failed, Throttled},
        RequestKind::{Delete, Get, List, Put},
        Requests,
    },
};
use std::{sync::Arc, time::Duration};

/// How often the store may fail while requests are counted.
const ROUNDS: usize = 3;

/// Whether the store has answered all of it: what it leaves open is asked again, which costs.
fn all_answered(made: &Requests) -> bool {
    [Throttled, Failed, AnswerKind::None].iter().all(|answer| made.answered(*answer) == 0)
}

/// Writes and reads that something took, unless the store has failed in it.
async fn counting<T>(store: &Store, run: impl Future<Output = T>) -> Option<(T, (u64, u64))> {
    let before = store.requests();
    let result = run.await;
    let made = store.requests().since(&before);
    if !all_answered(&made) {
        println!("not counted: {made:?}");
        return None;
    }
    assert_eq!(made.total(), made.of(Put) + made.of(Get), "{made:?}");
    Some((result, (made.of(Put), made.of(Get))))
}

pub(crate) async fn leases_cost_what_the_budget_says(place: Arc<Place>) {
    for round in 0..ROUNDS {
        if count_leases(&place, &key(&format!("a-{round}")), &key(&format!("b-{round}"))).await.is_some() {
            return;
        }
    }
    panic!("the store failed in every round");
}

async fn count_leases(place: &Place, a: &Key, b: &Key) -> Option<()> {
    let (store, other) = (place.open().await, place.open().await);
    let (leases, others) = (store.leases("default").unwrap(), other.leases("default").unwrap());
    away_from_the_end_of_an_hour().await;
    let (grant, cost) = counting(&store, leases.acquire(a, &request())).await?;
    assert_eq!(cost, (2, 1), "an unknown key: a read, an entry, a swap");
    let (held, cost) = counting(&other, others.acquire(a, &request())).await?;
    assert!(held.unwrap().granted().is_none());
    assert_eq!(cost, (1, 1), "a held key that is new to it");
    let (renewed, cost) = counting(&store, leases.renew(&granted(grant))).await?;
    let Renewed::Renewed(grant) = renewed.unwrap() else { panic!("lost") };
    assert_eq!(cost, (1, 0), "a renewal");
    let (released, cost) = counting(&store, leases.release(&grant)).await?;
    released.unwrap();
    assert_eq!(cost, (1, 0), "a release");
    let (grant, cost) = counting(&store, leases.acquire(a, &request())).await?;
    assert_eq!(cost, (1, 0), "a key last seen free");
    leases.release(&granted(grant)).await.unwrap();
    let (grant, cost) = counting(&store, leases.acquire(b, &request().new_key())).await?;
    granted(grant);
    assert_eq!(cost, (2, 0), "a key that the caller says is new");
    Some(())
}

pub(crate) async fn decisions_cost_what_the_budget_says(place: Arc<Place>) {
    for _ in 0..ROUNDS {
        if count_decisions(&place).await.is_some() {
            return;
        }
    }
    panic!("the store failed in every round");
}

async fn count_decisions(place: &Place) -> Option<()> {
    let (store, other) = (place.open().await, place.open().await);
    let (decisions, others) = (store.decisions(), other.decisions());
    let txn = decisions.begin();
    let (_, cost) = counting(&store, decisions.decide(txn, Decision::Commit)).await?;
    assert_eq!(cost, (2, 0), "deciding");
    let (_, cost) = counting(&store, decisions.get(txn)).await?;
    assert_eq!(cost, (0, 0), "what is known");
    let (_, cost) = counting(&other, others.decide(txn, Decision::Abort)).await?;
    assert_eq!(cost, (2, 1), "finding a decision");
    let third = place.open().await;
    let (_, cost) = counting(&third, third.decisions().get(txn)).await?;
    assert_eq!(cost, (0, 1), "reading one");
    Some(())
}

/// What a pass costs is asked of one in which the store has not failed.
pub(crate) async fn a_page_of_stale_entries_is_deleted_in_bulk(place: Arc<Place>) {
    let hour = Hour::of(now().minus(Duration::from_secs(3 * 3600))).unwrap();
    for name in 0..ROUNDS {
        let then = place.open_at(&long_ago()).await.leases("default").unwrap();
        granted(then.acquire(&key(&format!("{name}-00000")), &brief()).await);
        let stale = |number| format!("default/.lease-index/{hour}/{name}-{number:05}");
        place.put((1..1000).map(stale).collect(), "{}").await;
        until_brief_ones_have_ended().await;
        let store = place.open().await;
        let before = store.requests();
        let reports = sweep(&store).await;
        assert_eq!(place.entries().await, [""; 0], "{reports:?}");
        let made = store.requests().since(&before);
        let [report] = &reports[..] else { continue };
        if !all_answered(&made) {
            continue;
        }
        assert_eq!((report.entries_seen, report.entries_deleted), (1000, 1000), "{report:?}");
        // Over HTTP a time object is written and read back, once.
        let time = u64::from(place.counts_http());
        assert_eq!((made.of(Get), made.of(Put)), (1000 + time, 1 + time), "a read each, one lease to clear: {made:?}");
        if place.counts_http() {
            // One bulk request on S3, four on Azure, which takes 256 names at once. And a look at what comes behind.
            assert!((1..=4).contains(&made.of(Delete)), "{made:?}");
            assert!(made.of(List) <= 6, "{made:?}");
        }
        return;
    }
    panic!("the store failed in every round");
}
