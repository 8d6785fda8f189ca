//! The reference of metrics, from what the library registers when a store is opened, and from what the service describes.

use ::metrics::{self, Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use leasehold::Store;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Mutex, PoisonError},
};

/// What is known of one metric.
#[derive(Default)]
struct Metric {
    kind: &'static str,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Writes down what is registered and described, and counts nothing.
#[derive(Default)]
struct Notebook(Mutex<BTreeMap<String, Metric>>);

impl Notebook {
    fn described(&self, kind: &'static str, name: &str, help: &str) {
        let mut metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let metric = metrics.entry(name.to_owned()).or_default();
        (metric.kind, metric.help) = (kind, help.to_owned());
    }

    fn registered(&self, key: &Key) {
        let mut metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let metric = metrics.entry(key.name().to_owned()).or_default();
        for label in key.labels() {
            metric.labels.entry(label.key().to_owned()).or_default().insert(label.value().to_owned());
        }
    }
}

impl Recorder for Notebook {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("counter", name.as_str(), &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("gauge", name.as_str(), &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("histogram", name.as_str(), &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.registered(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.registered(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.registered(key);
        Histogram::noop()
    }
}

/// Which answers a store gives depends on the store, so these values are not written down.
const BY_STORE: &str = "leasehold_store_requests_total";

/// The whole page.
pub(crate) fn page() -> String {
    let notebook = Notebook::default();
    metrics::with_local_recorder(&notebook, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Store::open("memory://")).unwrap();
    });
    let service = Notebook::default();
    described_in(include_str!("../../cli/src/serve/health.rs"), &service);
    let work = Notebook::default();
    described_in(include_str!("../../cli/src/jobs/work/health.rs"), &work);
    let mut text = String::from(
        "# Metrics\n\nGenerated from the code by `LEASEHOLD_UPDATE_DOCS=1 cargo test --test house`. How to export them is in \
         [GUIDE.md](GUIDE.md#export-metrics),\nand which of them to watch in [OPERATIONS.md](OPERATIONS.md#watching-it).\n",
    );
    section(&mut text, "Of the library", &notebook);
    section(&mut text, "Of the service", &service);
    section(&mut text, "Of the program's `work`", &work);
    text
}

fn section(text: &mut String, title: &str, notebook: &Notebook) {
    write!(text, "\n## {title}\n\n| name | kind | labels | |\n|---|---|---|---|\n").unwrap();
    for (name, metric) in notebook.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        assert!(!metric.help.is_empty(), "{name} is not described");
        let label = |(label, values): (&String, &BTreeSet<String>)| match name == BY_STORE {
            true => format!("`{label}`"),
            false => {
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                format!("`{label}`: {}", values.join(", "))
            }
        };
        let labels: Vec<String> = metric.labels.iter().map(label).collect();
        writeln!(text, "| `{name}` | {} | {} | {} |", metric.kind, labels.join("; "), metric.help).unwrap();
    }
}

/// What a source describes, by the texts between the brackets of each `describe_…!`.
fn described_in(source: &str, notebook: &Notebook) {
    for call in source.split("describe_").skip(1) {
        let kind = ["counter", "gauge", "histogram"].into_iter().find(|kind| call.starts_with(&format!("{kind}!(")));
        let (Some(kind), Some(end)) = (kind, call.find(");")) else { continue };
        let texts: Vec<&str> = call[..end].split('"').skip(1).step_by(2).collect();
        if let [name, help] = texts[..] {
            notebook.described(kind, name, help);
        }
    }
}
