//! Semaphores through the service.

use crate::common::Service;
use serde_json::json;

#[tokio::test]
async fn two_of_three_get_a_slot_and_the_third_when_one_leaves() {
    let service = Service::start(&[]);
    let slot = |owner: &str, wait: u64| json!({ "name": "gpu", "size": 2, "owner": owner, "wait_ms": wait });
    let first = service.post("/v1/semaphores/acquire", slot("a", 0)).await.granted();
    let second = service.post("/v1/semaphores/acquire", slot("b", 0)).await.granted();
    assert_ne!(first.body["slot"], second.body["slot"]);
    assert!(second.fence() > first.fence());
    let full = service.post("/v1/semaphores/acquire", slot("c", 0)).await;
    assert_eq!((full.status, full.code()), (409, "held"), "{full:?}");
    let seen = service.get("/v1/semaphore?name=gpu").await.granted();
    assert_eq!((&seen.body["size"], seen.body["held_by"].as_array().unwrap().len()), (&json!(2), 2));
    let name = json!({ "name": "gpu", "lease_id": first.text("lease_id") });
    let renewed = service.post("/v1/semaphores/renew", name.clone()).await.granted();
    assert_eq!(renewed.fence(), first.fence());
    let (third, released) = tokio::join!(
        service.post("/v1/semaphores/acquire", slot("c", 20_000)),
        service.post("/v1/semaphores/release", name.clone())
    );
    released.granted();
    assert!(third.granted().fence() > second.fence());
    let lost = service.post("/v1/semaphores/renew", name).await;
    assert_eq!((lost.status, lost.code()), (409, "lost"), "{lost:?}");
    let other = json!({ "name": "gpu", "size": 3 });
    let wrong = service.post("/v1/semaphores/acquire", other.clone()).await;
    assert_eq!((wrong.status, wrong.code()), (409, "wrong_size"), "the size is agreed on");
    let resized = service.post("/v1/semaphores/resize", other.clone()).await.granted();
    assert_eq!(resized.body["size"], 3);
    service.post("/v1/semaphores/acquire", other).await.granted();
    assert_eq!(service.get("/v1/semaphore?name=nobody").await.status, 404);
    assert_eq!(service.post("/v1/semaphores/acquire", json!({ "name": "x", "size": 0 })).await.status, 400);
}

#[tokio::test]
async fn a_lease_is_taken_away_with_a_reason_that_is_recorded() {
    let service = Service::start(&[]);
    let lease = service.acquire("key", "stuck").await.granted();
    let wrong = service.post("/v1/force-release", json!({ "key": "key", "reason": " " })).await;
    assert_eq!(wrong.status, 400);
    let forced = service.post("/v1/force-release", json!({ "key": "key", "reason": "it hangs", "by": "ann" })).await;
    let forced = forced.granted();
    assert_eq!(forced.body["taken_from"]["owner"], "stuck");
    assert!(forced.text("recorded").contains("repairs"), "{forced:?}");
    let body = json!({ "key": "key", "lease_id": lease.text("lease_id") });
    assert_eq!(service.post("/v1/renew", body).await.code(), "lost");
    assert!(service.acquire("key", "next").await.granted().fence() > lease.fence());
    assert_eq!(service.post("/v1/force-release", json!({ "key": "never", "reason": "x" })).await.status, 404);
}
