//! Commands that this program runs for its user: each with a supervisor, so that none outlives the program.

mod child;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
pub(crate) mod supervisor;

pub(crate) use child::{Child, Reason, Start};
