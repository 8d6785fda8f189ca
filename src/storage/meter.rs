//! Counts every request where it happens, below all retries, and notes what time the store says it is.

use super::{counters::describe_requests, time::Interval};
use crate::{
    clock::{Clock, Moment, Timestamp},
    sync::Locked as _,
    timing::DATE_SLACK,
};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

/// A kind of request, as bills know them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// A write.
    Put,
    /// A read of one object.
    Get,
    /// One page of a listing.
    List,
    /// A delete: of one object, or of many in one request.
    Delete,
    /// Anything else, such as fetching credentials.
    Other,
}

/// A kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnswerKind {
    /// Done.
    Ok,
    /// There is no such object, or no such bucket.
    Missing,
    /// A condition was not met, or another request was in the way.
    Conflict,
    /// Not allowed.
    Denied,
    /// Asked for patience (429 or 503).
    Throttled,
    /// Any other failure that the store reported.
    Failed,
    /// No answer: the connection broke or time ran out.
    None,
}

impl RequestKind {
    /// The name that metrics have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Other => "other",
        }
    }
}

impl AnswerKind {
    /// The name that metrics have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Conflict => "conflict",
            Self::Denied => "denied",
            Self::Throttled => "throttled",
            Self::Failed => "failed",
            Self::None => "none",
        }
    }
}

const KINDS: [RequestKind; 5] =
    [RequestKind::Put, RequestKind::Get, RequestKind::List, RequestKind::Delete, RequestKind::Other];
const ANSWERS: [AnswerKind; 7] = [
    AnswerKind::Ok,
    AnswerKind::Missing,
    AnswerKind::Conflict,
    AnswerKind::Denied,
    AnswerKind::Throttled,
    AnswerKind::Failed,
    AnswerKind::None,
];

/// How many requests of each kind were made, by how they were answered.
///
/// Over HTTP these are attempts, retries included: what the bill will say. For the embedded store, memory and a store
/// that was handed in, they are calls.
///
/// For programs (serde) it is an object by kind and answer, with the counts that are not zero:
/// `{"put":{"ok":3,"conflict":1},"get":{"ok":2}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requests([[u64; ANSWERS.len()]; KINDS.len()]);

impl Requests {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// Those of one kind.
    pub fn of(&self, kind: RequestKind) -> u64 {
        self.0[kind as usize].iter().sum()
    }

    /// Those with one kind of answer.
    pub fn answered(&self, answer: AnswerKind) -> u64 {
        self.0.iter().map(|row| row[answer as usize]).sum()
    }

    /// Every count, with its kind of request and of answer.
    pub fn iter(&self) -> impl Iterator<Item = (RequestKind, AnswerKind, u64)> + '_ {
        KINDS.iter().flat_map(move |&kind| {
            ANSWERS.iter().map(move |&answer| (kind, answer, self.0[kind as usize][answer as usize]))
        })
    }

    /// What was added since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut added = *self;
        for (row, before) in added.0.iter_mut().zip(earlier.0) {
            for (count, before) in row.iter_mut().zip(before) {
                *count = count.saturating_sub(before);
            }
        }
        added
    }
}

impl Serialize for Requests {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut kinds = serializer.serialize_map(None)?;
        for (kind, row) in KINDS.iter().zip(&self.0) {
            let answers: BTreeMap<&str, u64> = ANSWERS
                .iter()
                .zip(row)
                .filter(|(_, count)| **count > 0)
                .map(|(answer, count)| (answer.as_str(), *count))
                .collect();
            if !answers.is_empty() {
                kinds.serialize_entry(kind.as_str(), &answers)?;
            }
        }
        kinds.end()
    }
}

tokio::task_local! {
    /// Set while a task tidies up.
    static TIDYING: ();
}

/// Counts the requests of this work as tidying as well.
pub(crate) async fn tidying<T>(work: impl Future<Output = T>) -> T {
    TIDYING.scope((), work).await
}

