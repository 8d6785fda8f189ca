//! Segments that somebody other than a claim has found in the inbox: the next commit takes them in, or ends them.

use super::{
    Shard,
    cycle::{Ahead, Found},
};
use crate::job::{fetch::Loaded, inbox::Age, layout::SegmentName};
use std::sync::{Arc, PoisonError};

/// What the next commit does with a segment.
#[derive(Debug)]
pub(crate) enum Taking {
    /// It is absorbed.
    Loaded(Arc<Loaded>),
    /// It is ended as it is.
    Discarded,
}

/// Puts a segment before the next commit. `listed` is when the listing was begun that has shown its name: after 30 s it is
/// not used any more.
pub(crate) fn take_in(shard: &Shard, name: SegmentName, listed: Age, what: Taking) {
    let found = match what {
        Taking::Loaded(loaded) => Found::Loaded(loaded),
        Taking::Discarded => Found::Discarded,
    };
    let mut ahead = shard.ahead.lock().unwrap_or_else(PoisonError::into_inner);
    ahead.retain(|known| known.name != name);
    ahead.push(Ahead { name, age: listed, found });
}
