//! The example `embedded_service`, as its clients and Prometheus see it. A process of its own: a process has one recorder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

#[path = "../examples/embedded_service.rs"]
#[allow(dead_code, reason = "its main is for those who run it")]
mod service;

use leasehold::{Store, clock::Timestamp, store::Probing};
use leasehold_testkit::{FaultStore, SeededGenerator, TestClock};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

/// One request on a connection of its own: the status and the body.
async fn call(to: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn post(to: SocketAddr, path: &str, body: Value) -> (u16, Value) {
    let (status, body) = call(to, "POST", path, &body.to_string()).await;
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// The value of one series as it is scraped now.
async fn scraped(to: SocketAddr, series: &str) -> f64 {
    let (status, text) = call(to, "GET", "/metrics", "").await;
    assert_eq!(status, 200);
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {series} in:\n{text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Time passes, and all that is due is done.
async fn pass(clock: &TestClock, time: Duration) {
    let step = Duration::from_millis(250);
    for _ in 0..time.as_millis() / step.as_millis() {
        clock.advance(step);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

const RUNS: &str = r#"leasehold_sweep_runs_total{ended="complete"}"#;

#[tokio::test]
async fn two_clients_exclude_each_other_and_the_sweeper_begins_after_its_idle_grace() {
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    // 2026-01-01T00:30:00Z: the middle of an hour.
    let clock = TestClock::at(Timestamp::from_millis(1_767_227_400_000));
    let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
    let builder = Store::builder().object_store(Arc::new(objects)).shares_our_clock().lists_in_order();
    let builder = builder.probing(Probing::Never).clock(Arc::new(clock.clone())).settings(service::settings());
    let store = builder.open().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (to, (stop, stopped)) = (listener.local_addr().unwrap(), oneshot::channel());
    let serving = tokio::spawn(service::serve(listener, store, metrics, async { drop(stopped.await) }));

    let ask = |owner: &str| json!({ "key": "orders/42", "owner": owner, "ttl_ms": 30_000 });
    let (status, lease) = post(to, "/acquire", ask("one")).await;
    assert_eq!((status, &lease["ttl_ms"]), (200, &json!(30_000)), "{lease}");
    let mine = json!({ "key": "orders/42", "lease_id": lease["lease_id"] });
    let (status, held) = post(to, "/acquire", ask("two")).await;
    assert_eq!(status, 409);
    assert!(held.as_str().unwrap().starts_with("held by one (fence "), "{held}");

    pass(&clock, Duration::from_secs(20)).await;
    assert_eq!(post(to, "/renew", mine.clone()).await.0, 200);
    pass(&clock, Duration::from_secs(20)).await;
    assert_eq!(post(to, "/acquire", ask("two")).await.0, 409, "it was renewed");
    assert_eq!(post(to, "/release", mine.clone()).await.0, 200);
    let (status, next) = post(to, "/acquire", ask("two")).await;
    assert_eq!(status, 200);
    assert!(next["fence"].as_u64().unwrap() > lease["fence"].as_u64().unwrap());
    assert_eq!(post(to, "/renew", mine).await.0, 409, "the first one has lost it");
    assert_eq!(post(to, "/acquire", json!({ "key": "a", "owner": "one", "ttl_ms": 0 })).await.0, 400);

    // The lease is left to end; its hour is over and its grace as well. Activity keeps the sweeper waiting.
    let before = scraped(to, RUNS).await;
    pass(&clock, Duration::from_secs(50)).await;
    for _ in 0..110 {
        clock.advance(Duration::from_secs(30));
        assert_eq!(call(to, "POST", "/busy", "").await.0, 200);
    }
    assert_eq!(scraped(to, RUNS).await, before, "it is never idle for its idle_grace of a minute");
    pass(&clock, Duration::from_secs(59)).await;
    assert_eq!(scraped(to, RUNS).await, before, "not a second earlier");
    pass(&clock, Duration::from_secs(15)).await;
    assert_eq!(scraped(to, RUNS).await, before + 1., "a minute of quiet and a tick later");
    assert_eq!(scraped(to, r#"leasehold_leases_cleared_total{by="sweeper"}"#).await, 1.);

    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    assert!(TcpStream::connect(to).await.is_err(), "nobody listens any more");
}
