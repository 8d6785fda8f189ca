//! Leases, transaction decisions and fencing tokens on nothing but an object store.
//!
//! S3, Google Cloud Storage, Azure Blob Storage or a local directory is all there is: no database, no server, no
//! background scan. Everything that expires is settled by whoever touches it next, with a compare-and-swap, so being right
//! never waits for a background job; an index filed by the hour of expiry lets an idle process tidy the rest.
//!
//! # A lock
//!
//! ```
//! use leasehold::{Key, Store, lease::{Locked, Request}};
//! use std::time::Duration;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let store = Store::open("memory://").await?; // s3://bucket/prefix, gs://…, az://…, file:///folder
//! let leases = store.leases("default")?;
//!
//! let key = Key::new("orders/42")?;
//! let request = Request::new(Duration::from_secs(30))?.owner("worker-7")?;
//! match leases.lock(&key, &request, Duration::from_secs(10)).await? {
//!     Locked::Granted(guard) => {
//!         // The lease is kept alive until the guard is released. Before every effect on the outside:
//!         assert!(guard.is_valid());
//!         // …and let the resource refuse any fence lower than one that it has seen.
//!         println!("fence {}", guard.fence());
//!         guard.release().await?;
//!     }
//!     Locked::Held(held) => println!("held by {:?}, ask again in {:?}", held.by, held.retry_after),
//! }
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
//! # The rooms
//!
//! - [`Store`]: opening, by URL or with a handle of your own; the probe that makes a store prove itself; request counts.
//! - [`lease`]: acquire, wait, renew, release, guards.
//! - [`decision`]: commit or abort, decided once.
//! - [`sweep`]: the idle sweeper.
//! - [`fsck`]: looking for damage, and repairing it.
//! - [`clock`] and [`Generator`]: time and randomness, which tests bring with them.
//! - `testkit` (feature): conformance suite, fault store, S3 server, a clock that is moved by hand.
//!
//! # Features
//!
//! `aws`, `azure` and `gcp` add the clouds; none is on by default. `testkit` adds the tools for tests.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod bucket;
pub mod clock;
pub mod decision;
mod error;
mod fence;
pub mod fsck;
mod generator;
mod id;
mod index;
#[allow(dead_code, unused_imports, reason = "the pure rules of jobs; the committer that calls them comes next")]
mod job;
mod key;
pub mod lease;
mod namespace;
#[cfg_attr(
    not(all(feature = "testkit", debug_assertions)),
    allow(dead_code, unreachable_pub, reason = "only test builds have the switch")
)]
mod planted;
mod settings;
mod stats;
pub mod store;
pub mod sweep;
#[cfg(feature = "testkit")]
pub mod testkit;
mod ttl;

pub use bucket::Bucket;
pub use clock::{Clock, SystemClock};
pub use decision::Decisions;
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use generator::{Generator, OsGenerator};
pub use id::{BootId, LeaseId, ProcessId, WriteId};
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub use job::fuzz as job_fuzz;
pub use key::{Decoded, Key, KeyJson};
pub use lease::Leases;
pub use namespace::Namespace;
pub use settings::Settings;
pub use stats::Stats;
pub use store::{Store, StoreBuilder};
pub use ttl::Ttl;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
