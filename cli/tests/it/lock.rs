//! `lock` and `elect` with real processes: the command is gone, the exit code is right, no lease is left behind.

use crate::home::{Home, ended, field, until};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
}

/// Whether a process is there, and not merely waiting to be buried.
pub(crate) fn is_alive(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    if Path::new("/proc/self/stat").exists() {
        return state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'));
    }
    Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().unwrap().success()
}

/// What a script wrote, once it has.
pub(crate) fn read(path: &Path) -> String {
    until(&format!("{} is written", path.display()), || {
        fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
    });
    fs::read_to_string(path).unwrap().trim().to_owned()
}

pub(crate) fn is_free(home: &Home, key: &str) -> bool {
    home.json(&["get", key]).contains(r#""state":"free""#)
}

#[test]
fn two_terminals_exclude_each_other_from_the_first_minute_on() {
    let home = Home::new();
    let first = home.start(&[
        "lock",
        "backup",
        "--",
        "sh",
        "-c",
        "echo running > begun; while [ ! -e go ]; do sleep 0.02; done",
    ]);
    read(&home.path("begun"));
    // In another folder, too.
    let elsewhere = home.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let second = home.leasehold(&["lock", "backup", "--", "true"]).current_dir(&elsewhere).output().unwrap();
    assert_eq!(second.status.code(), Some(4));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("backup is held by alice@") && said.contains("--wait"), "{said}");
    let third = home.run(&["lock", "backup", "--conflict-exit-code", "75", "--", "true"]);
    assert_eq!(third.code, 75);
    let fourth = home.run(&["lock", "backup", "--wait", "50ms", "--", "true"]);
    assert_eq!(fourth.code, 124, "{fourth:?}");

    let waiting = home.start(&["lock", "backup", "--wait", "forever", "--", "sh", "-c", "exit 9"]);
    fs::write(home.path("go"), "").unwrap();
    assert_eq!(ended(first).code, 0);
    assert_eq!(ended(waiting).code, 9);
    assert!(is_free(&home, "backup"));
}

