//! The only room that knows `object_store`.

#[cfg_attr(
    not(feature = "testkit"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "public in the testkit only")
)]
pub(crate) mod local;
