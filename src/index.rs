//! The expiry index, filed by the hour: names and hours, not what they mean.
//!
//! An entry says that a record may expire in an hour. It is a hint and never truth: it is written before the record, so
//! that a crash in between leaves an entry too many and never a record without one.

use crate::{Hour, storage::Name};

/// The name of an entry, in a folder that ends in a slash.
pub(crate) fn entry(folder: &str, hour: Hour, name: &str) -> Name {
    Name::new(format!("{folder}{hour}/{name}"))
}

/// The hour and the last part of an entry's name, below its folder.
pub(crate) fn parse_entry<'a>(folder: &str, name: &'a Name) -> Option<(Hour, &'a str)> {
    let (hour, entry) = name.as_str().strip_prefix(folder)?.split_once('/')?;
    Some((hour.parse().ok()?, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_from_its_name() {
        let hour: Hour = "2026010100".parse().unwrap();
        let name = entry("some/index/", hour, "x!2fy");
        assert_eq!(name.as_str(), "some/index/2026010100/x!2fy");
        assert_eq!(parse_entry("some/index/", &name), Some((hour, "x!2fy")));
        assert_eq!(parse_entry("other/index/", &name), None);
        assert_eq!(parse_entry("some/index/", &Name::new("some/index/20260101/x")), None);
    }
}
