//! Stores and services that do not answer: nobody waits for longer than they said, and everybody is told why.

use crate::home::{Home, Ran, ended, field, until};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Child,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// A server that takes every connection and never says anything.
fn silence() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    (listener, address)
}

#[allow(clippy::disallowed_methods, reason = "real processes have real time")]
fn timed(run: impl FnOnce() -> Ran) -> (Ran, Duration) {
    let began = Instant::now();
    let ran = run();
    (ran, began.elapsed())
}

#[test]
fn nobody_waits_for_a_silent_store_for_longer_than_they_said() {
    let home = Home::new();
    let (_listener, address) = silence();
    fs::write(home.path("config.toml"), "[settings]\nrequest_timeout = \"3s\"\n").unwrap();
    let locking = || {
        let mut command = home.leasehold(&[
            "--config",
            "config.toml",
            "--store",
            "s3://bucket",
            "lock",
            "zz",
            "--wait",
            "2s",
            "--",
            "true",
        ]);
        command.env("AWS_ENDPOINT", &address).env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
        Ran::from(command.env("AWS_REGION", "us-east-1").output().unwrap())
    };
    let (ran, took) = timed(locking);
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.err.contains("the store did not answer within 3s"), "{ran:?}");
    // Without a bound it is three tries of 3 s each.
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// Reads one request, and hands back its idempotency key.
fn request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let (mut id, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let (name, value) = line.split_once(':').unwrap_or((line.trim(), ""));
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => id = Some(value.trim().to_owned()),
            "content-length" => length = value.trim().parse().unwrap(),
            "" => break,
            _ => {}
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    id
}

#[test]
fn a_candidate_repeats_its_request_under_the_same_key_until_it_is_answered() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let body =
                r#"{"title":"?","status":503,"code":"unknown_outcome","detail":"whether it was granted is not known"}"#;
            if let Some(id) = request(&stream) {
                noted.lock().unwrap().push(id);
            }
            let head =
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nconnection: close";
            let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    let mut child = home.start(&["elect", "office", "--server", &address, "--", "true"]);
    // Five tries each time it stands: it has stood a second time.
    until("it stands again", || seen.lock().unwrap().len() > 6);
    child.kill().unwrap();
    child.wait().unwrap();
    let ids = seen.lock().unwrap().clone();
    assert!(ids.iter().all(|id| id == &ids[0]), "{ids:?}");
}

fn serve(home: &Home, flags: &[&str]) -> (Child, String) {
    let mut child = home.start(&[&["serve", "--listen", "127.0.0.1:0"][..], flags].concat());
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let base = line.split_whitespace().last().unwrap_or_else(|| panic!("it does not say where: {line:?}")).to_owned();
    (child, base)
}

#[test]
fn a_lock_through_a_service_says_why_it_was_lost() {
    let home = Home::new();
    let (mut service, base) = serve(&home, &[]);
    let script = "echo x > begun; sleep 60";
    let locked =
        home.start(&["--server", &base, "lock", "k", "--ttl", "2s", "--kill-after", "1s", "--", "sh", "-c", script]);
    until("the command runs", || home.path("begun").exists());
    service.kill().unwrap();
    service.wait().unwrap();
    let lost = ended(locked);
    assert_eq!(lost.code, 3, "{lost:?}");
    assert!(lost.err.contains("the lease on k is lost, its time was over: the service failed since 20"), "{lost:?}");
    assert!(lost.err.contains("onnection refused"), "{lost:?}");
    assert!(!lost.err.contains("Silent("), "no debug text: {lost:?}");
}

#[test]
fn a_service_logs_what_an_operator_needs_after_a_bad_night() {
    let home = Home::new();
    let (mut service, base) = serve(&home, &["-v"]);
    let lease = field(&home.json(&["--server", &base, "acquire", "k", "--ttl", "10m"]), "lease_id");
    assert_eq!(home.run(&["--server", &base, "acquire", "k", "--ttl", "1d"]).code, 2);
    let zero = "00000000000000000000000000000000";
    assert_eq!(home.run(&["--server", &base, "renew", "k", "--lease", zero]).code, 3);
    assert_eq!(home.run(&["--server", &base, "release", "k", "--lease", &lease]).code, 0);
    // The store is gone, and comes back.
    let (there, away) = (home.store(), home.path("away"));
    fs::rename(&there, &away).unwrap();
    assert_ne!(home.run(&["--server", &base, "get", "k"]).code, 0);
    fs::rename(&away, &there).unwrap();
    assert_eq!(home.run(&["--server", &base, "get", "k"]).code, 0);
    service.kill().unwrap();
    let log = Ran::from(service.wait_with_output().unwrap()).err;
    for said in [
        " INFO granted namespace=default key=k",
        "released key=k",
        " WARN a lease was lost namespace=default key=k",
        "INFO a request failed method=POST route=\"/v1/acquire\" status=400 code=\"invalid_request\" detail=\"TTL must be",
        " WARN the store fails",
        " WARN the store answers again",
    ] {
        assert!(log.contains(said), "{said:?} is not in:\n{log}");
    }
    assert!(!log.contains(&lease), "whoever has a lease's id can give it back:\n{log}");
}

#[test]
fn verbose_says_something_on_a_folder_too() {
    let home = Home::new();
    let told = home.run(&["-v", "lock", "k", "--", "true"]);
    assert!(told.err.contains("INFO acquired key=k") && told.err.contains("INFO released key=k"), "{told:?}");
    let all = home.run(&["-vv", "lock", "k", "--", "true"]);
    assert!(all.err.contains("DEBUG read name=.leasehold/store.json"), "{all:?}");
    assert!(all.err.contains("DEBUG write name=default/meta/k.pb"), "{all:?}");
}

#[test]
fn a_bench_leaves_the_same_records_behind_however_often_it_runs() {
    let home = Home::new();
    let records = || fs::read_dir(home.store().join("leasehold-bench/meta")).unwrap().count();
    let bench = || home.json(&["bench", "cycle", "renew", "--concurrency", "2", "--duration", "20ms"]);
    bench();
    let first = records();
    bench();
    assert_eq!((first, records()), (4, 4));
}

#[test]
fn a_memory_store_serves_and_is_measured() {
    let home = Home::new();
    assert_eq!(home.run(&["--store", "memory://", "bench", "cycle", "--duration", "10ms"]).code, 0);
    let (mut service, base) = serve(&home, &["--store", "memory://"]);
    assert_eq!(home.run(&["--server", &base, "lock", "k", "--", "true"]).code, 0);
    service.kill().unwrap();
    service.wait().unwrap();
    for command in
        [&["get", "k"][..], &["list"], &["doctor"], &["fsck"], &["sweep"], &["store", "show"], &["txn", "begin"]]
    {
        let refused = home.run(&[&["--store", "memory://"], command].concat());
        assert!(refused.code == 2 && refused.err.contains("nothing would be locked"), "{command:?}: {refused:?}");
    }
}
