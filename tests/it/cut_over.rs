//! What an earlier version has left behind: what it wrote in this layout is read, and what it wrote in another is left alone.

use crate::{
    common::{key, request},
    processes::{World, granted},
};
use leasehold::{
    Clock,
    decision::{Answer, Decision, MARKER_RETENTION, MAX_TXN_AGE},
    fsck::{Damage, FsckOptions},
    lease::MAX_TTL,
    sweep::SweepOptions,
};
use std::time::Duration;

/// `store.json`, a lease and a decision as the version before shared settings were declared by kinds has written them.
const STORE_JSON: &[u8] = include_bytes!("../golden/v2/store.json");

fn fast() -> SweepOptions {
    SweepOptions::new().op_delay(Duration::ZERO)
}

#[tokio::test]
async fn the_settings_that_an_earlier_version_has_written_are_read_and_kept() {
    let world = World::new();
    world.objects.put_object(".leasehold/store.json", STORE_JSON);
    let store = world.process().await.store;
    let shared = store.shared_settings();
    assert_eq!((shared.epoch, shared.max_clock_skew, shared.margin), (3, seconds(5), seconds(1200)));
    assert_eq!(shared.of(&MAX_TTL), seconds(7200));
    assert_eq!((shared.of(&MAX_TXN_AGE), shared.of(&MARKER_RETENTION)), (seconds(5400), seconds(172_800)));
    assert_eq!(store.info().await.unwrap().probed_by.as_deref(), Some("0.1.0"));
    // What this version writes has every field that the earlier one cannot do without.
    let change = leasehold::store::SharedSettingsChange::default().set(&MAX_TTL, seconds(3600));
    store.change_shared_settings(&change, "alice").await.unwrap();
    let json = |body: &[u8]| serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body).unwrap();
    let (old, new) = (json(STORE_JSON), json(&world.objects.object(".leasehold/store.json").unwrap().0));
    assert!(old.keys().eq(new.keys()), "{old:?} became {new:?}");
    let changed: Vec<&String> = old.keys().filter(|name| old[*name] != new[*name]).collect();
    assert_eq!(changed, ["crc32c", "epoch", "max_ttl_ms", "revision", "write_id"]);
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const OLDER: [&str; 5] = [
    ".txn-decisions/0198c0de-0000-7000-8000-000000000001",
    ".txn-decisions/2026010100/0198c0de-0000-7000-8000-000000000002",
    "default/meta/Orders/42.pb",
    "default/meta/UPPER.pb",
    "meta/orders.pb",
];

#[tokio::test]
async fn objects_of_an_earlier_layout_are_left_alone_and_named() {
    let world = World::new();
    for name in OLDER {
        world.objects.put_object(name, r#"{"decision":"commit","expires_ms":1}"#);
    }
    let before = world.objects.names();
    // They are no reason to take the store for one whose settings were lost.
    let process = world.process().await;
    assert_eq!(world.objects.names().len(), before.len() + 1, "and store.json");
    granted(process.leases.acquire(&key("x"), &request()).await);
    let decisions = process.store.decisions();
    let _ = decisions.decide(decisions.begin(), Decision::Commit).await.unwrap();
    world.clock.advance(seconds(30 * 24 * 3600));
    let report = process.store.sweeper().run_once(fast()).await.unwrap();
    assert_eq!((report.of("lease").cleared, report.of("decision").deleted, report.failures), (1, 1, 0), "{report:?}");

    let report = process.store.fsck(FsckOptions::new().repair("alice")).await.unwrap();
    let named = |name: &str| report.findings.iter().find(|finding| name.starts_with(&finding.name));
    for name in OLDER {
        assert!(world.objects.object(name).is_some(), "{name} is gone");
        let finding = named(name).unwrap_or_else(|| panic!("{name} is not named: {report:?}"));
        assert!(finding.harmless && finding.repaired.is_none(), "{finding:?}");
        assert!(finding.damage == Damage::OlderLayout || finding.name == "meta/", "{finding:?}");
    }
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test]
async fn a_decision_of_an_earlier_layout_is_no_decision() {
    let world = World::new();
    let process = world.process().await;
    let decisions = process.store.decisions();
    let txn = decisions.begin();
    world.objects.put_object(&format!(".txn-decisions/{txn}"), r#"{"decision":"commit"}"#);
    assert_eq!(decisions.get(txn).await.unwrap(), Answer::Undecided);
    let _ = decisions.decide(txn, Decision::Abort).await.unwrap();
    assert_eq!(decisions.get(txn).await.unwrap(), Answer::Aborted);
    // Nor is one that stands where ours would, and was not written by us.
    let other = decisions.begin();
    let marker = format!(".txn-decisions/m/{other}");
    world.objects.put_object(&marker, r#"{"decision":"commit"}"#);
    decisions.get(other).await.unwrap_err();
    decisions.decide(other, Decision::Abort).await.unwrap_err();
    world.clock.advance(seconds(30 * 24 * 3600));
    process.store.sweeper().run_once(fast()).await.unwrap();
    assert!(world.objects.object(&marker).is_some(), "at {}", world.clock.wall());
}

#[tokio::test]
async fn what_is_left_of_a_decision_still_says_that_settings_were_lost() {
    let world = World::new();
    let process = world.process().await;
    let decisions = process.store.decisions();
    let txn = decisions.begin();
    let _ = decisions.decide(txn, Decision::Commit).await.unwrap();
    world.objects.put_object(".txn-decisions/m/!strange", "?");
    world.objects.delete_object(".leasehold/store.json");
    let open = || {
        let builder = leasehold::Store::builder().object_store(std::sync::Arc::new(world.objects.clone()));
        builder.probing(leasehold::store::Probing::Never).open()
    };
    assert!(open().await.unwrap_err().to_string().contains("has records but no"), "its marker");
    world.objects.delete_object(&format!(".txn-decisions/m/{txn}"));
    assert!(open().await.unwrap_err().to_string().contains("has records but no"), "its entry");
}
