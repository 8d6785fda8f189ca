//! What each token may do: every verb is refused without its right.

use crate::common::{Answer, Service, until};
use reqwest::Method;
use serde_json::{Value, json};
use std::process::Command;

const ALL: &str = "all-rights-0123456789";
const READ: &str = "only-read-0123456789";
const LOCK: &str = "only-lock-0123456789";
const WORK: &str = "only-work-0123456789";
const OPERATE: &str = "only-operate-0123456789";
const NONE: &str = "no-rights-at-all-0123";
const MAIL: &str = "only-mail-of-team-a-01";

/// A service on its own store, and the file with its tokens.
fn start() -> (Service, std::path::PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let lines = [
        "# A line of this kind is no token".to_owned(),
        ALL.to_owned(),
        format!("{READ} rights=read"),
        format!("{LOCK} rights=lock"),
        format!("{WORK} rights=work"),
        format!("{OPERATE} rights=operate"),
        format!("{NONE} rights="),
        format!("{MAIL} rights=read,lock,work namespaces=team-a queues=mail,mail-*"),
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let flags = ["--token-file", file.to_str().unwrap(), "--max-wait", "100ms"];
    let service = Service::start_on(&folder.path().join("store"), &flags);
    (service, file, folder)
}

async fn ask(service: &mut Service, token: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
    service.token = Some(token.to_owned());
    match (method, body) {
        ("POST", Some(body)) => service.post(path, body.clone()).await,
        ("POST", None) => service.post(path, json!({})).await,
        ("DELETE", _) => service.send(service.request(Method::DELETE, path)).await,
        _ => service.get(path).await,
    }
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "one table")]
async fn each_verb_is_refused_without_its_right() {
    let (mut service, _, _folder) = start();
    let txn = "01890000-0000-7000-8000-000000000000";
    let named = json!({ "key": "k", "lease_id": "0".repeat(32) });
    let slot = json!({ "name": "s", "size": 2, "lease_id": "0".repeat(32) });
    let jobs = json!({ "worker": "w", "jobs": [{ "id": txn, "fence": 1 }] });
    #[rustfmt::skip]
    let table: Vec<(&str, &str, String, Option<Value>)> = vec![
        (LOCK, "POST", "/v1/acquire".into(), Some(json!({ "key": "k" }))),
        (LOCK, "POST", "/v1/renew".into(), Some(named.clone())),
        (LOCK, "POST", "/v1/release".into(), Some(named.clone())),
        (OPERATE, "POST", "/v1/force-release".into(), Some(json!({ "key": "k", "reason": "a test" }))),
        (READ, "GET", "/v1/lease?key=k".into(), None),
        (READ, "GET", "/v1/leases".into(), None),
        (READ, "POST", "/v1/check".into(), Some(json!({ "key": "k", "fence": 1 }))),
        (LOCK, "POST", "/v1/elections/campaign".into(), Some(json!({ "name": "e", "candidate": "c" }))),
        (LOCK, "POST", "/v1/elections/resign".into(), Some(named)),
        (READ, "GET", "/v1/elections/leader?name=e".into(), None),
        (LOCK, "POST", "/v1/semaphores/acquire".into(), Some(json!({ "name": "s", "size": 2 }))),
        (LOCK, "POST", "/v1/semaphores/renew".into(), Some(json!({ "name": "s", "lease_id": slot["lease_id"] }))),
        (LOCK, "POST", "/v1/semaphores/release".into(), Some(json!({ "name": "s", "lease_id": slot["lease_id"] }))),
        (OPERATE, "POST", "/v1/semaphores/resize".into(), Some(json!({ "name": "s", "size": 2 }))),
        (READ, "GET", "/v1/semaphore?name=s".into(), None),
        (LOCK, "POST", "/v1/txns".into(), None),
        (READ, "GET", format!("/v1/txns/{txn}"), None),
        (LOCK, "DELETE", format!("/v1/txns/{txn}"), None),
        (LOCK, "POST", format!("/v1/txns/{txn}/decide"), Some(json!({ "decision": "abort" }))),
        (READ, "GET", "/v1/sweep".into(), None),
        (OPERATE, "POST", "/v1/sweep".into(), Some(json!({ "dry_run": true }))),
        (READ, "GET", "/v1/overview".into(), None),
        (READ, "GET", "/metrics".into(), None),
        (WORK, "POST", "/v1/workers".into(), None),
        (WORK, "POST", "/v1/workers/w/renew".into(), None),
        (WORK, "DELETE", "/v1/workers/w".into(), None),
        (READ, "GET", "/v1/queues/q".into(), None),
        (WORK, "POST", "/v1/queues/q/jobs".into(), Some(json!({ "args": "a" }))),
        (READ, "GET", format!("/v1/queues/q/jobs/{txn}"), None),
        (WORK, "POST", format!("/v1/queues/q/jobs/{txn}/cancel"), None),
        (WORK, "POST", "/v1/queues/q/claim".into(), Some(json!({ "worker": "w" }))),
        (WORK, "POST", "/v1/queues/q/finish".into(), Some(jobs.clone())),
        (WORK, "POST", "/v1/queues/q/fail".into(), Some(jobs.clone())),
        (WORK, "POST", "/v1/queues/q/snooze".into(), Some(json!({ "worker": "w", "jobs": jobs["jobs"], "snooze_ms": 1 }))),
        (WORK, "POST", "/v1/queues/q/release".into(), Some(jobs)),
    ];
    for (right, method, path, body) in &table {
        for token in [ALL, READ, LOCK, WORK, OPERATE, NONE] {
            let answer = ask(&mut service, token, method, path, body.as_ref()).await;
            let refused = (answer.status, answer.code()) == (403, "forbidden");
            assert_eq!(refused, token != ALL && token != *right, "{token}: {method} {path}: {answer:?}");
        }
    }
    // Every path is in the table, but for those that never end.
    let described = service.get("/openapi.json").await.body["paths"].as_object().unwrap().keys().cloned().collect();
    let described: Vec<String> = described;
    let open = ["/livez", "/readyz", "/v1/watch", "/v1/elections/observe"];
    for path in described.iter().filter(|path| !open.contains(&path.as_str())) {
        let shape = |path: &str| path.split('?').next().unwrap().split('/').count();
        let tail = path.rsplit('/').next().unwrap();
        let tried = table.iter().any(|(_, _, known, _)| {
            shape(known) == shape(path) && (tail.starts_with('{') || known.split('?').next().unwrap().ends_with(tail))
        });
        assert!(tried, "{path} is not in the table");
    }
}

