//! The server's side: what becomes of one request.

use super::Shared;
use crate::{Answer, Fault, Op};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, client::conn::http1, header, http::request::Parts};
use hyper_util::rt::TokioIo;
use std::{io, sync::Arc};
use tokio::{net::TcpStream, sync::Mutex};

/// What the client gets.
pub(super) enum Outcome {
    Whole(Response<Bytes>),
    BrokenOff(Response<Bytes>),
    Drop,
    Hang,
}

impl Outcome {
    /// An answer that the server never gave.
    fn instead(answer: Answer) -> Self {
        match answer {
            Answer::Drop => Self::Drop,
            Answer::Hang => Self::Hang,
            Answer::Status(status) => {
                let code = if status == 503 { "SlowDown" } else { "InternalError" };
                let body = format!("<Error><Code>{code}</Code><Message>Said by a proxy.</Message></Error>");
                let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/xml");
                response.body(Bytes::from(body)).map_or(Self::Drop, Self::Whole)
            }
        }
    }
}

/// A connection to the server, opened when it is first needed.
#[derive(Default)]
pub(super) struct Upstream(Option<http1::SendRequest<Full<Bytes>>>);

impl Upstream {
    async fn sender(&mut self, shared: &Shared) -> io::Result<&mut http1::SendRequest<Full<Bytes>>> {
        let usable = self.0.take().filter(|sender| !sender.is_closed());
        let sender = match usable {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(&shared.upstream).await?;
                stream.set_nodelay(true)?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
                shared.spawn(async move {
                    let _ = connection.await;
                });
                sender
            }
        };
        Ok(self.0.insert(sender))
    }
}

/// A request that has been read to its end.
pub(super) struct Exchange {
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl Exchange {
    /// Carries a request out, and whatever goes wrong with it.
    pub(super) async fn carry_out(self, shared: &Arc<Shared>, upstream: Arc<Mutex<Upstream>>) -> Outcome {
        let fault = shared.faults.next(self.op(), self.parts.uri.path());
        let mut upstream = match fault {
            Some(Fault::Refuse(answer)) => return Outcome::instead(answer),
            Some(Fault::Late(after, answer)) => {
                let late = Arc::clone(shared);
                shared.spawn(async move {
                    late.clock.sleep(after).await;
                    // The client has gone on; its connection is in use.
                    let _ = self.forward(&late, &mut Upstream::default()).await;
                });
                return Outcome::instead(answer);
            }
            _ => upstream.lock_owned().await,
        };
        match fault {
            Some(Fault::Delay(by)) => shared.clock.sleep(by).await,
            Some(Fault::Duplicate) => drop(self.forward(shared, &mut upstream).await),
            _ => {}
        }
        // A server that is not there closes no connection of its own accord: the client sees what it would see.
        let Ok(response) = self.forward(shared, &mut upstream).await else { return Outcome::Drop };
        match fault {
            Some(Fault::Lose(answer)) => Outcome::instead(answer),
            Some(Fault::Truncate) if response.body().is_empty() => Outcome::Drop,
            Some(Fault::Truncate) => Outcome::BrokenOff(response),
            _ => Outcome::Whole(response),
        }
    }

    async fn forward(&self, shared: &Shared, upstream: &mut Upstream) -> io::Result<Response<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = self.parts.uri.clone();
        *request.headers_mut() = self.parts.headers.clone();
        let sender = upstream.sender(shared).await?;
        sender.ready().await.map_err(io::Error::other)?;
        let (mut parts, body) = sender.send_request(request).await.map_err(io::Error::other)?.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        for ours in [header::TRANSFER_ENCODING, header::CONNECTION] {
            parts.headers.remove(ours);
        }
        if self.parts.method != Method::HEAD && !body.is_empty() {
            parts.headers.insert(header::CONTENT_LENGTH, body.len().into());
        }
        Ok(Response::from_parts(parts, body))
    }

    /// What kind of request it is, of S3 or of Azure.
    fn op(&self) -> Op {
        let query = self.parts.uri.query().unwrap_or_default();
        let asks = |name: &str| {
            url::form_urlencoded::parse(query.as_bytes())
                .any(|(key, value)| key == name || format!("{key}={value}") == name)
        };
        match self.parts.method {
            Method::POST if asks("delete") || asks("comp=batch") => Op::Delete,
            Method::PUT | Method::POST => Op::Put,
            Method::DELETE => Op::Delete,
            _ if asks("list-type") || asks("comp=list") => Op::List,
            _ => Op::Get,
        }
    }
}
