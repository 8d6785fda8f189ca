//! Listing keys finds all of them, as they are, and changes nothing.

use crate::{
    common::{key, noon, request},
    memory::{Memory, SECOND, process},
};
use leasehold::{
    ErrorKind, Key, Leases, Store,
    lease::Status,
    store::{AnswerKind, Probing, RequestKind},
};
use leasehold_testkit::{Answer, Fault, FaultStore, Op, Rule, SeededGenerator, TestClock};
use std::{collections::BTreeSet, sync::Arc};

/// Keys that some store, file system or careless encoding takes for another one, or for a place that is not ours.
fn nasty() -> Vec<Key> {
    let texts = [
        "a",
        "A",
        "a/b",
        "a//b",
        "/a",
        "a/",
        "/",
        "//",
        ".",
        "..",
        "../../etc/passwd",
        "a/../b",
        "%2e%2e",
        "%2f",
        "a%2Fb",
        "a!2fb",
        "!",
        "!h",
        "a b",
        " ",
        "a\\b",
        "C:\\x",
        "con",
        "nul.pb",
        "a.pb",
        "meta/a",
        ".lease-index/x",
        "~",
        "*?<>|",
        "\u{e9}",
        "e\u{301}",
        "\u{202e}rtl",
        "\u{1f512}",
        "line\nbreak",
        "tab\t",
        "\0",
        "\x7f",
        "-",
        "_",
    ];
    let bytes: [&[u8]; 4] = [b"\xff", b"\xff\xfe", b"\xc3", b"\x80a"];
    texts.into_iter().map(|text| Key::new(text).unwrap()).chain(bytes.map(|bytes| Key::new(bytes).unwrap())).collect()
}

/// Too long for a name: they differ far behind the point where it is cut.
fn long() -> Vec<Key> {
    (0..5).map(|number| Key::new(format!("long/{}{number}", "x".repeat(900))).unwrap()).collect()
}

