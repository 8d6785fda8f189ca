//! Names and ids as they stand in the objects of a store: for tools that read a store by themselves, and for tests.
//!
//! Programs that lock, decide and sweep need none of these. What the objects contain is described in
//! `docs/PROTOCOL.md`, and their formats are in `proto/`.
//!
//! ```
//! use leasehold::{Key, layout::Decoded};
//!
//! // default/meta/orders!2f42 is the record of the key orders/42 in the namespace `default`:
//! assert_eq!(Key::from_name("orders!2f42")?, Decoded::Key(Key::new("orders/42")?));
//! # Ok::<(), leasehold::Error>(())
//! ```

pub use crate::{
    id::{ProcessId, WriteId},
    key::{Decoded, KeyJson},
};
