//! What must be true of any body that the lock service is sent; for the fuzzer, and for the program's own tests.

use super::wire;
use serde::{Serialize, de::DeserializeOwned};

/// A body that can be read is the same when it is written again, and whatever it names is a name or an error.
pub(super) fn hold(data: &[u8]) {
    if let Some(body) = again::<wire::Acquire>(data) {
        named(body.namespace, body.key, body.key_b64);
    }
    if let Some(body) = again::<wire::Renew>(data) {
        named(body.namespace, body.key, body.key_b64);
        let _ = wire::lease_id(&body.lease_id);
    }
    if let Some(body) = again::<wire::Release>(data) {
        named(body.namespace, body.key, body.key_b64);
    }
    if let Some(body) = again::<wire::Check>(data) {
        named(body.namespace, body.key, body.key_b64);
        assert!(body.fence.get() < 1 << 53, "a fence that not every parser of JSON keeps");
    }
    if let Some(body) = again::<wire::Campaign>(data) {
        named(body.namespace, Some(body.name), None);
    }
    if let Some(body) = again::<wire::Sweep>(data) {
        named(body.namespace, None, None);
    }
    again::<wire::Decide>(data);
    if let Some(body) = again::<wire::NewJob>(data) {
        let _ = body.into_job();
    }
    again::<wire::NewWorker>(data);
    again::<wire::RenewWorker>(data);
    again::<wire::ClaimJobs>(data);
    again::<wire::EndJobs>(data);
    again::<wire::FailJobs>(data);
    again::<wire::SnoozeJobs>(data);
}

fn again<T: Serialize + DeserializeOwned>(data: &[u8]) -> Option<T> {
    let read: T = serde_json::from_slice(data).ok()?;
    let written = serde_json::to_vec(&read).expect("what was read can be written");
    let back: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(serde_json::to_vec(&back).expect("and written"), written);
    Some(back)
}

fn named(namespace: Option<String>, key: Option<String>, key_b64: Option<String>) {
    if let Ok(namespace) = wire::namespace(namespace.as_deref()) {
        assert_eq!(wire::namespace(Some(namespace.as_str())).ok().as_ref(), Some(&namespace));
    }
    if let Ok(key) = wire::key(key, key_b64) {
        let leasehold::layout::KeyJson { key: text, key_b64 } = key.clone().into();
        assert_eq!(wire::key(text, key_b64).ok(), Some(key), "a key that does not come back");
    }
}
