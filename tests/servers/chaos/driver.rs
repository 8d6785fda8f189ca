//! Starts the processes of the workload and makes life hard for them.

use super::{
    history::{self, Line},
    worker::{ORDERS, Orders},
};
use crate::place::Place;
use leasehold::{Clock, Generator, SystemClock};
use leasehold_testkit::{Answer, Fault, Proxy, Rates, SeededGenerator};
use std::{
    env,
    fmt::{self, Write as _},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const WORKERS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(60);
/// Where clocks are set to, in seconds: within the allowed, beyond it, beyond what grants are given at, and always below
/// the 15 minutes at which a server refuses a signature.
const SHIFTS: [&str; 8] = ["+0.4", "-0.4", "+30", "-30", "+50", "-50", "+840", "-840"];

/// A network that loses some of what passes through it.
fn rates() -> Rates {
    Rates::none()
        .with(Fault::Lose(Answer::Drop), 15)
        .with(Fault::Lose(Answer::Status(503)), 10)
        .with(Fault::Refuse(Answer::Status(503)), 15)
        .with(Fault::Truncate, 5)
        .with(Fault::Duplicate, 5)
        .with(Fault::Late(Duration::from_millis(700), Answer::Drop), 3)
        .with(Fault::Delay(Duration::from_millis(30)), 30)
        .with(Fault::Delay(Duration::from_millis(900)), 3)
}

/// What was done to them.
#[derive(Debug, Default)]
struct Events {
    kills: u64,
    pauses: u64,
    clocks_set: u64,
    cuts: u64,
    server_kills: u64,
}

pub(super) struct Driver {
    folder: TempDir,
    workers: Vec<Worker>,
    proxy: Option<Proxy>,
    server_pid: Option<PathBuf>,
    sets_clocks: bool,
    chance: SeededGenerator,
    events: Events,
    lasted: Duration,
}

impl Driver {
    pub(super) async fn start(place: &Place, resource: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let proxy = match place.endpoint() {
            Some(endpoint) => Some(Proxy::start(endpoint.as_str(), Arc::new(SystemClock::new())).await.unwrap()),
            None => None,
        };
        let url = proxy.as_ref().map_or_else(|| place.url().clone(), |proxy| place.through(proxy));
        let seed = env::var("LEASEHOLD_SEED").map_or(7, |seed| seed.parse().unwrap());
        if let Some(proxy) = &proxy {
            proxy.faults().roll(SeededGenerator::new(seed), rates());
        }
        let workers = (0..WORKERS).map(|number| {
            let name = format!("worker-{number}");
            let history = folder.path().join(&name);
            let stop = folder.path().join("stop");
            let (url, options) = (url.to_string(), place.options().to_vec());
            Worker::start(folder.path(), Orders { name, life: 0, url, options, resource, history, stop })
        });
        Self {
            workers: workers.collect(),
            folder,
            proxy,
            server_pid: env::var_os("LEASEHOLD_TEST_SERVER_PID")
                .map(PathBuf::from)
                .filter(|_| place.endpoint().is_some()),
            sets_clocks: env::var_os("LEASEHOLD_TEST_FAKETIME").is_some(),
            chance: SeededGenerator::new(seed + 1),
            events: Events::default(),
            lasted: Duration::ZERO,
        }
    }

    fn pick(&self, below: usize) -> usize {
        let mut bytes = [0; 4];
        self.chance.fill(&mut bytes);
        u32::from_le_bytes(bytes) as usize % below
    }

    async fn wait(&self, from: u64, to: u64) {
        let millis = from + self.pick((to - from) as usize) as u64;
        SystemClock::new().sleep(Duration::from_millis(millis)).await;
    }

    pub(super) async fn run(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.wait(80, 320).await;
            let at = self.pick(WORKERS);
            self.workers.iter_mut().for_each(Worker::recover_when_due);
            match self.pick(100) {
                0..42 => {
                    self.workers[at].kill();
                    self.events.kills += 1;
                }
                42..88 if !self.workers[at].is_paused() => {
                    // Past its end, and sometimes past the time at which others may have it.
                    let millis = 1100 + self.pick(1900) as u64;
                    self.workers[at].pause(Duration::from_millis(millis));
                    self.events.pauses += 1;
                }
                88..94 if self.sets_clocks => {
                    let (shift, millis) = (SHIFTS[self.pick(SHIFTS.len())], 1000 + self.pick(4000) as u64);
                    self.workers[at].set_clock(shift);
                    self.workers[at].clock_off_until = Some(Instant::now() + Duration::from_millis(millis));
                    self.events.clocks_set += 1;
                }
                94..99 => self.cut().await,
                99 => self.kill_server(),
                _ => {}
            }
        }
        self.lasted = began.elapsed();
    }

    async fn cut(&mut self) {
        let Some(proxy) = &self.proxy else { return };
        match self.pick(3) {
            0 => {
                proxy.block(true);
                self.wait(100, 900).await;
                proxy.block(false);
            }
            _ => proxy.cut(),
        }
        self.events.cuts += 1;
    }

    /// The script that has started the server starts it again.
    fn kill_server(&mut self) {
        let Some(pid) = self.server_pid.as_ref().and_then(|file| fs::read_to_string(file).ok()) else { return };
        if signal("-KILL", pid.trim()) {
            self.events.server_kills += 1;
        }
    }

    /// Lets all workers finish, and returns everything that they reported.
    pub(super) async fn stop(&mut self) -> Vec<Line> {
        if let Some(proxy) = &self.proxy {
            proxy.faults().clear();
        }
        fs::write(self.folder.path().join("stop"), "").unwrap();
        for worker in &mut self.workers {
            worker.set_clock("+0");
            worker.resume();
            let began = Instant::now();
            let status = loop {
                if let Some(status) = worker.child.try_wait().unwrap() {
                    break status;
                }
                assert!(began.elapsed() < PATIENCE, "{} does not end: {}", worker.orders.name, worker.last_words());
                SystemClock::new().sleep(Duration::from_millis(10)).await;
            };
            assert!(status.success(), "{} failed: {}", worker.orders.name, worker.last_words());
        }
        self.workers.iter().flat_map(|worker| history::read(&worker.orders.history)).collect()
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Events { kills, pauses, clocks_set, cuts, server_kills } = self.events;
        write!(
            f,
            "{:.0} s, {WORKERS} processes: {kills} kills and {pauses} pauses ({} events), {clocks_set} clocks set, {cuts} cuts, \
             {server_kills} kills of the server",
            self.lasted.as_secs_f64(),
            kills + pauses
        )?;
        match &self.proxy {
            Some(proxy) => {
                write!(f, "; {} requests through the proxy, {:?}", proxy.requests(), proxy.faults().injected())
            }
            None => Ok(()),
        }
    }
}

