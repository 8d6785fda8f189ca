//! Every request received, so that a test can count them.

use super::{call::Call, lock};
use crate::Op;
use hyper::header;
use std::sync::{Arc, Mutex, OnceLock};

/// A request that the server received, whatever it did with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// `GET`, `PUT` and so on.
    pub method: String,
    /// The object's name, decoded; empty for listings and bulk deletes.
    pub path: String,
    /// The query, decoded, in its order.
    pub query: Vec<(String, String)>,
    /// The kind of request.
    pub op: Op,
    /// The status that was answered, whether or not the client was still there; `None` if nothing was, or not yet.
    pub status: Option<u16>,
    /// It had an `If-Match`: an update.
    pub if_match: bool,
    /// It had an `If-None-Match`: a create, or a read of what is new.
    pub if_none_match: bool,
}

#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Vec<(Request, Answered)>>);

/// Where the answer to a request is noted.
pub(super) type Answered = Arc<OnceLock<u16>>;

impl Log {
    pub(super) fn add(&self, call: &Call) -> Answered {
        let request = Request {
            method: call.method.to_string(),
            path: call.key.clone(),
            query: call.query.clone(),
            op: call.op,
            status: None,
            if_match: call.headers.contains_key(header::IF_MATCH),
            if_none_match: call.headers.contains_key(header::IF_NONE_MATCH),
        };
        let answered = Answered::default();
        lock(&self.0).push((request, Arc::clone(&answered)));
        answered
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        let known = lock(&self.0);
        known.iter().map(|(request, answered)| Request { status: answered.get().copied(), ..request.clone() }).collect()
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }
}
