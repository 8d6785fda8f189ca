//! `doctor` against a server on which everything can be broken: each thing is found, and what to do is said.

use crate::home::{Home, Ran};
use leasehold::SystemClock;
use leasehold_testkit::{Flaw, Op, S3Server};
use std::sync::Arc;

/// A server, and a user who knows its credentials.
struct Clinic {
    runtime: tokio::runtime::Runtime,
    server: S3Server,
    home: Home,
}

impl Clinic {
    fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(S3Server::start(Arc::new(SystemClock::new()))).unwrap();
        Self { runtime, server, home: Home::new() }
    }

    fn run_on(&self, url: &str, arguments: &[&str]) -> Ran {
        let _running = self.runtime.enter();
        // First, as whatever follows a command of `lock` is its own.
        let mut command = self.home.leasehold(&[&["--store", url], arguments].concat());
        command.envs(self.server.options().into_iter().map(|(name, value)| (name.to_uppercase(), value)));
        Ran::from(command.output().unwrap())
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        self.run_on("s3://bucket/some/prefix", arguments)
    }
}

fn said(ran: &Ran, words: &[&str]) {
    for word in words {
        assert!(ran.out.contains(word), "{word:?} is not in {ran:?}");
    }
}

#[test]
fn a_healthy_store_is_safe_and_only_a_time_object_is_left_behind() {
    let clinic = Clinic::new();
    let ran = clinic.run(&["doctor"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    said(&ran, &["safe for leases", "p50", "p99", "ms against the store's clock", "made to find out"]);
    let left = clinic.server.names();
    assert!(left.iter().all(|name| name.contains("/.leasehold/time-")), "{left:?}");
    let json = clinic.run(&["doctor", "-o", "json"]);
    said(&json, &[r#""verdict":"safe""#, r#""name":"conditions","ok":true"#, r#""p99_ms":"#]);
    assert_eq!(json.out.lines().count(), 1);
}

#[test]
fn each_missing_permission_is_named() {
    for (op, name, words, verdict) in [
        (Op::Get, "get", "s3:GetObject", "unusable"),
        (Op::Put, "put", "s3:PutObject", "unusable"),
        (Op::List, "list", "s3:ListBucket", "untidy"),
        (Op::Delete, "delete", "s3:DeleteObject", "untidy"),
    ] {
        let clinic = Clinic::new();
        clinic.server.deny(op);
        let ran = clinic.run(&["doctor", "-o", "json"]);
        assert_eq!(ran.code, 1, "{name}: {ran:?}");
        said(
            &ran,
            &[&format!(r#""name":"{name}","ok":false"#), words, "AccessDenied", &format!(r#""verdict":"{verdict}""#)],
        );
        let failures = ran.out.matches(r#""ok":false"#).count();
        assert_eq!(failures, 1, "{name}: only what is missing is named: {}", ran.out);
        let table = clinic.run(&["doctor"]);
        said(&table, &["FAILED", words]);
    }
}

#[test]
fn an_unsafe_store_is_refused_and_the_rule_is_named() {
    for (flaw, rule) in [
        (Flaw::IgnoresPreconditions, "a create of an existing object fails"),
        (Flaw::ChecksThenWrites, "of racing creates exactly one wins"),
        (Flaw::UpdatesTheMissing, "an update of a missing object fails"),
        (Flaw::StaleReads, "shows the overwrite"),
    ] {
        let clinic = Clinic::new();
        clinic.server.break_rule(flaw);
        let ran = clinic.run(&["doctor"]);
        assert_eq!(ran.code, 1, "{flaw:?}: {ran:?}");
        said(&ran, &["NOT safe for leases", rule, "use another store"]);
    }
}

#[test]
fn a_skewed_clock_is_measured_and_what_to_do_is_said() {
    let clinic = Clinic::new();
    clinic.server.set_date(3 * 60 * 1000);
    let ran = clinic.run(&["doctor"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    said(&ran, &["clock        FAILED", "until the clock is set right", "wrong clock: set this machine's clock"]);
    let json = clinic.run(&["doctor", "-o", "json"]);
    let skew: u64 = crate::home::field(&json.out, "skew_ms").parse().unwrap();
    assert!((178_000..=182_000).contains(&skew), "{skew}");
    for (millis, code) in [(30_000, 1), (-30_000, 1), (5_000, 1), (-5_000, 1), (0, 0)] {
        clinic.server.set_date(millis);
        assert_eq!(clinic.run(&["doctor"]).code, code, "{millis}");
    }
}

#[test]
fn a_wrong_bucket_wrong_credentials_and_a_missing_server_are_told_apart() {
    let clinic = Clinic::new();
    let missing = clinic.run_on("s3://buckte/some/prefix", &["doctor"]);
    assert_eq!(missing.code, 1, "{missing:?}");
    said(&missing, &["the bucket does not exist", "cannot be used"]);

    let mut command = clinic.home.leasehold(&["doctor", "--store", "s3://bucket"]);
    command.envs(clinic.server.options().into_iter().map(|(name, value)| (name.to_uppercase(), value)));
    let wrong = Ran::from(command.env("AWS_ACCESS_KEY_ID", "somebody else").output().unwrap());
    assert_eq!(wrong.code, 1, "{wrong:?}");
    said(&wrong, &["credentials  FAILED", "InvalidAccessKeyId", "check the credentials"]);
    assert!(!wrong.out.contains("is missing"), "no permission is at fault: {wrong:?}");

    let endpoint = clinic.server.endpoint();
    drop(clinic.server);
    let mut command = clinic.home.leasehold(&["doctor", "--store", "s3://bucket"]);
    command.env("AWS_ENDPOINT", endpoint).env("AWS_ACCESS_KEY_ID", "x").env("AWS_SECRET_ACCESS_KEY", "x");
    let gone = Ran::from(command.output().unwrap());
    assert_eq!(gone.code, 5, "{gone:?}");
    said(&gone, &["does not answer", "reach       FAILED"]);
}

#[test]
fn the_hint_is_the_policy_of_this_very_bucket() {
    let clinic = Clinic::new();
    let ran = clinic.run(&["doctor", "--fix-hint"]);
    for words in ["arn:aws:s3:::bucket/some/prefix/*", "s3:ListBucket", "NoncurrentVersionExpiration"] {
        assert!(ran.err.contains(words), "{words:?} is not in {ran:?}");
    }
}

#[test]
fn credentials_that_may_only_read_can_look_and_are_told_why_they_cannot_lock() {
    let clinic = Clinic::new();
    assert_eq!(clinic.run(&["acquire", "x"]).code, 0);
    clinic.server.deny(Op::Put);
    clinic.server.deny(Op::Delete);
    assert_eq!(clinic.run(&["list"]).code, 0);
    assert_eq!(clinic.run(&["fsck"]).code, 0);
    assert_eq!(clinic.run(&["store", "show"]).code, 0);
    let refused = clinic.run(&["lock", "y", "--", "true"]);
    assert_eq!(refused.code, 125, "{refused:?}");
    assert!(
        refused.err.contains("AccessDenied") && refused.err.contains("grant the missing permission"),
        "{refused:?}"
    );
}
