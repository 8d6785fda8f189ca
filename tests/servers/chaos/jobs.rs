//! Workers of a queue that are killed and paused past the end of their sessions: every job ends, none is lost, and no side
//! effect of a job comes after one with a higher fence.

use super::{
    micros,
    resource::{Applied, Connection, Resource},
};
use crate::place::{self, Kind, Place};
use leasehold::{
    CancellationToken, Clock, Generator, Queue, Settings, Store, SystemClock,
    job::{JobContext, NewJob},
};
use leasehold_testkit::SeededGenerator;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File, OpenOptions},
    io::Write as _,
    net::SocketAddr,
    os::unix::process::parent_id,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The shortest session that there is.
const TTL: Duration = Duration::from_secs(10);
const ORDERS: &str = "LEASEHOLD_CHAOS_WORKER";
/// After the last event everything must have ended within this time.
const PATIENCE: Duration = Duration::from_secs(240);

#[test]
#[ignore = "takes as long as LEASEHOLD_CHAOS_SECONDS says: see tests/servers/run"]
fn on_a_directory() {
    place::run(Kind::directory, |place| on(place, super::seconds()));
}

#[test]
#[ignore = "needs a server: see tests/servers/run"]
fn on_a_server() {
    place::run(Kind::given, |place| on(place, super::seconds()));
}

/// What the driver tells a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Orders {
    name: String,
    url: String,
    options: Vec<(String, String)>,
    resource: SocketAddr,
    history: PathBuf,
    stop: PathBuf,
}

/// What a process says of an attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    at: u64,
    job: String,
    fence: u64,
    done: bool,
}

#[test]
#[ignore = "started by the driver"]
fn a_process() {
    let Ok(orders) = env::var(ORDERS) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work(orders));
}

