//! What S3 does when nothing goes wrong.

use super::*;
use crate::{Answer, Fault, Rule};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{
    Error, GetOptions,
    list::{PaginatedListOptions, PaginatedListStore},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[tokio::test]
async fn a_name_is_created_once() {
    let (server, _) = server().await;
    let store = client(&server);
    create(&store, "a", "1").await.unwrap();
    let error = create(&store, "a", "2").await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_eq!(read(&store, "a").await.unwrap(), "1");
    let told: Vec<_> = server.requests().iter().map(|seen| (seen.op, seen.status, seen.if_none_match)).collect();
    assert_eq!(told, [(Op::Put, Some(200), true), (Op::Put, Some(412), true), (Op::Get, Some(200), false)]);
}

#[tokio::test]
async fn an_update_needs_the_tag_of_what_is_there() {
    let (server, _) = server().await;
    let store = client(&server);
    let first = create(&store, "a", "1").await.unwrap();
    let second = update(&store, "a", "2", &first).await.unwrap();
    let error = update(&store, "a", "3", &first).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    update(&store, "a", "3", &second).await.unwrap();
    assert_eq!(server.object("a").unwrap(), "3");
}

#[tokio::test]
async fn an_update_of_what_is_not_there_is_404() {
    let (server, _) = server().await;
    let store = client(&server);
    let first = create(&store, "a", "1").await.unwrap();
    server.delete_object("a");
    let error = update(&store, "a", "2", &first).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert_eq!(server.requests().last().unwrap().status, Some(404));
    assert!(server.names().is_empty());
}

#[tokio::test]
async fn equal_bodies_bring_an_old_tag_back() {
    let (server, _) = server().await;
    let store = client(&server);
    let first = create(&store, "a", "A").await.unwrap();
    let second = update(&store, "a", "B", &first).await.unwrap();
    let third = update(&store, "a", "A", &second).await.unwrap();
    assert_eq!(first.e_tag, third.e_tag);
    update(&store, "a", "C", &first).await.expect("the first tag is good again");
}

#[tokio::test]
async fn of_many_that_race_one_wins() {
    let (server, _) = server().await;
    let store = client(&server);
    let racers = futures_util::future::join_all((0..16).map(|_| create(&store, "a", "1"))).await;
    assert_eq!(racers.iter().filter(|raced| raced.is_ok()).count(), 1);
}

#[tokio::test]
async fn a_read_can_ask_for_what_is_new_or_for_what_it_knows() {
    let (server, _) = server().await;
    let store = client(&server);
    let tag = create(&store, "a", "1").await.unwrap().e_tag;
    let path = Path::from("a");
    let is_new = GetOptions { if_none_match: tag.clone(), ..GetOptions::default() };
    let is_same = GetOptions { if_match: tag, ..GetOptions::default() };
    let error = store.get_opts(&path, is_new.clone()).await.unwrap_err();
    assert!(matches!(error, Error::NotModified { .. }), "{error}");
    store.get_opts(&path, is_same.clone()).await.unwrap();
    server.put_object("a", "2");
    let error = store.get_opts(&path, is_same).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert_eq!(store.get_opts(&path, is_new).await.unwrap().bytes().await.unwrap(), "2");
    let error = read(&store, "b").await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn a_head_tells_the_size_and_the_servers_time() {
    let (server, clock) = server().await;
    let store = client(&server);
    clock.advance(Duration::from_millis(5_900));
    server.set_date(60_000);
    create(&store, "a", "12345").await.unwrap();
    server.set_date(0);
    let meta = store.head(&Path::from("a")).await.unwrap();
    assert_eq!(meta.size, 5);
    assert_eq!(meta.last_modified.to_rfc3339(), "2026-01-01T00:01:05+00:00");
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(listed, [meta], "a listing and a head say the same");
}

#[tokio::test]
async fn every_answer_has_one_date_and_it_is_the_servers() {
    let (server, _) = server().await;
    server.set_date(-3_600_000);
    for (method, status) in [("GET", "404"), ("PATCH", "405")] {
        let mut stream = TcpStream::connect(server.endpoint().trim_start_matches("http://")).await.unwrap();
        let request = format!(
            "{method} /bucket/a HTTP/1.1\r\nHost: x\r\nAuthorization: AWS4-HMAC-SHA256 Credential=leasehold/x\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        let response = response.to_lowercase();
        assert!(response.starts_with(&format!("http/1.1 {status}")), "{response}");
        assert_eq!(response.matches("\r\ndate: ").count(), 1, "{response}");
        assert!(response.contains("\r\ndate: wed, 31 dec 2025 23:00:00 gmt\r\n"), "{response}");
    }
}

#[tokio::test]
async fn a_listing_goes_on_page_by_page_in_byte_order() {
    let (server, _) = server().await;
    let store = client(&server);
    for name in ["i/2026010100/b", "i/2026010100/a", "i/2026010101/a", "i/2026010102/B", "i/2026010102/a", "j"] {
        server.put_object(name, "");
    }
    let mut pages = Vec::new();
    let mut page_token = None;
    loop {
        let options = PaginatedListOptions {
            offset: Some("i/2026010100/a".to_owned()),
            max_keys: Some(2),
            page_token,
            ..PaginatedListOptions::default()
        };
        let page = store.list_paginated(Some("i/"), options).await.unwrap();
        pages.push(page.result.objects.iter().map(|meta| meta.location.to_string()).collect::<Vec<_>>());
        page_token = page.page_token;
        if page_token.is_none() {
            break;
        }
    }
    assert_eq!(pages, [["i/2026010100/b", "i/2026010101/a"], ["i/2026010102/B", "i/2026010102/a"]]);
    assert_eq!(count(&server, Op::List), 2);
}

#[tokio::test]
async fn a_page_has_at_most_a_thousand_names() {
    let (server, _) = server().await;
    let store = client(&server);
    for number in 0..1001 {
        server.put_object(&format!("n/{number:04}"), "");
    }
    let options = PaginatedListOptions { max_keys: Some(5000), ..PaginatedListOptions::default() };
    let page = store.list_paginated(Some("n/"), options).await.unwrap();
    assert_eq!(page.result.objects.len(), 1000);
    assert!(page.page_token.is_some());
    let all: Vec<_> = store.list(Some(&Path::from("n"))).try_collect().await.unwrap();
    assert_eq!(all.len(), 1001);
    assert_eq!(count(&server, Op::List), 3);
}

#[tokio::test]
async fn a_delimiter_rolls_names_up() {
    let (server, _) = server().await;
    let store = client(&server);
    for name in ["a/x", "a/1/x", "a/1/y", "a/2/x", "b/x"] {
        server.put_object(name, "");
    }
    let listed = store.list_with_delimiter(Some(&Path::from("a"))).await.unwrap();
    assert_eq!(listed.common_prefixes, [Path::from("a/1"), Path::from("a/2")]);
    assert_eq!(listed.objects.iter().map(|meta| meta.location.as_ref()).collect::<Vec<_>>(), ["a/x"]);
}

#[tokio::test]
async fn many_names_are_deleted_a_thousand_at_a_time() {
    let (server, _) = server().await;
    let store = client(&server);
    let names: Vec<_> = (0..1500).map(|number| format!("n/{number}")).collect();
    // One in ten is not there, which is no error.
    for name in names.iter().filter(|name| !name.ends_with('3')) {
        server.put_object(name, "");
    }
    server.put_object("kept", "");
    let paths: Vec<_> = names.iter().map(|name| Ok(Path::from(name.as_str()))).collect();
    let deleted: Vec<_> = store.delete_stream(stream::iter(paths).boxed()).try_collect().await.unwrap();
    assert_eq!(deleted.len(), 1500);
    assert_eq!(server.names(), ["kept"]);
    assert_eq!(count(&server, Op::Delete), 2);
}

#[tokio::test]
async fn one_name_is_deleted_with_and_without_bulk_deletes_there_or_not() {
    let (server, _) = server().await;
    let single = builder(&server).with_config("aws_disable_bulk_delete".parse().unwrap(), "true").build().unwrap();
    for (store, method, status) in [(client(&server), "POST", 200), (single, "DELETE", 204)] {
        server.clear_requests();
        server.put_object("a", "");
        store.delete(&Path::from("a")).await.unwrap();
        assert!(server.names().is_empty());
        store.delete(&Path::from("a")).await.unwrap();
        let told: Vec<_> = server.requests().iter().map(|seen| (seen.method.clone(), seen.status)).collect();
        assert_eq!(told, [(method.to_owned(), Some(status)), (method.to_owned(), Some(status))]);
    }
}

#[tokio::test]
async fn odd_names_survive_every_way_through() {
    let (server, _) = server().await;
    let store = client(&server);
    for name in ["a b+c!2f=é", "d/<&>'\"", "e%2ff/..g", "h:~@,;$(*)"] {
        let path = Path::parse(name).unwrap();
        store.put(&path, "1".into()).await.unwrap();
        assert_eq!(server.names(), [name]);
        assert_eq!(server.requests()[0].path, name);
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "1");
        let listed: Vec<_> = store.list(None).map_ok(|meta| meta.location).try_collect().await.unwrap();
        assert_eq!(listed, std::slice::from_ref(&path));
        let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
        let page = store.list_paginated(Some(name), options).await.unwrap();
        assert_eq!(page.result.objects.len(), 1, "{name} as a prefix");
        store.delete(&path).await.unwrap();
        assert!(server.names().is_empty());
        server.clear_requests();
    }
}

#[tokio::test]
async fn strangers_and_other_buckets_are_turned_away() {
    let (server, _) = server().await;
    let stranger = builder(&server).with_access_key_id("stranger").build().unwrap();
    let error = create(&stranger, "a", "1").await.unwrap_err();
    assert!(
        matches!(error, Error::PermissionDenied { .. }) && error.to_string().contains("InvalidAccessKeyId"),
        "{error}"
    );
    let nobody = builder(&server).with_skip_signature(true).build().unwrap();
    let error = create(&nobody, "a", "1").await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    let elsewhere = builder(&server).with_bucket_name("other").build().unwrap();
    let error = create(&elsewhere, "a", "1").await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }) && error.to_string().contains("NoSuchBucket"), "{error}");
    assert!(server.names().is_empty());
    assert_eq!(server.requests().iter().map(|seen| seen.status).collect::<Vec<_>>(), [Some(403), Some(403), Some(404)]);
}

