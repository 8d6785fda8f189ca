use super::Proxy;
use crate::{Answer, Fault, Op, Rule, S3Server, TestClock, conformance_of};
use bytes::Bytes;
use leasehold::{ErrorKind, Store, SystemClock, clock::Timestamp, store::Probing};
use object_store::{ObjectStore, ObjectStoreExt, RetryConfig, aws::AmazonS3Builder, path::Path};
use std::{sync::Arc, time::Duration};

struct Bed {
    clock: TestClock,
    server: S3Server,
    proxy: Proxy,
}

impl Bed {
    async fn new() -> Self {
        let clock = TestClock::at(Timestamp::from_millis(1_767_227_400_000));
        let server = S3Server::start(Arc::new(clock.clone())).await.unwrap();
        let proxy = Proxy::start(&server.endpoint(), Arc::new(clock.clone())).await.unwrap();
        Self { clock, server, proxy }
    }

    /// A client that tries once.
    fn client(&self) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new().with_bucket_name(S3Server::BUCKET);
        let options = self.server.options().into_iter();
        let builder = options.fold(builder, |builder, (key, value)| builder.with_config(key.parse().unwrap(), value));
        let builder = builder.with_endpoint(self.proxy.endpoint());
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        Arc::new(builder.with_retry(once).build().unwrap())
    }
}

fn name() -> Path {
    Path::from("a/b")
}

#[tokio::test]
async fn with_nothing_wrong_the_contract_holds_through_it() {
    let bed = Bed::new().await;
    let builder = Store::builder().url("s3://bucket/x").without_environment().clock(Arc::new(bed.clock.clone()));
    let builder = bed.server.options().into_iter().fold(builder, |builder, (key, value)| builder.option(key, value));
    let store = builder.option("aws_endpoint", bed.proxy.endpoint()).probing(Probing::Never).open().await.unwrap();
    let checks = conformance_of(&store).await;
    assert!(checks.iter().all(|check| check.result.is_ok()), "{checks:#?}");
    assert_eq!(bed.proxy.requests(), bed.server.requests().len() as u64);
}

#[tokio::test]
async fn a_lost_answer_is_that_of_a_write_that_was_made_and_a_refused_one_of_none() {
    for answer in [Answer::Drop, Answer::Status(503)] {
        let bed = Bed::new().await;
        bed.proxy.faults().script(Rule::once(Op::Put, Fault::Refuse(answer)));
        bed.proxy.faults().script(Rule::once(Op::Put, Fault::Lose(answer)).on("/a/b"));
        let client = bed.client();
        assert!(client.put(&name(), "1".into()).await.is_err());
        assert_eq!(bed.server.names(), [""; 0]);
        assert!(client.put(&name(), "2".into()).await.is_err());
        assert_eq!(bed.server.object("a/b"), Some(Bytes::from("2")));
        client.put(&name(), "3".into()).await.unwrap();
        assert_eq!(bed.proxy.faults().injected().get("lose"), Some(&1));
    }
}

#[tokio::test]
async fn a_duplicated_write_reaches_the_server_twice() {
    let bed = Bed::new().await;
    bed.proxy.faults().script(Rule::once(Op::Put, Fault::Duplicate));
    bed.client().put(&name(), "1".into()).await.unwrap();
    assert_eq!((bed.proxy.requests(), bed.server.requests().len()), (1, 2));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_never_taken_for_a_whole_one() {
    let bed = Bed::new().await;
    let client = bed.client();
    client.put(&name(), Bytes::from(vec![7; 100_000]).into()).await.unwrap();
    bed.proxy.faults().script(Rule::once(Op::Get, Fault::Truncate));
    let read = async { client.get(&name()).await?.bytes().await };
    assert!(read.await.is_err());
    assert_eq!(client.get(&name()).await.unwrap().bytes().await.unwrap().len(), 100_000);
    bed.proxy.faults().script(Rule::once(Op::Put, Fault::Truncate));
    assert!(client.put(&name(), "2".into()).await.is_err());
    assert_eq!(bed.server.object("a/b"), Some(Bytes::from("2")));
}

#[tokio::test]
async fn a_delayed_request_and_a_late_one_wait_for_the_clock() {
    let bed = Bed::new().await;
    let client = bed.client();
    bed.proxy.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(5))));
    let writing = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.put(&name(), "1".into()).await }
    });
    bed.clock.wait_for_sleepers(1).await;
    assert_eq!(bed.server.names(), [""; 0]);
    bed.clock.advance(Duration::from_secs(5));
    writing.await.unwrap().unwrap();
    bed.proxy.faults().script(Rule::once(Op::Put, Fault::Late(Duration::from_secs(5), Answer::Status(500))));
    assert!(client.put(&name(), "2".into()).await.is_err());
    bed.clock.wait_for_sleepers(1).await;
    assert_eq!(bed.server.object("a/b"), Some(Bytes::from("1")));
    bed.clock.advance(Duration::from_secs(5));
    while bed.server.object("a/b") != Some(Bytes::from("2")) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_cut_ends_what_is_under_way_and_the_next_request_gets_through() {
    let bed = Bed::new().await;
    let client = bed.client();
    bed.proxy.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Hang)));
    let writing = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.put(&name(), "1".into()).await }
    });
    while bed.server.object("a/b").is_none() {
        tokio::task::yield_now().await;
    }
    bed.proxy.cut();
    assert!(writing.await.unwrap().is_err());
    client.put(&name(), "2".into()).await.unwrap();
    bed.proxy.block(true);
    assert!(client.put(&name(), "3".into()).await.is_err());
    bed.proxy.block(false);
    assert_eq!(bed.server.object("a/b"), Some(Bytes::from("2")));
    client.put(&name(), "4".into()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_through_it() {
    let proxy = Proxy::start("http://127.0.0.1:9", Arc::new(SystemClock::new())).await.unwrap();
    let builder = Store::builder().url("s3://bucket/x").without_environment().option("endpoint", proxy.endpoint());
    let builder = builder.option("access_key_id", "x").option("secret_access_key", "y").option("region", "us-east-1");
    assert_eq!(builder.open().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(Proxy::start("https://127.0.0.1:9", Arc::new(SystemClock::new())).await.is_err());
}
