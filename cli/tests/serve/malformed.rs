//! Whatever is sent, the answer is a 4xx with a code, and nothing changes.

use crate::common::Service;
use reqwest::Method;
use serde_json::{Value, json};
use std::io::Read;

/// The status and the code of a raw answer.
fn told(mut stream: std::net::TcpStream) -> (String, String) {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    let status = text.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let body: Value =
        text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).unwrap_or_default();
    (status, body["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
async fn bad_bodies_are_refused_with_a_stable_code_and_change_nothing() {
    let service = Service::start(&[]);
    let lease = service.acquire("key", "me").await.granted();
    let id = lease.text("lease_id");
    let before = service.holder("key").await;
    let long = "x".repeat(1025);
    let cases = [
        ("/v1/acquire", "", 400, "invalid_request"),
        ("/v1/acquire", "{", 400, "invalid_json"),
        ("/v1/acquire", "\u{0}", 400, "invalid_json"),
        ("/v1/acquire", "[]", 400, "invalid_request"),
        ("/v1/acquire", "null", 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":7}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":""}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":null}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","key_b64":"YQ=="}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key_b64":"*"}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","kye":"b"}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","key":"b"}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","ttl_ms":0}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","ttl_ms":-1}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","ttl_ms":1.5}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","wait_ms":1e12}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","ttl_ms":"30s"}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","ttl_ms":1e400}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","ttl_ms":18446744073709551615}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","namespace":"../etc"}"#, 400, "invalid_request"),
        ("/v1/acquire", r#"{"key":"a","namespace":".leasehold"}"#, 400, "invalid_request"),
        ("/v1/renew", r#"{"key":"key","lease_id":"zz"}"#, 400, "invalid_request"),
        ("/v1/renew", r#"{"key":"key"}"#, 400, "invalid_request"),
        ("/v1/release", r#"{"key":"key","lease_id":5}"#, 400, "invalid_request"),
        ("/v1/check", r#"{"key":"key","fence":1.5}"#, 400, "invalid_request"),
        ("/v1/check", r#"{"key":"key","fence":1.0}"#, 400, "invalid_request"),
        ("/v1/check", r#"{"key":"key","fence":1e3}"#, 400, "invalid_request"),
        ("/v1/check", r#"{"key":"key","fence":"1"}"#, 400, "invalid_request"),
        ("/v1/check", r#"{"key":"key","fence":0}"#, 400, "invalid_request"),
        ("/v1/check", r#"{"key":"key","fence":9007199254740992}"#, 400, "invalid_request"),
        ("/v1/elections/campaign", r#"{"name":"a"}"#, 400, "invalid_request"),
        ("/v1/txns/nonsense/decide", r#"{"decision":"commit"}"#, 400, "invalid_request"),
        ("/v1/txns/7d444840-9dc0-41d1-b245-5ffdce74fad2/decide", r#"{"decision":"commit"}"#, 400, "invalid_request"),
        ("/v1/txns/019b76da-a800-7000-8000-000000000001/decide", r#"{"decision":"maybe"}"#, 400, "invalid_request"),
        ("/v1/sweep", "[]", 400, "invalid_request"),
        ("/v1/sweep", " \n[null,true]", 400, "invalid_request"),
        ("/v1/elections/campaign", r#"["a","me"]"#, 400, "invalid_request"),
        ("/v1/txns/019b76da-a800-7000-8000-000000000001/decide", r#"["commit"]"#, 400, "invalid_request"),
        ("/v1/sweep", r#"{"max_ops":0}"#, 400, "invalid_request"),
        ("/v1/sweep", r#"{"dry_run":"yes"}"#, 400, "invalid_request"),
        ("/v1/nowhere", "{}", 404, "not_found"),
        ("/v1/lease", "{}", 405, "method_not_allowed"),
        ("/", "{}", 405, "method_not_allowed"),
    ];
    let owned = [
        ("/v1/acquire", json!({ "key": long }).to_string(), 400, "invalid_request"),
        ("/v1/acquire", json!({ "key": "a", "owner": long }).to_string(), 400, "invalid_request"),
        ("/v1/acquire", json!({ "key": "a", "note": "x".repeat(4097) }).to_string(), 400, "invalid_request"),
        ("/v1/acquire", json!({ "key": "a", "note": "x".repeat(1_000_000) }).to_string(), 413, "body_too_large"),
        ("/v1/release", " ".repeat(1_000_000), 413, "body_too_large"),
        ("/v1/acquire", "[".repeat(50_000), 400, "invalid_request"),
    ];
    let cases = cases.into_iter().map(|(path, body, status, code)| (path, body.to_owned(), status, code)).chain(owned);
    for (path, body, status, code) in cases {
        let request = service.request(Method::POST, path).header("content-type", "application/json");
        let answer = service.send(request.body(body.clone())).await;
        let shown: String = body.chars().take(60).collect();
        assert_eq!((answer.status, answer.code()), (status, code), "{path} {shown}: {answer:?}");
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"] {
        let request = service.request(Method::POST, "/v1/release").header("content-type", kind);
        let answer = service.send(request.body(json!({ "key": "key", "lease_id": id }).to_string())).await;
        assert_eq!((answer.status, answer.code()), (415, "unsupported_media_type"), "{kind}");
    }
    let id_of_bytes = service.request(Method::POST, "/v1/acquire").header("content-type", "application/json");
    let id_of_bytes = id_of_bytes.header("idempotency-key", &b"\xff\xfe"[..]).body(r#"{"key":"a"}"#);
    assert_eq!(service.send(id_of_bytes).await.status, 400);
    for path in [
        "/v1/lease",
        "/v1/lease?key=",
        "/v1/lease?key=a&kye=b",
        "/v1/lease?key=a&key=b",
        "/v1/lease?key=a&peek=maybe",
        "/v1/lease?key=a&namespace=%2e%2e",
        "/v1/leases?limit=0",
        "/v1/leases?limit=501",
        "/v1/leases?limit=1.5",
        "/v1/leases?after=%00",
        "/v1/watch",
        "/v1/watch?key=a&namespace=A",
        "/v1/elections/leader",
        "/v1/txns/nonsense",
        "/v1/txns/%ff",
        "/v1/elections/observe?key=a",
    ] {
        let answer = service.get(path).await;
        assert_eq!((answer.status, answer.code()), (400, "invalid_request"), "{path}: {answer:?}");
    }
    assert_eq!(service.holder("key").await, before, "nothing changed");
    assert_eq!(service.get("/v1/leases").await.body["keys"].as_array().unwrap().len(), 1, "nothing was made");
}

#[tokio::test]
async fn broken_and_slow_requests_are_answered_and_let_go() {
    let service = Service::start(&[]);
    let host = service.address().to_owned();
    // Told by whoever parses HTTP, which has no code of ours.
    for bytes in ["nonsense\r\n\r\n".to_owned(), format!("GET / HTTP/1.1\r\nhost: {host}\r\nbad header\r\n\r\n")] {
        assert_eq!(told(service.raw(&bytes)).0, "400", "{bytes:?}");
    }
    let many: String = (0..100).map(|number| format!("x-{number}: y\r\n")).collect();
    assert_eq!(told(service.raw(&format!("GET / HTTP/1.1\r\nhost: {host}\r\n{many}\r\n"))).0, "431");
    let long = "y".repeat(70_000);
    assert_eq!(told(service.raw(&format!("GET / HTTP/1.1\r\nhost: {host}\r\nx: {long}\r\n\r\n"))).0, "431");
    assert_eq!(told(service.raw("GET /livez HTTP/1.0\r\n\r\n")), ("403".into(), "forbidden_host".into()));

    // Headers and bodies that never come to an end; both are waited for at once.
    let head = service.raw(&format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n"));
    let silent = service.raw("");
    let body = service.raw(&format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{{\"key\""
    ));
    let slow = ("408".to_owned(), "slow_request".to_owned());
    let [head, silent, body] = [head, silent, body].map(|stream| std::thread::spawn(move || told(stream)));
    assert_eq!(head.join().unwrap(), slow, "slow headers");
    assert_eq!(silent.join().unwrap(), slow, "no headers");
    assert_eq!(body.join().unwrap(), slow, "slow body");
    assert_eq!(service.get("/livez").await.status, 200);
    assert_eq!(service.get("/v1/leases").await.body["keys"], json!([]));
}

#[tokio::test]
async fn those_who_find_no_place_to_wait_in_are_told_so() {
    let service = Service::start(&["--max-waiting", "1"]);
    service.acquire("key", "holder").await.granted();
    let watch = service.request(Method::GET, "/v1/watch?key=key").send().await.unwrap();
    let waiting = json!({ "key": "key", "wait_ms": 1000 });
    let full = service.post("/v1/acquire", waiting.clone()).await;
    assert_eq!((full.status, full.code()), (429, "too_many_waiting"));
    assert_eq!(service.acquire("other", "me").await.status, 200, "one who does not wait needs no place");
    drop(watch);
    crate::common::until("the place is free again", async || {
        service.post("/v1/acquire", waiting.clone()).await.code() == "timed_out"
    })
    .await;
}

#[tokio::test]
async fn a_wrong_field_is_named_and_every_answer_is_a_line() {
    let service = Service::start(&[]);
    let ask = async |path: &str, body: &'static str| {
        let request = service.request(Method::POST, path).header("content-type", "application/json").body(body);
        let response = request.send().await.unwrap();
        let text = response.text().await.unwrap();
        assert!(text.ends_with("}\n") && text.matches('\n').count() == 1, "{text:?}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["detail"].as_str().unwrap_or_default().to_owned()
    };
    for (path, body, said) in [
        ("/v1/acquire", r#"{"key":"a","ttl_ms":"30s"}"#, "`ttl_ms`: not a whole number in the range that is allowed"),
        ("/v1/acquire", r#"{"key":"a","wait_ms":-1}"#, "`wait_ms`: not a whole number in the range that is allowed"),
        ("/v1/acquire", r#"{"key":7}"#, "`key`: invalid type: integer `7`, expected a string"),
        ("/v1/check", r#"{"key":"a","fence":"1"}"#, "`fence`: "),
        ("/v1/renew", r#"{"key":"a"}"#, "missing field `lease_id`"),
        ("/v1/acquire", r#"{"key":"a","kye":"b"}"#, "unknown field `kye`"),
        ("/v1/acquire", r#"{"key":"a","ttl_ms":86400000}"#, "TTL must be between 1 s and 1 h (got 1 d); "),
    ] {
        let detail = ask(path, body).await;
        assert!(detail.starts_with(said) && !detail.contains("column"), "{body}: {detail}");
    }
    assert_eq!(ask("/v1/acquire", r#"{"key":"a"}"#).await, "", "it is granted");
}
