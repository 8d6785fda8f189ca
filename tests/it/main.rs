//! One module for each promise to the user.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "these are tests")]

#[cfg(unix)]
mod two_processes;
