//! How long our own code takes, by the clock: writing down, names, swaps over memory, pages of the index, the cache.
//! Wall time: for a quiet machine. `instructions` counts what matters most on any.

#![allow(missing_docs, clippy::unwrap_used, reason = "made by macros; a bench that fails is a failed bench")]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use leasehold::{
    Key, Store,
    decision::{Decision, TxnId},
    internals::bench::{self, Sample, SampleMarker},
    layout::Decoded,
};
use leasehold_benches::{Ours, Raw, must, runtime, sample, some_key, some_time};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, memory::InMemory, path::Path};
use std::{hint::black_box, sync::Arc, time::Duration};

fn codec(c: &mut Criterion) {
    let mut group = c.benchmark_group("codec");
    let record = sample().unwrap();
    let body = record.encode().unwrap();
    group.bench_function("record/encode", |b| b.iter(|| black_box(&record).encode().unwrap()));
    group.bench_function("record/decode", |b| b.iter(|| record.decode(black_box(body.clone())).unwrap()));
    let txn: TxnId = "019b76da-a800-7000-8000-000000000001".parse().unwrap();
    let marker = SampleMarker::committed(txn, "coordinator-1", some_time());
    let body = marker.encode().unwrap();
    group.bench_function("marker/encode", |b| b.iter(|| black_box(&marker).encode().unwrap()));
    group.bench_function("marker/decode", |b| b.iter(|| marker.decode(black_box(body.clone())).unwrap()));
    let (entry, _) = record.entry().unwrap();
    group.bench_function("entry/write", |b| b.iter(|| black_box(&record).entry().unwrap()));
    group.bench_function("entry/parse_name", |b| b.iter(|| assert!(bench::is_entry(black_box(&entry)))));
    group.finish();
}

fn keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("key");
    let long = Key::new("/".repeat(1024)).unwrap();
    for (what, key) in [("short", some_key().unwrap()), ("long", long)] {
        let name = key.name();
        group.bench_function(format!("{what}/encode"), |b| b.iter(|| black_box(&key).name()));
        group.bench_function(format!("{what}/decode"), |b| {
            b.iter(|| matches!(Key::from_name(black_box(&name)).unwrap(), Decoded::Key(_)))
        });
    }
    group.finish();
}

fn swaps(c: &mut Criterion) {
    let runtime = runtime().unwrap();
    let mut group = c.benchmark_group("memory");
    group.bench_function("raw_put_and_encode", |b| {
        let mut raw = must(&runtime, Raw::new());
        b.iter(|| must(&runtime, raw.put()));
    });
    group.bench_function("warm_renew", |b| {
        let mut ours = must(&runtime, Ours::new());
        b.iter(|| must(&runtime, ours.renew()));
    });
    group.bench_function("warm_cycle", |b| {
        let mut ours = must(&runtime, Ours::new());
        b.iter(|| must(&runtime, ours.cycle()));
    });
    group.bench_function("decision/decide", |b| {
        let ours = must(&runtime, Ours::new());
        let decisions = ours.store.decisions();
        b.iter(|| {
            let deciding = async { Ok(decisions.decide(decisions.begin(), Decision::Commit).await?) };
            must(&runtime, deciding)
        });
    });
    group.bench_function("decision/read_cached", |b| {
        let ours = must(&runtime, Ours::new());
        let decisions = ours.store.decisions();
        let txn = decisions.begin();
        let _ = must(&runtime, async { Ok(decisions.decide(txn, Decision::Commit).await?) });
        b.iter(|| must(&runtime, async { Ok(decisions.get(txn).await?) }));
    });
    group.finish();
}

/// A store with so many entries in its index.
async fn filed(count: usize) -> leasehold_benches::Result<Store> {
    let objects = Arc::new(InMemory::new());
    for number in 0..count {
        let sample =
            Sample::held(Key::new(format!("orders/{number}"))?, "worker-7", some_time(), Duration::from_secs(60))?;
        let (name, body) = sample.entry()?;
        objects.put(&Path::from(name), PutPayload::from_bytes(body)).await?;
    }
    let objects: Arc<dyn ObjectStore> = objects;
    Ok(Store::builder().object_store(objects).lists_in_order().shares_our_clock().open().await?)
}

fn index(c: &mut Criterion) {
    let runtime = runtime().unwrap();
    let mut group = c.benchmark_group("index");
    let store = must(&runtime, filed(10_000));
    let first = must(&runtime, async { Ok(bench::page(&store, None, 250).await?) });
    group.bench_function("first_page_of_250", |b| {
        b.iter(|| must(&runtime, async { Ok(bench::page(&store, None, 250).await?) }));
    });
    group.bench_function("next_page_of_250", |b| {
        b.iter(|| must(&runtime, async { Ok(bench::page(&store, first.as_deref(), 250).await?) }));
    });
    group.finish();
}

fn cache(c: &mut Criterion) {
    let runtime = runtime().unwrap();
    let mut group = c.benchmark_group("cache");
    let ours = must(&runtime, Ours::new());
    let known: Vec<Key> = (0..10_000).map(|number| Key::new(format!("orders/{number}")).unwrap()).collect();
    known.iter().for_each(|key| bench::look_up(&ours.leases, key));
    let mut at = 0;
    group.bench_function("known_key_of_10000", |b| {
        b.iter(|| {
            at = (at + 1) % known.len();
            bench::look_up(&ours.leases, &known[at]);
        });
    });
    let mut number = 0;
    group.bench_function("new_key", |b| {
        let fresh = || {
            number += 1;
            Key::new(format!("fresh/{number}")).unwrap()
        };
        b.iter_batched(fresh, |key| bench::look_up(&ours.leases, &key), BatchSize::SmallInput);
    });
    group.finish();
}

criterion_group!(own, codec, keys, swaps, index, cache);
criterion_main!(own);
