//! What stands in `deploy/` is about metrics that there are.

use crate::common::Service;
use serde_json::{Value, json};
use std::{collections::BTreeSet, path::Path};

/// The names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let ours = |word: &&str| word.starts_with("leasehold_") || word.starts_with("process_");
    text.split(word).filter(ours).map(|name| name.trim_end_matches("_bucket").to_owned()).collect()
}

/// All queries in a dashboard, wherever they stand.
fn queries(value: &Value, found: &mut String) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(text) if matches!(name.as_str(), "expr" | "query") => *found += &format!("{text}\n"),
            _ => queries(value, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_metric_of_the_dashboard_and_the_alerts_is_scraped_or_described() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let dashboard = std::fs::read_to_string(deploy.join("grafana/leasehold.json")).unwrap();
    let mut asked = String::new();
    queries(&serde_json::from_str(&dashboard).unwrap(), &mut asked);
    let alerts = std::fs::read_to_string(deploy.join("prometheus/alerts.yml")).unwrap();
    let used = &named(&asked) | &named(&alerts);
    assert!(used.len() >= 20, "{used:?}");

    // Counters are there from the beginning; what is measured only now and then is named where it is.
    let service = Service::start(&[]);
    let lease = service.acquire("key", "me").await.granted();
    service.acquire("key", "other").await;
    service.post("/v1/renew", json!({ "key": "key", "lease_id": lease.text("lease_id") })).await;
    service.release(&lease).await;
    service.post("/v1/sweep", json!({})).await;
    service.get("/v1/queues/emails").await;
    let scraped = service.get("/metrics").await;
    let scraped = named(scraped.body.as_str().unwrap());
    let source = include_str!("../../../src/sweep/counters.rs");
    let counted: BTreeSet<String> =
        source.split('"').filter(|text| text.starts_with("leasehold_")).map(ToOwned::to_owned).collect();
    for name in &used {
        assert!(scraped.contains(name) || counted.contains(name), "{name} is asked for, and there is no such metric");
    }
    let hidden: Vec<_> = used.difference(&scraped).collect();
    assert_eq!(hidden, ["leasehold_sweep_oldest_hour_timestamp_seconds"], "the rest can be seen at once");
}

#[test]
fn every_alert_is_in_the_book() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let alerts = std::fs::read_to_string(root.join("deploy/prometheus/alerts.yml")).unwrap();
    let book = std::fs::read_to_string(root.join("docs/OPERATIONS.md")).unwrap();
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 10);
    for name in names {
        assert!(book.contains(&format!("`{name}`")), "{name}");
    }
}
