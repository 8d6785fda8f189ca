//! The server, seen through the real client.

mod faults;
mod flaws;
mod objects;
mod retries;

use super::S3Server;
use crate::{Op, TestClock};
use leasehold::clock::Timestamp;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutResult, Result, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
};
use std::{sync::Arc, time::Duration};

/// A server on a clock that stands at 2026-01-01 00:00:00 UTC.
async fn server() -> (S3Server, TestClock) {
    let clock = TestClock::at(Timestamp::from_millis(1_767_225_600_000));
    (S3Server::start(Arc::new(clock.clone())).await.unwrap(), clock)
}

fn builder(server: &S3Server) -> AmazonS3Builder {
    let builder = AmazonS3Builder::new().with_bucket_name(S3Server::BUCKET);
    server.options().into_iter().fold(builder, |builder, (key, value)| builder.with_config(key.parse().unwrap(), value))
}

/// A client that tries once.
fn client(server: &S3Server) -> AmazonS3 {
    client_with_retries(server, 0)
}

fn client_with_retries(server: &S3Server, max_retries: usize) -> AmazonS3 {
    let millisecond = Duration::from_millis(1);
    let backoff = BackoffConfig { init_backoff: millisecond, max_backoff: millisecond, base: 2.0 };
    let retry = RetryConfig { backoff, max_retries, retry_timeout: Duration::from_secs(60) };
    builder(server).with_retry(retry).build().unwrap()
}

/// A client that does not wait long for an answer.
fn impatient_client(server: &S3Server, max_retries: usize) -> AmazonS3 {
    let options = ClientOptions::new().with_allow_http(true).with_timeout(Duration::from_millis(200));
    let retry = RetryConfig { max_retries, ..RetryConfig::default() };
    builder(server).with_client_options(options).with_retry(retry).build().unwrap()
}

async fn create(store: &AmazonS3, name: &str, body: &'static str) -> Result<PutResult> {
    store.put_opts(&Path::from(name), body.into(), PutMode::Create.into()).await
}

async fn update(store: &AmazonS3, name: &str, body: &'static str, from: &PutResult) -> Result<PutResult> {
    store.put_opts(&Path::from(name), body.into(), PutMode::Update(from.clone().into()).into()).await
}

async fn read(store: &AmazonS3, name: &str) -> Result<bytes::Bytes> {
    store.get(&Path::from(name)).await?.bytes().await
}

fn count(server: &S3Server, op: Op) -> usize {
    server.requests().iter().filter(|request| request.op == op).count()
}

/// Returns once `condition` holds; other tasks run in between.
async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never happened: {what}");
}
