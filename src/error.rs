//! The public error: few kinds, each saying what the caller must do next.

use std::{error, fmt, sync::Arc};

/// What the caller must do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is wrong: fix the call. Nothing was sent.
    Invalid,
    /// The store cannot be used as configured (missing bucket, unsafe store, settings that differ): fix the
    /// configuration.
    Config,
    /// The store refuses these credentials or this action: fix the permissions.
    Denied,
    /// This machine's clock and the store's differ by more than clocks may: correct the clock. Until then nothing is
    /// granted, taken over, decided or deleted; renewing, releasing and reading go on.
    Clock,
    /// Another process holds the key, and the time that was given for waiting is over: wait longer, or do without.
    /// [`Error::held`] says who holds it.
    Held,
    /// The lease ended while it was needed: stop what it protects, and lock again. [`Error::loss`] says how it was lost.
    Lost,
    /// The store did not answer, or asked for patience, and nothing was changed as far as is known: try again later.
    Unavailable,
    /// A write may or may not have happened: read again before assuming either, or repeat the same request.
    Unknown,
    /// What is stored cannot be read: call an operator. Nothing is overwritten.
    Corrupt,
    /// The store answered with something older than this process has already seen (a restored backup, a stale
    /// cache in between): reported once, then the store is taken as it is.
    Regressed,
}

impl ErrorKind {
    /// Whether a retry of the same call may succeed later, without a repair or a change of configuration.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Unknown | Self::Regressed | Self::Held)
    }
}

/// Why an operation could not be carried out.
///
/// The message says what happened, to which key or object, and what to do next; [`kind`](Self::kind) says the last of
/// these to a program:
///
/// ```
/// use leasehold::{ErrorKind, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = Store::open("memory://").await?;
/// let error = store.lock("").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(!error.is_retryable(), "the same call would fail again");
/// assert_eq!(error.to_string(), "a key must not be empty: 1 to 1024 bytes are allowed");
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In the calls that go one step at a time ([`acquire`](crate::Leases::acquire), [`renew`](crate::Leases::renew)) a lease
/// that another process holds, or that is lost, is an outcome with a type of its own and not an error.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
    /// The write that failed has certainly changed nothing.
    without_effect: bool,
}

/// A result with the library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What the caller must do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether a retry of the same call may succeed later, without a repair or a change of configuration.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, without_effect: false }
    }

    /// Marks the error of a write that has certainly changed nothing.
    pub(crate) fn without_effect(mut self) -> Self {
        self.without_effect = true;
        self
    }

    /// Whether the write that failed with it may have happened all the same, or may yet.
    pub(crate) fn leaves_doubt(&self) -> bool {
        self.is_retryable() && !self.without_effect
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unknown, message)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    pub(crate) fn with_source(mut self, source: impl error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Turns this error into [`ErrorKind::Unknown`] if an earlier write is in doubt. A caller that sees only an error about
    /// its clock or its permissions would conclude that nothing has happened.
    pub(crate) fn in_doubt(self, in_doubt: bool, what: impl fmt::Display, done: &str) -> Self {
        if !in_doubt || self.kind == ErrorKind::Unknown {
            return self;
        }
        Self::unknown(format!("whether {what} was {done} is not known: {self}")).with_source(self)
    }

    /// Prefixes the message with what was being done.
    pub(crate) fn while_doing(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
