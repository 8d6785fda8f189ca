//! Who may call: a bearer token, and no page of another site that a browser was lured to.

use super::{App, rights::Rights};
use crate::wire::{self, Problem};
use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, Method, header, request::Parts, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use leasehold::Namespace;
use sha2::{Digest, Sha256};
use std::{
    fmt, io,
    net::IpAddr,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};
use subtle::ConstantTimeEq;

/// The shortest token that is taken: 16 random characters cannot be guessed over a network.
const SHORTEST: usize = 16;

/// What needs no token: it says nothing about what is stored.
const OPEN: [&str; 6] = ["/", "/page.css", "/page.js", "/livez", "/readyz", "/openapi.json"];

/// A token's hash, and what it may do.
type Token = ([u8; 32], Arc<Rights>);

/// The tokens that are accepted, as hashes: comparing those takes the same time for every guess, of whatever length.
#[derive(Default)]
pub(super) struct Tokens(RwLock<Arc<[Token]>>);

/// What whoever sent a request may do, for handlers that learn from its body what it is about.
#[derive(Debug, Clone)]
pub(super) struct Access(Arc<Rights>);

impl Access {
    /// The namespace that a body names, if the token extends to it.
    pub(super) fn namespace(&self, name: Option<&str>) -> Result<Namespace, Problem> {
        let namespace = wire::namespace(name)?;
        self.0.namespace(&namespace)?;
        Ok(namespace)
    }
}

impl FromRequestParts<App> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        // The middleware in front of everything has put it there.
        let access = parts.extensions.get::<Self>().cloned();
        access.ok_or_else(|| Problem::new("forbidden", "nobody has said what this request may do"))
    }
}

impl Tokens {
    /// From a file with one token in each line, so that a new one can be introduced before the old one goes.
    pub(super) fn read(file: &Path) -> io::Result<Self> {
        Ok(Self(RwLock::new(read(file)?)))
    }

    /// Reads them again. If that fails, those of before stay.
    pub(super) fn reload(&self, file: &Path) -> io::Result<()> {
        let tokens = read(file)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tokens;
        Ok(())
    }

    fn all(&self) -> Arc<[Token]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn are_required(&self) -> bool {
        !self.all().is_empty()
    }

    /// What the token of a request may do.
    fn accept(&self, headers: &HeaderMap) -> Option<Arc<Rights>> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok())?;
        let (_, token) = given.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))?;
        let token = hash(token.trim());
        let mut found = None;
        for (known, rights) in self.all().iter() {
            if bool::from(known.ct_eq(&token)) {
                found = Some(Arc::clone(rights));
            }
        }
        found
    }
}

fn read(file: &Path) -> io::Result<Arc<[Token]>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", file.display()));
    let text = std::fs::read_to_string(file)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((token, limits)) = words.split_first().filter(|(first, _)| **first != "#") else { continue };
        if token.len() < SHORTEST {
            return Err(wrong("a token is shorter than 16 characters"));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("a token has a character that cannot stand in a header"));
        }
        let rights = Rights::parse(limits).map_err(|what| wrong(&format!("line {}: {what}", number + 1)))?;
        tokens.push((hash(token), Arc::new(rights)));
    }
    match tokens.is_empty() {
        true => Err(wrong("there is no token in it; try: head -c 24 /dev/urandom | base64")),
        false => Ok(tokens.into()),
    }
}

/// Neither tokens nor their hashes are for logs.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.all().len())
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The middleware in front of everything.
pub(super) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match admit(&app, &request) {
        Ok(access) => {
            request.extensions_mut().insert(access);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

fn admit(app: &App, request: &Request) -> Result<Access, Problem> {
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
    if !app.tokens.are_required() || OPEN.contains(&request.uri().path()) {
        return Ok(Access(Arc::default()));
    }
    let Some(rights) = app.tokens.accept(headers) else {
        return Err(Problem::new("unauthorized", "send the header `Authorization: Bearer TOKEN`"));
    };
    // A path that is none is told so.
    if let Some(route) = request.extensions().get::<MatchedPath>() {
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        rights.allow(method, route.as_str(), request.uri())?;
    }
    Ok(Access(rights))
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
        let tokens = Tokens(RwLock::new([(hash("0123456789abcdef"), Arc::default())].into()));
        let accept = |headers: &HeaderMap| tokens.accept(headers).is_some();
        let with = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(accept(&with("Bearer 0123456789abcdef")) && accept(&with("bearer 0123456789abcdef")));
        for wrong in ["Bearer 0123456789abcdeF", "Bearer ", "Bearer", "Basic 0123456789abcdef", "0123456789abcdef"] {
            assert!(!accept(&with(wrong)), "{wrong}");
        }
        assert!(!accept(&HeaderMap::new()));
        assert_eq!(format!("{tokens:?}"), "1 tokens");
    }
}
