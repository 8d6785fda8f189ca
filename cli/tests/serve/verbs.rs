//! The program's verbs against a service, in place of a store.

use crate::common::{PATIENCE, Service, until};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Output, Stdio},
    time::Instant,
};

const TOKEN: &str = "a-token-for-the-verbs-0123456789";

/// What programs read.
fn program(service: &Service, arguments: &[&str]) -> Command {
    shown(service, &[&["-o", "json"], arguments].concat())
}

/// What people see.
fn shown(service: &Service, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    // Where a store would be made, if the service were not asked.
    command.env("XDG_DATA_HOME", "/nowhere/at/all").env("LEASEHOLD_CONFIG", "/dev/null").env_remove("LEASEHOLD_STORE");
    command.env("LEASEHOLD_TOKEN", service.token.as_deref().unwrap_or_default());
    command.args(["--server", &service.base]).args(arguments).stdin(Stdio::null());
    command
}

/// Its exit code, what it says, and what it complains about.
fn run(service: &Service, arguments: &[&str]) -> (i32, Value, String) {
    let Output { status, stdout, stderr } = program(service, arguments).output().unwrap();
    let said = serde_json::from_slice(&stdout).unwrap_or_default();
    (status.code().unwrap_or(-1), said, String::from_utf8_lossy(&stderr).into_owned())
}

#[track_caller]
fn done(service: &Service, arguments: &[&str]) -> Value {
    let (code, said, complaint) = run(service, arguments);
    assert_eq!(code, 0, "{arguments:?}: {complaint}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verbs_do_the_same_through_a_service() {
    let service = Service::start_locked(TOKEN, &[]);
    let lease = done(&service, &["acquire", "orders/42", "--owner", "me", "--ttl", "1m", "--note", "hello"]);
    let id = lease["lease_id"].as_str().unwrap();
    assert_eq!((&lease["key"], &lease["ttl_ms"]), (&"orders/42".into(), &60_000.into()));

    let (code, _, complaint) = run(&service, &["acquire", "orders/42", "--owner", "other"]);
    assert_eq!(code, 4, "{complaint}");
    assert!(complaint.contains("held by me"), "{complaint}");
    assert_eq!(run(&service, &["acquire", "orders/42", "--wait", "300ms"]).0, 124);
    let first = done(&service, &["acquire", "again", "--request-id", "the-same"]);
    let second = done(&service, &["acquire", "again", "--request-id", "the-same"]);
    assert_eq!((&first["lease_id"], &first["fence"]), (&second["lease_id"], &second["fence"]));

    assert_eq!(done(&service, &["renew", "orders/42", "--lease", id])["fence"], lease["fence"]);
    let status = done(&service, &["get", "orders/42"]);
    assert_eq!((&status["state"], &status["holder"]["note"]), (&"held".into(), &"hello".into()));
    assert_eq!(done(&service, &["list", "--held"]).as_array().unwrap().len(), 2);
    done(&service, &["release", "orders/42", "--lease", id]);
    assert_eq!(run(&service, &["renew", "orders/42", "--lease", id]).0, 3);
    assert_eq!(run(&service, &["release", "orders/42", "--lease", id]).0, 3);
    assert_eq!(done(&service, &["get", "orders/42"])["last_fence"], lease["fence"]);

    let txn = done(&service, &["txn", "begin"])["txn_id"].as_str().unwrap().to_owned();
    assert_eq!(done(&service, &["txn", "decide", &txn, "commit"])["decision"], "commit");
    assert_eq!(run(&service, &["txn", "decide", &txn, "abort"]).0, 3);
    assert_eq!(done(&service, &["txn", "get", &txn])["decision"], "commit");
    assert_eq!(done(&service, &["sweep", "--dry-run"])["stopped_by"], "complete");
    assert_eq!(service.get("/v1/lease?key=again&peek=true").await.body["holder"]["fence"], first["fence"]);
}

#[test]
fn what_needs_a_store_and_what_is_wrong_is_said() {
    let mut service = Service::start_locked(TOKEN, &[]);
    for verb in [
        &["doctor"][..],
        &["fsck"],
        &["store", "show"],
        &["bench"],
        &["serve"],
        &["release", "k", "--force", "--reason", "r"],
    ] {
        let (code, _, complaint) = run(&service, verb);
        assert!(code == 2 && complaint.contains("--store"), "{verb:?} {code} {complaint}");
    }
    let (code, _, complaint) = run(&service, &["get", "key", "--store", "/tmp"]);
    assert_eq!(code, 2, "{complaint}");
    service.token = None;
    let (code, _, complaint) = run(&service, &["get", "key"]);
    assert!(code == 1 && complaint.contains("LEASEHOLD_TOKEN"), "{code} {complaint}");
    service.base = "http://127.0.0.1:9".into();
    assert_eq!(run(&service, &["get", "key"]).0, 5);
    service.base = "ftp://127.0.0.1".into();
    assert_eq!(run(&service, &["get", "key"]).0, 2);
}

/// A line of what it says, as it says it.
fn lines(child: &mut Child) -> impl FnMut() -> String + use<> {
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    move || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    }
}

