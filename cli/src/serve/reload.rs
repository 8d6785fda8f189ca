//! SIGHUP: tokens and certificates are read again. What cannot be read leaves what was there.

use super::{App, Serve};
use axum_server::tls_rustls::RustlsConfig;

/// Reads them again at every SIGHUP, for as long as the service runs.
#[cfg(unix)]
pub(super) async fn on_hangup(app: App, serve: Serve, tls: Option<RustlsConfig>) {
    let signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
    let Ok(mut signal) = signal else { return };
    while signal.recv().await.is_some() {
        reload(&app, &serve, tls.as_ref()).await;
    }
}

#[cfg(not(unix))]
pub(super) async fn on_hangup(_: App, _: Serve, _: Option<RustlsConfig>) {}

#[cfg_attr(not(unix), allow(dead_code, reason = "there is no SIGHUP"))]
async fn reload(app: &App, serve: &Serve, tls: Option<&RustlsConfig>) {
    if let Some(file) = &serve.token_file {
        match app.tokens.reload(file) {
            Ok(()) => tracing::warn!("the tokens were read again"),
            Err(error) => tracing::error!(%error, "the tokens could not be read again: those of before stay"),
        }
    }
    if let Some(tls) = tls {
        match serve.tls().await {
            Ok(Some(new)) => {
                tls.reload_from_config(new.get_inner());
                tracing::warn!("the certificate was read again: it holds for new connections");
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the certificate could not be read again: that of before stays"),
        }
    }
}
