//! Who may call: a bearer token, and no page of another site that a browser was lured to.

use super::App;
use crate::wire::Problem;
use axum::{
    extract::{Request, State},
    http::{HeaderMap, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};
use std::{fmt, io, net::IpAddr, path::Path, sync::Arc};
use subtle::{Choice, ConstantTimeEq};

/// The shortest token that is taken: 16 random characters cannot be guessed over a network.
const SHORTEST: usize = 16;

/// What needs no token: it says nothing about what is stored.
const OPEN: [&str; 6] = ["/", "/page.css", "/page.js", "/livez", "/readyz", "/openapi.json"];

/// The tokens that are accepted, as hashes: comparing those takes the same time for every guess, of whatever length.
#[derive(Clone, Default)]
pub(super) struct Tokens(Arc<[[u8; 32]]>);

impl Tokens {
    /// From a file with one token in each line, so that a new one can be introduced before the old one goes.
    pub(super) fn read(file: &Path) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", file.display()));
        let text = std::fs::read_to_string(file)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
        let tokens: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if tokens.is_empty() {
            return Err(wrong("there is no token in it; try: head -c 24 /dev/urandom | base64"));
        }
        if tokens.iter().any(|token| token.len() < SHORTEST) {
            return Err(wrong("a token is shorter than 16 characters"));
        }
        if tokens.iter().any(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(wrong("a token has a character that cannot stand in a header"));
        }
        Ok(Self(tokens.into_iter().map(hash).collect()))
    }

    pub(super) fn are_required(&self) -> bool {
        !self.0.is_empty()
    }

    fn accept(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given =
            given.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = given else { return false };
        let token = hash(token.trim());
        let found = self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&token));
        found.into()
    }
}

/// Neither tokens nor their hashes are for logs.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The middleware in front of everything.
pub(super) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    match admit(&app, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn admit(app: &App, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    // A name of another site that points to this machine (DNS rebinding) makes a browser believe that we are that site.
    if app.loopback_only && !host.as_ref().is_some_and(|host| is_loopback(host.host())) {
        return Err(Problem::new("forbidden_host", "the service listens on loopback: call it 127.0.0.1 or localhost"));
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
        if origin.is_none() || origin != host.as_ref().map(Authority::as_str) {
            return Err(Problem::new(
                "forbidden_origin",
                "only the page of the service itself may call it from a browser",
            ));
        }
    }
    if app.tokens.are_required() && !OPEN.contains(&request.uri().path()) && !app.tokens.accept(headers) {
        return Err(Problem::new("unauthorized", "send the header `Authorization: Bearer TOKEN`"));
    }
    Ok(())
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.1", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "[::]", "127.1"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_known_by_its_hash_and_never_shown() {
        let tokens = Tokens([hash("0123456789abcdef")].into());
        let with = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(tokens.accept(&with("Bearer 0123456789abcdef")) && tokens.accept(&with("bearer 0123456789abcdef")));
        for wrong in ["Bearer 0123456789abcdeF", "Bearer ", "Bearer", "Basic 0123456789abcdef", "0123456789abcdef"] {
            assert!(!tokens.accept(&with(wrong)), "{wrong}");
        }
        assert!(!tokens.accept(&HeaderMap::new()));
        assert_eq!(format!("{tokens:?}"), "1 tokens");
    }
}