/// On a machine that stands still for longer than a lease lasts it is lost: then a longer one is tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_under_a_lease_of_the_service() {
    let service = Service::start(&[]);
    for (ttl, seconds) in [("1s", 3), ("6s", 15), ("20s", 45)] {
        let script = format!("echo $LEASEHOLD_FENCE; sleep {seconds}");
        let ran = program(&service, &["lock", "job", "--ttl", ttl, "--", "sh", "-c", &script]);
        let mut child = { ran }.stdout(Stdio::piped()).spawn().unwrap();
        let fence: u64 = lines(&mut child)().trim().parse().unwrap();
        let (holder, second) = (service.holder("job").await, run(&service, &["lock", "job", "--", "true"]).0);
        // Kept alive for more than twice its time to live, and given back at the end.
        let code = child.wait().unwrap().code();
        until("it is free", async || service.holder("job").await.is_null()).await;
        if code != Some(3) {
            assert_eq!((&holder["fence"], second, code), (&fence.into(), 4, Some(0)), "{holder}");
            return;
        }
    }
    panic!("every lease was lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_stopped_when_the_lease_of_the_service_is_lost() {
    let service = Service::start(&[]);
    let mut child = program(&service, &["lock", "job", "--ttl", "20s", "--", "sh", "-c", "echo on; exec sleep 120"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(lines(&mut child)(), "on\n");
    let id = service.holder("job").await["lease_id"].as_str().unwrap().to_owned();
    let body = serde_json::json!({ "key": "job", "lease_id": id });
    service.post("/v1/release", body).await.granted();
    service.acquire("job", "thief").await.granted();
    let began = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(began.elapsed() < PATIENCE);
    let mut told = String::new();
    std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut told).unwrap();
    assert!(told.contains("lost, taken by thief"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_when_the_service_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start_on(folder.path(), &[]);
    let address = service.address().to_owned();
    let mut child = program(&service, &["watch", "key"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = lines(&mut child);
    assert!(line().contains("\"free\""));
    let lease = service.acquire("key", "first").await.granted();
    assert!(line().contains("\"first\""));
    service.kill();
    let back = Service::start_on(folder.path(), &["--listen", &address]);
    back.release(&lease).await.granted();
    assert!(line().contains("\"free\""));
    back.acquire("key", "second").await.granted();
    assert!(line().contains("\"second\""));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The lease counts from when it was granted, and not from when somebody began to wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_waited_for_longer_than_it_lasts_is_good() {
    let service = Service::start(&[]);
    let body = serde_json::json!({"key": "job", "owner": "first", "ttl_ms": 3000});
    service.post("/v1/acquire", body).await.granted();
    let ran = program(&service, &["lock", "job", "--ttl", "2s", "--wait", "1m", "--", "true"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let waited = service.post("/v1/acquire", serde_json::json!({"key": "job", "owner": "second"})).await.granted();
    assert!(waited.body["waited_ms"].as_u64().unwrap() < 3000, "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_what_cannot_be_read_ends_with_what_is_wrong() {
    let store = tempfile::tempdir().unwrap();
    let service = Service::start_on(store.path(), &[]);
    service.acquire("job", "me").await.granted();
    std::fs::write(store.path().join("default/meta/job.pb"), "not a record").unwrap();
    let ran = program(&service, &["watch", "job", "--until-free"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// What others call themselves must not reach a terminal as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_an_owner_cannot_forge_what_is_shown() {
    let service = Service::start(&[]);
    service.acquire("job", "x\n\u{1b}[2Kbackup  free").await.granted();
    for arguments in [&["get", "job"][..], &["list"], &["acquire", "job"], &["lock", "job", "--", "true"]] {
        let Output { stdout, stderr, .. } = shown(&service, arguments).output().unwrap();
        let said = [stdout, stderr].concat();
        assert!(!said.contains(&0x1b), "{arguments:?}: {}", String::from_utf8_lossy(&said));
    }
}
