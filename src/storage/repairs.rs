//! What operators have done to a store by force, kept in the store: who, when, what and why.

use super::{Backend, Name, layout};
use crate::{Error, Key, Namespace, Result, WriteId, clock::Timestamp};
use serde::Serialize;

/// One intervention. Written before it is made: none is without a trace, and a trace may be of one that did not succeed.
#[derive(Debug, Serialize)]
pub(crate) struct Repair<'a> {
    pub(crate) what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<&'a Namespace>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<&'a Key>,
    pub(crate) reason: &'a str,
    pub(crate) by: &'a str,
    /// Where the object is now that stood in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aside: Option<&'a str>,
}

#[derive(Serialize)]
struct Written<'a, More: Serialize> {
    format: u32,
    at: String,
    #[serde(flatten)]
    repair: &'a Repair<'a>,
    #[serde(flatten)]
    more: &'a More,
}

/// A time as it stands in names: `20261116T081530123Z`, so that name order is time order.
pub(crate) fn in_a_name(at: Timestamp) -> String {
    at.to_string().chars().filter(|c| !matches!(c, '-' | ':' | '.')).collect()
}

impl Repair<'_> {
    /// Writes it down, under a name of its own.
    pub(crate) async fn record(&self, backend: &Backend) -> Result<Name> {
        self.record_with(backend, &serde_json::Map::new()).await
    }

    /// Writes it down with more than people read.
    pub(crate) async fn record_with(&self, backend: &Backend, more: &(impl Serialize + Sync)) -> Result<Name> {
        let at = backend.clock.wall();
        let id = WriteId::random(&*backend.generator);
        let name = Name::new(format!("{}{}-{id}.json", layout::REPAIRS, in_a_name(at)));
        let written = Written { format: 1, at: at.to_string(), repair: self, more };
        let body = serde_json::to_vec_pretty(&written)
            .map_err(|error| Error::corrupt("a repair cannot be written down").with_source(error))?;
        let put = backend.put_fresh(&name, body.into(), backend.request_timeout).await;
        put.map_err(|error| error.while_doing("nothing was changed, as the reason could not be recorded"))?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_when_in_the_order_of_time() {
        assert_eq!(in_a_name(Timestamp::from_millis(1_767_225_600_123)), "20260101T000000123Z");
    }

    #[test]
    fn a_repair_reads_like_a_sentence() {
        let key = Key::new("orders/42").unwrap();
        let namespace = Namespace::default();
        let repair = Repair {
            what: "release_forced",
            namespace: Some(&namespace),
            key: Some(&key),
            reason: "its host is gone",
            by: "alice",
            aside: None,
        };
        let text = serde_json::to_string(&Written {
            format: 1,
            at: "now".into(),
            repair: &repair,
            more: &serde_json::Map::new(),
        })
        .unwrap();
        assert_eq!(
            text,
            r#"{"format":1,"at":"now","what":"release_forced","namespace":"default","key":"orders/42","reason":"its host is gone","by":"alice"}"#
        );
    }
}
