//! What the server does with a request: first what is to go wrong with it, then what S3 would do.

use super::{
    Flaw, S3Server, Shared,
    call::Call,
    list::Page,
    reply::{Reply, http_date},
    xml,
};
use crate::{Answer, Fault, Op};
use chrono::NaiveDateTime;
use hyper::{Method, StatusCode, header};
use leasehold::clock::Timestamp;
use std::{sync::Arc, time::Duration};

/// How far a signature's time may be from the server's.
const MAX_SIGNATURE_SKEW: Duration = Duration::from_secs(15 * 60);
/// How long a store that checks and then writes waits in between for a competing writer.
const YIELDS_BETWEEN_CHECK_AND_WRITE: usize = 20_000;

/// What becomes of the connection.
#[derive(Debug)]
pub(super) enum Outcome {
    Reply(Reply),
    Drop,
    Hang,
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Status(status) => Self::Reply(Reply::injected(status)),
            Answer::Drop => Self::Drop,
            Answer::Hang => Self::Hang,
        }
    }
}

/// How a request is carried out; anything but `Plain` is a fault of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    Plain,
    Shuffled,
    Torn,
    Stale,
    Corrupt,
}

impl Shared {
    /// Carries out a request and whatever goes wrong with it.
    pub(super) async fn handle(self: &Arc<Self>, call: Call) -> Outcome {
        match self.faults.next(call.op, call.subject()) {
            Some(Fault::Refuse(answer)) => answer.into(),
            Some(Fault::Lose(answer)) => {
                self.apply(&call, View::Plain).await;
                answer.into()
            }
            Some(Fault::Late(after, answer)) => {
                let shared = Arc::clone(self);
                self.spawn(async move {
                    shared.clock.sleep(after).await;
                    shared.apply(&call, View::Plain).await;
                });
                answer.into()
            }
            Some(Fault::Duplicate) => {
                self.apply(&call, View::Plain).await;
                Outcome::Reply(self.apply(&call, View::Plain).await)
            }
            Some(Fault::Delay(by)) => {
                self.clock.sleep(by).await;
                Outcome::Reply(self.apply(&call, View::Plain).await)
            }
            Some(Fault::Slow(by)) => {
                let reply = self.apply(&call, View::Plain).await;
                self.clock.sleep(by).await;
                Outcome::Reply(reply)
            }
            Some(Fault::Truncate) => {
                self.apply(&call, View::Plain).await;
                Outcome::Drop
            }
            Some(Fault::Shuffle) => Outcome::Reply(self.apply(&call, View::Shuffled).await),
            Some(Fault::Gap) => Outcome::Reply(self.apply(&call, View::Torn).await),
            Some(Fault::Stale) => Outcome::Reply(self.apply(&call, View::Stale).await),
            Some(Fault::Corrupt) => Outcome::Reply(self.apply(&call, View::Corrupt).await),
            None => Outcome::Reply(self.apply(&call, View::Plain).await),
        }
    }

    /// What S3 does.
    async fn apply(&self, call: &Call, view: View) -> Reply {
        if let Err(refusal) = self.admit(call) {
            return refusal;
        }
        let applied = match (&call.method, call.key.is_empty()) {
            (&Method::PUT, false) if call.is_plain_put() => self.put(call).await,
            (&Method::GET | &Method::HEAD, false) => self.get(call, view),
            (&Method::GET, true) if call.parameter("list-type") == Some("2") => self.list(call, view),
            (&Method::DELETE, false) if call.query.is_empty() => Ok(self.delete(call)),
            (&Method::POST, true) if call.op == Op::Delete => self.bulk_delete(call),
            // S3 would say 501, which clients retry for minutes; a test should hear at once that it asks for too much.
            _ => Err(Reply::error(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "This server does not do that")),
        };
        applied.unwrap_or_else(|refusal| refusal)
    }

    fn admit(&self, call: &Call) -> Result<(), Reply> {
        let forbidden = |code, message| Err(Reply::error(StatusCode::FORBIDDEN, code, message));
        match call.access_key_id() {
            Some(S3Server::ACCESS_KEY_ID) => {}
            Some(_) => return forbidden("InvalidAccessKeyId", "The access key id does not exist in our records."),
            None => return Err(Reply::access_denied()),
        }
        if self.checks_signature_time() && !self.is_signed_now(call) {
            return forbidden("RequestTimeTooSkewed", "The request's time and the server's time are too far apart.");
        }
        if call.bucket != S3Server::BUCKET || self.bucket_removed.load(std::sync::atomic::Ordering::SeqCst) {
            let message = "The specified bucket does not exist";
            return Err(Reply::error(StatusCode::NOT_FOUND, "NoSuchBucket", message));
        }
        // A bulk delete is allowed or denied name by name.
        if self.is_denied(call.op) && call.bulk.is_none() {
            return Err(Reply::access_denied());
        }
        Ok(())
    }