#[test]
fn the_command_knows_its_key_its_lease_and_its_fence() {
    let home = Home::new();
    let ran = home.run(&[
        "lock",
        "orders/42",
        "--",
        "sh",
        "-c",
        "echo $LEASEHOLD_KEY $LEASEHOLD_FENCE; leasehold renew $LEASEHOLD_KEY -o json",
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let fence = field(&ran.out, "fence");
    assert!(ran.out.starts_with(&format!("orders/42 {fence}\n")), "{}", ran.out);
}

#[test]
fn the_end_of_the_command_is_the_end_of_the_lock() {
    let home = Home::new();
    for (command, code) in
        [("exit 0", 0), ("exit 3", 3), ("exit 200", 200), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
    {
        assert_eq!(home.run(&["lock", "x", "--", "sh", "-c", command]).code, code, "{command}");
        assert!(is_free(&home, "x"), "{command}");
    }
    let missing = home.run(&["lock", "x", "--", "no-such-command"]);
    assert!(missing.code == 127 && missing.err.contains("was not found"), "{missing:?}");
    assert!(is_free(&home, "x"));
    fs::write(home.path("data"), "").unwrap();
    assert_eq!(home.run(&["lock", "x", "--", "./data"]).code, 126);
    assert!(is_free(&home, "x"));
    assert_eq!(home.run(&["--store", "file:///dev/null/x", "lock", "x", "--", "true"]).code, 125);
    assert_eq!(home.run(&["lock", "x"]).code, 2);
}

/// A command that writes down its process id, and that of a child of its own.
const NOTES_ITS_PIDS: &str = "sleep 1000 & echo $! > grandchild; echo $$ > child; wait";

#[test]
fn every_signal_reaches_the_command_and_nothing_is_left_behind() {
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)].into_iter().filter(is_heard) {
        let home = Home::new();
        // Shells ignore INT and QUIT for what they start in the background: a foreground child shows them.
        let script = "echo $$ > child; exec sleep 1000";
        let lock = home.start(&["lock", "x", "--", "sh", "-c", script]);
        let child = read(&home.path("child"));
        assert!(!is_free(&home, "x"));
        signal(&lock, name);
        let ran = ended(lock);
        assert_eq!(ran.code, code, "{name}: {ran:?}");
        assert!(!is_alive(&child), "{name}: the command lives on");
        assert!(is_free(&home, "x"), "{name}: a lease is left behind");
    }
}

#[test]
fn a_command_that_takes_its_time_to_end_keeps_the_lock_until_then() {
    let home = Home::new();
    let script = "trap 'echo told > told; while [ ! -e go ]; do sleep 0.02; done; exit 7' TERM; echo up > up; while :; do sleep 0.02; done";
    let lock = home.start(&["lock", "x", "--", "sh", "-c", script]);
    read(&home.path("up"));
    signal(&lock, "TERM");
    read(&home.path("told"));
    assert!(!is_free(&home, "x"), "released under a running command");
    fs::write(home.path("go"), "").unwrap();
    assert_eq!(ended(lock).code, 7);
    assert!(is_free(&home, "x"));
}

#[test]
fn what_a_command_has_started_keeps_the_lock_until_it_has_ended_too() {
    let home = Home::new();
    // The command itself ends at once; a child of it does not.
    let slow = "trap 'echo told > told; while [ ! -e go ]; do sleep 0.02; done; exit' TERM; echo up > up; while :; do sleep 0.02; done";
    fs::write(home.path("slow"), slow).unwrap();
    let lock = home.start(&["lock", "x", "--", "sh", "-c", "sh slow; :"]);
    read(&home.path("up"));
    signal(&lock, "TERM");
    read(&home.path("told"));
    assert!(!is_free(&home, "x"), "released under what the command has started");
    fs::write(home.path("go"), "").unwrap();
    assert_eq!(ended(lock).code, 143);
    assert!(is_free(&home, "x"));
}

#[test]
fn whoever_was_started_to_survive_the_terminal_does() {
    let home = Home::new();
    let script = "trap '' HUP; exec leasehold lock x -- sh -c 'echo up > up; while [ ! -e go ]; do sleep 0.02; done'";
    let lock = home.shell(script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    read(&home.path("up"));
    signal(&lock, "HUP");
    fs::write(home.path("go"), "").unwrap();
    let ran = ended(lock);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn when_the_lease_is_taken_away_the_command_and_its_children_are_stopped() {
    let home = Home::new();
    let lock = home.start(&["lock", "x", "--ttl", "6s", "--", "sh", "-c", NOTES_ITS_PIDS]);
    let (child, grandchild) = (read(&home.path("child")), read(&home.path("grandchild")));
    let forced = home.run(&["release", "x", "--force", "--reason", "its host is gone"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    let ran = ended(lock);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.contains("the lease on x is lost"), "{}", ran.err);
    assert!(!is_alive(&child) && !is_alive(&grandchild));
    assert!(is_free(&home, "x"));
}

#[test]
fn a_command_that_does_not_want_to_stop_is_killed() {
    let home = Home::new();
    let script = "trap '' TERM; echo $$ > child; while :; do sleep 0.05; done";
    let lock = home.start(&["lock", "x", "--ttl", "6s", "--kill-after", "300ms", "--", "sh", "-c", script]);
    let child = read(&home.path("child"));
    assert_eq!(home.run(&["release", "x", "--force", "--reason", "test"]).code, 0);
    assert_eq!(ended(lock).code, 3);
    assert!(!is_alive(&child));
}

/// On a machine that stands still for longer than the lease lasts it is lost before it can be paused: then a longer one
/// is tried.
#[test]
fn a_lock_that_was_paused_past_its_lease_stops_its_command() {
    for ttl in ["1s", "4s", "16s"] {
        let home = Home::new();
        let lock = home.start(&["lock", "x", "--ttl", ttl, "--", "sh", "-c", NOTES_ITS_PIDS]);
        let child = read(&home.path("child"));
        signal(&lock, "STOP");
        // Somebody else gets it only after its expiry and the skew.
        let other = home.run(&["lock", "x", "--wait", "60s", "--", "true"]);
        assert_eq!(other.code, 0, "{other:?}");
        let paused = is_alive(&child);
        signal(&lock, "CONT");
        let ran = ended(lock);
        assert_eq!(ran.code, 3, "{ran:?}");
        assert!(!is_alive(&child));
        assert!(is_free(&home, "x"));
        // Nobody could have stopped it meanwhile: that is what fences are for.
        if paused {
            return;
        }
    }
    panic!("its command was stopped by somebody else");
}

/// Whether a process stands still.
fn is_stopped(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

#[test]
fn a_lock_that_is_sent_to_sleep_takes_its_command_along() {
    let home = Home::new();
    let script = "echo $$ > child; while [ ! -e go ]; do sleep 0.02; done; exit 6";
    let lock = home.start(&["lock", "x", "--ttl", "10m", "--", "sh", "-c", script]);
    let child = read(&home.path("child"));
    for _ in 0..3 {
        signal(&lock, "TSTP");
        until("both stand still", || is_stopped(&lock.id().to_string()) && is_stopped(&child));
        signal(&lock, "CONT");
        until("both go on", || !is_stopped(&lock.id().to_string()) && !is_stopped(&child));
    }
    fs::write(home.path("go"), "").unwrap();
    let ran = ended(lock);
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(is_free(&home, "x"));
}

#[test]
fn a_lock_that_slept_past_its_lease_does_not_let_its_command_go_on() {
    let home = Home::new();
    let script = "trap 'echo told > told; exit 0' TERM; echo $$ > child; while :; do echo >> ticks; sleep 0.02; done";
    let lock = home.start(&["lock", "x", "--ttl", "4s", "--", "sh", "-c", script]);
    let child = read(&home.path("child"));
    until("it listens", || is_listening(&lock));
    signal(&lock, "TSTP");
    until("both stand still", || is_stopped(&lock.id().to_string()) && is_stopped(&child));
    let ticks = fs::read(home.path("ticks")).unwrap();
    let other = home.run(&["lock", "x", "--wait", "60s", "--", "true"]);
    assert_eq!(other.code, 0, "{other:?}");
    signal(&lock, "CONT");
    let ran = ended(lock);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert_eq!(read(&home.path("told")), "told", "it was asked to end first");
    assert_eq!(fs::read(home.path("ticks")).unwrap(), ticks, "it went on without the lease");
    assert!(!is_alive(&child));
}

#[test]
fn whoever_waits_can_be_sent_to_sleep_as_well() {
    let home = Home::new();
    let lease = field(&home.json(&["acquire", "x", "--ttl", "10m"]), "lease_id");
    let waiting = home.start(&["lock", "x", "--owner", "bob", "--wait", "forever", "--", "sh", "-c", "exit 9"]);
    until("it waits", || is_listening(&waiting));
    signal(&waiting, "TSTP");
    until("it stands still", || is_stopped(&waiting.id().to_string()));
    assert_eq!(home.run(&["release", "x", "--lease", &lease]).code, 0);
    signal(&waiting, "CONT");
    assert_eq!(ended(waiting).code, 9);
    assert!(is_free(&home, "x"));
}

#[test]
fn whoever_gives_up_waiting_leaves_nothing_behind() {
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)].into_iter().filter(is_heard) {
        let home = Home::new();
        let holder =
            home.start(&["lock", "x", "--", "sh", "-c", "echo up > up; while [ ! -e go ]; do sleep 0.02; done"]);
        read(&home.path("up"));
        let waiting = home.start(&["lock", "x", "--wait", "forever", "--", "true"]);
        // It has installed its handlers when it is in the queue: until then a signal simply ends it.
        until("it waits", || home.json(&["get", "x"]).contains(r#""waited_for":true"#) || is_listening(&waiting));
        signal(&waiting, name);
        let ran = ended(waiting);
        assert_eq!(ran.code, code, "{name}: {ran:?}");
        fs::write(home.path("go"), "").unwrap();
        assert_eq!(ended(holder).code, 0);
        assert!(is_free(&home, "x"), "{name}");
    }
}

#[test]
fn an_acquire_that_is_interrupted_leaves_nothing_behind() {
    let home = Home::new();
    let lease = field(&home.json(&["acquire", "x", "--ttl", "10m"]), "lease_id");
    let waiting = home.start(&["acquire", "x", "--owner", "bob", "--wait", "forever"]);
    until("it waits", || is_listening(&waiting));
    signal(&waiting, "INT");
    assert_eq!(ended(waiting).code, 130);
    assert_eq!(home.run(&["release", "x", "--lease", &lease]).code, 0);
    assert!(is_free(&home, "x"));
}

/// Whether it catches signals yet.
fn is_listening(child: &Child) -> bool {
    let caught = signals(child.id(), "SigCgt:");
    // TERM is 15, so bit 14; INT is installed before it, CONT (18) last. HUP may be switched off.
    [1, 2, 9, 11, 14, 17].iter().all(|bit| caught & (1 << bit) != 0)
}

/// Whoever started the tests may have switched HUP off (`nohup`), and then nothing below hears it.
fn is_heard((name, _): &(&str, i32)) -> bool {
    *name != "HUP" || signals(std::process::id(), "SigIgn:") & 1 == 0
}

/// The signals that a process catches or ignores: that of number 1 is bit 0.
fn signals(pid: u32, which: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(which)).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).unwrap_or(0)
}

#[test]
fn a_candidate_leads_until_it_loses_and_stands_again() {
    let home = Home::new();
    let script = "echo $$ > \"leader-$LEASEHOLD_FENCE\"; while [ ! -e done ]; do sleep 0.02; done; exit 5";
    let candidate = home.start(&["elect", "primary", "--ttl", "6s", "--", "sh", "-c", script]);
    let leaders = || -> Vec<u64> {
        let names = fs::read_dir(home.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut fences: Vec<u64> = names.filter_map(|name| name.strip_prefix("leader-")?.parse().ok()).collect();
        fences.sort_unstable();
        fences
    };
    until("it leads", || leaders().len() == 1);
    let first = read(&home.path(&format!("leader-{}", leaders()[0])));
    assert_eq!(home.run(&["release", "primary", "--force", "--reason", "test"]).code, 0);
    until("it leads again", || leaders().len() == 2);
    assert!(!is_alive(&first), "two leaders at once");
    fs::write(home.path("done"), "").unwrap();
    let ran = ended(candidate);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(is_free(&home, "primary"));
}

#[test]
fn of_two_candidates_one_leads_and_the_other_follows_it() {
    let home = Home::new();
    let script = "echo $0 >> terms; [ ! -e term-$0 ] && echo $$ > term-$0; sleep 1000 & wait";
    let one = home.start(&["elect", "primary", "--ttl", "6s", "--", "sh", "-c", script, "one"]);
    read(&home.path("term-one"));
    let two = home.start(&["elect", "primary", "--ttl", "6s", "--", "sh", "-c", script, "two"]);
    until("the second one stands", || is_listening(&two));
    signal(&one, "TERM");
    assert_eq!(ended(one).code, 143);
    read(&home.path("term-two"));
    signal(&two, "TERM");
    assert_eq!(ended(two).code, 143);
    assert_eq!(fs::read_to_string(home.path("terms")).unwrap(), "one\ntwo\n");
    assert!(is_free(&home, "primary"));
}

#[test]
fn a_quick_command_keeps_its_key_for_as_long_as_was_said() {
    let home = Home::new();
    let lock = home.start(&["lock", "cron", "--at-least", "10m", "--", "sh", "-c", "echo done > done; exit 6"]);
    read(&home.path("done"));
    // The other machine, whose clock strikes a little later, says nothing about it.
    let other = home.run(&["lock", "cron", "--conflict-exit-code", "0", "--", "sh", "-c", "echo twice > twice"]);
    assert_eq!((other.code, other.out.as_str(), other.err.as_str()), (0, "", ""));
    assert!(!home.path("twice").exists());
    signal(&lock, "TERM");
    let ran = ended(lock);
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(ran.err.contains("cron is not given back"), "{ran:?}");
    assert!(!is_free(&home, "cron"), "given back before its time");
    // A command that took longer than that gives its key back at once.
    assert_eq!(home.run(&["lock", "slow", "--at-least", "1ms", "--", "true"]).code, 0);
    assert!(is_free(&home, "slow"));
}

#[test]
fn whoever_waits_is_told_for_whom() {
    let home = Home::new();
    let lease =
        field(&home.json(&["acquire", "x", "--ttl", "10m", "--owner", "bob", "--note", "hands off"]), "lease_id");
    for verb in [&["lock", "x", "--wait", "5m", "--", "true"][..], &["acquire", "x", "--wait", "forever"]] {
        let mut waiting = home.start(verb);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(waiting.stderr.take().unwrap()), &mut line).unwrap();
        assert!(line.starts_with("waiting for x for ") && line.contains("held by bob until"), "{line}");
        assert!(line.contains("(hands off)"), "{line}");
        signal(&waiting, "TERM");
        ended(waiting);
    }
    assert_eq!(home.run(&["release", "x", "--lease", &lease]).code, 0);
}

#[test]
fn a_semaphore_gets_another_size_for_everybody_by_resize_alone() {
    let home = Home::new();
    assert_eq!(home.run(&["lock", "builds", "-n", "2", "--", "true"]).code, 0);
    let other = home.run(&["lock", "builds", "-n", "3", "--", "true"]);
    assert!(other.code != 0 && other.err.contains("2 slots"), "{other:?}");

    assert_eq!(field(&home.json(&["semaphore", "resize", "builds", "3"]), "slots"), "3");
    assert_eq!(home.run(&["lock", "builds", "-n", "3", "--", "true"]).code, 0);
    let old = home.run(&["lock", "builds", "-n", "2", "--", "true"]);
    assert!(old.code != 0 && old.err.contains("3 slots"), "{old:?}");
    let shown = home.json(&["semaphore", "show", "builds"]);
    assert!(shown.contains(r#""slots":3,"held_by":[],"waiting":0"#), "{shown}");

    let none = home.run(&["semaphore", "resize", "unheard-of", "3"]);
    assert!(none.code != 0 && none.err.contains("no semaphore unheard-of"), "{none:?}");
}
