//! What the service is for: leases, elections, decisions, watching, sweeping, and coming to an end.

use crate::common::{Service, until};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_lease_is_granted_renewed_refused_to_others_and_given_back() {
    let service = Service::start(&[]);
    let mine = service.acquire("orders/42", "worker-7").await.granted();
    assert!(mine.body["expires_in_ms"].as_u64().unwrap() > 20_000, "{mine:?}");

    let theirs = service.acquire("orders/42", "worker-8").await;
    assert_eq!((theirs.status, theirs.code()), (409, "held"));
    assert_eq!(theirs.body["holder"]["owner"], "worker-7");
    assert_eq!(theirs.body["holder"]["fence"], mine.fence());

    let wanted = json!({ "key": "orders/42", "lease_id": mine.text("lease_id"), "ttl_ms": 120_000 });
    let renewed = service.post("/v1/renew", wanted.clone()).await.granted();
    assert_eq!((renewed.fence(), &renewed.body["ttl_ms"]), (mine.fence(), &json!(120_000)));
    let right = service.post("/v1/check", json!({ "key": "orders/42", "fence": mine.fence() })).await;
    assert_eq!(right.body["current"], true);

    service.release(&mine).await.granted();
    service.release(&mine).await.granted();
    let lost = service.post("/v1/renew", wanted).await;
    assert_eq!((lost.status, lost.code()), (409, "lost"));
    let wrong = service.post("/v1/check", json!({ "key": "orders/42", "fence": mine.fence() })).await;
    assert_eq!((&wrong.body["current"], &wrong.body["last_fence"]), (&json!(false), &json!(mine.fence())));
    let next = service.acquire("orders/42", "worker-8").await.granted();
    assert!(next.fence() > mine.fence());
}

