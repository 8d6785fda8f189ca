//! What the library promises to its users, one module a promise.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "these are tests")]

mod common;
mod memory;

mod budget;
mod cas_answers;
mod election;
mod guard;
mod listing;
mod opening;
mod sweeper;
#[cfg(unix)]
mod two_processes;
mod watch;
