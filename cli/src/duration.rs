//! Durations as people write and read them.

use leasehold::clock::Timestamp;
use std::time::Duration;

/// `30s`, `1m30s`, `250ms`, `2h`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        return Err(format!("say in which unit, such as {text}s or {text}ms"));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s, 1m30s or 250ms"))
}

/// A duration such as `30s`, or `forever`.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(FOREVER),
        _ => parse(text).map_err(|error| format!("{error}, or forever")),
    }
}

/// Longer than any process lives, and short enough to be added to any clock.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// `28s`, `3m 2s`: as exact as somebody at a terminal wants to know.
pub(crate) fn short(duration: Duration) -> String {
    let rounded = match duration {
        less if less < Duration::from_secs(1) => Duration::from_millis(less.as_millis() as u64),
        more => Duration::from_secs(more.as_secs()),
    };
    humantime::format_duration(rounded).to_string()
}

/// `1h 30m`, to the last digit.
pub(crate) fn exact(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// A time with how far it is from now: `2026-11-16T08:00:00.000Z (in 28s)`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("{at} (in {})", short(at.since(now)))
    } else {
        format!("{at} ({} ago)", short(now.since(at)))
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_refused_with_what_to_write() {
        assert_eq!(parse("30").unwrap_err(), "say in which unit, such as 30s or 30ms");
        assert_eq!(parse("1m30s").unwrap(), Duration::from_secs(90));
        assert!(parse("").is_err());
        assert!(parse("soon").unwrap_err().contains("30s"));
    }

    #[test]
    fn waiting_may_be_for_ever() {
        assert_eq!(parse_wait("forever").unwrap(), FOREVER);
        assert!(parse_wait("never").unwrap_err().contains("forever"));
    }

    #[test]
    fn times_are_short_to_read() {
        assert_eq!(short(Duration::from_micros(28_999_999)), "28s");
        assert_eq!(short(Duration::from_micros(1_500)), "1ms");
        let now = Timestamp::from_millis(10_000);
        assert_eq!(relative(Timestamp::from_millis(12_000), now), "1970-01-01T00:00:12.000Z (in 2s)");
        assert_eq!(relative(Timestamp::from_millis(9_000), now), "1970-01-01T00:00:09.000Z (1s ago)");
    }
}
