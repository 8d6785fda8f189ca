//! Leases, transaction decisions and fencing tokens on nothing but an object store.
//!
//! S3, Google Cloud Storage, Azure Blob Storage or a local directory is all there is: no database, no server, no
//! background scan. Everything that expires is settled by the next operation that meets it, with a compare-and-swap, so
//! correctness never depends on a background job; an index filed by the hour of expiry lets an idle process clean up the
//! rest.
//!
//! # A lock
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # async fn import(_: leasehold::Fence) {}
//! use leasehold::Store;
//!
//! let store = Store::open("memory://").await?; // s3://bucket/prefix, gs://…, az://…, file:///folder
//! let guard = store.lock("orders/42").await?; // waits for it, and keeps it alive from then on
//! guard.run(import(guard.fence())).await?; // stops the work with an error when the lease is lost
//! guard.release().await?;
//! # Ok::<(), leasehold::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The fence is a number that rises with every grant of the key. Hand it to what the lock protects with every write, and let
//! that refuse a fence lower than one that it has seen.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # use leasehold::{ErrorKind, Store};
//! # use std::time::Duration;
//! # let store = Store::open("memory://").await?;
//! // Not at all, if another process has it:
//! let Some(guard) = store.try_lock("orders/42").ttl(Duration::from_secs(10)).note("nightly").await? else {
//!     return Ok(());
//! };
//!
//! // For five seconds at most; the error says who has it:
//! let error = store.lock("orders/42").within(Duration::from_millis(5)).await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Held);
//! println!("{error}"); // orders/42 is held by alice@laptop:4711 (fence …) until …; retry in …
//! # drop(guard);
//! # Ok::<(), leasehold::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! - **One holder.** While the clocks of the machines differ by no more than `max_clock_skew`, no two processes believe in
//!   one lease at once. A holder stops believing by its own clocks; others take over only after the expiry and the skew.
//! - **Rising fences.** Every grant of a key has a higher [`Fence`] than all before it, across release, expiry, removal of
//!   the record and restored backups. This holds whatever the clocks do.
//! - **One decision.** A transaction is decided once, and every answer is that decision; see [`decision`].
//! - **Three answers.** A write has won, or lost, or its fate is [unknown](ErrorKind::Unknown). It is never guessed.
//!
//! # What it does not promise
//!
//! **A lease is not a mutex.** A holder can be paused between looking at its clock and acting. Only a resource that checks
//! the fence is safe from that; see `examples/fenced_write.rs`.
//!
//! # The modules
//!
//! - [`Store`]: opening, by URL or with a handle of your own; the probe that makes a store prove itself; request counts.
//! - [`lease`]: locks and their guards, elections, watching; and acquire, renew and release one step at a time.
//! - [`semaphore`]: up to n holders at once.
//! - [`decision`]: commit or abort, decided once.
//! - [`job`]: queues of jobs, with retries, priorities and delays.
//! - [`stream`]: messages in order, groups that remember how far they have read, retention.
//! - [`archive`]: streams copied to compressed JSON lines, with every message in exactly one file.
//! - [`fenced`]: objects in the bucket that refuse the write of a holder which has lost its lease.
//! - [`sweep`]: the idle sweeper.
//! - [`fsck`]: looking for damage, and repairing it.
//! - [`layout`]: names and ids as they stand in the store, for tools that read it.
//! - [`clock`] and [`Generator`]: time and randomness, which tests bring with them.
//! - The crate `leasehold-testkit`: conformance suite, fault store, S3 server, a clock that is moved by hand.
//!
//! # Features
//!
//! `aws`, `azure` and `gcp` add the clouds; none is on by default.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod archive;
pub mod clock;
mod counters;
pub mod decision;
mod duration;
mod error;
mod fence;
pub mod fenced;
pub mod fsck;
mod generator;
mod hex;
mod hour;
mod id;
mod index;
#[cfg(feature = "_internals")]
#[doc(hidden)]
pub mod internals;
#[allow(dead_code, unused_imports, reason = "what trackers, schedules and streams need of the pure rules comes next")]
pub mod job;
mod key;
#[doc(hidden)]
pub mod kind;
pub mod layout;
pub mod lease;
mod namespace;
mod record;
pub mod semaphore;
pub mod session;
mod shared;
mod storage;
pub mod store;
pub mod stream;
pub mod sweep;
mod sync;
mod timing;
mod ttl;

pub use clock::{Clock, SystemClock};
pub use decision::Decisions;
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use fenced::Fenced;
pub use generator::{Generator, OsGenerator};
pub use hour::Hour;
pub use id::{BootId, LeaseId, SessionId};
pub(crate) use id::{ProcessId, WriteId};
pub use job::{JobId, Queue};
pub(crate) use key::Decoded;
pub use key::Key;
pub use lease::Leases;
pub use namespace::Namespace;
pub use semaphore::Semaphores;
pub use store::{Settings, Stats, Store, StoreBuilder};
pub use ttl::Ttl;

// Foreign types that occur in signatures: of these versions.
pub use ::bytes::{self, Bytes};
pub use ::chrono;
pub use ::futures_util::Stream;
pub use ::object_store;
pub use ::tokio_util::sync::CancellationToken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../docs/GUIDE.md")]
mod guide {}

#[cfg(doctest)]
#[doc = include_str!("../docs/SCHEDULES.md")]
mod schedules {}

#[cfg(test)]
extern crate self as leasehold;

/// Unit tests cannot use the crate `leasehold-testkit`: it implements the traits of the library that it depends on, which is
/// another build than the one under test. So these files of it are compiled here once more.
#[cfg(test)]
#[path = "../testkit/src"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "not every tool is used by unit tests")]
mod testkit {
    mod clock;
    mod fault;
    mod fault_store;
    mod fronts;
    mod generator;
    mod objects;

    pub use clock::TestClock;
    pub use fault::{Answer, Fault, Faults, Flaw, Op, Rates, Rule};
    pub use fault_store::FaultStore;
    pub use generator::SeededGenerator;
    pub use objects::{Applied, Observer};
}
#[cfg(doctest)]
#[doc = include_str!("../docs/STREAMS.md")]
mod streams {}
#[cfg(doctest)]
#[doc = include_str!("../docs/WORKERS.md")]
mod workers {}
