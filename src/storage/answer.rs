//! What an `object_store` error means to us. No other room looks at one.

use super::local::LocalError;
use crate::{Error, ErrorKind};
use object_store::Error as StoreError;
use std::{error::Error as _, io};

/// There is no such object (or, on a write, no such bucket).
pub(crate) fn is_missing(error: &StoreError) -> bool {
    matches!(error, StoreError::NotFound { .. })
}

/// It is the bucket that is missing.
pub(crate) fn is_bucket_missing(error: &StoreError) -> bool {
    matches!(s3_code(&chain(error)), Some("NoSuchBucket" | "ContainerNotFound"))
}

/// A condition was not met, or may not have been. Never proof that a write did not happen.
pub(crate) fn is_conflict(error: &StoreError) -> bool {
    matches!(error, StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } | StoreError::NotModified { .. })
}

/// The store asks for patience. Known by its words only: the status is not part of the error.
pub(crate) fn is_throttling(error: &StoreError) -> bool {
    let text = chain(error);
    ["SlowDown", "429 ", "503 ", "status 429", "status 503"].iter().any(|words| text.contains(words))
}

const WRONG_AZURE_CREDENTIALS: &str =
    "check the credentials (for Azure: AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY)";
const ADVICE_ON_CREDENTIALS: [&str; 3] = [WRONG_CREDENTIALS, WRONG_AZURE_CREDENTIALS, NO_CREDENTIALS];
const WRONG_CREDENTIALS: &str =
    "check the credentials (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)";
const NO_CREDENTIALS: &str = "no credentials were found: set them in the environment (for S3: AWS_ACCESS_KEY_ID and \
                              AWS_SECRET_ACCESS_KEY)";

/// Whether the credentials are at fault, and not what they may do.
pub(crate) fn blames_credentials(error: &Error) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::Denied && ADVICE_ON_CREDENTIALS.iter().any(|advice| text.ends_with(advice))
}

/// The public error for an answer that was not Ok: what was being done, what the store said, what to do next.
/// `answered` is whether the store ever has, to these credentials.
pub(crate) fn explain(error: StoreError, doing: &str, place: &str, answered: bool) -> Error {
    let text = chain(&error);
    let code = s3_code(&text);
    let (kind, advice) = judge(&error, code, &text, answered);
    if let Some(local) = local(&error) {
        let advice = local.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
        let told = Error::new(kind, format!("{doing} in {place} failed: {local}{advice}"));
        let told = if matches!(local, LocalError::DiskFull { .. }) { told.without_effect() } else { told };
        return told.with_source(error);
    }
    let said = reason(&error, &text);
    Error::new(kind, format!("{doing} in {place} failed: {said}; {advice}")).with_source(error)
}

fn judge(error: &StoreError, code: Option<&str>, text: &str, answered: bool) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Denied, Unavailable};
    match code {
        Some("NoSuchBucket" | "ContainerNotFound") => {
            return (Config, "the bucket does not exist: create it, or correct the URL or the endpoint");
        }
        Some("RequestTimeTooSkewed") => return (Config, "set this machine's clock: the store refuses its signature"),
        Some("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken") => {
            return (Denied, WRONG_CREDENTIALS);
        }
        Some("AuthenticationFailed" | "AuthorizationFailure") => {
            return (Denied, WRONG_AZURE_CREDENTIALS);
        }
        // A listing or a bulk delete that is not allowed has no variant of its own.
        Some("AccessDenied" | "AuthorizationPermissionMismatch" | "403")
            if !matches!(error, StoreError::PermissionDenied { .. }) =>
        {
            return (Denied, "grant the missing permission or use other credentials");
        }
        Some("PermanentRedirect" | "AuthorizationHeaderMalformed") => {
            return (Config, "check the region and the endpoint");
        }
        _ => {}
    }
    match error {
        // Without s3:ListBucket, S3 answers a read of a missing object with 403 instead of 404.
        StoreError::PermissionDenied { .. } => (
            Denied,
            "grant the missing permission (on S3, reading an object that may be missing needs s3:ListBucket too) or use other credentials",
        ),
        StoreError::Unauthenticated { .. } => (Denied, WRONG_CREDENTIALS),
        StoreError::NotFound { .. } => {
            (Config, "the bucket does not exist or cannot be seen: create it, or correct the URL or the endpoint")
        }
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
            (Config, "this store cannot be used for locks")
        }
        StoreError::InvalidPath { .. } => (Config, "correct the prefix in the URL"),
        StoreError::UnknownConfigurationKey { .. } => (Config, "correct the option's name"),
        _ if io_kind(error) == Some(io::ErrorKind::StorageFull) => (Unavailable, "free some space"),
        // With no credentials to be found the client asks the machine's own service for some. Where there were some before,
        // it is only slow to give new ones.
        _ if ["169.254.169.254", "169.254.170.2", "metadata.google.internal"]
            .iter()
            .any(|host| text.contains(host)) =>
        {
            match answered {
                true => (Unavailable, "the service that hands out credentials does not answer: try again later"),
                false => (Denied, NO_CREDENTIALS),
            }
        }
        _ if text.contains("missing LOCATION") => (Config, "check the region and the endpoint"),
        _ => (Unavailable, "try again later"),
    }
}

