//! For a store that is handed in and whose answers say what time it is, as those over HTTP do.

use crate::{
    clock::{Moment, Timestamp},
    storage::Meter,
};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// Tells an opened store the date of every answer: hand it to
/// [`dated_answers`](crate::StoreBuilder::dated_answers), and call it around every request.
///
/// With this a simulated store takes the place of one that is reached over HTTP.
#[derive(Clone, Default)]
pub struct Dates(Arc<OnceLock<Arc<Meter>>>);

impl Dates {
    /// Without a listener yet.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn tell(&self, meter: &Arc<Meter>) {
        // A second store would need dates of its own; the first one goes on listening.
        let _ = self.0.set(Arc::clone(meter));
    }

    /// A request is about to be sent. `None` if no store was opened with these dates.
    pub fn asked(&self) -> Option<Moment> {
        self.0.get().map(|meter| meter.now())
    }

    /// The answer to a request that was sent at `asked` has come, and says that it is `date`.
    pub fn answered(&self, date: Timestamp, asked: Moment) {
        if let Some(meter) = self.0.get() {
            meter.note_date(date, asked);
        }
    }
}

impl fmt::Debug for Dates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dates")
    }
}
