//! `work` with real processes: a command for each job, stopped when it must be, and never left behind.

use crate::{
    home::{Home, PATIENCE, ended, field, until},
    lock::{is_alive, read, signal},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
};

/// A command that has started others, which have started others; all write down who they are.
const FAMILY: &str = "sh -c 'sleep 1000 & echo $! > grandchild; echo $$ > child; wait' & echo $$ > command; wait";

fn enqueue(home: &Home, payload: &str) -> String {
    let ran = home.run(&["enqueue", "q", payload]);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out.trim().to_owned()
}

/// Where files go that do not last.
fn temporary(home: &Home) -> std::path::PathBuf {
    let folder = home.path("tmp");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn start(home: &Home, arguments: &[&str]) -> Child {
    let mut command = home.leasehold(&[&["work", "q"], arguments].concat());
    command.env("TMPDIR", temporary(home)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn is_empty(folder: &std::path::Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn a_new_user_enqueues_three_jobs_and_works_them_with_a_line_of_shell() {
    let home = Home::new();
    let script = "for n in 1 2 3; do leasehold enqueue hello \"job $n\"; done; leasehold work hello --drain -- sh -c 'cat; echo'";
    let ran = home.shell(script).output().unwrap();
    let out = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{out}");
    assert_eq!(out.lines().skip(3).collect::<Vec<_>>(), ["job 1", "job 2", "job 3"]);
}

#[test]
fn a_killed_work_takes_its_commands_along_and_leaves_no_payload() {
    let home = Home::new();
    enqueue(&home, "secret");
    let work = start(&home, &["--", "sh", "-c", FAMILY]);
    let pids = ["command", "child", "grandchild"].map(|name| read(&home.path(name)));
    assert!(!is_empty(&temporary(&home)), "its payload is in a file while it runs");
    signal(&work, "KILL");
    until("the command and what it has started are gone", || !pids.iter().any(|pid| is_alive(pid)));
    let ran = ended(work);
    assert!(ran.err.contains("leasehold was killed while it worked on job"), "{ran:?}");
    until("the payload is gone", || is_empty(&temporary(&home)));
}

#[test]
fn a_command_that_does_not_want_to_end_is_killed_when_work_was() {
    let home = Home::new();
    enqueue(&home, "x");
    let script = "trap '' TERM; echo $$ > command; while :; do sleep 0.05; done";
    let work = start(&home, &["--kill-after", "300ms", "--", "sh", "-c", script]);
    let command = read(&home.path("command"));
    signal(&work, "KILL");
    until("it is gone", || !is_alive(&command));
    ended(work);
}

#[test]
fn told_to_go_it_claims_nothing_more_and_lets_run_what_runs() {
    for name in ["TERM", "INT"] {
        let home = Home::new();
        enqueue(&home, "1");
        let work =
            start(&home, &["--", "sh", "-c", "echo $$ >> command; while [ ! -e go ]; do sleep 0.02; done; echo done"]);
        read(&home.path("command"));
        signal(&work, name);
        enqueue(&home, "2");
        fs::write(home.path("go"), "").unwrap();
        let ran = ended(work);
        assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{ran:?}");
        assert!(ran.err.contains("claiming nothing more; 1 running"), "{ran:?}");
        let rest = home.run(&["work", "q", "--drain", "--", "sh", "-c", "cat; echo"]);
        assert_eq!(rest.out, "2\n", "{rest:?}");
        assert!(is_empty(&temporary(&home)));
    }
}

#[test]
fn told_twice_it_stops_what_runs_and_gives_the_job_back_unused() {
    let home = Home::new();
    enqueue(&home, "x");
    let mut work = start(&home, &["--", "sh", "-c", FAMILY]);
    let pids = ["command", "child", "grandchild"].map(|name| read(&home.path(name)));
    signal(&work, "TERM");
    let mut said = BufReader::new(work.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("claiming nothing more"), "{line}");
    signal(&work, "TERM");
    assert_eq!(ended(work).code, 128 + 15);
    assert!(!pids.iter().any(|pid| is_alive(pid)));
    let again = home.run(&["work", "q", "--once", "--", "sh", "-c", "echo $LEASEHOLD_ATTEMPT"]);
    assert_eq!(again.out, "1\n", "{again:?}");
}

#[test]
fn as_many_commands_run_at_once_as_were_asked_for() {
    let home = Home::new();
    for n in ["1", "2", "3"] {
        enqueue(&home, n);
    }
    // Each waits for all of them.
    let script = "touch run.$(cat); while [ $(ls run.* | wc -l) -lt 3 ]; do sleep 0.02; done";
    let ran = ended(start(&home, &["--concurrency", "3", "--drain", "--timeout", "50s", "--", "sh", "-c", script]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("3 done"), "{ran:?}");
}

#[test]
fn a_payload_is_never_an_argument_and_nobody_else_may_read_its_file() {
    let home = Home::new();
    let id = enqueue(&home, "secret");
    let script = "tr '\\0' ' ' < /proc/$$/cmdline; echo; stat -c %a \"$LEASEHOLD_JOB_FILE\" \"$(dirname \"$LEASEHOLD_JOB_FILE\")\"; echo $LEASEHOLD_JOB";
    let ran = ended(start(&home, &["--once", "--", "sh", "-c", script]));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(!lines[0].contains("secret"), "{ran:?}");
    assert_eq!(lines[1..], ["600", "700", &id], "{ran:?}");
    assert!(is_empty(&temporary(&home)));
}

fn ask(address: &str, path: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_worker_tells_whether_it_lives_and_what_it_has_done() {
    let home = Home::new();
    enqueue(&home, "x");
    let mut work = start(&home, &["--listen", "127.0.0.1:0", "--", "true"]);
    let mut said = BufReader::new(work.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap().to_owned();
    assert!(ask(&address, "/livez").starts_with("HTTP/1.1 200"));
    until("it is ready", || ask(&address, "/readyz").starts_with("HTTP/1.1 200"));
    until("the job is counted", || ask(&address, "/metrics").contains("leasehold_work_attempts_total{end=\"done\"} 1"));
    assert!(ask(&address, "/metrics").contains("leasehold_work_running 0"));
    signal(&work, "TERM");
    assert_eq!(ended(work).code, 0);
}

#[test]
fn a_worker_that_stands_still_lets_its_commands_stand_still() {
    let home = Home::new();
    enqueue(&home, "x");
    let work = start(&home, &["--once", "--", "sh", "-c", "echo $$ > command; while [ ! -e go ]; do sleep 0.02; done"]);
    let command = read(&home.path("command"));
    let stands_still =
        |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    signal(&work, "TSTP");
    until("both stand still", || stands_still(&work.id().to_string()) && stands_still(&command));
    signal(&work, "CONT");
    until("the command goes on", || !stands_still(&command));
    fs::write(home.path("go"), "").unwrap();
    assert_eq!(ended(work).code, 0);
}

#[test]
fn json_is_an_object_for_each_attempt_and_nothing_else() {
    let home = Home::new();
    let id = enqueue(&home, "x");
    let ran = home.run(&["work", "q", "--once", "-o", "json", "--", "sh", "-c", "echo printed"]);
    assert_eq!((field(&ran.out, "job"), field(&ran.out, "end")), (id, "done".to_owned()), "{ran:?}");
    assert_eq!(ran.out.lines().count(), 1);
    assert!(ran.err.contains("printed"), "{ran:?}");
}

/// The session's record is gone, so somebody else may have its jobs: found out when it is next renewed.
#[test]
fn a_command_is_stopped_when_its_job_may_be_somebody_elses() {
    let home = Home::new();
    assert_eq!(home.run(&["queue", "set", "q", "session_ttl=10s"]).code, 0);
    enqueue(&home, "x");
    let work = start(&home, &["--once", "--", "sh", "-c", FAMILY]);
    let pids = ["command", "child", "grandchild"].map(|name| read(&home.path(name)));
    let meta = home.store().join(".leasehold/meta");
    let records = fs::read_dir(meta).unwrap().map(|entry| entry.unwrap());
    let sessions: Vec<_> = records.filter(|entry| entry.file_name().to_string_lossy().starts_with("session")).collect();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    fs::remove_file(sessions[0].path()).unwrap();
    until("the command and what it has started are gone", || !pids.iter().any(|pid| is_alive(pid)));
    let ran = ended(work);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("is not ours any more") && ran.err.contains("1 lost"), "{ran:?}");
}

#[test]
fn the_end_of_what_a_command_says_is_the_error_of_its_job() {
    let home = Home::new();
    let id = enqueue(&home, "x");
    let script = "seq 1000 >&2; echo 'disk full' >&2; exit 1";
    assert_eq!(home.run(&["work", "q", "--once", "--", "sh", "-c", script]).code, 1);
    let job = home.json(&["job", "get", "q", &id]);
    let error = field(&job, "last_error");
    assert!(error.ends_with("\\n1000\\ndisk full") && error.len() < 350 && !error.contains("\\n900\\n"), "{error}");
}

#[test]
fn the_command_of_a_job_that_is_cancelled_is_stopped() {
    let home = Home::new();
    let id = enqueue(&home, "x");
    let work = start(&home, &["--once", "-o", "json", "--", "sh", "-c", FAMILY]);
    let pids = ["command", "child", "grandchild"].map(|name| read(&home.path(name)));
    let asked = home.json(&["job", "cancel", "q", &id]);
    assert_eq!(field(&asked, "result"), "asked");
    let ran = ended(work);
    assert_eq!((field(&ran.out, "end"), ran.code), ("cancelled".to_owned(), 0), "{ran:?}");
    assert!(!pids.iter().any(|pid| is_alive(pid)));
    assert_eq!(home.run(&["work", "q", "--once", "--", "true"]).err, "nothing is due in q\n");
}
