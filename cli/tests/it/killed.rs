//! `kill -9` of `lock` and `elect`: nobody can catch that, and still the command ends, with everything that it has started.

use crate::{
    home::{Home, ended, until},
    lock::{is_alive, is_free, read, signal},
};
use std::{
    fs,
    process::{Command, Stdio},
};

/// A command that has started others, which have started others; all write down who they are.
const FAMILY: &str = "sh -c 'sleep 1000 & echo $! > grandchild; echo $$ > child; wait' & echo $$ > command; wait";

fn family(home: &Home) -> [String; 3] {
    ["command", "child", "grandchild"].map(|name| read(&home.path(name)))
}

fn until_gone(pids: &[String]) {
    until("the command and what it has started are gone", || !pids.iter().any(|pid| is_alive(pid)));
}

#[test]
fn a_killed_lock_takes_its_command_and_all_that_it_started_along() {
    for verb in [["lock", "x", "--"], ["elect", "x", "--"]] {
        let home = Home::new();
        let lock = home.start(&[&verb[..], &["sh", "-c", FAMILY]].concat());
        let pids = family(&home);
        signal(&lock, "KILL");
        until_gone(&pids);
        let ran = ended(lock);
        assert!(ran.err.contains("leasehold was killed while it held x"), "{ran:?}");
        assert!(!is_free(&home, "x"), "nobody has given it back: others wait for its expiry");
    }
}

#[test]
fn a_command_that_does_not_want_to_end_is_killed_as_well() {
    let home = Home::new();
    let script = "trap '' TERM; echo $$ > command; while :; do sleep 0.05; done";
    let lock = home.start(&["lock", "x", "--kill-after", "300ms", "--", "sh", "-c", script]);
    let command = read(&home.path("command"));
    signal(&lock, "KILL");
    until_gone(&[command]);
    ended(lock);
}

#[test]
fn a_command_can_put_things_in_order_before_it_ends() {
    let home = Home::new();
    let script = "trap 'echo told > told; exit' TERM; echo $$ > command; while :; do sleep 0.02; done";
    let lock = home.start(&["lock", "x", "--", "sh", "-c", script]);
    let command = read(&home.path("command"));
    signal(&lock, "KILL");
    assert_eq!(read(&home.path("told")), "told");
    until_gone(&[command]);
    ended(lock);
}

#[test]
fn a_lock_that_was_sent_to_sleep_and_killed_leaves_nothing_asleep() {
    let home = Home::new();
    let lock = home.start(&["lock", "x", "--ttl", "10m", "--", "sh", "-c", FAMILY]);
    let pids = family(&home);
    signal(&lock, "TSTP");
    let stands_still =
        |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    until("all stand still", || stands_still(&lock.id().to_string()) && pids.iter().all(|pid| stands_still(pid)));
    signal(&lock, "KILL");
    until_gone(&pids);
    ended(lock);
}

/// The group of `timeout -s KILL` and of a shell's job: the supervisor is not in it.
#[test]
fn the_whole_group_of_the_lock_may_be_killed() {
    use std::os::unix::process::CommandExt;
    let home = Home::new();
    let mut command = home.leasehold(&["lock", "x", "--", "sh", "-c", FAMILY]);
    let lock = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pids = family(&home);
    assert!(Command::new("kill").args(["-KILL", "--", &format!("-{}", lock.id())]).status().unwrap().success());
    until_gone(&pids);
    ended(lock);
}

#[test]
fn what_a_command_leaves_behind_on_purpose_stays() {
    let home = Home::new();
    let lock = home.run(&["lock", "x", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! > daemon"]);
    assert_eq!(lock.code, 0, "{lock:?}");
    let daemon = read(&home.path("daemon"));
    assert!(is_alive(&daemon));
    assert!(is_free(&home, "x"));
    assert!(Command::new("kill").args(["-9", &daemon]).status().unwrap().success());
}

/// On a terminal the command shares the foreground group with the lock, and with whatever else the user runs in it.
#[test]
fn on_a_terminal_the_command_and_what_it_started_end_and_nothing_else() {
    let home = Home::new();
    fs::write(home.path("family"), FAMILY).unwrap();
    let inside =
        "echo $$ > shell; leasehold lock x -- sh family & echo $! > lock; while [ ! -e go ]; do sleep 0.02; done";
    let terminal = home
        .shell(&format!("exec script -qec \"sh -c '{}'\" /dev/null", inside.replace('$', "\\$")))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (lock, shell, pids) = (read(&home.path("lock")), read(&home.path("shell")), family(&home));
    assert!(Command::new("kill").args(["-9", &lock]).status().unwrap().success());
    until_gone(&pids);
    assert!(is_alive(&shell), "the user's own script lives on");
    fs::write(home.path("go"), "").unwrap();
    ended(terminal);
}
