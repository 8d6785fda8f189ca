//! What comes in: JSON bodies and query strings, bounded in size and time, with every mistake told apart.

use super::{App, limits};
use crate::wire::{self, Problem};
use axum::{
    RequestPartsExt,
    body::{Body as HttpBody, Bytes},
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{header, request::Parts},
};
use futures_util::StreamExt;
use leasehold::{Clock, Key, Leases, SystemClock, decision::TxnId};
use serde::de::DeserializeOwned;

/// A JSON body. None at all counts as `{}`.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &App) -> Result<Self, Problem> {
        let json =
            request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(|kind| {
                kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
            });
        let clock = SystemClock::new();
        let bytes = tokio::select! {
            biased;
            read = read(request.into_body()) => read?,
            () = clock.sleep(limits::BODY_TIME) => {
                return Err(Problem::new("slow_request", "the body did not arrive in time"));
            }
        };
        if bytes.is_empty() {
            return parse(Bytes::from_static(b"{}"));
        }
        if !json {
            return Err(Problem::new(
                "unsupported_media_type",
                "send JSON, with the header `Content-Type: application/json`",
            ));
        }
        parse(bytes)
    }
}

fn parse<T: DeserializeOwned>(bytes: Bytes) -> Result<Body<T>, Problem> {
    // Serde would take a list for the fields of an object, in their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("a body is a JSON object, this is a list"));
    }
    let mut json = serde_json::Deserializer::from_slice(&bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        wrong(error.inner(), Some(field.as_str()).filter(|field| *field != "."))
    })?;
    json.end().map_err(|error| wrong(&error, None))?;
    Ok(Body(parsed))
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
async fn read(body: HttpBody) -> Result<Bytes, Problem> {
    let (mut chunks, mut bytes, mut length) = (body.into_data_stream(), Vec::new(), 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Problem::invalid("the body could not be read"))?;
        length += chunk.len();
        if length <= limits::BODY {
            bytes.extend_from_slice(&chunk);
        } else if length > limits::THROWN_AWAY {
            break;
        }
    }
    match length {
        0..=limits::BODY => Ok(bytes.into()),
        _ => Err(Problem::new("body_too_large", format!("a body may have {} bytes", limits::BODY))),
    }
}

/// A query string. Values are bytes: a key need not be UTF-8, and must not become another one by being made so.
#[derive(Debug)]
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
