//! What the library promises to its users, one module a promise.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "these are tests")]

mod common;
mod memory;
mod processes;
mod queue;

mod archive;
mod budget;
mod cas_answers;
mod crash_points;
mod cut_over;
mod decisions;
mod diagnosis;
mod election;
mod fairness;
mod fenced;
mod front_door;
mod fsck;
mod guard;
mod jobs;
mod keeping;
mod late;
mod listing;
mod model;
mod opening;
#[cfg(unix)]
mod paused;
#[path = "../shared/said.rs"]
mod said;
mod second_witness;
mod semaphore;
#[cfg(unix)]
mod semaphore_crowd;
mod session;
mod store_answers;
mod stream;
mod sweeper;
mod third_kind;
mod time_rules;
mod turns;
#[cfg(unix)]
mod two_processes;
mod waiting;
mod watch;