/// Shared by all handles of one store.
#[derive(Debug)]
pub(crate) struct Meter {
    /// How many of all were made for tidying.
    tidying: AtomicU64,
    counts: [[AtomicU64; ANSWERS.len()]; KINDS.len()],
    /// What metrics call each count: made once and not with every request.
    keys: [[metrics::Key; ANSWERS.len()]; KINDS.len()],
    date: Mutex<Option<(Interval, Moment)>>,
    /// The latest date that any answer had, however long it took: it is not earlier.
    latest: AtomicI64,
    clock: Arc<dyn Clock>,
}

impl Meter {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let keys = KINDS.map(|kind| {
            ANSWERS.map(|answer| {
                let labels =
                    vec![metrics::Label::new("kind", kind.as_str()), metrics::Label::new("answer", answer.as_str())];
                metrics::Key::from_parts("leasehold_store_requests_total", labels)
            })
        });
        describe_requests();
        Self {
            tidying: AtomicU64::new(0),
            counts: Default::default(),
            keys,
            date: Mutex::new(None),
            latest: AtomicI64::new(i64::MIN),
            clock,
        }
    }

    pub(crate) fn count(&self, kind: RequestKind, answer: AnswerKind) {
        self.counts[kind as usize][answer as usize].fetch_add(1, Relaxed);
        static METADATA: metrics::Metadata<'static> =
            metrics::Metadata::new(module_path!(), metrics::Level::INFO, Some(module_path!()));
        let key = &self.keys[kind as usize][answer as usize];
        metrics::with_recorder(|recorder| recorder.register_counter(key, &METADATA)).increment(1);
    }

    /// A request is being made. It counts however it ends: a caller that gives up drops its future, and the request
    /// was made all the same.
    pub(crate) fn begin(self: &Arc<Self>, kind: RequestKind) -> Pending {
        let tidying = TIDYING.try_with(|()| ()).is_ok();
        Pending { meter: Arc::clone(self), kind, answer: AnswerKind::None, tidying }
    }

    /// How many requests were made for tidying.
    pub(crate) fn tidying(&self) -> u64 {
        self.tidying.load(Relaxed)
    }

    pub(crate) fn requests(&self) -> Requests {
        let mut requests = Requests::default();
        for (row, counts) in requests.0.iter_mut().zip(&self.counts) {
            for (sum, count) in row.iter_mut().zip(counts) {
                *sum = count.load(Relaxed);
            }
        }
        requests
    }

    /// The monotonic clock, to be read before the store is asked something whose answer tells its time.
    pub(crate) fn now(&self) -> Moment {
        self.clock.monotonic()
    }

    /// The store, asked at `asked`, said that it is `date`. Not believed when the answer took so long (a machine that
    /// slept meanwhile) that it tells what time it was and not what time it is.
    pub(crate) fn note_date(&self, date: Timestamp, asked: Moment) -> bool {
        self.latest.fetch_max(date.as_micros(), Relaxed);
        let now = self.clock.monotonic();
        let fresh = now.since(asked) <= DATE_SLACK;
        if fresh {
            let told = Interval::told(date, now.since(asked));
            let mut known = self.known();
            let time = known.map_or(told, |(time, at)| time.aged(now.since(at)).narrowed(told));
            *known = Some((time, now));
        }
        fresh
    }

    /// The latest date that any answer had. It is not earlier by the store's clock, also where a machine slept for hours
    /// while an answer was under way, without its own clocks noticing.
    pub(crate) fn latest_date(&self) -> Option<Timestamp> {
        let latest = self.latest.load(Relaxed);
        (latest > i64::MIN).then(|| Timestamp::from_micros(latest))
    }

    /// What time it is by the store's clock, by its answers so far and the time since.
    pub(crate) fn store_interval(&self) -> Option<Interval> {
        let (time, at) = (*self.known())?;
        Some(time.aged(self.clock.monotonic().since(at)))
    }

    fn known(&self) -> MutexGuard<'_, Option<(Interval, Moment)>> {
        self.date.locked()
    }
}

/// A request without its answer yet; counts itself when dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    meter: Arc<Meter>,
    kind: RequestKind,
    pub(crate) answer: AnswerKind,
    tidying: bool,
}

