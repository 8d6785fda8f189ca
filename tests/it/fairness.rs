//! One lock and many who want it: one at a time, each in the end, and for about one request each.

#![allow(clippy::disallowed_methods, reason = "drives real processes")]

use crate::common::{Memory, calm, granted, key};
use leasehold::{
    Leases, Store, SystemClock,
    lease::{Acquired, Locked, Request},
    store::{AnswerKind, Probing},
};
use leasehold_testkit::S3Server;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

const TASKS: usize = 64;
const SECTIONS: usize = 50;

fn request() -> Request {
    Request::new(Duration::from_secs(30))
}

/// What the lock protects: one holder at a time, each with a higher fence than all before.
#[derive(Default)]
struct Protected {
    inside: AtomicBool,
    fence: AtomicU64,
    sections: AtomicU64,
}

impl Protected {
    async fn enter(&self, fence: u64) {
        assert!(!self.inside.swap(true, SeqCst), "two at once");
        assert!(self.fence.swap(fence, SeqCst) < fence, "a fence does not rise");
        tokio::task::yield_now().await;
        self.sections.fetch_add(1, SeqCst);
        self.inside.store(false, SeqCst);
    }
}

/// All tasks take the lock again and again; returns the requests for each section after the first.
async fn crowd(store: &Store) -> f64 {
    let leases = store.leases("default").unwrap();
    let protected = Arc::new(Protected::default());
    let first = granted(leases.acquire(&key("lock"), &request()).await);
    protected.enter(first.fence().get()).await;
    let before = store.requests();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (leases, protected) = (leases.clone(), Arc::clone(&protected));
            // The first section is the one above.
            let sections = if task == 0 { SECTIONS - 1 } else { SECTIONS };
            tokio::spawn(async move {
                for _ in 0..sections {
                    let grant =
                        granted(leases.acquire_within(&key("lock"), &request(), Duration::from_secs(600)).await);
                    protected.enter(grant.fence().get()).await;
                    leases.release(&grant).await.unwrap();
                }
            })
        })
        .collect();
    leases.release(&first).await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let sections = protected.sections.load(SeqCst);
    assert_eq!(sections, (TASKS * SECTIONS) as u64);
    let requests = store.requests().since(&before).total();
    requests as f64 / (sections - 1) as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_share_a_lock_for_about_one_http_request_a_section() {
    let server = S3Server::start(Arc::new(SystemClock::new())).await.unwrap();
    let store = on(&server).await;
    server.clear_requests();
    let each = crowd(&store).await;
    println!("{each:.4} HTTP attempts a section, {} at the server", server.requests().len());
    assert!(each <= 1.05, "{each} requests a section");
}

#[tokio::test]
async fn sixty_four_tasks_share_a_lock_in_memory_for_about_one_request_a_section() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let each = crowd(&store).await;
    println!("{each:.4} calls a section");
    assert!(each <= 1.05, "{each} requests a section");
}

/// A process on the server, by real clocks.
async fn on(server: &S3Server) -> Store {
    let builder = Store::builder().url("s3://bucket/fair").without_environment().probing(Probing::Never);
    let builder = server.options().into_iter().fold(builder, |builder, (key, value)| builder.option(key, value));
    builder.open().await.unwrap()
}

/// Takes the lock for a while, and goes on when it is had.
async fn wait_in_vain(leases: Leases, wait: Duration) {
    match leases.acquire_within(&key("lock"), &request(), wait).await.unwrap() {
        Acquired::Held(held) => assert!(held.by.is_some(), "{held:?}"),
        Acquired::Granted(grant) => panic!("the guard has lost {grant:?}"),
    }
}

#[tokio::test]
async fn ten_processes_that_wait_do_not_endanger_the_renewals_of_a_guard() {
    const TTL: Duration = Duration::from_secs(3);
    let memory = Memory::new();
    let store = memory.builder(0).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let short = Request::new(TTL);
    let mut grant = granted(leases.acquire(&key("lock"), &short).await);
    let mut others = Vec::new();
    for seed in 1..=10 {
        let other = memory.process(seed).await;
        others.push(tokio::spawn(wait_in_vain(other, Duration::from_secs(120))));
    }
    // A few changes of hands, so that all of them grow impatient.
    for _ in 0..10 {
        let next = tokio::spawn({
            let (leases, short) = (leases.clone(), short.clone());
            async move { leases.acquire_within(&key("lock"), &short, Duration::from_secs(60)).await }
        });
        calm().await;
        leases.release(&grant).await.unwrap();
        grant = granted(next.await.unwrap());
        memory.pass(Duration::from_millis(500)).await;
    }
    let guard = leases.guard(grant, None);
    let before = store.requests();
    for _ in 0..600 {
        memory.pass(Duration::from_millis(100)).await;
        assert!(guard.is_valid());
        let left = guard.grant().time_left();
        assert!(left >= TTL * 2 / 3 - Duration::from_millis(100), "not renewed on time: {left:?}");
    }
    let made = store.requests().since(&before);
    let conflicts = made.answered(AnswerKind::Conflict);
    println!("{} requests, {conflicts} conflicts in 60 s of 1 s renewals", made.total());
    assert!(conflicts <= 2, "{conflicts} conflicts");
    assert!(made.total() <= 60 + 3 + 2 * conflicts, "{made:?}");
    for other in others {
        other.abort();
    }
}

