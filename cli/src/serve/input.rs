//! What comes in: JSON bodies and query strings, bounded in size and time, with every mistake told apart.

use super::{App, limits};
use crate::wire::{self, Problem};
use axum::{
    RequestPartsExt,
    body::{Body as HttpBody, Bytes},
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{HeaderMap, header, request::Parts},
};
use futures_util::StreamExt;
use leasehold::{Clock, Key, Leases, SystemClock, decision::TxnId};
use serde::de::DeserializeOwned;
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A JSON body. None at all counts as `{}`.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

/// A JSON body with many things in it, and the room that it takes.
#[derive(Debug)]
pub(super) struct Batch<T>(pub(super) T, pub(super) Room);

/// The share of the memory for large bodies that one of them has, until it has been dealt with.
#[derive(Debug, Default)]
pub(super) struct Room(Option<OwnedSemaphorePermit>);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &App) -> Result<Self, Problem> {
        let json = is_json(&request);
        let bytes = in_time(limits::BODY_TIME, read(request.into_body(), limits::BODY, None)).await?.0;
        object(&bytes, json).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<App> for Batch<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let json = is_json(&request);
        let (bytes, room) = batch(app, request).await?;
        Ok(Self(object(&bytes, json)?, room))
    }
}

/// A large body, with the room that it takes.
pub(super) async fn batch(app: &App, request: Request) -> Result<(Bytes, Room), Problem> {
    in_time(limits::LARGE_BODY_TIME, read(request.into_body(), limits::LARGE_BODY, Some(&app.room))).await
}

async fn in_time<T>(limit: Duration, work: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let clock = SystemClock::new();
    tokio::select! {
        biased;
        done = work => done,
        () = clock.sleep(limit) => Err(Problem::new("slow_request", "the body did not arrive in time")),
    }
}

fn is_json(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn object<T: DeserializeOwned>(bytes: &[u8], json: bool) -> Result<T, Problem> {
    match (bytes.is_empty(), json) {
        (true, _) => parse(b"{}"),
        (false, true) => parse(bytes),
        (false, false) => {
            Err(Problem::new("unsupported_media_type", "send JSON, with the header `Content-Type: application/json`"))
        }
    }
}

/// One JSON object.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Serde would take a list for the fields of an object, in their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("a body is a JSON object, this is a list"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        wrong(error.inner(), Some(field.as_str()).filter(|field| *field != "."))
    })?;
    json.end().map_err(|error| wrong(&error, None))?;
    Ok(parsed)
}

/// The caller's own name for a request.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(id) = headers.get(wire::IDEMPOTENCY_KEY) else { return Ok(None) };
    let id = id.to_str().map_err(|_| Problem::invalid("the idempotency key has other characters than ASCII"))?;
    match id.len() {
        // An empty one names nothing.
        0 => Ok(None),
        1..=256 => Ok(Some(id)),
        _ => Err(Problem::invalid("the idempotency key has at most 256 characters")),
    }
}

/// What is wrong with a body, and with which of its fields.
fn wrong(error: &serde_json::Error, field: Option<&str>) -> Problem {
    let text = error.to_string();
    if error.classify() != serde_json::error::Category::Data {
        return Problem::new("invalid_json", text);
    }
    // Where it stands in the text says less than its name.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    match field {
        Some(field) if !text.contains(&format!("`{field}`")) => Problem::invalid(format!("`{field}`: {text}")),
        _ => Problem::invalid(text),
    }
}

/// All of a body. One that is too long is read on for a while and thrown away: a client that is cut off in the middle of its
/// sentence does not hear why.
async fn read(body: HttpBody, most: usize, room: Option<&Arc<Semaphore>>) -> Result<(Bytes, Room), Problem> {
    let (mut chunks, mut bytes, mut length) = (body.into_data_stream(), Vec::new(), 0);
    let mut taken = Room::default();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Problem::invalid("the body could not be read"))?;
        length += chunk.len();
        if length <= most {
            if let Some(room) = room {
                taken.grow(room, length)?;
            }
            bytes.extend_from_slice(&chunk);
        } else if length > limits::THROWN_AWAY + most {
            break;
        }
    }
    match length <= most {
        true => Ok((bytes.into(), taken)),
        false => Err(Problem::new("body_too_large", format!("a body may have {most} bytes"))),
    }
}

impl Room {
    /// Room for so many bytes. The first ones cost nothing: every connection has that much.
    fn grow(&mut self, room: &Arc<Semaphore>, bytes: usize) -> Result<(), Problem> {
        let has = self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = (bytes / limits::BODY).saturating_sub(has);
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let permit = Arc::clone(room).try_acquire_many_owned(more).map_err(|_| Problem {
            retry_after_ms: Some(1000),
            ..Problem::new("too_much_at_once", "large requests are under way already: send it again later")
        })?;
        match &mut self.0 {
            Some(known) => known.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }
}

/// A query string. Values are bytes: a key need not be UTF-8, and must not become another one by being made so.
#[derive(Debug, Clone)]
pub(super) struct Query(Vec<(String, Vec<u8>)>);

impl FromRequestParts<App> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let pairs = parts.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let decode = |text: &str| percent_encoding::percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>();
        let mut query = Vec::new();
        for pair in pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8_lossy(&decode(name)).into_owned();
            if query.iter().any(|(there, _)| *there == name) {
                return Err(Problem::invalid(format!("{name:?} is there twice")));
            }
            query.push((name, decode(value)));
        }
        Ok(Self(query))
    }
}

impl Query {
    /// Refuses what is none of these: a misspelt parameter would be a silent mistake.
    pub(super) fn only(self, known: &[&str]) -> Result<Self, Problem> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => {
                Err(Problem::invalid(format!("{name:?} is no parameter: there are {}", known.join(", "))))
            }
            None => Ok(self),
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(there, _)| there == name).map(|(_, value)| &value[..])
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        let text = self.bytes(name).map(std::str::from_utf8).transpose();
        text.map_err(|_| Problem::invalid(format!("{name:?} is not UTF-8")))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.text(name)? {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::invalid(format!("{name:?} is true or false"))),
        }
    }

    pub(super) fn number(&self, name: &str, least: usize, most: usize) -> Result<Option<usize>, Problem> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| Problem::invalid(format!("{name:?} is a number from {least} to {most}")))
    }

    /// The leases of the namespace, and the key.
    pub(super) fn key(&self, app: &App, name: &str) -> Result<(Leases, Key), Problem> {
        let key = self.bytes(name).ok_or_else(|| Problem::invalid(format!("{name:?} is missing")))?;
        Ok((self.leases(app)?, Key::new(key)?))
    }

    pub(super) fn leases(&self, app: &App) -> Result<Leases, Problem> {
        Ok(app.store.leases(wire::namespace(self.text("namespace")?)?)?)
    }
}

/// The transaction that a path names.
#[derive(Debug)]
pub(super) struct Transaction(pub(super) TxnId);

impl FromRequestParts<App> for Transaction {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let Path(text) = parts.extract::<Path<String>>().await.map_err(|error| Problem::invalid(error.to_string()))?;
        Ok(Self(text.parse()?))
    }
}
