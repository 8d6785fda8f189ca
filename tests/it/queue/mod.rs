//! Queues of jobs, one module a promise.

mod basics;
mod committing;
mod ending;
mod events;
mod inbox;
mod processes;
mod shared;
mod workers;