    fn is_signed_now(&self, call: &Call) -> bool {
        let signed = call.header("x-amz-date").unwrap_or_default();
        let signed = NaiveDateTime::parse_from_str(signed, "%Y%m%dT%H%M%SZ");
        signed.is_ok_and(|at| Timestamp::from(at.and_utc()).distance(self.now()) <= MAX_SIGNATURE_SKEW)
    }

    async fn put(&self, call: &Call) -> Result<Reply, Reply> {
        let condition = call.condition()?;
        let racing = {
            let mut bucket = self.bucket();
            bucket.check(&call.key, &condition)?;
            match bucket.has(Flaw::ChecksThenWrites) {
                true => bucket.draw_check(&call.key),
                // Check and write are one step, under the lock.
                false => return Ok(written(bucket.write(&call.key, call.body.clone(), self.now()))),
            }
        };
        for _ in 0..YIELDS_BETWEEN_CHECK_AND_WRITE {
            // To the other tasks of this thread, and to the other threads of a busy machine.
            tokio::task::yield_now().await;
            std::thread::yield_now();
            if self.bucket().checked_since(&call.key, racing) {
                break;
            }
        }
        Ok(written(self.bucket().write(&call.key, call.body.clone(), self.now())))
    }

    fn get(&self, call: &Call, view: View) -> Result<Reply, Reply> {
        let object = self.bucket().read(&call.key).ok_or_else(Reply::no_such_key)?;
        if call.header(header::IF_MATCH).is_some_and(|tags| !object.is_named_by(tags)) {
            return Err(Reply::precondition_failed());
        }
        let not_modified = call.header(header::IF_NONE_MATCH).is_some_and(|tags| object.is_named_by(tags));
        let reply = if not_modified { Reply::empty(StatusCode::NOT_MODIFIED) } else { Reply::empty(StatusCode::OK) };
        let mut reply = reply
            .with(header::ETAG, object.etag)
            .with(header::LAST_MODIFIED, http_date(object.modified))
            .with(header::CONTENT_TYPE, "application/octet-stream");
        if !not_modified {
            let body = match call.range() {
                Some(range) => {
                    let whole = object.body.len();
                    let (from, to) = (range.start, range.end.min(whole));
                    if from >= to {
                        let message = "The requested range is not satisfiable";
                        return Err(Reply::error(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", message));
                    }
                    let told = format!("bytes {from}-{}/{whole}", to - 1);
                    reply.status = StatusCode::PARTIAL_CONTENT;
                    reply = reply.with(header::CONTENT_RANGE, told);
                    object.body.slice(from..to)
                }
                None => object.body,
            };
            // Said aloud, because the answer to a HEAD has the length and not the body.
            reply = reply.with(header::CONTENT_LENGTH, body.len().to_string());
            reply.body = body;
        }
        if view == View::Corrupt {
            reply.flip_a_bit();
        }
        Ok(reply)
    }

    fn list(&self, call: &Call, view: View) -> Result<Reply, Reply> {
        let query = call.listing()?;
        let mut page = {
            let bucket = self.bucket();
            match view {
                View::Stale => Page::of(&bucket.before_the_last_write(), &query),
                _ => Page::of(bucket.objects(), &query),
            }
        };
        match view {
            View::Shuffled => page.shuffle(),
            View::Torn => page.tear(),
            View::Plain | View::Stale | View::Corrupt => {}
        }
        let url_encoded = call.parameter("encoding-type") == Some("url");
        Ok(Reply::xml(StatusCode::OK, xml::listing(S3Server::BUCKET, &query, &page, url_encoded)))
    }

    fn delete(&self, call: &Call) -> Reply {
        self.bucket().delete([call.key.as_str()]);
        Reply::empty(StatusCode::NO_CONTENT)
    }

    fn bulk_delete(&self, call: &Call) -> Result<Reply, Reply> {
        let malformed = || Reply::error(StatusCode::BAD_REQUEST, "MalformedXML", "The XML is not a list of deletes");
        let bulk = call.bulk.as_ref().filter(|bulk| bulk.names.len() <= 1000).ok_or_else(malformed)?;
        if self.is_denied(Op::Delete) {
            return Ok(Reply::xml(StatusCode::OK, bulk.denied()));
        }
        self.bucket().delete(bulk.names.iter().map(String::as_str));
        Ok(Reply::xml(StatusCode::OK, bulk.done()))
    }
}

fn written(etag: String) -> Reply {
    Reply::empty(StatusCode::OK).with(header::ETAG, etag)
}