async fn work(orders: Orders) {
    let parent = parent_id();
    let mut settings = Settings::default();
    settings.jobs.owner = Some(orders.name.clone());
    settings.jobs.max_poll_interval = Duration::from_secs(2);
    let builder = Store::builder().url(&orders.url).settings(settings);
    let builder = orders.options.iter().fold(builder, |builder, (key, value)| builder.option(key, value));
    let store = builder.open().await.unwrap();
    let resource = Arc::new(Mutex::new(Connection::new(orders.resource)));
    let history = Arc::new(Mutex::new(OpenOptions::new().append(true).create(true).open(&orders.history).unwrap()));
    let stop = CancellationToken::new();
    let worker = store
        .queue("chaos")
        .unwrap()
        .worker()
        .concurrency(8)
        .shutdown(stop.clone())
        .run(move |job| attempt(job, Arc::clone(&resource), Arc::clone(&history)));
    while parent_id() == parent && !orders.stop.exists() {
        SystemClock::new().sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    worker.await;
}

/// Says that it has begun, works for a while, and has its effect where fences are checked.
async fn attempt(job: JobContext, resource: Arc<Mutex<Connection>>, history: Arc<Mutex<File>>) -> Result<(), String> {
    let (id, fence) = (job.id().to_string(), job.fence().get());
    let say = |done| {
        let text = serde_json::to_string(&Line { at: micros(), job: id.clone(), fence, done }).unwrap() + "\n";
        history.lock().unwrap().write_all(text.as_bytes()).unwrap();
    };
    say(false);
    let Some(count) = resource.lock().unwrap().enter(&id, fence) else { return Err("refused by fence".into()) };
    let millis = 20 + u64::from(job.args()[0]);
    SystemClock::new().sleep(Duration::from_millis(millis)).await;
    let (key, lease) = (id.clone(), String::new());
    let effect = Applied { key, fence, lease, count: count + 1, id: format!("{id} {fence}") };
    if !resource.lock().unwrap().write(effect) {
        return Err("refused by fence".into());
    }
    say(true);
    Ok(())
}

/// One place among the processes, which one life after the other takes.
struct Slot {
    orders: Orders,
    child: Child,
    paused_until: Option<Instant>,
}

impl Slot {
    fn start(orders: Orders) -> Self {
        let errors = orders.history.with_extension("err");
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "chaos::jobs::a_process", "--ignored", "--nocapture"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(OpenOptions::new().append(true).create(true).open(errors).unwrap());
        let child = command.spawn().unwrap();
        Self { orders, child, paused_until: None }
    }

    fn kill(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let words = fs::read_to_string(self.orders.history.with_extension("err")).unwrap_or_default();
            panic!("{} ended with {status}: {words}", self.orders.name);
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        *self = Self::start(self.orders.clone());
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn resume(&mut self) {
        if self.paused_until.take().is_some() {
            self.signal("-CONT");
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(name: &str, usual: usize) -> usize {
    env::var(name).map_or(usual, |text| text.parse().unwrap())
}

async fn prepare(queue: &Queue) {
    let mut settings = queue.settings().await.unwrap();
    settings.session_ttl = TTL;
    settings.backoff.cap = Duration::from_secs(2);
    settings.max_attempts = 1000;
    queue.change_settings(settings).await.unwrap();
}

/// Waits until every job has ended.
async fn all_end(queue: &Queue, calm: Instant) {
    loop {
        let depth = queue.depth().await.unwrap();
        if depth.available + depth.scheduled + depth.retrying + depth.running + depth.burying == 0 {
            break;
        }
        assert!(calm.elapsed() < PATIENCE, "not ended: {depth:?}");
        SystemClock::new().sleep(Duration::from_millis(500)).await;
    }
}

async fn on(place: Arc<Place>, seconds: u64) {
    let store = place.open().await;
    let queue = store.queue("chaos").unwrap();
    prepare(&queue).await;
    let (resource, folder) = (Resource::start(), tempfile::tempdir().unwrap());
    let count = number("LEASEHOLD_CHAOS_PROCESSES", 6);
    let mut slots: Vec<Slot> = (0..count).map(|at| Slot::start(orders(&place, &resource, folder.path(), at))).collect();
    let chance = SeededGenerator::new(number("LEASEHOLD_SEED", 7) as u64);
    let pick = |below: usize| {
        let mut bytes = [0; 4];
        chance.fill(&mut bytes);
        u32::from_le_bytes(bytes) as usize % below
    };
    let (began, mut ids, mut kills, mut pauses) = (Instant::now(), BTreeSet::new(), 0, 0);
    let a_second = number("LEASEHOLD_CHAOS_JOBS", 100);
    while began.elapsed() < Duration::from_secs(seconds) {
        let due = a_second * (began.elapsed().as_secs() as usize + 1);
        if ids.len() < due {
            let jobs = (ids.len()..due).map(|_| NewJob::new(vec![u8::try_from(pick(200)).unwrap()]));
            ids.extend(queue.enqueue_many(jobs).await.unwrap().into_iter().map(|id| id.to_string()));
        }
        SystemClock::new().sleep(Duration::from_millis(150 + pick(350) as u64)).await;
        for slot in &mut slots {
            if slot.paused_until.is_some_and(|until| until <= Instant::now()) {
                slot.resume();
            }
        }
        let at = pick(slots.len());
        match pick(100) {
            0..45 => {
                slots[at].kill();
                kills += 1;
            }
            45..70 if slots[at].paused_until.is_none() => {
                slots[at].signal("-STOP");
                slots[at].paused_until = Some(Instant::now() + TTL + Duration::from_millis(pick(8000) as u64));
                pauses += 1;
            }
            _ => {}
        }
    }
    slots.iter_mut().for_each(Slot::resume);
    let calm = Instant::now();
    all_end(&queue, calm).await;
    println!(
        "{kills} kills and {pauses} pauses of {count} processes in {seconds} s; all ended {:?} later",
        calm.elapsed()
    );
    fs::write(folder.path().join("stop"), "").unwrap();
    for slot in &mut slots {
        assert!(slot.child.wait().unwrap().success());
    }
    let dead = place.names().await.into_iter().filter(|name| name.contains("/dead/")).count();
    check(&ids, &lines(folder.path()), &resource.journal(), dead);
}

fn orders(place: &Place, resource: &Resource, folder: &Path, at: usize) -> Orders {
    Orders {
        name: format!("worker-{at}"),
        url: place.url().to_string(),
        options: place.options().to_vec(),
        resource: resource.address(),
        history: folder.join(format!("worker-{at}")),
        stop: folder.join("stop"),
    }
}

/// What all lives of all processes have said. The last line of a life may be cut off.
fn lines(folder: &Path) -> Vec<Line> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.extension().is_none()).map(|path| fs::read_to_string(path).unwrap());
    let mut lines: Vec<Line> = texts
        .flat_map(|text| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<_>>())
        .collect();
    lines.sort_by_key(|line| line.at);
    lines
}

fn check(ids: &BTreeSet<String>, lines: &[Line], journal: &[Applied], dead: usize) {
    let mut effects: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for applied in journal {
        effects.entry(&applied.key).or_default().push(applied.fence);
    }
    let without: Vec<&String> = ids.iter().filter(|id| !effects.contains_key(id.as_str())).collect();
    assert!(without.len() <= dead, "{} jobs have neither run nor died: {without:?}", without.len() - dead);
    for (job, fences) in &effects {
        assert!(fences.is_sorted(), "effects of {job} went back to a lower fence: {fences:?}");
        assert!(ids.contains(*job), "{job} was never enqueued");
    }
    // Each attempt has a fence of its own, and was begun once.
    let mut attempts: BTreeMap<(&str, u64), u32> = BTreeMap::new();
    for line in lines.iter().filter(|line| !line.done) {
        *attempts.entry((&line.job, line.fence)).or_default() += 1;
    }
    assert!(attempts.values().all(|times| *times == 1), "an attempt was begun twice");
    let again = effects.values().filter(|fences| fences.len() > 1).count();
    println!(
        "{} jobs, {} attempts, {} effects ({again} jobs had more than one), {dead} dead, 0 lost; {}",
        ids.len(),
        attempts.len(),
        journal.len(),
        recoveries(lines)
    );
}

/// How long after its last attempt was interrupted a job was begun again.
fn recoveries(lines: &[Line]) -> String {
    let mut last: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    let mut times = Vec::new();
    for line in lines {
        if !line.done
            && let Some((at, false)) = last.get(line.job.as_str())
        {
            times.push((line.at - at) / 1_000_000);
        }
        last.insert(&line.job, (line.at, line.done));
    }
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).or(times.last()).copied().unwrap_or(0);
    format!(
        "{} begun again after {} s (half), {} s (95 %), {} s (longest) from the begin of the attempt before",
        times.len(),
        at(50),
        at(95),
        times.last().copied().unwrap_or(0)
    )
}
