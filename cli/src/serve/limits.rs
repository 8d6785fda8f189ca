//! How much of it a client may have: bytes, time, connections, and places to wait in.

use super::{App, answer::line};
use crate::wire::Problem;
use axum_server::accept::Accept;
use leasehold::{Clock, SystemClock};
use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// The longest body: the longest key and note in JSON fit in several times.
pub(super) const BODY: usize = 64 * 1024;

/// The longest body that brings many jobs, or answers for many.
pub(super) const LARGE_BODY: usize = 16 * 1024 * 1024;

/// How much memory all large bodies that are under way may take together, in pieces of [`BODY`].
pub(super) const ROOM: usize = 4096;

/// How much of a longer one is read all the same.
pub(super) const THROWN_AWAY: usize = 16 * 1024 * 1024;

/// How long a body may take to arrive.
pub(super) const BODY_TIME: Duration = Duration::from_secs(10);

/// How long a large body may take to arrive.
pub(super) const LARGE_BODY_TIME: Duration = Duration::from_secs(60);

/// How long the headers may take to arrive.
pub(super) const HEADER_TIME: Duration = Duration::from_secs(10);

/// The longest head of a request, which hyper also takes as the size of its buffer.
pub(super) const HEADERS: usize = 32 * 1024;

/// How many keys a page of a listing has at the most: each is a read.
pub(super) const PAGE: usize = 500;

impl App {
    /// A place to wait in, for as long as it is kept. Somebody who waits costs memory and a connection.
    pub(super) fn seat(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.seats).try_acquire_owned().map_err(|_| Problem {
            retry_after_ms: Some(1000),
            ..Problem::new("too_many_waiting", "all places to wait in are taken: try without waiting, or later")
        })
    }
}

/// Bounds the connections, and answers those who are slow to say what they want. Hyper would only hang up on them.
#[derive(Debug, Clone)]
pub(super) struct Patience<A> {
    inner: A,
    connections: Arc<Semaphore>,
}

impl<A> Patience<A> {
    pub(super) fn new(inner: A, connections: usize) -> Self {
        Self { inner, connections: Arc::new(Semaphore::new(connections)) }
    }
}

impl<A, I, S> Accept<I, S> for Patience<A>
where
    A: Accept<I, S> + Clone + Send + 'static,
    A::Future: Send,
    A::Stream: Send,
    A::Service: Send,
    I: Send + 'static,
    S: Send + 'static,
{
    type Stream = Patient<A::Stream>;
    type Service = A::Service;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, Self::Service)>> + Send>>;

    fn accept(&self, stream: I, service: S) -> Self::Future {
        let (inner, connections) = (self.inner.clone(), Arc::clone(&self.connections));
        Box::pin(async move {
            let full = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "too many connections");
            let permit = connections.try_acquire_owned().map_err(full)?;
            let (stream, service) = inner.accept(stream, service).await?;
            let deadline = Box::pin(async { SystemClock::new().sleep(HEADER_TIME).await });
            let head = Head::Arriving { deadline, matched: 0 };
            Ok((Patient { stream, head, late: None, _permit: permit }, service))
        })
    }
}

/// A connection whose first request must have arrived in time. Those after it are left to hyper.
pub(super) struct Patient<I> {
    stream: I,
    head: Head,
    /// What is left to say to one who is late.
    late: Option<(Vec<u8>, usize)>,
    _permit: OwnedSemaphorePermit,
}

enum Head {
    /// Until the empty line: how much of it was seen last.
    Arriving {
        deadline: Pin<Box<dyn Future<Output = ()> + Send>>,
        matched: usize,
    },
    Arrived,
}

impl<I> fmt::Debug for Patient<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patient").finish_non_exhaustive()
    }
}

/// How much of an empty line stands at the end, after these bytes.
fn after(matched: usize, bytes: &[u8]) -> usize {
    const EMPTY_LINE: &[u8] = b"\r\n\r\n";
    bytes.iter().fold(matched, |matched, byte| match matched {
        4 => 4,
        _ if *byte == EMPTY_LINE[matched] => matched + 1,
        _ => usize::from(*byte == b'\r'),
    })
}

fn too_late() -> Vec<u8> {
    let body = line(&Problem::new("slow_request", "the headers did not arrive in time"));
    let head = "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json\r\nconnection: close";
    let mut answer = format!("{head}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend(body);
    answer
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        if this.late.is_none() {
            let polled = Pin::new(&mut this.stream).poll_read(context, buffer)?;
            let Head::Arriving { deadline, matched } = &mut this.head else { return polled.map(Ok) };
            if polled.is_ready() {
                *matched = after(*matched, &buffer.filled()[before..]);
                if *matched == 4 {
                    this.head = Head::Arrived;
                }
                return Poll::Ready(Ok(()));
            }
            ready!(deadline.as_mut().poll(context));
            this.late = Some((too_late(), 0));
        }
        // Said, then taken for the end of what the client had to say.
        while let Some((answer, sent)) = &mut this.late
            && *sent < answer.len()
        {
            match ready!(Pin::new(&mut this.stream).poll_write(context, &answer[*sent..]))? {
                0 => break,
                written => *sent += written,
            }
        }
        ready!(Pin::new(&mut this.stream).poll_flush(context))?;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_line_is_found_however_it_arrives() {
        for (pieces, found) in [
            (&["GET / HTTP/1.1\r\nhost: a\r\n\r\n"][..], true),
            (&["GET / HTTP/1.1\r\n", "\r", "\n"], true),
            (&["\r\n\r", "\r\n\r\n"], true),
            (&["GET / HTTP/1.1\r\nhost: a\r\n"], false),
            (&["\r\n", "a\r\n"], false),
        ] {
            let matched = pieces.iter().fold(0, |matched, piece| after(matched, piece.as_bytes()));
            assert_eq!(matched == 4, found, "{pieces:?}");
        }
    }
}
