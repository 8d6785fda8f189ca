//! Fenced objects: a holder that was paused cannot write over a newer one's data, whatever the store is.

use crate::place::{Place, granted, key, request};
use futures_util::future::join_all;
use leasehold::{Fence, Fenced, fenced::Put};
use std::sync::Arc;

fn written(put: leasehold::Result<Put>) {
    assert!(matches!(put, Ok(Put::Written(_))), "{put:?}");
}

fn refused_for(put: leasehold::Result<Put>, fence: Fence) {
    assert!(matches!(&put, Ok(Put::Refused(refused)) if refused.fence == fence), "{put:?}");
}

async fn there(files: &Fenced, path: &str) -> (Vec<u8>, Fence) {
    let data = files.get(path).await.unwrap().expect("it was written");
    (data.bytes.to_vec(), data.fence)
}

pub(crate) async fn a_paused_holders_write_after_a_newer_ones_is_refused(place: Arc<Place>) {
    let (ours, theirs) = (place.open().await, place.open().await);
    let (leases, others) = (ours.default_leases(), theirs.default_leases());
    let paused = granted(leases.acquire(&key("report"), &request()).await);
    written(ours.fenced().put("report/latest", "first", paused.fence()).await);
    // It is paused here, and its lease goes to another process.
    leases.release(&paused).await.unwrap();
    let newer = granted(others.acquire(&key("report"), &request()).await);
    written(theirs.fenced().put("report/latest", "second", newer.fence()).await);
    refused_for(ours.fenced().put("report/latest", "too late", paused.fence()).await, newer.fence());
    assert_eq!(there(&ours.fenced(), "report/latest").await, (b"second".to_vec(), newer.fence()));
    // Its own holder may write again.
    written(theirs.fenced().put("report/latest", "third", newer.fence()).await);
    assert_eq!(there(&ours.fenced(), "report/latest").await, (b"third".to_vec(), newer.fence()));
    assert_eq!(ours.fenced().get("report/other").await.unwrap(), None);
}

pub(crate) async fn of_many_that_write_at_once_the_highest_fence_stays(place: Arc<Place>) {
    let stores = join_all((0..6).map(|_| place.open())).await;
    for round in 1..=3_u64 {
        let path = format!("round-{round}");
        let puts = stores.iter().enumerate().map(|(number, store)| {
            let fence = Fence::new(100 * round + number as u64).unwrap();
            let files = store.fenced();
            let path = path.as_str();
            async move { files.put(path, number.to_string(), fence).await.unwrap() }
        });
        let puts = join_all(puts).await;
        let highest = Fence::new(100 * round + 5).unwrap();
        assert!(matches!(&puts[5], Put::Written(won) if won.fence == highest), "{puts:?}");
        assert!(puts.iter().all(|put| !matches!(put, Put::Unknown(_))), "{puts:?}");
        assert_eq!(there(&stores[0].fenced(), &path).await, (b"5".to_vec(), highest));
    }
}
