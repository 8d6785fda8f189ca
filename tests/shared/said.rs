//! What was logged as a warning.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A subscriber that keeps the words of every warning. Clones hear the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said(Arc<Mutex<Vec<String>>>, Arc<AtomicU64>);

impl Said {
    /// How many warnings had all of these words.
    pub(crate) fn count(&self, words: &[&str]) -> usize {
        let has_all = |said: &&String| words.iter().all(|word| said.contains(word));
        self.0.lock().unwrap().iter().filter(has_all).count()
    }
}

struct Words(String);

impl tracing::field::Visit for Words {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for Said {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1 + self.1.fetch_add(1, Relaxed))
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        self.0.lock().unwrap().push(words.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