impl Pending {
    /// One part of an answer that comes in parts: the first bad one counts.
    pub(crate) fn hear(&mut self, part: AnswerKind) {
        if self.answer == AnswerKind::Ok {
            self.answer = part;
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.meter.count(self.kind, self.answer);
        if self.tidying {
            self.meter.tidying.fetch_add(1, Relaxed);
            metrics::counter!("leasehold_sweep_requests_total").increment(1);
        }
    }
}

#[cfg(feature = "_cloud")]
pub(crate) mod http {
    //! The hook into `object_store`'s HTTP client: it sees each attempt, which a wrapper of the store would not.

    use super::{AnswerKind, Meter, RequestKind};
    use crate::clock::Timestamp;
    use async_trait::async_trait;
    use chrono::DateTime;
    use http::{
        Method, StatusCode, Uri,
        header::{AGE, DATE},
    };
    use object_store::{
        Certificate, ClientOptions,
        client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector},
    };
    use std::sync::Arc;

    /// Makes clients whose every attempt is counted.
    #[derive(Debug)]
    pub(crate) struct MeteredConnector {
        pub(crate) meter: Arc<Meter>,
        pub(crate) bucket: String,
        /// Of authorities that are trusted beside those of the machine.
        pub(crate) certificates: Vec<Certificate>,
    }