/// A machine that stands still ends leases by rights: then it is done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_processes_that_wait_do_not_endanger_a_guard_over_http() {
    const WAIT: Duration = Duration::from_secs(5);
    for _ in 0..3 {
        let began = Instant::now();
        let kept = is_kept_while_ten_wait(WAIT).await;
        let stood_still = began.elapsed() > WAIT + Duration::from_secs(2);
        assert!(kept || stood_still, "the guard has lost its lease");
        if kept {
            return;
        }
    }
    panic!("the machine stands still all the time");
}

/// Whether a guard keeps its lease while ten others want it.
async fn is_kept_while_ten_wait(wait: Duration) -> bool {
    let server = S3Server::start(Arc::new(SystemClock::new())).await.unwrap();
    let store = on(&server).await;
    let leases = store.leases("default").unwrap();
    let asked = Request::new(Duration::from_secs(3));
    let Locked::Granted(guard) = leases.lock_within(&key("lock"), &asked, Duration::ZERO).await.unwrap() else {
        panic!("held")
    };
    let mut others = Vec::new();
    for _ in 0..10 {
        let other = on(&server).await.leases("default").unwrap();
        others.push(tokio::spawn(async move { other.acquire_within(&key("lock"), &request(), wait).await }));
    }
    let before = store.requests();
    let granted = guard.grant().expires_at();
    for other in others {
        match other.await.unwrap().unwrap() {
            Acquired::Held(held) => assert!(held.by.is_some(), "{held:?}"),
            Acquired::Granted(grant) => println!("lost: {grant:?}"),
        }
    }
    if !guard.is_valid() {
        return false;
    }
    assert!(guard.grant().expires_at().since(granted) >= Duration::from_secs(4), "it was not renewed on time");
    let conflicts = store.requests().since(&before).answered(AnswerKind::Conflict);
    assert!(conflicts <= 2, "{conflicts} conflicts");
    guard.release().await.unwrap();
    true
}

#[cfg(unix)]
mod processes {
    use super::{TASKS, key, request};
    use leasehold::{Store, lease::Acquired};
    use std::{
        env,
        fs::{self, File, OpenOptions},
        io::Write,
        path::{Path, PathBuf},
        process::{Child, Command, Stdio},
        thread,
        time::{Duration, Instant},
    };

    /// Many tasks that take one lock again and again for as long as they are told to.
    #[test]
    #[ignore = "started by the test below"]
    fn one_of_the_processes() {
        let Some(dir) = env::var_os("LEASEHOLD_TEST_DIR").map(PathBuf::from) else { return };
        let me = env::var("LEASEHOLD_TEST_WRITER").unwrap();
        let time = Duration::from_secs(env::var("LEASEHOLD_TEST_SECONDS").unwrap().parse().unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(format!("file://{}", dir.join("root").display())).await.unwrap();
            File::create(dir.join(format!("{me}.ready"))).unwrap();
            wait_until(|| dir.join("go").exists());
            let end = Instant::now() + time;
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| tokio::spawn(take_turns(store.leases("default").unwrap(), dir.clone(), me.clone(), end)))
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    }

    async fn take_turns(leases: leasehold::Leases, dir: PathBuf, me: String, end: Instant) {
        let (inside, log) = (dir.join("inside"), dir.join("log"));
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let Acquired::Granted(grant) = leases.acquire_within(&key("lock"), &request(), left).await.unwrap() else {
                return;
            };
            File::create_new(&inside).expect("two at once");
            let mut log = OpenOptions::new().append(true).create(true).open(&log).unwrap();
            log.write_all(format!("{} {me}\n", grant.fence()).as_bytes()).unwrap();
            fs::remove_file(&inside).unwrap();
            leases.release(&grant).await.unwrap();
        }
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing happens");
            thread::sleep(Duration::from_millis(1));
        }
    }

    struct Process(Child, PathBuf);

    impl Process {
        fn start(dir: &Path, name: &str, seconds: u64) -> Self {
            let output = dir.join(format!("{name}.err"));
            let child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "fairness::processes::one_of_the_processes", "--ignored", "--nocapture"])
                .env("LEASEHOLD_TEST_DIR", dir)
                .env("LEASEHOLD_TEST_WRITER", name)
                .env("LEASEHOLD_TEST_SECONDS", seconds.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(&output).unwrap())
                .spawn()
                .unwrap();
            Self(child, output)
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn two_processes_with_many_tasks_each_have_their_share_of_one_lock() {
        let dir = tempfile::tempdir().unwrap();
        // Turns are about a second long: in much less time than this, luck decides.
        let seconds = if env::var_os("LEASEHOLD_LONG").is_some() { 30 } else { 20 };
        let mut processes = ["left", "right"].map(|name| Process::start(dir.path(), name, seconds));
        wait_until(|| ["left.ready", "right.ready"].iter().all(|name| dir.path().join(name).exists()));
        File::create(dir.path().join("go")).unwrap();
        for Process(child, output) in &mut processes {
            let status = child.wait().unwrap();
            assert!(status.success(), "{}", fs::read_to_string(output).unwrap());
        }
        let log = fs::read_to_string(dir.path().join("log")).unwrap();
        let grants: Vec<(u64, &str)> = log
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(fence, who)| (fence.parse().unwrap(), who))
            .collect();
        assert!(grants.is_sorted_by(|a, b| a.0 < b.0), "a fence does not rise");
        let left = grants.iter().filter(|(_, who)| *who == "left").count();
        let changes = grants.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        println!("{} grants, {left} of them on the left, {changes} changes of sides, in {seconds} s", grants.len());
        for share in [left, grants.len() - left] {
            assert!(4 * share >= grants.len(), "{share} of {} grants", grants.len());
        }
    }
}
