//! Queues of jobs, one module a promise.

mod basics;
mod shared;
