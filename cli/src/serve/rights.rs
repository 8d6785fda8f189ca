//! What a token may do, and where: read, lock, work or operate, in namespaces, queues and streams that fit patterns.

use crate::wire::Problem;
use axum::http::{Method, Uri};
use leasehold::Namespace;
use std::fmt;

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// Look at everything, and change nothing.
    Read,
    /// Leases, elections, semaphores, decisions.
    Lock,
    /// Enqueue, claim, answer, cancel; publish.
    Work,
    /// Take leases away, sweep, change what holds for everybody.
    Operate,
}

const RIGHTS: [(Right, &str); 4] =
    [(Right::Read, "read"), (Right::Lock, "lock"), (Right::Work, "work"), (Right::Operate, "operate")];

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = RIGHTS.iter().find(|(right, _)| right == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// Over what a request extends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// The namespace that its query names.
    Namespace,
    /// The namespace that its body names: its handler asks.
    Body,
    /// The queue that its path names, in the namespace of its query.
    Queue,
    /// Only what whoever sends it has itself: a worker and its id.
    Own,
    /// Everything.
    All,
}

/// What each request needs. One that is not here is refused to every token that has limits.
#[rustfmt::skip]
pub(super) const NEEDS: &[(&str, &str, Right, Over)] = &[
    ("POST", "/v1/acquire", Right::Lock, Over::Body),
    ("POST", "/v1/renew", Right::Lock, Over::Body),
    ("POST", "/v1/release", Right::Lock, Over::Body),
    ("POST", "/v1/force-release", Right::Operate, Over::Body),
    ("GET", "/v1/lease", Right::Read, Over::Namespace),
    ("GET", "/v1/leases", Right::Read, Over::Namespace),
    ("POST", "/v1/check", Right::Read, Over::Body),
    ("GET", "/v1/watch", Right::Read, Over::Namespace),
    ("POST", "/v1/elections/campaign", Right::Lock, Over::Body),
    ("POST", "/v1/elections/resign", Right::Lock, Over::Body),
    ("GET", "/v1/elections/leader", Right::Read, Over::Namespace),
    ("GET", "/v1/elections/observe", Right::Read, Over::Namespace),
    ("POST", "/v1/semaphores/acquire", Right::Lock, Over::Body),
    ("POST", "/v1/semaphores/renew", Right::Lock, Over::Body),
    ("POST", "/v1/semaphores/release", Right::Lock, Over::Body),
    ("POST", "/v1/semaphores/resize", Right::Operate, Over::Body),
    ("GET", "/v1/semaphore", Right::Read, Over::Namespace),
    ("POST", "/v1/txns", Right::Lock, Over::All),
    ("GET", "/v1/txns/{txn}", Right::Read, Over::All),
    ("DELETE", "/v1/txns/{txn}", Right::Lock, Over::All),
    ("POST", "/v1/txns/{txn}/decide", Right::Lock, Over::All),
    ("GET", "/v1/sweep", Right::Read, Over::All),
    ("POST", "/v1/sweep", Right::Operate, Over::All),
    ("GET", "/v1/overview", Right::Read, Over::All),
    ("GET", "/metrics", Right::Read, Over::All),
    ("POST", "/v1/workers", Right::Work, Over::Own),
    ("DELETE", "/v1/workers/{worker}", Right::Work, Over::Own),
    ("POST", "/v1/workers/{worker}/renew", Right::Work, Over::Own),
    ("GET", "/v1/queues/{queue}", Right::Read, Over::Queue),
    ("POST", "/v1/queues/{queue}/jobs", Right::Work, Over::Queue),
    ("GET", "/v1/queues/{queue}/jobs/{job}", Right::Read, Over::Queue),
    ("POST", "/v1/queues/{queue}/jobs/{job}/cancel", Right::Work, Over::Queue),
    ("POST", "/v1/queues/{queue}/claim", Right::Work, Over::Queue),
    ("POST", "/v1/queues/{queue}/finish", Right::Work, Over::Queue),
    ("POST", "/v1/queues/{queue}/fail", Right::Work, Over::Queue),
    ("POST", "/v1/queues/{queue}/snooze", Right::Work, Over::Queue),
    ("POST", "/v1/queues/{queue}/release", Right::Work, Over::Queue),
];

/// What a token may do. Without limits it may do everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rights {
    /// `None`: all of them.
    rights: Option<Vec<Right>>,
    /// `None`: everywhere.
    namespaces: Option<Vec<String>>,
    queues: Option<Vec<String>>,
}

/// Whether a name fits a pattern, in which `*` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(start) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let end = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some(at) = left.find(piece) else { return false };
        left = &left[at + piece.len()..];
    }
    left.ends_with(end)
}

fn allowed(patterns: Option<&Vec<String>>, name: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| fits(pattern, name)))
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new("forbidden", detail)
}

