//! A holder that is paused for longer than its lease lasts: it knows as soon as it runs again, and what it protects
//! refuses it.

#![allow(clippy::disallowed_methods, reason = "drives real processes")]

use crate::common::{granted, key};
use leasehold::{
    Store,
    lease::{Locked, Renewed, Request},
};
use std::{
    env,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn url(dir: &Path) -> String {
    format!("file://{}", dir.join("root").display())
}

/// A resource that has learnt about fences: it refuses lower ones than it has seen.
fn write(dir: &Path, fence: u64, value: &str) -> bool {
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("register.lock")).unwrap();
    lock.lock().unwrap();
    let register = dir.join("register");
    let seen = fs::read_to_string(&register).unwrap_or_default();
    let highest = seen.split_once(' ').map_or(0, |(fence, _)| fence.parse().unwrap());
    if fence < highest {
        return false;
    }
    fs::write(register, format!("{fence} {value}")).unwrap();
    true
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: it does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The holder: says what it sees, line by line.
#[test]
#[ignore = "started by the test below"]
fn the_holder() {
    let Some(dir) = env::var_os("LEASEHOLD_TEST_DIR").map(PathBuf::from) else { return };
    let mut said = OpenOptions::new().append(true).create(true).open(dir.join("said")).unwrap();
    let mut say = |what: String| said.write_all(format!("{what}\n").as_bytes()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = runtime.block_on(Store::open(url(&dir))).unwrap();
    let leases = store.leases("default").unwrap();
    let ttl = env::var("LEASEHOLD_TEST_TTL").unwrap().parse().unwrap();
    let asked = Request::new(Duration::from_secs(ttl)).owner("holder");
    let Locked::Granted(guard) = runtime.block_on(leases.lock_within(&key("a"), &asked, Duration::ZERO)).unwrap()
    else {
        panic!("held")
    };
    say(format!("wrote {}", write(&dir, guard.fence().get(), "before")));
    say(format!("holds {}", guard.fence()));
    // Paused in here. The file is there before it runs again, so the next thing that it does is what comes next.
    let resume = dir.join("resume");
    wait_until("resuming", || resume.exists());
    let valid = guard.is_valid();
    let wrote = write(&dir, guard.fence().get(), "after");
    say(format!("valid {valid}"));
    say(format!("wrote {wrote}"));
    match runtime.block_on(leases.renew(&guard.grant())).unwrap() {
        Renewed::Renewed(_) => say("renewed".to_owned()),
        Renewed::Lost(loss) => {
            let by = loss.taken_by.map_or_else(String::new, |by| by.owner);
            say(format!("lost {} {by}", loss.fence.unwrap()));
        }
    }
    let loss = runtime.block_on(guard.lost());
    say(format!("told {}", loss.fence.is_some()));
    runtime.block_on(guard.release()).unwrap();
    say("released".to_owned());
}

struct Holder {
    child: Child,
    dir: PathBuf,
}

impl Holder {
    fn start(dir: &Path, ttl: u64) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "paused::the_holder", "--ignored", "--nocapture"])
            .env("LEASEHOLD_TEST_DIR", dir)
            .env("LEASEHOLD_TEST_TTL", ttl.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("err")).unwrap())
            .spawn()
            .unwrap();
        Self { child, dir: dir.to_path_buf() }
    }

    fn said(&self) -> Vec<String> {
        fs::read_to_string(self.dir.join("said")).unwrap_or_default().lines().map(String::from).collect()
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Whether the system says that it is stopped.
    fn is_stopped(&self) -> bool {
        let listed = Command::new("ps").args(["-o", "state=", "-p", &self.child.id().to_string()]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).trim_start().starts_with('T')
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On a machine that stands still for longer than the lease lasts it is lost too early: then a longer one is tried.
#[test]
fn a_holder_that_was_paused_past_its_expiry_knows_at_once_and_cannot_write() {
    assert!([2, 8, 32].into_iter().any(knows_and_cannot_write), "every lease was lost before its holder was paused");
}

/// Whether the holder had its lease, of so many seconds, until it was paused.
fn knows_and_cannot_write(ttl: u64) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(Store::open(url(dir.path()))).unwrap();
    let leases = store.leases("default").unwrap();
    let mut holder = Holder::start(dir.path(), ttl);
    wait_until("holding", || holder.said().len() == 2);
    let look = || runtime.block_on(leases.peek(&key("a"))).unwrap().holder;
    let Some(first) = look() else { return false };
    assert_eq!(holder.said(), ["wrote true".to_owned(), format!("holds {}", first.fence)]);
    // It is kept alive for as long as the holder runs.
    let longer = first.expires_at.plus(first.ttl);
    wait_until("renewing", || look().is_none_or(|now| now.expires_at > longer));
    if look().is_none() {
        return false;
    }

    holder.signal("-STOP");
    wait_until("stopping", || holder.is_stopped());
    let asked = Request::new(Duration::from_secs(600)).owner("next");
    let grant = granted(runtime.block_on(leases.acquire_within(&key("a"), &asked, PATIENCE)));
    assert!(grant.fence() > first.fence);
    assert!(write(dir.path(), grant.fence().get(), "next"));
    File::create(dir.path().join("resume")).unwrap();
    assert_eq!(holder.said().len(), 2, "it was not paused");
    holder.signal("-CONT");

    let status = holder.child.wait().unwrap();
    assert!(status.success(), "{}", fs::read_to_string(dir.path().join("err")).unwrap());
    let lost = format!("lost {} next", grant.fence());
    assert_eq!(holder.said()[2..], ["valid false", "wrote false", &lost, "told true", "released"]);
    // Its release changed nothing.
    assert!(grant.is_valid());
    assert!(write(dir.path(), grant.fence().get(), "next again"));
    assert_eq!(look().unwrap().lease_id, grant.lease_id());
    true
}