    impl HttpConnector for MeteredConnector {
        fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
            let trusted = self.certificates.iter().cloned();
            let options = trusted.fold(options.clone(), ClientOptions::with_root_certificate);
            let inner = ReqwestConnector::default().connect(&options)?;
            Ok(HttpClient::new(Metered { inner, meter: Arc::clone(&self.meter), bucket: self.bucket.clone() }))
        }
    }

    #[derive(Debug)]
    struct Metered {
        inner: HttpClient,
        meter: Arc<Meter>,
        bucket: String,
    }

    #[async_trait]
    impl HttpService for Metered {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let kind = kind(request.method(), request.uri(), &self.bucket);
            let mut pending = self.meter.begin(kind);
            let asked = self.meter.now();
            let result = self.inner.execute(request).await;
            if let Ok(response) = &result {
                pending.answer = answer(response.status());
                // Only the store's own word counts, and as it is given: not that of a credentials service, nor of something in
                // between that answers in its place.
                let own = !matches!(pending.answer, AnswerKind::Throttled | AnswerKind::Failed);
                if kind != RequestKind::Other
                    && own
                    && !response.headers().contains_key(AGE)
                    && let Some(date) = response.headers().get(DATE).and_then(|date| date.to_str().ok())
                    && let Ok(date) = DateTime::parse_from_rfc2822(date)
                {
                    self.meter.note_date(Timestamp::from(date.to_utc()), asked);
                }
            }
            result
        }
    }

    fn kind(method: &Method, uri: &Uri, bucket: &str) -> RequestKind {
        let query = uri.query().unwrap_or_default();
        let has = |parameter: &str| query.split('&').any(|part| part.split('=').next() == Some(parameter));
        let on_bucket = uri.path().split('/').any(|segment| segment == bucket)
            || uri.host().is_some_and(|host| host.strip_prefix(bucket).is_some_and(|rest| rest.starts_with('.')));
        if !on_bucket {
            return RequestKind::Other;
        }
        match *method {
            Method::GET if has("list-type") || query.contains("comp=list") || uri.path().ends_with("/o") => {
                RequestKind::List
            }
            Method::GET | Method::HEAD => RequestKind::Get,
            Method::PUT => RequestKind::Put,
            Method::DELETE => RequestKind::Delete,
            Method::POST if has("delete") || query.contains("comp=batch") => RequestKind::Delete,
            _ => RequestKind::Other,
        }
    }

    fn answer(status: StatusCode) -> AnswerKind {
        match status.as_u16() {
            200..=299 => AnswerKind::Ok,
            404 => AnswerKind::Missing,
            304 | 409 | 412 => AnswerKind::Conflict,
            401 | 403 => AnswerKind::Denied,
            429 | 503 => AnswerKind::Throttled,
            _ => AnswerKind::Failed,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn answers_are_told_apart_by_their_status() {
            let answers = [
                (AnswerKind::Ok, &[200, 204, 206][..]),
                (AnswerKind::Missing, &[404]),
                (AnswerKind::Conflict, &[304, 409, 412]),
                (AnswerKind::Denied, &[401, 403]),
                (AnswerKind::Throttled, &[429, 503]),
                (AnswerKind::Failed, &[400, 500]),
            ];
            for (kind, statuses) in answers {
                for status in statuses {
                    assert_eq!(answer(StatusCode::from_u16(*status).unwrap()), kind, "{status}");
                }
            }
        }

        #[test]
        fn requests_are_told_apart_on_every_cloud() {
            let kind_of = |method: Method, uri: &str| kind(&method, &uri.parse().unwrap(), "b");
            assert_eq!(kind_of(Method::GET, "http://h/b?list-type=2&prefix=x"), RequestKind::List);
            assert_eq!(kind_of(Method::GET, "http://b.s3.eu.amazonaws.com/x"), RequestKind::Get);
            assert_eq!(kind_of(Method::POST, "http://h/b?delete"), RequestKind::Delete);
            assert_eq!(kind_of(Method::GET, "http://h/account/b?restype=container&comp=list"), RequestKind::List);
            assert_eq!(
                kind_of(Method::GET, "https://storage.googleapis.com/storage/v1/b/b/o?prefix=x"),
                RequestKind::List
            );
            assert_eq!(kind_of(Method::PUT, "http://h/b/x"), RequestKind::Put);
            assert_eq!(kind_of(Method::PUT, "http://169.254.169.254/latest/api/token"), RequestKind::Other);
            assert_eq!(kind_of(Method::DELETE, "http://h/b/x"), RequestKind::Delete);
            assert_eq!(kind_of(Method::HEAD, "http://h/b/x"), RequestKind::Get);
            assert_eq!(kind_of(Method::POST, "http://h/b?uploads"), RequestKind::Other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::TestClock;
    use std::time::Duration;

    #[test]
    fn counts_are_kept_by_kind_and_answer() {
        let meter = Meter::new(Arc::new(TestClock::at(Timestamp::default())));
        meter.count(RequestKind::Put, AnswerKind::Ok);
        let before = meter.requests();
        meter.count(RequestKind::Put, AnswerKind::Conflict);
        meter.count(RequestKind::Get, AnswerKind::Ok);
        let added = meter.requests().since(&before);
        assert_eq!((added.total(), added.of(RequestKind::Put), added.answered(AnswerKind::Ok)), (2, 1, 1));
        assert_eq!(added.iter().filter(|(_, _, count)| *count > 0).count(), 2);
        assert_eq!(serde_json::to_string(&added).unwrap(), r#"{"put":{"conflict":1},"get":{"ok":1}}"#);
    }

    #[test]
    fn metrics_have_a_name_for_everything() {
        assert_eq!(KINDS.map(RequestKind::as_str), ["put", "get", "list", "delete", "other"]);
        let answers = ["ok", "missing", "conflict", "denied", "throttled", "failed", "none"];
        assert_eq!(ANSWERS.map(AnswerKind::as_str), answers);
    }

    #[test]
    fn the_stores_time_goes_on_between_two_answers() {
        let clock = TestClock::at(Timestamp::from_millis(0));
        let meter = Meter::new(Arc::new(clock.clone()));
        assert_eq!(meter.store_interval(), None);
        assert!(meter.note_date(Timestamp::from_millis(90_000), meter.now()));
        clock.advance(Duration::from_secs(10));
        clock.step_wall(-50_000);
        let (lower, upper) = (Timestamp::from_millis(99_995), Timestamp::from_millis(101_005));
        assert_eq!(meter.store_interval(), Some(Interval { lower, upper }));
    }

    #[test]
    fn an_answer_that_took_too_long_does_not_tell_the_time() {
        let clock = TestClock::at(Timestamp::from_millis(0));
        let meter = Meter::new(Arc::new(clock.clone()));
        let asked = meter.now();
        clock.advance(DATE_SLACK);
        assert!(meter.note_date(Timestamp::from_millis(90_000), asked));
        clock.advance(Duration::from_millis(1));
        assert!(!meter.note_date(Timestamp::from_millis(10_000), asked));
        let lower = meter.store_interval().map(|time| time.lower.as_millis());
        assert_eq!(lower, Some(90_001));
    }
}
