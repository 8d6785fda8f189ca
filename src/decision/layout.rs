//! The names of the objects of decisions: a contract with other tools, spelt here and nowhere else.
//!
//! ```text
//! .txn-decisions/m/<txn>           the marker of a decision
//! .txn-decisions/e/<hour>/<txn>    its index entry
//! ```
//!
//! Earlier layouts had markers right in `.txn-decisions/`. Nothing of this version reads or deletes those.

use super::TxnId;
use crate::{
    Hour,
    clock::Timestamp,
    index,
    kind::{Content, Folder},
    storage::Name,
};
use bytes::Bytes;

/// The folder of decisions, right in the store.
const TOP: &str = ".txn-decisions";

/// Where markers are.
pub(crate) const MARKERS: &str = ".txn-decisions/m/";

/// Where entries are filed.
pub(crate) const INDEX: &str = ".txn-decisions/e/";

/// The marker of a transaction.
pub(crate) fn marker(txn: TxnId) -> Name {
    Name::new(format!("{MARKERS}{txn}"))
}

/// The entry of a transaction in the hour of its marker's expiry.
pub(crate) fn entry(txn: TxnId, hour: Hour) -> Name {
    index::entry(INDEX, hour, &txn.to_string())
}

/// The body of that entry.
pub(crate) fn entry_body(txn: TxnId, expires: Timestamp) -> Bytes {
    format!(r#"{{"txn":"{txn}","expires_ms":{}}}"#, expires.as_millis()).into()
}

/// The folders that decisions have in one that lies right in the store.
pub(crate) fn folders(top: &str) -> Vec<Folder> {
    if top != TOP {
        return Vec::new();
    }
    let folder = |path: String, content| Folder { top: top.to_owned(), path, content };
    vec![
        folder(MARKERS.to_owned(), Content::Records),
        folder(INDEX.to_owned(), Content::Entries),
        folder(format!("{TOP}/"), Content::OlderLayout),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_a_decision_says_which_and_until_when() {
        let txn: TxnId = "019b76da-a800-7000-8000-000000000001".parse().unwrap();
        let body = entry_body(txn, Timestamp::from_millis(1));
        assert_eq!(body, r#"{"txn":"019b76da-a800-7000-8000-000000000001","expires_ms":1}"#);
        let hour = "2026010100".parse().unwrap();
        assert_eq!(entry(txn, hour).as_str(), format!(".txn-decisions/e/2026010100/{txn}"));
        assert!(folders(TOP).iter().all(|folder| folder.path.starts_with(TOP)));
    }
}
