//! What several promises need: a server with a store on it, both on a clock that is moved by hand.

use leasehold::{
    Key, Settings, Store, StoreBuilder,
    clock::Timestamp,
    lease::{Acquired, Grant, Leases, Request},
    store::{Probing, Requests},
};
use leasehold_testkit::{FaultStore, S3Server, SeededGenerator, TestClock};
use std::{sync::Arc, time::Duration};

/// 2026-01-01T00:30:00Z: the middle of an hour.
pub(crate) fn noon() -> Timestamp {
    Timestamp::from_millis(1_767_227_400_000)
}

/// An S3 server and a store on it.
pub(crate) struct Bed {
    pub(crate) clock: TestClock,
    pub(crate) server: S3Server,
    pub(crate) store: Store,
}

impl Bed {
    pub(crate) async fn new() -> Self {
        let clock = TestClock::at(noon());
        let server = S3Server::start(Arc::new(clock.clone())).await.unwrap();
        let store = s3(&server, &clock).probing(Probing::Never).open().await.unwrap();
        server.clear_requests();
        Self { clock, server, store }
    }

    /// Runs something and counts the HTTP attempts that it took, as the client and as the server saw them.
    pub(crate) async fn counting<T>(&self, run: impl Future<Output = T>) -> (T, Requests) {
        let (before, seen) = (self.store.requests(), self.server.requests().len());
        let result = run.await;
        let made = self.store.requests().since(&before);
        assert_eq!(made.total(), (self.server.requests().len() - seen) as u64, "the client miscounts");
        (result, made)
    }
}

/// A store on the testkit's server that ignores the machine's environment.
pub(crate) fn s3(server: &S3Server, clock: &TestClock) -> StoreBuilder {
    let mut settings = Settings::default();
    // Real time, unlike everything else: only a test of a server that hangs should ever wait for it.
    settings.request_timeout = Duration::from_secs(30);
    let builder = Store::builder().url("s3://bucket/some/prefix").without_environment();
    let builder = server.options().into_iter().fold(builder, |builder, (key, value)| builder.option(key, value));
    builder.settings(settings).clock(Arc::new(clock.clone()))
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// For a lease of half a minute.
pub(crate) fn request() -> Request {
    Request::new(Duration::from_secs(30)).owner("test")
}

pub(crate) fn granted(acquired: leasehold::Result<Acquired>) -> Grant {
    match acquired {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLI: Duration = Duration::from_millis(1);

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A store in memory that fails as it is told to, and a clock that is moved by hand. Nothing in it is left to chance.
pub(crate) struct Memory {
    pub(crate) clock: TestClock,
    pub(crate) store: FaultStore,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let clock = TestClock::at(noon());
        let store = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(0)));
        Self { clock, store }
    }

    /// A process on it. No two may have the same seed.
    pub(crate) fn builder(&self, seed: u64) -> StoreBuilder {
        Store::builder()
            .object_store(Arc::new(self.store.clone()))
            .shares_our_clock()
            .probing(Probing::Never)
            .clock(Arc::new(self.clock.clone()))
            .generator(Arc::new(SeededGenerator::new(seed)))
    }

    pub(crate) async fn process(&self, seed: u64) -> Leases {
        self.builder(seed).open().await.unwrap().leases("default").unwrap()
    }

    /// What the clock of all of them says.
    pub(crate) fn clock_now(&self) -> leasehold::clock::Timestamp {
        leasehold::Clock::wall(&self.clock)
    }

    /// Time passes in small steps, and after each one all tasks run until they wait.
    pub(crate) async fn pass(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(10);
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(STEP);
            self.clock.advance(step);
            calm().await;
            left -= step;
        }
    }
}

/// Lets every task run until all of them wait for time to be moved. There is no input or output in these tests.
pub(crate) async fn settle() {
    for _ in 0..300 {
        tokio::task::yield_now().await;
    }
}

/// Like [`settle`], for tests that move time in many small steps and have few tasks.
pub(crate) async fn calm() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}
