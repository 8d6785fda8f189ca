//! Queues of jobs, one module a promise.

mod basics;
mod committing;
mod ending;
mod processes;
mod shared;
