//! One page of a listing: names in byte order after a given one, rolled up at a delimiter.

use super::bucket::Object;
use std::{collections::BTreeMap, ops::Bound};

/// The most that S3 puts on one page, whatever was asked for.
pub(super) const MAX_KEYS: usize = 1000;

#[derive(Debug)]
pub(super) struct Query {
    pub(super) prefix: String,
    pub(super) delimiter: Option<String>,
    /// An object or a common prefix that comes before the page.
    pub(super) after: Option<String>,
    pub(super) max_keys: usize,
}

#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(String, Object)>,
    pub(super) prefixes: Vec<String>,
    /// The last name on this page, if there are more after it.
    pub(super) next: Option<String>,
}

impl Page {
    pub(super) fn of(objects: &BTreeMap<String, Object>, query: &Query) -> Self {
        let mut page = Self::default();
        if query.max_keys == 0 {
            return page;
        }
        let after = query.after.as_deref().unwrap_or_default();
        let from =
            if after < query.prefix.as_str() { Bound::Included(query.prefix.as_str()) } else { Bound::Excluded(after) };
        let mut last: Option<&str> = None;
        for (name, object) in objects.range::<str, _>((from, Bound::Unbounded)) {
            let Some(rest) = name.strip_prefix(&query.prefix) else { break };
            let rolled_up = query.delimiter.as_deref().and_then(|delimiter| {
                rest.find(delimiter).map(|at| &name[..query.prefix.len() + at + delimiter.len()])
            });
            // A common prefix stands for all of its names: those of one that is already told are passed over.
            if rolled_up.is_some_and(|prefix| last == Some(prefix) || after == prefix) {
                continue;
            }
            if page.objects.len() + page.prefixes.len() == query.max_keys.min(MAX_KEYS) {
                page.next = last.map(str::to_owned);
                break;
            }
            match rolled_up {
                Some(prefix) => page.prefixes.push(prefix.to_owned()),
                None => page.objects.push((name.clone(), object.clone())),
            }
            last = Some(rolled_up.unwrap_or(name));
        }
        page
    }

    /// Puts every second entry first. Out of order whenever there are two, and the same each time.
    pub(super) fn shuffle(&mut self) {
        self.objects = every_second_first(std::mem::take(&mut self.objects));
        self.prefixes = every_second_first(std::mem::take(&mut self.prefixes));
    }

    /// Leaves out every second entry, the first one among them.
    pub(super) fn tear(&mut self) {
        let mut keep = [false, true].into_iter().cycle();
        self.objects.retain(|_| keep.next().unwrap_or(true));
        let mut keep = [false, true].into_iter().cycle();
        self.prefixes.retain(|_| keep.next().unwrap_or(true));
    }
}

fn every_second_first<T>(entries: Vec<T>) -> Vec<T> {
    let (seconds, firsts): (Vec<_>, Vec<_>) = entries.into_iter().enumerate().partition(|(at, _)| at % 2 == 1);
    seconds.into_iter().chain(firsts).map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::bucket::Bucket;
    use leasehold::clock::Timestamp;

    fn page(names: &[&str], prefix: &str, delimiter: Option<&str>, after: Option<&str>, max_keys: usize) -> Page {
        let mut bucket = Bucket::default();
        for name in names {
            bucket.write(name, bytes::Bytes::new(), Timestamp::default());
        }
        let delimiter = delimiter.map(str::to_owned);
        Page::of(
            bucket.objects(),
            &Query { prefix: prefix.to_owned(), delimiter, after: after.map(str::to_owned), max_keys },
        )
    }

    fn names(page: &Page) -> Vec<&str> {
        page.objects.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn names_come_in_byte_order_after_the_one_given() {
        let all = ["a/B", "a/a", "a/b", "a0", "b"];
        assert_eq!(names(&page(&all, "a/", None, None, 1000)), ["a/B", "a/a", "a/b"]);
        assert_eq!(names(&page(&all, "a/", None, Some("a/B"), 1000)), ["a/a", "a/b"]);
        assert_eq!(names(&page(&all, "a/", None, Some("a/C"), 1000)), ["a/a", "a/b"]);
        assert_eq!(names(&page(&all, "a/", None, Some("A"), 1)), ["a/B"]);
        assert!(names(&page(&all, "a/", None, Some("z"), 1000)).is_empty());
    }

    #[test]
    fn a_page_says_whether_there_is_more() {
        let all = ["a", "b", "c"];
        assert_eq!(page(&all, "", None, None, 2).next.as_deref(), Some("b"));
        assert_eq!(page(&all, "", None, None, 3).next, None);
        assert_eq!(page(&all, "", None, None, 0).next, None);
    }

    #[test]
    fn a_common_prefix_counts_as_one_entry_and_is_not_told_twice() {
        let all = ["h/1/a", "h/1/b", "h/2/a", "h/x"];
        let first = page(&all, "h/", Some("/"), None, 1);
        assert_eq!(first.prefixes, ["h/1/"]);
        assert_eq!(first.next.as_deref(), Some("h/1/"));
        let second = page(&all, "h/", Some("/"), Some("h/1/"), 1000);
        assert_eq!((names(&second), second.prefixes.as_slice()), (vec!["h/x"], &["h/2/".to_owned()][..]));
        assert_eq!(second.next, None);
    }

    #[test]
    fn a_shuffled_page_has_the_same_entries_and_a_torn_one_has_fewer() {
        let all = ["a", "b", "c", "d", "e"];
        let mut shuffled = page(&all, "", None, None, 1000);
        shuffled.shuffle();
        assert_eq!(names(&shuffled), ["b", "d", "a", "c", "e"]);
        let mut torn = page(&all, "", None, None, 1000);
        torn.tear();
        assert_eq!(names(&torn), ["b", "d"]);
    }
}
