//! JSON answers, which end with a newline for people at a terminal.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Json<T>(pub(super) T);

/// JSON, and a newline.
pub(super) fn line(value: &impl Serialize) -> Vec<u8> {
    let mut body = serde_json::to_vec(value).unwrap_or_default();
    body.push(b'\n');
    body
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], line(&self.0)).into_response()
    }
}