#[tokio::test]
async fn a_signature_from_another_time_is_refused_only_when_asked_for() {
    let system = S3Server::start(Arc::new(leasehold::SystemClock::new())).await.unwrap();
    let store = client(&system);
    system.check_signature_time(true);
    system.set_date(14 * 60_000);
    create(&store, "a", "1").await.unwrap();
    system.set_date(-16 * 60_000);
    let error = create(&store, "b", "1").await.unwrap_err();
    assert!(error.to_string().contains("RequestTimeTooSkewed"), "{error}");
    system.check_signature_time(false);
    create(&store, "b", "1").await.unwrap();
}

#[tokio::test]
async fn a_kind_of_request_can_be_forbidden_and_allowed_again() {
    let (server, _) = server().await;
    let store = client(&server);
    for op in [Op::Put, Op::Get, Op::List, Op::Delete] {
        server.deny(op);
    }
    assert!(matches!(create(&store, "a", "1").await, Err(Error::PermissionDenied { .. })));
    server.allow(Op::Put);
    create(&store, "a", "1").await.unwrap();
    assert!(matches!(read(&store, "a").await, Err(Error::PermissionDenied { .. })));
    assert!(store.list(None).try_collect::<Vec<_>>().await.unwrap_err().to_string().contains("AccessDenied"));
    let error = store.delete(&Path::from("a")).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    assert_eq!(server.names(), ["a"]);
    server.allow(Op::Delete);
    store.delete(&Path::from("a")).await.unwrap();
    assert!(server.names().is_empty());
}

#[tokio::test]
async fn a_dropped_server_takes_its_connections_with_it() {
    let (server, _) = server().await;
    let store = client(&server);
    server.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Hang)));
    let address = server.endpoint().trim_start_matches("http://").to_owned();
    let hanging = tokio::spawn(async move { read(&store, "a").await });
    until("the read has arrived", || count(&server, Op::Get) == 1).await;
    drop(server);
    hanging.await.unwrap().expect_err("its connection is closed");
    assert!(TcpStream::connect(address).await.is_err());
}