impl Rights {
    /// From what follows a token in its line: `rights=read,work namespaces=team-* queues=mail,mail-*`.
    pub(super) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut rights = Self::default();
        for word in words {
            let (name, values) =
                word.split_once('=').ok_or_else(|| format!("{word:?} is not of the form name=value"))?;
            let values: Vec<&str> = values.split(',').filter(|value| !value.is_empty()).collect();
            let texts = || Some(values.iter().map(|value| (*value).to_owned()).collect());
            match name {
                "rights" => {
                    let known = |value: &&str| RIGHTS.iter().find(|(_, name)| name == value).map(|(right, _)| *right);
                    let all: Option<Vec<Right>> = values.iter().map(known).collect();
                    let all = all.ok_or_else(|| format!("{word:?}: there are read, lock, work and operate"))?;
                    rights.rights = Some(all);
                }
                "namespaces" => rights.namespaces = texts(),
                "queues" => rights.queues = texts(),
                _ => return Err(format!("{name:?} is none of rights, namespaces and queues")),
            }
        }
        Ok(rights)
    }

    fn has(&self, right: Right) -> Result<(), Problem> {
        match self.rights.as_ref().is_none_or(|rights| rights.contains(&right)) {
            true => Ok(()),
            false => Err(forbidden(format!("this token does not have the right to {right}"))),
        }
    }

    /// Whether it extends to a namespace.
    pub(super) fn namespace(&self, namespace: &Namespace) -> Result<(), Problem> {
        match allowed(self.namespaces.as_ref(), namespace.as_str()) {
            true => Ok(()),
            false => Err(forbidden(format!("this token does not extend to the namespace {namespace}"))),
        }
    }

    fn everything(&self) -> Result<(), Problem> {
        match self.namespaces.is_none() && self.queues.is_none() {
            true => Ok(()),
            false => Err(forbidden("this concerns more than the namespaces and queues to which this token is limited")),
        }
    }

    /// Whether it allows a request to this route.
    pub(super) fn allow(&self, method: &Method, route: &str, uri: &Uri) -> Result<(), Problem> {
        let need = NEEDS.iter().find(|(known, path, ..)| *known == method.as_str() && *path == route);
        let Some((_, _, right, over)) = need else {
            return if *self == Self::default() { Ok(()) } else { Err(forbidden("this needs a token without limits")) };
        };
        self.has(*right)?;
        match over {
            Over::Body | Over::Own => Ok(()),
            Over::All => self.everything(),
            Over::Namespace => self.named_by(uri),
            Over::Queue => {
                self.named_by(uri)?;
                let at = route.split('/').position(|piece| piece == "{queue}").unwrap_or(usize::MAX);
                let queue = decoded(uri.path().split('/').nth(at).unwrap_or_default());
                match allowed(self.queues.as_ref(), &queue) {
                    true => Ok(()),
                    false => Err(forbidden(format!("this token does not extend to the queue {queue:?}"))),
                }
            }
        }
    }

    /// Whether it extends to the namespace that a query names. One that is wrong is for the handler to refuse.
    fn named_by(&self, uri: &Uri) -> Result<(), Problem> {
        let pairs = uri.query().unwrap_or_default().split('&');
        let mut named = pairs.filter_map(|pair| pair.split_once('=')).filter(|(name, _)| decoded(name) == "namespace");
        let name = named.next().map_or_else(|| "default".to_owned(), |(_, value)| decoded(value));
        match allowed(self.namespaces.as_ref(), &name) {
            true => Ok(()),
            false => Err(forbidden(format!("this token does not extend to the namespace {name:?}"))),
        }
    }
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name, fit) in [
            ("mail", "mail", true),
            ("mail", "mails", false),
            ("mail*", "mails", true),
            ("*", "anything", true),
            ("*-low", "mail-low", true),
            ("*-low", "mail-low-2", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern, name), fit, "{pattern} {name}");
        }
    }

    #[test]
    fn a_line_says_what_its_token_may_do() {
        let words: Vec<&str> = "rights=read,work namespaces=team-* queues=mail,mail-*".split(' ').collect();
        let rights = Rights::parse(&words).unwrap();
        let ask = |method: &str, route: &str, uri: &str| {
            rights.allow(&method.parse().unwrap(), route, &uri.parse().unwrap()).is_ok()
        };
        assert!(ask("POST", "/v1/queues/{queue}/claim", "/v1/queues/mail-2/claim?namespace=team-a"));
        assert!(ask("POST", "/v1/queues/{queue}/claim", "/v1/queues/mail%2D2/claim?namespace=team%2Da"));
        for (method, route, uri) in [
            ("POST", "/v1/queues/{queue}/claim", "/v1/queues/mail/claim"),
            ("POST", "/v1/queues/{queue}/claim", "/v1/queues/mail/claim?namespace=other"),
            ("POST", "/v1/queues/{queue}/claim", "/v1/queues/other/claim?namespace=team-a"),
            ("POST", "/v1/acquire", "/v1/acquire"),
            ("GET", "/v1/overview", "/v1/overview"),
            ("GET", "/v1/brand-new", "/v1/brand-new"),
        ] {
            assert!(!ask(method, route, uri), "{method} {uri}");
        }
        assert!(Rights::default().allow(&Method::POST, "/v1/brand-new", &Uri::from_static("/v1/brand-new")).is_ok());
        for wrong in ["rights=reed", "read", "queue=mail", "rights"] {
            assert!(Rights::parse(&[wrong]).is_err(), "{wrong}");
        }
        assert_eq!(Rights::parse(&[]), Ok(Rights::default()));
    }
}
