//! The client's side: sockets, and requests read to their end.

use super::{
    Shared,
    exchange::{Exchange, Outcome, Upstream},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::{Request, Response, body::Frame, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Mutex, oneshot},
};

/// An answer's body: whole, or one that breaks off.
type Body = Either<Full<Bytes>, StreamBody<stream::BoxStream<'static, io::Result<Frame<Bytes>>>>>;

/// Takes connections for as long as the proxy lives.
pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if !shared.blocked.load(Ordering::SeqCst) => {
                shared.spawn(serve(Arc::clone(&shared), stream));
            }
            // The network is down, or a connection is gone before it was taken: the next one may do better.
            Ok(_) | Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// One connection of a client has one of its own to the server, so that neither is opened for each request.
async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut cuts = shared.cuts.subscribe();
    let upstream = Arc::new(Mutex::new(Upstream::default()));
    let service = service_fn(move |request| answer(Arc::clone(&shared), Arc::clone(&upstream), request));
    let serving = http1::Builder::new().auto_date_header(false).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // An error is a client that went away, or a connection that is dropped as a fault.
        _ = serving => {}
        _ = cuts.changed() => {}
    }
}

/// An error closes the connection without a byte having been written.
async fn answer(
    shared: Arc<Shared>,
    upstream: Arc<Mutex<Upstream>>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    shared.passed.fetch_add(1, Ordering::SeqCst);
    let exchange = Exchange { parts, body };
    // A task of its own: what the server has received goes on, even if the connection is cut.
    let (tell, told) = oneshot::channel();
    let carrier = Arc::clone(&shared);
    shared.spawn(async move {
        let _ = tell.send(exchange.carry_out(&carrier, upstream).await);
    });
    match told.await {
        Ok(Outcome::Whole(response)) => Ok(response.map(|body| Either::Left(Full::new(body)))),
        Ok(Outcome::BrokenOff(response)) => Ok(response.map(broken_off)),
        Ok(Outcome::Hang) => std::future::pending().await,
        Ok(Outcome::Drop) | Err(_) => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
    }
}

/// The first half. The length that was announced is that of the whole, so the client knows.
fn broken_off(whole: Bytes) -> Body {
    let half = Ok(Frame::data(whole.slice(..whole.len() / 2)));
    let end = Err(io::Error::from(io::ErrorKind::ConnectionAborted));
    // In between the half goes out.
    let end = stream::once(async {
        tokio::task::yield_now().await;
        end
    });
    Either::Right(StreamBody::new(stream::iter([half]).chain(end).boxed()))
}
