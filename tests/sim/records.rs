//! The records of keys as another tool would read them: not by the library's own code.

use leasehold::{Hour, clock::Timestamp};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Record {
    #[prost(bytes = "vec", tag = "3")]
    pub write_id: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub revision: u64,
    #[prost(uint64, tag = "5")]
    pub last_fence: u64,
    #[prost(message, optional, tag = "6")]
    pub lease: Option<Lease>,
    #[prost(uint64, tag = "9")]
    pub hour: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Lease {
    #[prost(bytes = "vec", tag = "1")]
    pub id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub owner: String,
    #[prost(uint64, tag = "6")]
    pub fence: u64,
    #[prost(int64, tag = "8")]
    pub expires_ms: i64,
    #[prost(uint64, tag = "9")]
    pub ttl_ms: u64,
    #[prost(bytes = "vec", tag = "10")]
    pub beat: Vec<u8>,
    #[prost(uint64, optional, tag = "11")]
    pub lasts_ms: Option<u64>,
    #[prost(message, optional, tag = "13")]
    pub session: Option<Session>,
}

/// The session that a lease is held under.
#[derive(Clone, PartialEq, Message)]
pub struct Session {
    #[prost(bytes = "vec", tag = "1")]
    pub id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub lease: Vec<u8>,
}

/// The hour under which a lease must be filed.
pub fn hour_of(lease: &Lease) -> String {
    Hour::of(Timestamp::from_millis(lease.expires_ms)).map_or_else(|error| error.to_string(), |hour| hour.to_string())
}

/// Its id in a few letters.
pub fn id(lease: &Lease) -> String {
    lease.id.iter().map(|byte| format!("{byte:02x}")).collect()
}
