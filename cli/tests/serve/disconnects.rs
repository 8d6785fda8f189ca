//! Clients that go away: no lease is left behind that nobody knows of.

use crate::common::{Service, until};
use serde_json::json;
use std::io::Read;

fn request(service: &Service, headers: &str, body: &str) -> String {
    let host = service.address();
    format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn one_who_goes_while_waiting_leaves_the_line() {
    let service = Service::start(&[]);
    let holder = service.acquire("key", "holder").await.granted();
    let gone = service.raw(&request(&service, "", r#"{"key":"key","owner":"gone","wait_ms":60000}"#));
    until("it waits", async || service.metric("leasehold_http_waiting").await == 1.).await;
    drop(gone);
    until("it has left", async || service.metric("leasehold_http_waiting").await == 0.).await;
    service.release(&holder).await.granted();
    assert!(service.holder("key").await.is_null(), "nobody has it");
    service.acquire("key", "next").await.granted();
}

#[tokio::test]
async fn one_who_goes_without_an_answer_leaves_no_lease_behind() {
    let service = Service::start(&[]);
    // Gone at every moment that the machine happens to offer: before, during and after the write.
    for number in 0..60 {
        let body = json!({ "key": format!("key-{number}"), "owner": "gone", "ttl_ms": 3_600_000 }).to_string();
        let stream = service.raw(&request(&service, "", &body));
        std::thread::sleep(std::time::Duration::from_micros(number * 150));
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }
    // An answer may have been handed to the connection before it broke: that cannot be known, and its time to live ends
    // it. All others are given back.
    let handed = async || service.metric(r#"leasehold_http_requests_total{route="/v1/acquire",status="200"}"#).await;
    until("only leases are left whose answer was sent", async || {
        let held = service.get("/v1/leases?held=true&limit=500").await.body["keys"].as_array().unwrap().len();
        held as f64 <= handed().await
    })
    .await;
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_by_its_key() {
    let service = Service::start(&[]);
    for number in 0..20 {
        let id = format!("request-{number}");
        // One key each: what was dropped unread may be carried out after all the rest, and then holds its key.
        let body = &format!(r#"{{"key":"key-{number}","owner":"me","ttl_ms":600000}}"#);
        let mut stream = service.raw(&request(&service, &format!("idempotency-key: {id}\r\n"), body));
        if number % 2 == 0 {
            // The answer is on its way, and is lost.
            stream.read_exact(&mut [0; 12]).unwrap();
        }
        drop(stream);
        let mut lease = None;
        until("the lease is there for its own", async || {
            let answer = service.acquire_again(&id, serde_json::from_str(body).unwrap()).await;
            // The one that was dropped may still be being settled.
            lease = (answer.status == 200).then_some(answer);
            lease.is_some()
        })
        .await;
        service.release(&lease.unwrap()).await.granted();
    }
}
