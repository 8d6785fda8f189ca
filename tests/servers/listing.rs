//! Many keys, and strange ones.

use crate::place::{Place, brief, granted, key, long_ago, request, sweep, until_brief_ones_have_ended};
use futures_util::{StreamExt, stream};
use leasehold::{Key, Leases};
use std::{collections::BTreeSet, sync::Arc};

const MANY: usize = 2000;

/// All keys with a prefix, in pages of this size.
async fn listed(leases: &Leases, prefix: &str, size: usize) -> Vec<Key> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let page = leases.list(prefix.as_bytes(), after.as_ref(), size).await.unwrap();
        assert!(page.keys.len() <= size);
        keys.extend(page.keys.into_iter().map(|status| status.unwrap().key));
        match page.next {
            Some(next) => after = Some(next),
            None => return keys,
        }
    }
}

pub(crate) async fn two_thousand_keys_are_listed_in_pages_and_swept(place: Arc<Place>) {
    let then = place.open_at(&long_ago()).await.leases("default").unwrap();
    let keys: Vec<Key> = (0..MANY).map(|number| key(&format!("orders/{number:04}"))).collect();
    stream::iter(keys.clone())
        .map(|key| {
            let then = then.clone();
            async move { granted(then.acquire(&key, &brief().new_key()).await) }
        })
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
    let store = place.open().await;
    let leases = store.leases("default").unwrap();
    assert_eq!(listed(&leases, "", 300).await, keys);
    assert_eq!(listed(&leases, "orders/19", 7).await, keys[1900..]);
    until_brief_ones_have_ended().await;
    let reports = sweep(&store).await;
    assert_eq!(reports.iter().map(|report| report.of("lease").cleared).sum::<u64>(), MANY as u64, "{reports:?}");
    assert_eq!(place.entries().await, [""; 0]);
    let kept = place.names().await.into_iter().filter(|name| name.starts_with("default/meta/")).count();
    assert_eq!(kept, MANY, "records are kept: they hold the fence");
}

fn nasty() -> Vec<Key> {
    let mut keys: Vec<Vec<u8>> = [
        "a", "A", "a/b", "a//b", "a/b/", "/a", "/", "..", ".", "../../x", "a/../b", "con", "nul.txt", "a b", "a+b",
        "a%2fb", "a%252fb", "a?b=c", "a#b", "a&b", "a\\b", "a:b", "a*b", "<a>", "'", "\"", "`", "$HOME", "~", "|", ";",
        "a\nb", "a\tb", "\u{1}", "é", "e\u{301}", "ſ", "日本", "🔒", "\u{202e}", "a.pb", "a!2fb", "!",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    keys.extend([vec![0], vec![0xff, 0xfe], b"x".repeat(1024), "é".repeat(512).into_bytes(), vec![0xff; 1024]]);
    keys.into_iter().map(|bytes| Key::new(bytes).unwrap()).collect()
}

pub(crate) async fn nasty_keys_are_told_apart(place: Arc<Place>) {
    let (ours, theirs) = (place.open().await, place.open().await);
    let (leases, others) = (ours.leases("default").unwrap(), theirs.leases("default").unwrap());
    let mut grants = Vec::new();
    for key in nasty() {
        grants.push(granted(leases.acquire(&key, &request()).await));
    }
    for grant in &grants {
        let there = others.peek(grant.key()).await.unwrap();
        assert_eq!(there.holder.unwrap().lease_id, grant.lease_id(), "{:?}", grant.key());
    }
    let expected: BTreeSet<Key> = nasty().into_iter().collect();
    assert_eq!(listed(&others, "", 10).await.into_iter().collect::<BTreeSet<_>>(), expected);
    for grant in &grants {
        leases.release(grant).await.unwrap();
    }
}

/// A store that sorts by folder has `a/1` before `a-1`, which would make pages overlap or miss keys.
pub(crate) async fn keys_are_listed_in_one_order_whatever_the_store_thinks_of_slashes(place: Arc<Place>) {
    let leases = place.open().await.leases("default").unwrap();
    let keys: BTreeSet<Key> =
        ["a", "a-", "a-1", "a.1", "a/1", "a/2", "a0", "a1", "a/1/x", "a/1-x", "a/1.x", "b"].map(key).into();
    for key in &keys {
        granted(leases.acquire(key, &request()).await);
    }
    let whole = listed(&leases, "", 1000).await;
    assert_eq!(whole.iter().cloned().collect::<BTreeSet<_>>(), keys);
    for size in 1..=5 {
        assert_eq!(listed(&leases, "", size).await, whole, "in pages of {size}");
    }
    let below: BTreeSet<Key> = keys.iter().filter(|key| key.as_bytes().starts_with(b"a/1")).cloned().collect();
    assert_eq!(listed(&leases, "a/1", 2).await.into_iter().collect::<BTreeSet<_>>(), below);
}
