//! What the library promises to its users, one module a promise.

mod common;

mod cas_answers;
mod opening;
