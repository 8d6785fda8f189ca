//! What goes back over the wire, in S3's words.

use super::{bucket::Unmet, xml};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, DATE, HeaderName, HeaderValue},
};
use leasehold::clock::Timestamp;

/// A response, but for what every response has.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, String)>,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn empty(status: StatusCode) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new() }
    }

    pub(super) fn xml(status: StatusCode, body: String) -> Self {
        Self { status, headers: vec![(CONTENT_TYPE, "application/xml".to_owned())], body: Bytes::from(body) }
    }

    pub(super) fn error(status: StatusCode, code: &str, message: &str) -> Self {
        Self::xml(status, xml::error(code, message))
    }

    pub(super) fn access_denied() -> Self {
        Self::injected(403)
    }

    pub(super) fn no_such_key() -> Self {
        Self::injected(404)
    }

    pub(super) fn precondition_failed() -> Self {
        Self::injected(412)
    }

    /// The error that S3 sends most often with this status.
    pub(super) fn injected(status: u16) -> Self {
        let (code, message) = match status {
            400 => ("InvalidRequest", "The request is invalid."),
            403 => ("AccessDenied", "Access Denied"),
            404 => ("NoSuchKey", "The specified key does not exist."),
            408 => ("RequestTimeout", "Your socket connection to the server was not read from or written to in time."),
            409 => ("ConditionalRequestConflict", "A conflicting conditional operation is in progress. Please retry."),
            412 => ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold"),
            429 => ("TooManyRequests", "Please reduce your request rate."),
            500 => ("InternalError", "We encountered an internal error. Please try again."),
            503 => ("SlowDown", "Please reduce your request rate."),
            _ => ("InjectedFault", "This went wrong because a test asked for it."),
        };
        Self::error(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), code, message)
    }

    pub(super) fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// One bit in the middle of the body is not what was stored.
    pub(super) fn flip_a_bit(&mut self) {
        let mut body = self.body.to_vec();
        let middle = body.len() / 2;
        if let Some(byte) = body.get_mut(middle) {
            *byte ^= 1;
        }
        self.body = Bytes::from(body);
    }

    /// `date` is what the server says of its time, if it does.
    pub(super) fn into_response(self, date: Option<Timestamp>) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        for (name, value) in self.headers.into_iter().chain(date.map(|date| (DATE, http_date(date)))) {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

impl From<Unmet> for Reply {
    fn from(unmet: Unmet) -> Self {
        match unmet {
            Unmet::Precondition => Self::precondition_failed(),
            Unmet::NoSuchKey => Self::no_such_key(),
        }
    }
}

/// The form that HTTP headers have times in: whole seconds.
pub(super) fn http_date(at: Timestamp) -> String {
    at.to_datetime().unwrap_or_default().format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_in_whole_seconds_of_gmt() {
        assert_eq!(http_date(Timestamp::from_millis(1_767_225_600_999)), "Thu, 01 Jan 2026 00:00:00 GMT");
    }

    #[test]
    fn a_flipped_bit_changes_one_byte_and_an_empty_body_has_none_to_flip() {
        let mut reply = Reply { body: Bytes::from("abc"), ..Reply::empty(StatusCode::OK) };
        reply.flip_a_bit();
        assert_eq!(reply.body, "acc");
        let mut empty = Reply::empty(StatusCode::OK);
        empty.flip_a_bit();
        assert!(empty.body.is_empty());
    }
}
