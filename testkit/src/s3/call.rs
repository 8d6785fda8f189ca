//! A request as received: which bucket, which object, what kind of operation.

use super::{bucket::Condition, list, reply::Reply, xml, xml::BulkDelete};
use crate::Op;
use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode, header, http::request::Parts};

/// A request that has been read to its end.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) bucket: String,
    /// The object's name; empty for a request to the bucket.
    pub(super) key: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) op: Op,
    /// The parsed body of a bulk delete.
    pub(super) bulk: Option<BulkDelete>,
}

impl Call {
    pub(super) fn new(parts: Parts, body: Bytes) -> Self {
        let path = parts.uri.path().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let query = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let query: Vec<_> = query.map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        let is_bulk = parts.method == Method::POST && query.iter().any(|(name, _)| name == "delete");
        let op = match parts.method {
            Method::POST if is_bulk => Op::Delete,
            Method::PUT | Method::POST => Op::Put,
            Method::DELETE => Op::Delete,
            Method::GET if key.is_empty() => Op::List,
            _ => Op::Get,
        };
        Self {
            bucket: decode(bucket),
            key: decode(key),
            bulk: is_bulk.then(|| BulkDelete::parse(&body)).flatten(),
            query,
            op,
            body,
            method: parts.method,
            headers: parts.headers,
        }
    }

    /// What faults are scripted on: the object, the prefix of a listing, or the first name of a bulk delete.
    pub(super) fn subject(&self) -> &str {
        match (self.op, &self.bulk) {
            (Op::List, _) => self.parameter("prefix").unwrap_or_default(),
            (_, Some(bulk)) => bulk.names.first().map_or("", String::as_str),
            _ => &self.key,
        }
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn header(&self, name: impl header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Copies and the parts of multipart uploads are puts by their method only.
    pub(super) fn is_plain_put(&self) -> bool {
        self.query.is_empty() && self.header("x-amz-copy-source").is_none()
    }

    /// The access key id of the signature; `None` if the request is not signed.
    pub(super) fn access_key_id(&self) -> Option<&str> {
        let credential = self.header(header::AUTHORIZATION)?.split("Credential=").nth(1)?;
        credential.split('/').next()
    }

    /// The bytes that a read asks for, from the first to before the last, if not for all.
    pub(super) fn range(&self) -> Option<std::ops::Range<usize>> {
        let (from, last) = self.header(header::RANGE)?.strip_prefix("bytes=")?.split_once('-')?;
        Some(from.parse().ok()?..last.parse::<usize>().ok()?.checked_add(1)?)
    }

    /// What a write asks of the object that it replaces.
    pub(super) fn condition(&self) -> Result<Condition, Reply> {
        match (self.header(header::IF_MATCH), self.header(header::IF_NONE_MATCH)) {
            (None, None) => Ok(Condition::Anything),
            (None, Some("*")) => Ok(Condition::Absent),
            (Some(tags), None) => Ok(Condition::Matches(tags.to_owned())),
            _ => Err(Reply::error(StatusCode::NOT_IMPLEMENTED, "NotImplemented", "A condition that S3 does not have")),
        }
    }

    /// What a listing asks for.
    pub(super) fn listing(&self) -> Result<list::Query, Reply> {
        let invalid = |what| Reply::error(StatusCode::BAD_REQUEST, "InvalidArgument", what);
        // A token goes before `start-after`, which clients repeat on every page.
        let after = match self.parameter("continuation-token") {
            Some(token) => Some(xml::from_token(token).ok_or_else(|| invalid("The continuation token is not ours"))?),
            None => self.parameter("start-after").map(str::to_owned),
        };
        let max_keys = self.parameter("max-keys").map_or(Ok(list::MAX_KEYS), str::parse);
        Ok(list::Query {
            prefix: self.parameter("prefix").unwrap_or_default().to_owned(),
            delimiter: self.parameter("delimiter").filter(|delimiter| !delimiter.is_empty()).map(str::to_owned),
            after,
            max_keys: max_keys.map_err(|_| invalid("max-keys is not a number"))?.min(list::MAX_KEYS),
        })
    }
}

/// Undoes percent-encoding. Unlike in a query, a plus sign in a path is a plus sign.
fn decode(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn call(method: &str, uri: &str) -> Call {
        let (parts, ()) = Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        Call::new(parts, Bytes::from("<Delete><Object><Key>first</Key></Object></Delete>"))
    }

    #[test]
    fn a_request_is_known_by_its_method_its_name_and_its_query() {
        for (method, uri, op, subject) in [
            ("PUT", "/bucket/a/b", Op::Put, "a/b"),
            ("HEAD", "/bucket/a", Op::Get, "a"),
            ("GET", "/bucket?list-type=2&prefix=a%2Fb+c", Op::List, "a/b c"),
            ("GET", "/bucket/", Op::List, ""),
            ("DELETE", "/bucket/a", Op::Delete, "a"),
            ("POST", "/bucket?delete", Op::Delete, "first"),
        ] {
            let call = call(method, uri);
            assert_eq!((call.bucket.as_str(), call.op, call.subject()), ("bucket", op, subject), "{method} {uri}");
        }
    }

    #[test]
    fn a_name_is_decoded_once_and_keeps_its_plus_signs() {
        assert_eq!(decode("a%20b+c%2B%C3%A9%252f%"), "a b+c+é%2f%");
    }
}