#[tokio::test]
async fn a_listing_that_fails_is_counted_by_its_answer() {
    let bed = Memory::new().await;
    for (status, answer) in [(503, AnswerKind::Throttled), (500, AnswerKind::Failed)] {
        bed.objects.faults().script(Rule::once(Op::List, Fault::Refuse(Answer::Status(status))));
        let before = bed.store.requests();
        assert_eq!(bed.leases.list(b"", None, 10).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let made = bed.store.requests().since(&before);
        assert_eq!((made.answered(answer), made.total()), (1, 1), "{status}");
    }
}

/// All pages; every key that could be read, and every error.
async fn all(leases: &Leases, prefix: &[u8], limit: usize) -> (Vec<Status>, Vec<leasehold::Error>) {
    let (mut statuses, mut errors, mut after) = (Vec::new(), Vec::new(), None);
    for _ in 0..1000 {
        let page = leases.list(prefix, after.as_ref(), limit).await.unwrap();
        assert!(page.keys.len() <= limit);
        for status in page.keys {
            match status {
                Ok(status) => statuses.push(status),
                Err(error) => errors.push(error),
            }
        }
        after = page.next;
        if after.is_none() {
            return (statuses, errors);
        }
    }
    panic!("the pages do not end");
}

fn keys(statuses: &[Status]) -> BTreeSet<Key> {
    assert!(statuses.iter().all(|status| status.holder.is_some()));
    let keys: BTreeSet<Key> = statuses.iter().map(|status| status.key.clone()).collect();
    assert_eq!(keys.len(), statuses.len(), "one was listed twice");
    keys
}

async fn finds_every_key(leases: &Leases) {
    let expected: BTreeSet<Key> = nasty().into_iter().chain(long()).collect();
    for key in &expected {
        // Different bytes are different locks: each can be had although the others are held.
        assert!(leases.acquire(key, &request()).await.unwrap().granted().is_some(), "{key}");
        assert!(leases.acquire(key, &request()).await.unwrap().granted().is_none(), "{key}");
    }
    for limit in [1, 7, 1000] {
        let (statuses, errors) = all(leases, b"", limit).await;
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(keys(&statuses), expected, "pages of {limit}");
    }
    let whole = leases.list(b"", None, expected.len()).await.unwrap();
    assert!(whole.keys.len() == expected.len() && whole.next.is_none(), "a page more for nothing");
    let deep = format!("long/{}", "x".repeat(900));
    for prefix in ["a", "a/", "a//", "A", "/", "long/", "long/xxx", &deep, &format!("{deep}3"), ".", "nothing"] {
        let wanted = expected.iter().filter(|key| key.as_bytes().starts_with(prefix.as_bytes())).cloned().collect();
        assert_eq!(keys(&all(leases, prefix.as_bytes(), 3).await.0), wanted, "{prefix}");
    }
    assert_eq!(keys(&all(leases, b"\xff", 3).await.0).len(), 2);
}

#[tokio::test]
async fn every_key_is_found_by_its_prefix_in_a_store_that_lists_in_order() {
    finds_every_key(&Memory::new().await.leases).await;
}

#[tokio::test]
async fn every_key_is_found_by_its_prefix_in_a_store_that_lists_in_no_order() {
    let clock = TestClock::at(noon());
    let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
    let builder = Store::builder().object_store(Arc::new(objects)).shares_our_clock().prefix("some/prefix");
    let store = builder.clock(Arc::new(clock)).probing(Probing::Never).open().await.unwrap();
    finds_every_key(&store.leases("default").unwrap()).await;
}

#[tokio::test]
async fn every_key_is_found_by_its_prefix_on_disk_and_nothing_leaves_the_folder() {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("store");
    std::fs::create_dir(&folder).unwrap();
    let url = url::Url::from_directory_path(&folder).unwrap();
    let builder = Store::builder().url(url).clock(Arc::new(TestClock::at(noon())));
    let store = builder.probing(Probing::Never).open().await.unwrap();
    finds_every_key(&store.leases("default").unwrap()).await;
    let beside: Vec<_> = std::fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(beside, ["store"]);
}

#[tokio::test]
async fn looking_writes_nothing_and_is_one_read_a_key() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    let _ = bed.leases.acquire(&key("b"), &request()).await.unwrap();
    // Also what has ended is left as it is.
    bed.pass(40, SECOND).await;
    let bodies = || bed.objects.names().into_iter().map(|name| bed.objects.object(&name).unwrap()).collect::<Vec<_>>();
    let (stored, before) = (bodies(), bed.store.requests());
    let (statuses, errors) = all(&bed.leases, b"", 10).await;
    assert_eq!(statuses.iter().map(|status| status.holder.is_some()).collect::<Vec<_>>(), [true, false]);
    assert!(errors.is_empty());
    bed.leases.peek(&key("b")).await.unwrap();
    let made = bed.store.requests().since(&before);
    assert_eq!((made.of(RequestKind::Get), made.of(RequestKind::List), made.total()), (3, 1, 4), "{made:?}");
    assert_eq!(bodies(), stored);
    drop(guard);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_shown_as_an_error_and_hides_no_other() {
    let bed = Memory::new().await;
    for name in ["a", "b", "c", "d", "e"] {
        let _ = bed.leases.acquire(&key(name), &request()).await.unwrap();
    }
    bed.objects.put_object("default/meta/b.pb", "garbage");
    bed.objects.put_object("default/meta/c.pb", "");
    let copied = bed.objects.object("default/meta/a.pb").unwrap().0;
    bed.objects.put_object("default/meta/d.pb", copied);
    bed.objects.put_object("default/meta/stray", "");
    let (statuses, errors) = all(&bed.leases, b"", 2).await;
    assert_eq!(statuses.iter().map(|status| status.key.to_string()).collect::<Vec<_>>(), ["a", "e"]);
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(errors.iter().all(|error| error.kind() == ErrorKind::Corrupt), "{texts:?}");
    for (text, part) in texts.iter().zip(["meta/b.pb", "meta/c.pb", "another key, a", "meta/stray"]) {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(errors.len(), 4, "{texts:?}");
    // Nor is anything granted on them.
    let (_store, others) = process(&bed.objects, &bed.clock).await;
    for name in ["b", "c", "d"] {
        let before = bed.objects.object(&format!("default/meta/{name}.pb")).unwrap();
        assert_eq!(others.acquire(&key(name), &request()).await.unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
        assert_eq!(others.peek(&key(name)).await.unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
        assert_eq!(bed.objects.object(&format!("default/meta/{name}.pb")).unwrap(), before);
    }
}

#[tokio::test]
async fn a_listing_goes_on_from_the_text_of_its_place() {
    let bed = Memory::new().await;
    for name in ["a/1", "b", "c"] {
        let _ = bed.leases.acquire(&key(name), &request()).await.unwrap();
    }
    let first = bed.leases.list(b"", None, 1).await.unwrap();
    let text = first.next.unwrap().to_string();
    assert_eq!(text, "a!2f1");
    let rest = bed.leases.list(b"", Some(&bed.leases.cursor(&text).unwrap()), 10).await.unwrap();
    assert_eq!(rest.keys.len(), 2);
    for text in ["", "../x", "a/1", "A", "\0"] {
        assert_eq!(bed.leases.cursor(text).unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
    }
}

#[tokio::test]
async fn the_index_says_which_keys_may_be_held_without_reading_any() {
    let bed = Memory::new().await;
    let _ = bed.leases.acquire(&key("ended"), &request()).await.unwrap();
    bed.clock.advance(2 * 3600 * SECOND);
    for key in [key("a"), key("b"), long().remove(0)] {
        let _ = bed.leases.acquire(&key, &request()).await.unwrap();
    }
    let before = bed.store.requests();
    let filed = bed.leases.filed(10).await.unwrap();
    let keys: Vec<Option<Key>> = filed.keys.iter().map(|filed| filed.key.clone()).collect();
    assert_eq!((keys, filed.more), (vec![Some(key("a")), Some(key("b")), None], false));
    assert!(bed.leases.filed(1).await.unwrap().more);
    let made = bed.store.requests().since(&before);
    assert_eq!((made.of(RequestKind::List), made.total()), (2, 2));
    assert_eq!(bed.store.namespaces().await.unwrap(), [leasehold::Namespace::default()]);
}
