//! What the program promises to its users, tried with the program itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

#[cfg(unix)]
mod credentials;
mod doctor;
mod home;
#[cfg(target_os = "linux")]
mod killed;
#[cfg(unix)]
mod lock;
#[cfg(unix)]
mod looking;
#[cfg(unix)]
mod manners;
mod repair;
mod settings;
mod transcripts;
mod troubles;
#[cfg(target_os = "linux")]
mod users;
mod watching;
#[cfg(target_os = "linux")]
mod work;
