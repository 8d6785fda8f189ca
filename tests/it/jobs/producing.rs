//! Jobs that are enqueued one by one share segments, and each caller hears of its own.

use super::process::{World, numbers};
use futures_util::future::join_all;
use leasehold::{ErrorKind, job::NewJob};
use leasehold_testkit::{Answer, Fault, Op};
use std::{collections::BTreeSet, time::Duration};

#[test]
fn a_hundred_single_enqueues_at_once_become_few_segments_with_an_id_each() {
    let world = World::new();
    let producer = world.process(1);
    world.fault(Op::Put, "/in/", Fault::Slow(Duration::from_millis(50)));
    let calls = (0..100).map(|number| producer.queue.enqueue(number.to_string()).into_future());
    let ids: Vec<_> = producer.run_in_time(&world, join_all(calls)).into_iter().map(Result::unwrap).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 100);
    let segments = world.names("/in/");
    assert!(segments.len() <= 3, "{segments:?}");
    let claimed = producer.claim(100);
    assert_eq!(numbers(&claimed), (0..100).collect::<Vec<_>>());
    for job in &claimed {
        let number: usize = std::str::from_utf8(&job.args()).unwrap().parse().unwrap();
        assert_eq!(job.id(), ids[number], "each caller has the id of its own job");
    }
}

#[test]
fn a_job_that_comes_alone_is_sent_at_once() {
    let world = World::new();
    let producer = world.process(1);
    // No time passes.
    for number in 0..5 {
        producer.run(producer.queue.enqueue(number.to_string()).into_future()).unwrap();
    }
    assert_eq!(world.names("/in/").len(), 5);
}

#[test]
fn jobs_wait_for_each_other_only_if_they_may() {
    let world = World::new();
    let producer = world.process_with(1, |jobs| jobs.linger = Some(Duration::ZERO));
    world.fault(Op::Put, "/in/", Fault::Slow(Duration::from_millis(50)));
    let calls = (0..20).map(|number| producer.queue.enqueue(number.to_string()).into_future());
    producer.run_in_time(&world, join_all(calls)).into_iter().for_each(|done| assert!(done.is_ok()));
    assert_eq!(world.names("/in/").len(), 20);
}

#[test]
fn what_one_caller_is_refused_for_is_not_the_others_error() {
    let world = World::new();
    let producer = world.process(1);
    world.fault(Op::Put, "/in/", Fault::Slow(Duration::from_millis(50)));
    let job = |number: usize| {
        let job = NewJob::new(number.to_string());
        if number == 7 { job.caller_id("x".repeat(200)) } else { job }
    };
    let calls = (0..20).map(|number| producer.queue.enqueue(job(number)).into_future());
    let told = producer.run_in_time(&world, join_all(calls));
    let wrong: Vec<usize> = (0..20).filter(|number| told[*number].is_err()).collect();
    assert_eq!(wrong, [7]);
    assert_eq!(told[7].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(producer.claim(100).len(), 19);
}

#[test]
fn a_caller_that_goes_away_takes_nobodys_job_along() {
    let world = World::new();
    let producer = world.process(1);
    world.fault(Op::Put, "/in/", Fault::Slow(Duration::from_millis(50)));
    producer.run(async {
        let mut calls: Vec<_> =
            (0..10).map(|number| Box::pin(producer.queue.enqueue(number.to_string()).into_future())).collect();
        // All of them are begun; the second goes while it waits, then the first while its segment is written.
        for call in &mut calls {
            tokio::select! { biased; _ = call => panic!("no time passes"), () = std::future::ready(()) => {} }
        }
        drop(calls.remove(1));
        drop(calls.remove(0));
        let mut rest = Box::pin(join_all(calls));
        loop {
            tokio::select! {
                biased;
                told = &mut rest => break assert!(told.iter().all(Result::is_ok), "{told:?}"),
                () = world.0.pass(Duration::from_millis(1)) => {}
            }
        }
    });
    let there = numbers(&producer.claim(100));
    assert!(there.ends_with(&[2, 3, 4, 5, 6, 7, 8, 9]) && !there.contains(&1), "{there:?}");
}

#[test]
fn a_group_whose_create_is_unknown_tells_each_caller_its_own_id() {
    let world = World::new();
    let producer = world.process(1);
    world.fault(Op::Put, "/in/", Fault::Slow(Duration::from_millis(50)));
    let faults = world.0.store.faults();
    faults.script(leasehold_testkit::Rule::always(Op::Put, Fault::Lose(Answer::Drop)).on("/in/"));
    faults.script(leasehold_testkit::Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))).on("/in/"));
    let calls = (0..5).map(|number| producer.queue.enqueue(number.to_string()).into_future());
    let told = producer.run_in_time(&world, join_all(calls));
    assert!(told[0].is_ok());
    let mut ids = BTreeSet::new();
    for told in &told[1..] {
        let failed = told.as_ref().unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unknown, "{failed}");
        let [leasehold::job::Fate::Unknown(id)] = failed.fates() else { panic!("{failed:?}") };
        ids.insert(*id);
    }
    assert_eq!(ids.len(), 4);
}