/// All of an error's messages: `object_store` hides the server's words in its sources.
fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

/// What went wrong on a local disk, which says itself what to do: advice on buckets does not belong there.
fn local(error: &StoreError) -> Option<&LocalError> {
    error.source().and_then(|source| source.downcast_ref())
}

fn io_kind(error: &StoreError) -> Option<io::ErrorKind> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        source = error.source();
    }
    None
}

fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once('<')?.0)
}

fn s3_code(text: &str) -> Option<&str> {
    element(text, "Code").or_else(|| code_of_one_name(text))
}

/// A bulk delete is answered name by name, and the client has read that already: by S3's code, or Azure's status.
fn code_of_one_name(text: &str) -> Option<&str> {
    let (_, code) = text.rsplit_once("(code: ")?;
    code.split_once(')').map(|(code, _)| code)
}

/// The store's own words where it gave any, else the error's at the bottom of it: the rest only says that a request was sent,
/// and how often.
fn reason(error: &StoreError, text: &str) -> String {
    // Azure goes on for some lines, with ids for its support.
    let message = element(text, "Message").and_then(|message| message.lines().next());
    match (element(text, "Code"), message) {
        (Some(code), Some(message)) => return format!("{code}: {message}"),
        (Some(code), _) => return code.to_owned(),
        (None, _) => {}
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let said = plain(&cause.to_string());
    match asked(text) {
        Some(server) => format!("{server}: {said}"),
        None => said,
    }
}

/// The server that a request was sent to, as far as the error says.
fn asked(text: &str) -> Option<String> {
    let (_, request) = text.split_once("Error performing ")?;
    let url = super::url::Url::parse(request.split(' ').nth(1)?).ok()?;
    Some(url.origin().ascii_serialization())
}

/// An error of the libraries below, in words.
fn plain(text: &str) -> String {
    const STATUS: &str = "Server returned non-2xx status code: ";
    if let Some((_, certificate)) = text.split_once("invalid peer certificate: ") {
        return wrong_certificate(certificate).to_owned();
    }
    // What comes after the request in its summary; the body of an answer is not for a message.
    let text = if text.starts_with("Error performing ") {
        text.split_once(" - ").map_or(text, |(_, rest)| rest)
    } else {
        text
    };
    match text.split_once(STATUS) {
        Some((_, status)) => format!("the answer was {}", status.split(':').next().unwrap_or_default().trim()),
        None => text.trim_end_matches('.').to_owned(),
    }
}

fn wrong_certificate(why: &str) -> &'static str {
    let known = [
        (
            "UnknownIssuer",
            "the certificate of the server was issued by an authority that is not known here; SSL_CERT_FILE names a file with more of them",
        ),
        ("CaUsedAsEndEntity", "the certificate of the server is that of an authority and not of a server"),
        ("Expired", "the certificate of the server has expired"),
        ("NotValidYet", "the certificate of the server is not valid yet"),
        ("NotValidForName", "the certificate of the server is for another name"),
    ];
    let found = known.into_iter().find_map(|(code, words)| why.contains(code).then_some(words));
    found.unwrap_or("the certificate of the server is not valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(error: StoreError, doing: &str, place: &str) -> Error {
        super::explain(error, doing, place, false)
    }

    #[test]
    fn credentials_that_were_there_before_are_only_late() {
        let source = "connecting to http://169.254.169.254/latest timed out";
        let error = || StoreError::Generic { store: "S3", source: source.into() };
        assert_eq!(explain(error(), "reading a", "s3://b").kind(), ErrorKind::Denied);
        let late = super::explain(error(), "reading a", "s3://b", true);
        assert_eq!(late.kind(), ErrorKind::Unavailable, "{late}");
        assert!(late.to_string().ends_with("does not answer: try again later"), "{late}");
    }

    fn denied(body: &str) -> StoreError {
        StoreError::PermissionDenied { path: "x".into(), source: body.to_owned().into() }
    }

    #[test]
    fn the_stores_own_words_and_the_advice_are_in_the_message() {
        let body = "<Error><Code>InvalidAccessKeyId</Code><Message>No such key</Message></Error>";
        let error = explain(denied(body), "writing a", "s3://b");
        assert_eq!(error.kind(), ErrorKind::Denied);
        let text = error.to_string();
        assert!(
            text.starts_with("writing a in s3://b failed: InvalidAccessKeyId: No such key; check the cred"),
            "{text}"
        );
    }

    #[test]
    fn a_wrong_clock_is_a_matter_of_configuration() {
        let error = explain(denied("<Code>RequestTimeTooSkewed</Code>"), "reading a", "s3://b");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("clock"), "{error}");
    }

    #[test]
    fn a_delete_that_is_denied_name_by_name_is_a_matter_of_permission() {
        for said in
            ["DeleteObjects request failed for key a: Access Denied. (code: AccessDenied)", "Bulk delete (code: 403)"]
        {
            let error = StoreError::Generic { store: "S3", source: said.into() };
            let error = explain(error, "deleting a", "s3://b");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.to_string().contains(said) && error.to_string().contains("permission"), "{error}");
        }
    }

    #[test]
    fn a_wrong_key_of_azure_is_a_matter_of_credentials() {
        let error = explain(denied("<Error><Code>AuthenticationFailed</Code></Error>"), "reading a", "az://b");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT_KEY"), "{error}");
    }

    #[test]
    fn a_full_disk_is_named() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = explain(StoreError::Generic { store: "local", source: Box::new(full) }, "writing a", "file:///x");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("free some space"), "{error}");
    }

    #[test]
    fn a_full_disk_leaves_no_doubt_and_gives_its_advice_once() {
        let full = StoreError::from(LocalError::DiskFull { path: "/data".into() });
        let error = explain(full, "writing a", "file:///data");
        assert_eq!(
            error.to_string(),
            "writing a in file:///data failed: disk full while writing below /data: nothing was changed; make room, then \
             try again"
        );
        assert!(error.is_retryable() && !error.leaves_doubt());
        let denied =
            LocalError::Denied { doing: "locking", path: "/data/x".into(), source: io::Error::other("no").into() };
        let error = explain(denied.into(), "writing a", "file:///data");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(!error.to_string().contains("S3") && !error.to_string().contains("s3:"), "{error}");
    }

    #[test]
    fn the_words_of_the_libraries_below_are_not_told() {
        let said = |source: &str| {
            let source: Box<dyn std::error::Error + Send + Sync> = source.to_owned().into();
            explain(StoreError::Generic { store: "S3", source }, "reading a", "s3://b").to_string()
        };
        let refused =
            "Error performing GET http://127.0.0.1:9000/b/a?x=1 in 742.353µs - HTTP error: connection refused";
        assert_eq!(
            said(refused),
            "reading a in s3://b failed: http://127.0.0.1:9000: HTTP error: connection refused; try again later"
        );
        let status = "Error performing GET http://h:9000/b in 1ms - Server returned non-2xx status code: 500 Internal Server Error: <body>";
        assert!(
            said(status).contains("failed: http://h:9000: the answer was 500 Internal Server Error; "),
            "{}",
            said(status)
        );
        for (code, words) in [
            ("Other(OtherError(CaUsedAsEndEntity))", "that of an authority and not of a server"),
            ("UnknownIssuer", "SSL_CERT_FILE"),
            ("NotValidForName", "for another name"),
            ("Other(Sunspots)", "is not valid"),
        ] {
            let told = said(&format!("invalid peer certificate: {code}"));
            assert!(told.contains(words) && !told.contains("Other("), "{told}");
        }
    }

    #[test]
    fn what_a_store_says_is_told_apart_and_comes_with_what_to_do() {
        use ErrorKind::{Config, Denied, Unavailable};
        let generic = |said: &str| StoreError::Generic { store: "S3", source: said.into() };
        let source = || "said".into();
        let cases = [
            (generic("<Code>NoSuchBucket</Code>"), Config, "the bucket does not exist: create"),
            (generic("<Code>ContainerNotFound</Code>"), Config, "the bucket does not exist: create"),
            (generic("<Code>PermanentRedirect</Code>"), Config, "region"),
            (generic("<Code>AuthorizationHeaderMalformed</Code>"), Config, "region"),
            (generic("Received redirect without LOCATION: missing LOCATION"), Config, "region"),
            (generic("<Code>ExpiredToken</Code>"), Denied, "AWS_SESSION_TOKEN"),
            (generic("<Code>AccessDenied</Code>"), Denied, "grant the missing permission or use"),
            (denied("<Code>AccessDenied</Code>"), Denied, "s3:ListBucket"),
            (StoreError::Unauthenticated { path: "x".into(), source: source() }, Denied, "AWS_SECRET_ACCESS_KEY"),
            (StoreError::NotFound { path: "x".into(), source: source() }, Config, "cannot be seen"),
            (generic("connecting to http://169.254.169.254/latest"), Denied, "no credentials were found"),
            (StoreError::NotSupported { source: source() }, Config, "cannot be used for locks"),
            (StoreError::NotImplemented { operation: "x".into(), implementer: "y".into() }, Config, "cannot be used"),
            (StoreError::from(object_store::path::Error::EmptySegment { path: "a//b".into() }), Config, "the prefix"),
            (StoreError::UnknownConfigurationKey { store: "S3", key: "x".into() }, Config, "the option's name"),
            (generic("connection refused"), Unavailable, "try again later"),
        ];
        for (error, kind, advice) in cases {
            let told = explain(error, "reading a", "s3://b");
            assert_eq!(told.kind(), kind, "{told}");
            assert!(told.to_string().contains(advice), "{told}");
        }
    }

    #[test]
    fn a_store_is_quoted_once_and_as_far_as_it_says_something() {
        let said = |said: &str| {
            explain(StoreError::Generic { store: "S3", source: said.into() }, "reading a", "s3://b").to_string()
        };
        assert_eq!(said("connection refused").matches("connection refused").count(), 1);
        assert!(
            said("<Code>Odd</Code><Message></Message>").contains("failed: Odd; "),
            "{}",
            said("<Code>Odd</Code><Message></Message>")
        );
        assert!(said("<Code>Odd</Code><Message>why</Message>").contains("failed: Odd: why; "));
    }

    #[test]
    fn credentials_are_blamed_for_what_they_are_and_not_for_what_they_may_not() {
        let told = |body: &str| explain(denied(body), "reading a", "s3://b");
        assert!(blames_credentials(&told("<Code>SignatureDoesNotMatch</Code>")));
        assert!(blames_credentials(&told("<Code>AuthenticationFailed</Code>")));
        assert!(!blames_credentials(&told("<Code>AccessDenied</Code>")));
        assert!(!blames_credentials(&Error::config(WRONG_CREDENTIALS)), "it was not denied");
    }

    #[test]
    fn a_store_that_asks_for_patience_is_known_by_its_words() {
        let says = |said: &str| StoreError::Generic { store: "S3", source: said.into() };
        for patience in ["<Code>SlowDown</Code>", "503 Service Unavailable", "status 429"] {
            assert!(is_throttling(&says(patience)), "{patience}");
        }
        for other in ["500 Internal Server Error", "connection refused"] {
            assert!(!is_throttling(&says(other)), "{other}");
        }
    }
}
