//! Queues of jobs, one module a promise.

mod basics;
mod committing;
mod dead;
mod ending;
mod events;
mod inbox;
mod mending;
mod operating;
mod processes;
mod shared;
mod tracker;
mod workers;