#[tokio::test]
async fn a_waiter_gets_the_released_lease_or_is_told_that_its_time_is_up() {
    let service = Service::start(&["--max-wait", "2s"]);
    let first = service.acquire("key", "first").await.granted();
    let body = json!({ "key": "key", "owner": "second", "wait_ms": 60_000 });
    let (second, ()) = tokio::join!(service.post("/v1/acquire", body.clone()), async {
        until("somebody waits", async || service.metric("leasehold_http_waiting").await == 1.).await;
        service.release(&first).await.granted();
    });
    assert!(second.clone().granted().fence() > first.fence());
    // For as long as the service lets anybody wait, whatever was asked for.
    let began = Instant::now();
    let third = service.post("/v1/acquire", body).await;
    assert_eq!((third.status, third.code()), (409, "timed_out"));
    assert!(began.elapsed() < Duration::from_secs(20) && third.body["retry_after_ms"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn keys_and_namespaces_of_all_kinds_are_kept_apart_and_listed() {
    let service = Service::start(&[]);
    for body in [
        json!({ "key": "a/b" }),
        json!({ "key": "a//b" }),
        json!({ "key": "../a b?&=ü\u{0}" }),
        json!({ "key_b64": "/wA=" }),
        json!({ "namespace": "other", "key": "a/b" }),
    ] {
        service.post("/v1/acquire", body).await.granted();
    }
    let binary = service.get("/v1/lease?key=%ff%00").await.granted();
    assert_eq!((&binary.body["key_b64"], binary.body["holder"].is_object()), (&json!("/wA="), true));
    assert!(service.get("/v1/lease?key=..%2fa%20b%3f%26%3d%c3%bc%00").await.body["holder"].is_object());
    assert!(service.get("/v1/lease?namespace=other&key=a%2fb").await.body["holder"].is_object());

    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let page = service.get(&format!("/v1/leases?limit=1{after}")).await.granted();
        keys.extend(page.body["keys"].as_array().unwrap().clone());
        match page.body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(keys.len(), 4, "{keys:?}");
    let some = service.get("/v1/leases?prefix=a%2f").await;
    assert_eq!(some.body["keys"].as_array().unwrap().len(), 2);
    assert_eq!(service.get("/v1/leases?after=..%2f..").await.status, 400);
}

#[tokio::test]
async fn a_watch_tells_of_every_change() {
    let service = Service::start(&[]);
    let response = service.request(Method::GET, "/v1/watch?key=key").send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut stream, mut seen) = (response.bytes_stream(), String::new());
    let mut read = async |wanted: &str| {
        while !seen.contains(wanted) {
            seen.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
        }
    };
    read("event: status\ndata: {\"namespace\":\"default\",\"key\":\"key\",\"holder\":null").await;
    let lease = service.acquire("key", "somebody").await.granted();
    read("\"owner\":\"somebody\"").await;
    service.release(&lease).await.granted();
    read(&format!("\"holder\":null,\"last_fence\":{}", lease.fence())).await;
}

#[tokio::test]
async fn an_election_has_one_leader_who_can_be_observed_and_can_resign() {
    let service = Service::start(&[]);
    let stand = |who: &str| json!({ "name": "scheduler", "candidate": who, "note": "10.0.0.1" });
    let leader = service.post("/v1/elections/campaign", stand("node-1")).await.granted();
    let follower = service.post("/v1/elections/campaign", stand("node-2")).await;
    assert_eq!((follower.code(), &follower.body["holder"]["note"]), ("held", &json!("10.0.0.1")));
    let seen = service.get("/v1/elections/leader?name=scheduler").await;
    assert_eq!(seen.body["leader"]["owner"], "node-1");

    let response = service.request(Method::GET, "/v1/elections/observe?name=scheduler").send().await.unwrap();
    let (mut stream, mut told) = (response.bytes_stream(), String::new());
    while !told.contains("node-1") {
        told.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
    }
    let resign = json!({ "key": "scheduler", "lease_id": leader.text("lease_id") });
    service.post("/v1/elections/resign", resign).await.granted();
    while !told.contains("\"leader\":null") {
        told.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
    }
}

#[tokio::test]
async fn a_transaction_is_decided_once() {
    let service = Service::start(&[]);
    let txn = service.post("/v1/txns", json!({})).await.granted().text("txn");
    let path = format!("/v1/txns/{txn}");
    assert_eq!(service.get(&path).await.body["answer"], "undecided");
    let decide = async |decision: &str| {
        let body = json!({ "decision": decision, "by": "coordinator" });
        service.post(&format!("{path}/decide"), body).await.granted().body["decision"].clone()
    };
    assert_eq!(decide("commit").await, "commit");
    assert_eq!(decide("abort").await, "commit");
    assert_eq!(service.get(&path).await.body["answer"], "committed");
    // Somebody could still decide otherwise, as far as clocks go.
    let early = service.send(service.request(Method::DELETE, &path)).await;
    assert_eq!((early.status, early.code()), (409, "too_early"));
}

#[tokio::test]
async fn the_sweeper_can_be_seen_and_started_and_health_checks_do_not_hold_it_back() {
    let service = Service::start(&["--idle-grace", "1s", "--op-delay", "0s", "--tick", "100ms"]);
    let report = service.post("/v1/sweep", json!({ "dry_run": true })).await.granted();
    assert_eq!(report.body["stopped_by"], "complete");
    // Everything that is no activity, as fast as it goes, until an idle run has begun and ended all the same.
    until("the idle sweeper has run", async || {
        for path in ["/livez", "/readyz", "/metrics", "/v1/overview", "/v1/leases", "/v1/lease?key=a&peek=true"] {
            assert_eq!(service.get(path).await.status, 200, "{path}");
        }
        let sweep = service.get("/v1/sweep").await;
        sweep.body["runs"].as_array().unwrap().iter().any(|run| run["by_hand"] == false)
    })
    .await;
    let by_hand = service.send(service.request(Method::POST, "/v1/sweep")).await.granted();
    assert_eq!(by_hand.body["failures"], 0);
    let sweep = service.get("/v1/sweep").await;
    assert_eq!(sweep.body["runs"][0]["by_hand"], true);
    assert!(sweep.body["idle_ms"].as_u64().unwrap() >= 1000, "{sweep:?}");
    service.get("/v1/lease?key=a").await;
    assert!(service.get("/v1/sweep").await.body["idle_ms"].as_u64().unwrap() < 1000);
}

#[tokio::test]
async fn a_repeated_request_gets_its_own_lease_and_another_one_does_not() {
    let service = Service::start(&[]);
    let body = json!({ "key": "key", "owner": "me", "wait_ms": 100 });
    let first = service.acquire_again("request-1", body.clone()).await.granted();
    let again = service.acquire_again("request-1", body.clone()).await.granted();
    assert_eq!((again.text("lease_id"), again.fence()), (first.text("lease_id"), first.fence()));
    assert_eq!(service.acquire_again("request-2", body.clone()).await.code(), "timed_out");
    let other = json!({ "key": "key", "owner": "somebody else" });
    assert_eq!(service.acquire_again("request-1", other).await.code(), "held");
    service.release(&first).await.granted();
    let new = service.acquire_again("request-1", body).await.granted();
    assert!(new.fence() > first.fence());
}

#[tokio::test]
async fn a_service_that_is_told_to_end_sends_waiters_home_and_ends_cleanly() {
    let mut service = Service::start(&[]);
    service.acquire("key", "holder").await.granted();
    let watch = service.request(Method::GET, "/v1/watch?key=key").send().await.unwrap();
    let waiting = service.request(Method::POST, "/v1/acquire").header("content-type", "application/json");
    let waiting = tokio::spawn(waiting.body(r#"{"key":"key","wait_ms":60000}"#).send());
    until("both are waiting", async || service.metric("leasehold_http_waiting").await == 2.).await;
    service.terminate();
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    assert!(answer.text().await.unwrap().contains("\"code\":\"draining\""));
    // The stream comes to an end instead of breaking.
    watch.text().await.unwrap();
    assert_eq!(service.exit_code(), Some(0));
    // What was held still is.
    let store = service.store.clone();
    let next = Service::start_on(&store, &[]);
    assert_eq!(next.acquire("key", "another").await.code(), "held");
}

#[tokio::test]
async fn the_overview_knows_what_happened_without_reading_a_key() {
    let service = Service::start(&[]);
    let kept = service.acquire("kept", "a").await.granted();
    let short = json!({ "key": "short", "owner": "b", "ttl_ms": 1000 });
    service.post("/v1/acquire", short).await.granted();
    let back = service.acquire("back", "c").await.granted();
    service.release(&back).await.granted();
    until("the short one has ended", async || {
        let overview = service.get("/v1/overview").await;
        overview.body["events"].as_array().unwrap().iter().any(|event| event["what"] == "expired")
    })
    .await;
    let before = service.metric(r#"leasehold_store_requests_total{kind="get",answer="ok"}"#).await;
    let overview = service.get("/v1/overview").await.granted();
    assert_eq!(before, service.metric(r#"leasehold_store_requests_total{kind="get",answer="ok"}"#).await);
    assert_eq!(overview.body["held_total"], 1);
    assert_eq!(overview.body["held"][0]["holder"]["fence"], kept.fence());
    let told: Vec<_> = overview.body["events"].as_array().unwrap().iter().map(|e| (&e["what"], &e["key"])).collect();
    assert!(told.contains(&(&json!("released"), &json!("back"))), "{told:?}");

    // A process that has just begun knows what the index says.
    let store = service.store.clone();
    let other = Service::start_on(&store, &[]);
    let overview = other.get("/v1/overview").await.granted();
    assert_eq!(overview.body["held_total"], 0);
    let filed = overview.body["filed"]["keys"].as_array().unwrap().clone();
    assert!(filed.iter().any(|entry| entry["key"] == "kept"), "{filed:?}");
    other.holder("kept").await;
    assert_eq!(other.get("/v1/overview").await.body["held_total"], 1);
}

async fn told(response: reqwest::Response) -> serde_json::Value {
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn one_who_waits_in_several_requests_keeps_the_place_in_the_line() {
    let service = Service::start(&[]);
    let held = service.acquire("key", "holder").await.granted();
    let ask = |id: &str, wait_ms: u64, continues: bool| {
        let body = json!({ "key": "key", "owner": id, "wait_ms": wait_ms }).to_string();
        let request = service.request(Method::POST, "/v1/acquire").header("content-type", "application/json");
        let request = request.header("idempotency-key", id).body(body);
        if continues { request.header("leasehold-wait", "continues") } else { request }
    };
    let waiting = async |count: f64| {
        until("they wait", async || service.metric("leasehold_http_waiting").await >= count).await;
    };
    let first = tokio::spawn(ask("first", 2000, true).send());
    waiting(1.).await;
    // Behind the first, which will be back.
    let second = tokio::spawn(ask("second", 20_000, false).send());
    waiting(2.).await;
    assert_eq!(first.await.unwrap().unwrap().status(), 409);
    let first = tokio::spawn(ask("first", 20_000, false).send());
    waiting(2.).await;
    service.release(&held).await.granted();
    let first = told(first.await.unwrap().unwrap()).await;
    assert_eq!(first["owner"], "first");
    let released = json!({ "key": "key", "lease_id": first["lease_id"] });
    service.post("/v1/release", released).await.granted();
    let second = told(second.await.unwrap().unwrap()).await;
    assert_eq!(second["owner"], "second");
    assert!(second["fence"].as_u64() > first["fence"].as_u64(), "the first was granted first");
}

#[tokio::test]
async fn a_place_whose_owner_does_not_come_back_is_given_up() {
    let service = Service::start(&[]);
    let held = service.acquire("key", "holder").await.granted();
    let body = json!({ "key": "key", "owner": "gone", "wait_ms": 50 }).to_string();
    let request = service.request(Method::POST, "/v1/acquire").header("content-type", "application/json").body(body);
    let request = request.header("idempotency-key", "gone").header("leasehold-wait", "continues");
    assert_eq!(service.send(request).await.code(), "timed_out");
    service.release(&held).await.granted();
    // It is handed the lease, and gives it back a few seconds later.
    until("the key is free", async || service.holder("key").await.is_null()).await;
    service.acquire("key", "other").await.granted();
}
