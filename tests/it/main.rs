//! What the library promises to its users, one module a promise.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "these are tests")]

mod common;

mod budget;
mod cas_answers;
mod fairness;
mod model;
mod opening;
#[cfg(unix)]
mod paused;
#[cfg(unix)]
mod two_processes;
mod waiting;
