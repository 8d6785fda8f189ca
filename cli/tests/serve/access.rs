//! Who may call the service.

use crate::common::Service;
use reqwest::Method;
use serde_json::json;
use std::process::{Command, Stdio};

const TOKEN: &str = "a-token-for-the-tests-0123456789";

#[tokio::test]
async fn without_the_right_token_nothing_is_told_and_nothing_changes() {
    let mut service = Service::start_locked(TOKEN, &[]);
    let lease = service.acquire("key", "me").await.granted();
    for wrong in [
        None,
        Some(""),
        Some("wrong"),
        Some("a-token-for-the-tests-012345678"),
        Some("a-token-for-the-tests-01234567890"),
    ] {
        service.token = wrong.map(ToOwned::to_owned);
        for path in [
            "/v1/lease?key=key",
            "/v1/leases",
            "/v1/overview",
            "/v1/sweep",
            "/metrics",
            "/v1/watch?key=key",
            "/nowhere",
        ] {
            let answer = service.get(path).await;
            assert_eq!((answer.status, answer.code()), (401, "unauthorized"), "{path} with {wrong:?}");
        }
        let body = json!({ "key": "key", "lease_id": lease.text("lease_id") });
        assert_eq!(service.post("/v1/release", body).await.status, 401);
        assert_eq!(service.acquire("other", "me").await.status, 401);
        for open in ["/", "/page.css", "/page.js", "/livez", "/readyz", "/openapi.json"] {
            assert_eq!(service.get(open).await.status, 200, "{open}");
        }
    }
    service.token = Some(TOKEN.to_owned());
    assert_eq!(service.holder("key").await["owner"], "me");
    assert!(service.holder("other").await.is_null());
}

#[tokio::test]
async fn other_hosts_and_pages_of_other_sites_are_refused() {
    let service = Service::start(&[]);
    for host in
        ["evil.example", "evil.example:7420", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", ""]
    {
        for path in ["/", "/livez", "/v1/leases", "/nowhere"] {
            let answer = service.send(service.request(Method::GET, path).header("host", host)).await;
            assert_eq!((answer.status, answer.code()), (403, "forbidden_host"), "{host} {path}");
        }
    }
    let own = service.base.clone();
    for (origin, status) in [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:1", 403),
        ("http://localhost", 403),
        (own.as_str(), 200),
    ] {
        let request = service.request(Method::POST, "/v1/acquire").header("origin", origin);
        let request = request.header("content-type", "application/json").body(r#"{"key":"key","owner":"me"}"#);
        let answer = service.send(request).await;
        assert_eq!(answer.status, status, "{origin} {answer:?}");
        assert!(status == 200 || service.holder("key").await.is_null(), "{origin} got a lease");
    }
}

#[test]
fn beyond_loopback_a_token_is_needed_and_a_bad_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let file = folder.path().join("token");
    std::fs::write(&file, "short\n").unwrap();
    for (flags, complaint) in [
        (vec!["--listen", "0.0.0.0:0"], "--token-file"),
        (vec!["--listen", "[::]:0"], "--token-file"),
        (vec!["--token-file", file.to_str().unwrap()], "shorter than 16"),
        (vec!["--token-file", "/nowhere/at/all"], "/nowhere/at/all"),
        (vec!["--tls-cert", "/nowhere/at/all"], "--tls-key"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        let ended = command.args(["serve", "--store", &store]).args(&flags).stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success() && told.contains(complaint), "{flags:?}: {told}");
    }
    assert!(!folder.path().join("store").exists(), "nothing is made before all is well");
}

#[tokio::test]
async fn it_speaks_https_and_never_says_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|made| made.success()) {
        eprintln!("SKIPPED: there is no openssl to make a certificate with");
        return;
    }
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let service = Service::start_locked(TOKEN, &flags);
    assert!(service.base.starts_with("https://"), "{}", service.base);
    service.acquire("key", "me").await.granted();
    for path in ["/metrics", "/v1/overview", "/openapi.json", "/"] {
        let answer = service.get(path).await;
        assert!(!answer.body.to_string().contains(TOKEN), "{path}");
    }
}
