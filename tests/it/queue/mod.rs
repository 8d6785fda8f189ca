//! Queues of jobs, one module a promise.

mod basics;
mod committing;
mod dead;
mod ending;
mod events;
mod inbox;
mod keys;
mod mending;
mod operating;
mod processes;
mod schedules;
mod shared;
mod tracker;
mod transactions;
mod workers;
