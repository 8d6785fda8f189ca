//! The page: three files inside of the binary, which may load nothing from anywhere else.

use axum::{
    http::header::{self, HeaderName},
    response::IntoResponse,
};

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn file(kind: &'static str, body: &'static str) -> impl IntoResponse {
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body)
}

pub(super) async fn html() -> impl IntoResponse {
    file("text/html; charset=utf-8", include_str!("page/page.html"))
}

pub(super) async fn css() -> impl IntoResponse {
    file("text/css; charset=utf-8", include_str!("page/page.css"))
}

pub(super) async fn js() -> impl IntoResponse {
    file("text/javascript; charset=utf-8", include_str!("page/page.js"))
}
