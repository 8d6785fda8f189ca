//! The contract of compare-and-swap, and the probe that every process relies on.

use crate::place::{Place, report};
use leasehold::store::Probing;
use leasehold_testkit::conformance_of;
use std::sync::Arc;

pub(crate) async fn keeps_the_contract(place: Arc<Place>) {
    let checks = conformance_of(&place.open().await).await;
    for check in &checks {
        report(&check.to_string());
    }
    assert!(checks.iter().all(|check| check.result.is_ok()), "{checks:#?}");
}

pub(crate) async fn proves_itself_to_every_process_that_asks(place: Arc<Place>) {
    for _ in 0..3 {
        let store = place.builder().probing(Probing::Always).open().await.unwrap();
        assert!(store.trusts_clock(), "{:?}", store.skew());
    }
    // The next one takes their word for it: one read, where the store is opened by URL.
    let store = place.open().await;
    if place.counts_http() {
        assert_eq!(store.requests().total(), 1, "{:?}", store.requests());
    }
}