/// One place among the workers, which one life after the other takes.
struct Worker {
    orders: Orders,
    child: Child,
    folder: PathBuf,
    paused_until: Option<Instant>,
    /// Until when its clock is off: for long enough to do harm, and not so long that it does nothing else.
    clock_off_until: Option<Instant>,
}

impl Worker {
    fn start(folder: &Path, orders: Orders) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "chaos::worker::a_process", "--ignored", "--nocapture"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join(format!("{}.err", orders.name))).unwrap());
        let clock = folder.join(format!("{}.clock", orders.name));
        if !clock.exists() {
            fs::write(&clock, "+0").unwrap();
        }
        // Its wall clock is whatever that file says. The monotonic clocks stay as they are.
        if let Some(library) = env::var_os("LEASEHOLD_TEST_FAKETIME") {
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let child = command.spawn().unwrap();
        Self { orders, child, folder: folder.to_path_buf(), paused_until: None, clock_off_until: None }
    }

    /// Kills it and gives its place to another.
    fn kill(&mut self) {
        self.must_live();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let orders = Orders { life: self.orders.life + 1, ..self.orders.clone() };
        let clock_off_until = self.clock_off_until;
        *self = Self::start(&self.folder, orders);
        self.clock_off_until = clock_off_until;
    }

    fn pause(&mut self, time: Duration) {
        self.must_live();
        signal("-STOP", &self.child.id().to_string());
        self.paused_until = Some(Instant::now() + time);
    }

    fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    fn recover_when_due(&mut self) {
        if self.clock_off_until.take_if(|until| *until <= Instant::now()).is_some() {
            self.set_clock("+0");
        }
        if self.paused_until.is_some_and(|until| until <= Instant::now()) {
            self.resume();
        }
    }

    fn resume(&mut self) {
        if self.paused_until.take().is_some() {
            signal("-CONT", &self.child.id().to_string());
        }
    }

    /// In one step: half a file would be no time at all.
    fn set_clock(&self, shift: &str) {
        let clock = self.folder.join(format!("{}.clock", self.orders.name));
        let new = clock.with_extension("new");
        fs::write(&new, shift).unwrap();
        fs::rename(new, clock).unwrap();
    }

    /// No worker ends by itself before it is told to.
    fn must_live(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("{} ended with {status}: {}", self.orders.name, self.last_words());
        }
    }

    fn last_words(&self) -> String {
        let mut words = fs::read_to_string(self.folder.join(format!("{}.err", self.orders.name))).unwrap_or_default();
        if let Some(line) = history::read(&self.orders.history).last() {
            write!(words, "; last line: {line:?}").unwrap();
        }
        words
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What the library with the wrong clock would have taken away, had it been asked.
        for left in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{left}{}", self.child.id()));
        }
    }
}

/// Whether there was a process to send it to.
fn signal(signal: &str, pid: &str) -> bool {
    Command::new("kill").args([signal, pid]).stderr(Stdio::null()).status().unwrap().success()
}
