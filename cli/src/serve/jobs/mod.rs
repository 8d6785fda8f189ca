//! Jobs over HTTP, for workers in any language.
//!
//! The service's own session in the store stands behind every claim. A worker has an id, and one renewal keeps everything
//! that it has in hand; one that stops renewing has its jobs taken away by the service. If the service itself dies, others
//! take over what its workers had, as they do with every process, and a late answer is told who has the job now.

mod claim;
mod desk;
mod ends;
mod enqueue;
mod look;
mod workers;

pub(super) use claim::*;
pub(super) use ends::*;
pub(super) use enqueue::*;
pub(super) use look::*;
pub(super) use workers::{Registry, reap};

use super::{App, input::Query};
use crate::wire::{self, Problem};
use axum::{
    RequestPartsExt,
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use desk::Desks;
use leasehold::{
    Namespace,
    job::{JobId, Queue},
};

/// How many jobs one request may bring, ask for, or answer for.
pub(super) const BATCH: usize = 1000;

/// How many jobs one enqueue may bring.
pub(super) const BULK: usize = 10_000;

/// What the service knows of those who work through it.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) workers: Registry,
    pub(super) desks: Desks,
}

/// A queue, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QueueName {
    pub(super) namespace: Namespace,
    pub(super) queue: String,
}

/// The queue that a path and its query name.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) name: QueueName,
    pub(super) queue: Queue,
    query: Query,
}

impl Named {
    /// With what else its query says, and nothing but these.
    pub(super) fn and(self, known: &[&str]) -> Result<(Self, Query), Problem> {
        let query = self.query.clone().only(&[known, &["namespace"]].concat())?;
        Ok((self, query))
    }

    /// With nothing but a namespace in its query.
    pub(super) fn alone(self) -> Result<Self, Problem> {
        Ok(self.and(&[])?.0)
    }
}

/// The names that can stand in a path as they are.
pub(super) fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
    (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['.', ':'])
}

/// A parameter of the path, decoded.
pub(super) async fn of_path(parts: &mut Parts, name: &str) -> Result<String, Problem> {
    let path = parts.extract::<RawPathParams>().await.map_err(|error| Problem::invalid(error.to_string()))?;
    let found = path.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
    found.ok_or_else(|| Problem::invalid(format!("{name:?} is missing in the path")))
}

impl FromRequestParts<App> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let queue = of_path(parts, "queue").await?;
        if !is_plain(&queue) {
            return Err(Problem::invalid(
                "the name of a queue has 1 to 64 of A-Z a-z 0-9 _ - . : here, and begins with none of the last two",
            ));
        }
        let query = Query::from_request_parts(parts, app).await?;
        let namespace = wire::namespace(query.text("namespace")?)?;
        let handle = app.store.queue(&queue)?.namespace(namespace.clone())?;
        Ok(Self { name: QueueName { namespace, queue }, queue: handle, query })
    }
}

/// The job that a path names.
#[derive(Debug)]
pub(super) struct OneJob(pub(super) JobId);

impl FromRequestParts<App> for OneJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let text = of_path(parts, "job").await?;
        match text.parse::<JobId>() {
            Ok(id) => Ok(Self(id)),
            Err(_) if is_uuid(&text) => Err(Problem::new("not_found", format!("no job has the id {text}"))),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a text looks like the id of a job, whether or not there can be one.
fn is_uuid(text: &str) -> bool {
    let plain = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        14 => byte == b'7',
        _ => byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'),
    };
    text.len() == 36 && text.bytes().enumerate().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_need_no_encoding_are_plain() {
        let longest = "q".repeat(64);
        for name in ["a", "emails", "E-mails_2.low", "team:emails", "-", longest.as_str()] {
            assert!(is_plain(name), "{name}");
        }
        let too_long = "q".repeat(65);
        for name in ["", ".", "..", ".hidden", ":a", "a/b", "a b", "é", too_long.as_str()] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
