//! `watch`: who holds a key changes, and nothing else is told unless somebody asks for it.

use crate::home::{Home, field};
use std::{
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout},
};

/// A watch that is running.
struct Watching {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let mut child = home.start(arguments);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        self.lines.next().expect("it goes on").unwrap()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn acquire(home: &Home, key: &str, owner: &str) -> String {
    field(&home.json(&["acquire", key, "--ttl", "10m", "--owner", owner]), "lease_id")
}

fn release(home: &Home, key: &str, lease: &str) {
    assert_eq!(home.run(&["release", key, "--lease", lease]).code, 0);
}

#[test]
fn a_prefix_is_watched_for_changes_of_holder_only() {
    let home = Home::new();
    let (one, other) = (acquire(&home, "orders/1", "alice"), acquire(&home, "billing", "carol"));
    let mut watching = Watching::start(&home, &["watch", "--prefix", "orders/", "--every", "20ms"]);
    let line = watching.next();
    assert!(line.contains("orders/1  held  alice") && line.starts_with("20"), "{line}");
    // Neither a renewal nor another prefix is news.
    assert_eq!(home.run(&["renew", "orders/1", "--lease", &one]).code, 0);
    release(&home, "billing", &other);
    let two = acquire(&home, "orders/2", "bob");
    let line = watching.next();
    assert!(line.contains("orders/2  held  bob"), "{line}");
    release(&home, "orders/1", &one);
    let line = watching.next();
    assert!(line.contains("orders/1  free"), "{line}");
    release(&home, "orders/2", &two);
    let line = watching.next();
    assert!(line.contains("orders/2  free"), "{line}");
}

#[test]
fn renewals_of_a_key_are_shown_to_those_who_ask_for_them() {
    let home = Home::new();
    let lease = acquire(&home, "x", "alice");
    let mut changes = Watching::start(&home, &["watch", "x", "--until-free", "-o", "json"]);
    let mut all = Watching::start(&home, &["watch", "x", "--until-free", "--renewals", "-o", "json"]);
    let first = field(&all.next(), "expires_at");
    assert_eq!(field(&changes.next(), "expires_at"), first);
    assert_eq!(home.run(&["renew", "x", "--lease", &lease]).code, 0);
    assert_ne!(field(&all.next(), "expires_at"), first);
    release(&home, "x", &lease);
    assert_eq!(field(&changes.next(), "state"), "free", "and no renewal before it");
    assert!(changes.lines.next().is_none() && changes.child.wait().unwrap().success());
}
