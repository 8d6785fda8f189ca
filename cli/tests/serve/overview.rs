//! What the page can find: every lease that the process knows, and an honest count of those that it does not.

use crate::common::{Service, until};
use serde_json::{Value, json};

async fn fill(service: &Service) {
    for shard in 1..=300 {
        let owner = format!("worker-{}", shard % 20);
        let body = json!({ "key": format!("batch/shard-{shard}"), "owner": owner, "ttl_ms": 600_000 });
        service.post("/v1/acquire", body).await.granted();
    }
    for other in 0..5 {
        service.post("/v1/acquire", json!({ "key": format!("other/{other}"), "owner": "me", "ttl_ms": 600_000 })).await;
    }
}

fn keys(overview: &Value) -> Vec<String> {
    overview["held"].as_array().unwrap().iter().map(|held| held["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_lease_is_found_and_reached_however_many_there_are() {
    let service = Service::start(&[]);
    fill(&service).await;
    let found = service.get("/v1/overview?find=shard-300").await.granted().body;
    assert_eq!((keys(&found), &found["held_found"]), (vec!["batch/shard-300".to_owned()], &json!(1)));
    assert_eq!(found["held_total"], 305);
    let by_owner = service.get("/v1/overview?find=WORKER-11").await.granted().body;
    assert_eq!(by_owner["held_found"], 15, "by owner, upper case or lower");
    assert_eq!(service.get("/v1/overview?find=nothing").await.granted().body["held_found"], 0);

    let mut reached = Vec::new();
    for skip in [0, 100, 200, 300, 400] {
        let page = service.get(&format!("/v1/overview?skip={skip}")).await.granted().body;
        assert_eq!(page["held_found"], 305);
        reached.extend(keys(&page));
    }
    assert_eq!(reached.len(), 305);
    assert!(reached.is_sorted(), "in the order of their keys, so that pages follow each other");
    assert_eq!(service.get("/v1/overview?skip=-1").await.code(), "invalid_request");
    assert_eq!(service.get("/v1/overview?search=x").await.code(), "invalid_request");
}

#[tokio::test]
async fn keys_of_other_processes_are_counted_and_found_in_the_store() {
    let service = Service::start(&[]);
    let other = Service::start_on(&service.store, &[]);
    fill(&service).await;
    for key in 1..=5 {
        let body = json!({ "key": format!("zz-outside/{key}"), "owner": "outside", "ttl_ms": 2000 });
        other.post("/v1/acquire", body).await.granted();
    }
    let seen = service.get("/v1/overview").await.granted().body;
    assert_eq!((&seen["filed"]["unseen"], &seen["filed"]["more"]), (&json!(5), &json!(false)), "{}", seen["filed"]);
    assert_eq!(seen["namespaces"], json!(["default"]));
    assert_eq!(seen["held_total"], 305);

    // Once it was read, it is known; when its time is over it is not known any more, and nothing is made up about it.
    let listed = service.get("/v1/leases?prefix=zz-outside/").await.granted().body;
    assert_eq!(listed["keys"].as_array().unwrap().len(), 5);
    let found = service.get("/v1/overview?find=zz-outside").await.granted().body;
    assert_eq!((&found["held_found"], &found["filed"]["unseen"]), (&json!(5), &json!(0)));
    until("it is forgotten", async || {
        service.get("/v1/overview?find=zz-outside").await.granted().body["held_found"] == 0
    })
    .await;
    let after = service.get("/v1/overview").await.granted().body;
    assert_eq!(after["filed"]["unseen"], 5, "they may have been renewed");
    let told = after["events"].as_array().unwrap().iter().filter(|event| event["what"] == "expired").count();
    assert_eq!(told, 0, "nobody knows whether they have expired");
}