#[tokio::test]
async fn a_token_extends_to_its_namespaces_and_queues_alone() {
    let (mut service, _, _folder) = start();
    for (path, body, allowed) in [
        ("/v1/queues/mail/jobs?namespace=team-a", json!({ "args": "a" }), true),
        ("/v1/queues/mail-low/jobs?namespace=team-a", json!({ "args": "a" }), true),
        ("/v1/queues/other/jobs?namespace=team-a", json!({ "args": "a" }), false),
        ("/v1/queues/mail/jobs", json!({ "args": "a" }), false),
        ("/v1/queues/mail/jobs?namespace=team-b", json!({ "args": "a" }), false),
        ("/v1/acquire", json!({ "key": "k", "namespace": "team-a" }), true),
        ("/v1/acquire", json!({ "key": "k", "namespace": "team-b" }), false),
        ("/v1/acquire", json!({ "key": "k" }), false),
        ("/v1/semaphores/acquire", json!({ "name": "s", "size": 1, "namespace": "team-a" }), true),
        ("/v1/semaphores/acquire", json!({ "name": "s", "size": 1 }), false),
        ("/v1/txns", json!({}), false),
    ] {
        let answer = ask(&mut service, MAIL, "POST", path, Some(&body)).await;
        assert_eq!(answer.code() == "forbidden", !allowed, "{path} {body}: {answer:?}");
        assert!(!allowed || answer.status == 200, "{path} {body}: {answer:?}");
    }
    for (path, allowed) in [
        ("/v1/leases?namespace=team-a", true),
        ("/v1/leases", false),
        ("/v1/lease?key=k&namespace=team-b", false),
        ("/v1/queues/mail?namespace=team-a", true),
        ("/v1/overview", false),
        ("/metrics", false),
    ] {
        let answer = ask(&mut service, MAIL, "GET", path, None).await;
        assert_eq!(answer.status == 403, !allowed, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_hangup_reads_the_tokens_again_and_a_wrong_file_changes_nothing() {
    let (mut service, file, _folder) = start();
    let hangup = |service: &Service| {
        assert!(Command::new("kill").args(["-HUP", &service.pid().to_string()]).status().unwrap().success());
    };
    std::fs::write(&file, "a-brand-new-token-0123\n").unwrap();
    hangup(&service);
    service.token = Some("a-brand-new-token-0123".to_owned());
    until("the new token is taken", async || service.get("/v1/sweep").await.status == 200).await;
    assert_eq!(ask(&mut service, ALL, "GET", "/v1/sweep", None).await.status, 401, "the old one is not");
    std::fs::write(&file, "a-brand-new-token-0123 rights=everything\n").unwrap();
    hangup(&service);
    std::fs::write(&file, "").unwrap();
    hangup(&service);
    service.token = Some("a-brand-new-token-0123".to_owned());
    for _ in 0..5 {
        assert_eq!(service.get("/v1/sweep").await.status, 200);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
