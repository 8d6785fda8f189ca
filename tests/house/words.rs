//! The words of a kind of record, wherever they stand: in names, comments or messages.

use crate::source::Source;

const WORDS: &[&str] =
    &["lease", "leases", "decision", "decisions", "marker", "markers", "txn", "txns", "transaction", "transactions"];

/// Every line that uses one of them.
pub(crate) fn of_a_kind(source: &Source) -> Vec<String> {
    let lines = source.text.lines().enumerate();
    let strange = lines.filter(|(_, line)| parts(line).iter().any(|part| WORDS.contains(&part.as_str())));
    strange.map(|(at, line)| format!("src/{}:{}: {}", source.path, at + 1, line.trim())).collect()
}

/// The words of which names are made: `LeaseId` and `lease_id` are "lease" and "id".
fn parts(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut small = false;
    for c in line.chars() {
        if !c.is_alphabetic() || c.is_uppercase() && small {
            parts.push(String::new());
        }
        small = c.is_lowercase();
        if c.is_alphabetic()
            && let Some(part) = parts.last_mut()
        {
            part.extend(c.to_lowercase());
        }
    }
    parts
}
