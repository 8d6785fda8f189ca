//! From sockets to requests and back.

use super::{Shared, call::Call, handler::Outcome};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{io, sync::Arc};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

/// Takes connections for as long as the server lives.
pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => shared.spawn(serve(Arc::clone(&shared), stream)),
            // A connection that is gone before it was taken, or no more files: the next one may do better.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(Arc::clone(&shared), request));
    // The `Date` is ours to set. An error here is a client that went away, or a connection dropped as a fault.
    let _ = http1::Builder::new().auto_date_header(false).serve_connection(TokioIo::new(stream), service).await;
}

/// An error closes the connection without a byte having been written.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let call = Call::new(parts, body);
    let answered = shared.log.add(&call);
    // A task of its own: a server that has the whole request goes on with it even if its client hangs up.
    let (tell, told) = oneshot::channel();
    let handler = Arc::clone(&shared);
    shared.spawn(async move {
        let _ = tell.send(handler.handle(call).await);
    });
    match told.await {
        Ok(Outcome::Reply(reply)) => {
            let _ = answered.set(reply.status.as_u16());
            Ok(reply.into_response(shared.date()))
        }
        Ok(Outcome::Hang) => std::future::pending().await,
        Ok(Outcome::Drop) | Err(_) => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
    }
}
