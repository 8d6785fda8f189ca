//! The XML that S3 speaks: listings, bulk deletes and errors.

use super::list::{Page, Query};
use chrono::{SecondsFormat, Timelike};
use quick_xml::{
    Reader,
    escape::{escape, resolve_predefined_entity},
    events::Event,
};
use std::fmt::Write;

const HEADER: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// A bulk delete as the client asked for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BulkDelete {
    pub(super) names: Vec<String>,
    /// Tell only of failures.
    pub(super) quiet: bool,
}

impl BulkDelete {
    /// `None` if it is not well-formed, or not a `Delete`.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::from_reader(body);
        let mut parsed = Self::default();
        let mut open: Vec<Vec<u8>> = Vec::new();
        let mut text = String::new();
        loop {
            match reader.read_event().ok()? {
                Event::Start(tag) => {
                    open.push(tag.local_name().into_inner().to_vec());
                    text.clear();
                }
                Event::Text(part) => text.push_str(&part.decode().ok()?),
                Event::CData(part) => text.push_str(&part.decode().ok()?),
                Event::GeneralRef(entity) => match entity.resolve_char_ref().ok()? {
                    Some(char) => text.push(char),
                    None => text.push_str(resolve_predefined_entity(&entity.decode().ok()?)?),
                },
                Event::End(_) => {
                    let path: Vec<&[u8]> = open.iter().map(Vec::as_slice).collect();
                    match path.as_slice() {
                        [b"Delete", b"Object", b"Key"] => parsed.names.push(std::mem::take(&mut text)),
                        [b"Delete", b"Quiet"] => parsed.quiet = text.trim() == "true",
                        [b"Delete", ..] => {}
                        _ => return None,
                    }
                    open.pop();
                }
                Event::Eof => return (open.is_empty() && !parsed.names.is_empty()).then_some(parsed),
                _ => {}
            }
        }
    }

    /// The answer when all of them are gone.
    pub(super) fn done(&self) -> String {
        let mut xml = format!("{HEADER}<DeleteResult xmlns=\"{NAMESPACE}\">");
        if !self.quiet {
            for name in &self.names {
                xml.push_str("<Deleted>");
                element(&mut xml, "Key", name);
                xml.push_str("</Deleted>");
            }
        }
        xml.push_str("</DeleteResult>");
        xml
    }

    /// The answer when none of them may be deleted.
    pub(super) fn denied(&self) -> String {
        let mut xml = format!("{HEADER}<DeleteResult xmlns=\"{NAMESPACE}\">");
        for name in &self.names {
            xml.push_str("<Error>");
            element(&mut xml, "Key", name);
            element(&mut xml, "Code", "AccessDenied");
            element(&mut xml, "Message", "Access Denied");
            xml.push_str("</Error>");
        }
        xml.push_str("</DeleteResult>");
        xml
    }
}

/// A page of a listing; `url_encoded` is for names that XML cannot carry.
pub(super) fn listing(bucket: &str, query: &Query, page: &Page, url_encoded: bool) -> String {
    let name = |raw: &str| match url_encoded {
        true => url::form_urlencoded::byte_serialize(raw.as_bytes()).collect(),
        false => raw.to_owned(),
    };
    let mut xml = format!("{HEADER}<ListBucketResult xmlns=\"{NAMESPACE}\">");
    element(&mut xml, "Name", bucket);
    element(&mut xml, "Prefix", &name(&query.prefix));
    if let Some(delimiter) = &query.delimiter {
        element(&mut xml, "Delimiter", &name(delimiter));
    }
    element(&mut xml, "MaxKeys", &query.max_keys.to_string());
    if url_encoded {
        element(&mut xml, "EncodingType", "url");
    }
    element(&mut xml, "KeyCount", &(page.objects.len() + page.prefixes.len()).to_string());
    element(&mut xml, "IsTruncated", if page.next.is_some() { "true" } else { "false" });
    if let Some(next) = &page.next {
        element(&mut xml, "NextContinuationToken", &token(next));
    }
    for (key, object) in &page.objects {
        // S3 knows whole seconds only, here as in its headers.
        let modified = object.modified.to_datetime().unwrap_or_default();
        let modified = modified.with_nanosecond(0).unwrap_or(modified);
        xml.push_str("<Contents>");
        element(&mut xml, "Key", &name(key));
        element(&mut xml, "LastModified", &modified.to_rfc3339_opts(SecondsFormat::Millis, true));
        element(&mut xml, "ETag", &object.etag);
        element(&mut xml, "Size", &object.body.len().to_string());
        element(&mut xml, "StorageClass", "STANDARD");
        xml.push_str("</Contents>");
    }
    for prefix in &page.prefixes {
        xml.push_str("<CommonPrefixes>");
        element(&mut xml, "Prefix", &name(prefix));
        xml.push_str("</CommonPrefixes>");
    }
    xml.push_str("</ListBucketResult>");
    xml
}

/// An error, as every answer but a success carries it.
pub(super) fn error(code: &str, message: &str) -> String {
    let mut xml = format!("{HEADER}<Error>");
    element(&mut xml, "Code", code);
    element(&mut xml, "Message", message);
    xml.push_str("</Error>");
    xml
}

/// The token of the page after `name`: opaque, so that no client comes to rely on what is in it.
fn token(name: &str) -> String {
    let mut token = String::new();
    for byte in name.bytes() {
        let _ = write!(token, "{byte:02x}");
    }
    token
}

/// The name in a token of ours.
pub(super) fn from_token(token: &str) -> Option<String> {
    let digits = token.as_bytes().chunks(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()
}

fn element(xml: &mut String, name: &str, text: &str) {
    let _ = write!(xml, "<{name}>{}</{name}>", escape(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bulk_delete_is_read_with_its_entities_and_in_its_order() {
        let body = "<?xml version=\"1.0\"?><Delete xmlns=\"x\"><Quiet>true</Quiet>\n\
                    <Object><Key>b&amp;&#60;é</Key><VersionId>7</VersionId></Object><Object><Key> a </Key></Object></Delete>";
        let expected = BulkDelete { names: vec!["b&<é".to_owned(), " a ".to_owned()], quiet: true };
        assert_eq!(BulkDelete::parse(body.as_bytes()), Some(expected));
    }

    #[test]
    fn what_is_no_bulk_delete_is_not_taken_for_one() {
        for body in ["", "<Delete></Delete>", "<Delete><Object><Key>a", "<Other><Key>a</Key></Other>", "no xml"] {
            assert_eq!(BulkDelete::parse(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn a_quiet_delete_is_told_only_of_failures() {
        let delete = BulkDelete { names: vec!["a<".to_owned()], quiet: true };
        assert!(!delete.done().contains("Deleted"));
        assert!(delete.denied().contains("<Key>a&lt;</Key><Code>AccessDenied</Code>"));
        assert!(BulkDelete { quiet: false, ..delete }.done().contains("<Deleted><Key>a&lt;</Key></Deleted>"));
    }

    #[test]
    fn a_token_brings_its_name_back() {
        assert_eq!(from_token(&token("a/é b")).as_deref(), Some("a/é b"));
        assert_eq!(from_token("zz"), None);
    }

    #[test]
    fn names_that_xml_cannot_carry_are_url_encoded_when_asked_for() {
        let query = Query { prefix: "a\u{1} é".to_owned(), delimiter: None, after: None, max_keys: 1 };
        let xml = listing("bucket", &query, &Page::default(), true);
        assert!(
            xml.contains("<Prefix>a%01+%C3%A9</Prefix>") && xml.contains("<EncodingType>url</EncodingType>"),
            "{xml}"
        );
    }
}
