//! The lock service, as its clients meet it: a real process, real sockets, real signals.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "these are tests")]
#![allow(clippy::disallowed_methods, reason = "a driver of real processes lives by the real clock")]

mod access;
mod api;
mod common;
mod contention;
mod deploy;
mod disconnects;
mod jobs;
mod leader;
mod malformed;
mod overview;
mod python;
mod rights;
mod semaphores;
mod verbs;
