//! One archive file: gzip of JSON lines, with a digest in its header that says which messages are in it.
//!
//! The digest is over offset and id of each line, and not over bytes: another version of a library that compresses must not
//! make another file of the same messages.

use super::layout::Day;
use crate::{
    Error, Result,
    clock::Timestamp,
    hex::hex,
    stream::{Message, MessageId},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use flate2::{Compression, GzBuilder, bufread::MultiGzDecoder};
use serde::{Serialize, de::IgnoredAny};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write as _},
    time::Duration,
};

/// A message that says that it happened further than this from when it was appended is filed under the latter.
const FARTHEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// What the name in the header begins with. Some readers of gzip refuse a header with a comment.
const IDENTITY: &str = "leasehold ";

/// A message that is to be archived.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) message: Message,
    pub(crate) appended: Timestamp,
}

impl Row {
    /// The day that it is filed under: its own, unless that is far from when it was appended.
    pub(crate) fn day(&self) -> Day {
        let time = self.message.time;
        Day::of(if time.distance(self.appended) > FARTHEST { self.appended } else { time })
    }
}

#[derive(Serialize)]
struct Line<'a> {
    message_id: MessageId,
    subject: &'a str,
    timestamp: String,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_b64: Option<String>,
}

/// One line, with its end.
fn line(message: &Message, out: &mut Vec<u8>) -> Result<()> {
    // JSON on one line stands as it is; anything else is written in base 64.
    let text = std::str::from_utf8(&message.payload).ok().filter(|text| !text.contains(['\n', '\r']));
    let payload = text.filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let line = Line {
        message_id: message.id,
        subject: &message.subject,
        timestamp: message.time.to_string(),
        seq: message.offset,
        trace_id: message.trace_id.as_deref(),
        key: message.key.as_deref(),
        payload_b64: payload.is_none().then(|| BASE64_STANDARD.encode(&message.payload)),
    };
    serde_json::to_writer(&mut *out, &line)
        .map_err(|error| Error::corrupt("a message cannot be written as JSON").with_source(error))?;
    if let Some(payload) = payload {
        // In the place of the closing brace.
        out.pop();
        out.extend_from_slice(b",\"payload\":");
        out.extend_from_slice(payload.trim().as_bytes());
        out.push(b'}');
    }
    out.push(b'\n');
    Ok(())
}

/// Which messages a file has: 64 hexadecimal digits.
pub(crate) fn digest(lines: impl Iterator<Item = (u64, MessageId)>) -> String {
    let mut digest = Sha256::new();
    for (offset, id) in lines {
        digest.update(offset.to_be_bytes());
        digest.update(id.as_bytes());
    }
    hex(&digest.finalize())
}

/// The digest of some rows.
pub(crate) fn digest_of(rows: &[&Row]) -> String {
    digest(rows.iter().map(|row| (row.message.offset, row.message.id)))
}

/// Rows by the day that they are filed under, in order.
pub(crate) fn by_day(rows: &[Row]) -> BTreeMap<Day, Vec<&Row>> {
    let mut days: BTreeMap<Day, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        days.entry(row.day()).or_default().push(row);
    }
    days
}

/// The bytes of a file.
pub(crate) fn write(rows: &[&Row]) -> Result<Bytes> {
    let failed = |error| Error::corrupt("a file cannot be compressed").with_source(error);
    let identity = format!("{IDENTITY}{} {}", digest_of(rows), rows.len());
    // Without a time: the same messages make the same file.
    let mut gzip = GzBuilder::new().mtime(0).filename(identity).write(Vec::new(), Compression::default());
    let mut text = Vec::new();
    for row in rows {
        text.clear();
        line(&row.message, &mut text)?;
        gzip.write_all(&text).map_err(failed)?;
    }
    Ok(gzip.finish().map_err(failed)?.into())
}

/// The digest and the number of lines that a file's header says; `None` if it is none of ours.
pub(crate) fn header(body: &[u8]) -> Option<(String, u64)> {
    let decoder = MultiGzDecoder::new(body);
    let identity = std::str::from_utf8(decoder.header()?.filename()?).ok()?;
    let (digest, count) = identity.strip_prefix(IDENTITY)?.split_once(' ')?;
    (digest.len() == 64).then_some(())?;
    Some((digest.to_owned(), count.parse().ok()?))
}

/// What a file holds: the offsets and ids of its lines.
pub(crate) fn read(body: &[u8]) -> std::result::Result<Vec<(u64, MessageId)>, String> {
    #[derive(serde::Deserialize)]
    struct Place {
        message_id: MessageId,
        seq: u64,
    }
    let lines = BufReader::new(MultiGzDecoder::new(body)).lines();
    lines
        .map(|line| {
            let line = line.map_err(|error| format!("it cannot be unpacked: {error}"))?;
            let place: Place = serde_json::from_str(&line).map_err(|error| format!("a line is no message: {error}"))?;
            Ok((place.seq, place.message_id))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OsGenerator, stream::Draft};
    use std::io::Read as _;

    fn row(offset: u64, time: i64, appended: i64, payload: &[u8]) -> Row {
        let draft = Draft::new("s", payload.to_vec()).time(Timestamp::from_millis(time)).trace_id("t");
        let message = draft.into_message(Timestamp::from_millis(appended), &OsGenerator::new()).unwrap();
        Row { message: Message { offset, ..message }, appended: Timestamp::from_millis(appended) }
    }

    #[test]
    fn a_line_has_json_as_it_is_and_anything_else_in_base_64() {
        let rows = [row(7, 1_767_225_600_123, 0, br#"{"b": 1, "a": 2}"#), row(8, 0, 0, b"\xff"), row(9, 0, 0, b"{\n}")];
        let body = write(&rows.iter().collect::<Vec<_>>()).unwrap();
        let mut text = String::new();
        MultiGzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let start = format!(
            r#"{{"message_id":"{}","subject":"s","timestamp":"2026-01-01T00:00:00.123Z","seq":7,"trace_id":"t""#,
            rows[0].message.id
        );
        assert_eq!(lines[0], format!("{start},\"payload\":{{\"b\": 1, \"a\": 2}}}}\n"));
        assert!(lines[1].ends_with("\"payload_b64\":\"/w==\"}\n") && lines[2].contains("payload_b64"), "{text}");
        let places = read(&body).unwrap();
        assert_eq!(places.iter().map(|place| place.0).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!(header(&body), Some((digest(places.into_iter()), 3)));
    }

    #[test]
    fn a_day_is_that_of_the_message_unless_it_is_a_week_off() {
        const DAY: i64 = 86_400_000;
        for (time, appended, day) in
            [(DAY, 8 * DAY, 1), (DAY, 8 * DAY + 1, 8), (90 * DAY, 2 * DAY, 2), (3 * DAY - 1, 3 * DAY, 2)]
        {
            assert_eq!(
                row(0, time, appended, b"").day(),
                Day::of(Timestamp::from_millis(day * DAY)),
                "{time} {appended}"
            );
        }
    }

    #[test]
    fn what_is_no_file_of_ours_has_no_header() {
        assert_eq!(header(b""), None);
        assert_eq!(header(b"plain text"), None);
        let other = GzBuilder::new().filename("other").write(Vec::new(), Compression::default()).finish().unwrap();
        assert_eq!(header(&other), None);
        assert!(read(b"\x1f\x8b broken").is_err());
    }
}
