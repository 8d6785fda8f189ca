//! Which part of its requests a process makes for sweeping.

use crate::clock::Moment;
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(3600);

/// How many requests had been made at some moment.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Moment,
    all: u64,
    tidying: u64,
}

/// The part over the last one to two hours.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// The older one is what is compared with, the newer one will be.
    marks: Option<(Mark, Mark)>,
}

impl Share {
    /// So many requests were made until now, and so many of them for sweeping.
    pub(super) fn at(&mut self, at: Moment, all: u64, tidying: u64) -> f64 {
        let now = Mark { at, all, tidying };
        let (older, newer) = self.marks.get_or_insert((now, now));
        let made = all.saturating_sub(older.all).max(1);
        let share = tidying.saturating_sub(older.tidying) as f64 / made as f64;
        if at.since(newer.at) >= WINDOW {
            (*older, *newer) = (*newer, now);
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_that_of_the_last_hours_and_not_of_all_time() {
        let at = |minutes: u64| Moment::from_origin(Duration::from_secs(60 * minutes));
        let mut share = Share::default();
        assert_eq!(share.at(at(0), 50, 0), 0.);
        assert_eq!(share.at(at(30), 150, 25), 0.25);
        assert_eq!(share.at(at(60), 250, 100), 0.5);
        assert_eq!(share.at(at(90), 250, 100), 0.5, "nobody asks for anything");
        assert_eq!(share.at(at(120), 250, 100), 0.5);
        assert_eq!(share.at(at(121), 250, 100), 0., "the busy hour is over");
    }
}
