//! A container and credentials that are wrong, in Azure's words.

use crate::place::{self, Kind, Place};
use leasehold::{ErrorKind, store::Probing};
use std::sync::Arc;

async fn is_named(place: Arc<Place>) {
    let mut url = place.url().clone();
    url.set_host(Some("no-such-container")).unwrap();
    let error = place.builder_at(&url).open().await.unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("ContainerNotFound"), "{error}");
}

async fn is_denied(place: Arc<Place>) {
    place.open().await;
    // Of the right form: base64.
    let wrong = |probing| place.builder().option("account_key", "bm90IHRoZSBrZXk=").probing(probing).open();
    let error = wrong(Probing::WhenDue).await.unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("check the credentials"), "{error}");
}

#[test]
#[ignore = "needs Azurite: see tests/servers/run"]
fn a_missing_container_is_named() {
    place::run(Kind::given, is_named);
}

#[test]
#[ignore = "needs Azurite: see tests/servers/run"]
fn a_wrong_key_is_a_matter_of_credentials() {
    place::run(Kind::given, is_denied);
}
