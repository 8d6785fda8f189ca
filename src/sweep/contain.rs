//! A panic in a store, clock or generator that was handed in ends one entry or one run, and nothing else.

use crate::{Error, Result};
use futures_util::FutureExt;
use std::{any::Any, panic::AssertUnwindSafe};

/// What comes of the work; a panic in it is an error that may pass, which the callers count and log.
///
/// What the work has changed must be good for nothing afterwards, or be right at every await: the callers drop it.
pub(super) async fn contained<T>(what: &str, work: impl Future<Output = T>) -> Result<T> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| {
        let said = text(&*panic);
        Error::unavailable(format!(
            "{what} panicked ({said}): see what the store, clock or generator that was handed in does"
        ))
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied();
    said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}
