//! Instructions of the hot paths, counted by valgrind: the same on a busy machine as on a quiet one. `benches/instructions`
//! compares them with what they were.
//!
//! Each benchmark does its thing a hundred times, so that starting and ending weigh nothing.

#![allow(missing_docs, clippy::unwrap_used, reason = "made by macros; a bench that fails is a failed bench")]

use bytes::Bytes;
use gungraun::prelude::*;
use leasehold::{Key, internals::bench::Sample};
use leasehold_benches::{Ours, Raw, must, runtime, sample, some_key};
use std::hint::black_box;
use tokio::runtime::Runtime;

const TIMES: usize = 100;

fn ours() -> (Runtime, Ours) {
    let runtime = runtime().unwrap();
    let ours = must(&runtime, Ours::new());
    (runtime, ours)
}

fn raw() -> (Runtime, Raw) {
    let runtime = runtime().unwrap();
    let mut raw = must(&runtime, Raw::new());
    must(&runtime, raw.put());
    (runtime, raw)
}

fn record() -> Sample {
    sample().unwrap()
}

fn body() -> (Sample, Bytes) {
    (record(), record().encode().unwrap())
}

fn key() -> Key {
    some_key().unwrap()
}

#[library_benchmark]
#[bench::memory(setup = ours)]
fn warm_renew((runtime, mut ours): (Runtime, Ours)) -> (Runtime, Ours) {
    must(&runtime, async {
        for _ in 0..TIMES {
            ours.renew().await?;
        }
        Ok(())
    });
    (runtime, ours)
}

#[library_benchmark]
#[bench::memory(setup = raw)]
fn raw_put_and_encode((runtime, mut raw): (Runtime, Raw)) -> (Runtime, Raw) {
    must(&runtime, async {
        for _ in 0..TIMES {
            raw.put().await?;
        }
        Ok(())
    });
    (runtime, raw)
}

#[library_benchmark]
#[bench::memory(setup = ours)]
fn warm_cycle((runtime, mut ours): (Runtime, Ours)) -> (Runtime, Ours) {
    must(&runtime, async {
        for _ in 0..TIMES {
            ours.cycle().await?;
        }
        Ok(())
    });
    (runtime, ours)
}

#[library_benchmark]
#[bench::held(setup = record)]
fn record_encode(sample: Sample) -> Sample {
    for _ in 0..TIMES {
        black_box(black_box(&sample).encode().unwrap());
    }
    sample
}

#[library_benchmark]
#[bench::held(setup = body)]
fn record_decode((sample, body): (Sample, Bytes)) -> (Sample, Bytes) {
    for _ in 0..TIMES {
        black_box(sample.decode(black_box(body.clone())).unwrap());
    }
    (sample, body)
}

#[library_benchmark]
#[bench::short(setup = key)]
fn key_encode(key: Key) -> Key {
    for _ in 0..TIMES {
        black_box(black_box(&key).name());
    }
    key
}

library_benchmark_group!(
    name = hot,
    benchmarks = [warm_renew, raw_put_and_encode, warm_cycle, record_encode, record_decode, key_encode]
);

main!(library_benchmark_groups = hot);
