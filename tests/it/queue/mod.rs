//! Queues of jobs, one module a promise.

mod basics;
mod committing;
mod ending;
mod inbox;
mod processes;
mod shared;
