//! There is one leader, all processes can see which, and when it goes another one is elected.

use crate::{
    common::key,
    memory::{Memory, SECOND, settle},
};
use futures_util::{FutureExt, StreamExt};
use leasehold::{
    Leases,
    lease::{Campaign, Election, Leadership, Request},
    store::RequestKind,
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

fn election(leases: &Leases, candidate: &str) -> Election {
    leases.election(key("leader"), candidate, 10 * SECOND).unwrap()
}

async fn leads(election: &Election, wait: Duration) -> Leadership {
    match election.campaign(wait).await.unwrap() {
        Campaign::Leader(leadership) => leadership,
        Campaign::Follower(leader) => panic!("follows {leader:?}"),
    }
}

#[tokio::test]
async fn one_candidate_leads_and_the_others_follow_it() {
    let bed = Memory::new().await;
    let one = election(&bed.leases, "one").note("10.0.0.1:80");
    let leadership = leads(&one, Duration::ZERO).await;
    for number in 0..3 {
        let other = election(&bed.other().await, &format!("other-{number}"));
        let Campaign::Follower(Some(leader)) = other.campaign(Duration::ZERO).await.unwrap() else { panic!() };
        assert_eq!((leader.owner.as_str(), leader.fence), ("one", leadership.fence()));
        assert_eq!(leader.note.as_deref(), Some(&b"10.0.0.1:80"[..]));
    }
    bed.pass(120, SECOND).await;
    assert!(leadership.is_valid(), "for as long as it likes");
    assert_eq!(one.leader().await.unwrap().unwrap().lease_id, leadership.grant().lease_id());
}

#[tokio::test]
async fn when_the_leader_resigns_the_next_one_leads_with_a_higher_fence() {
    let bed = Memory::new().await;
    let leadership = leads(&election(&bed.leases, "one"), Duration::ZERO).await;
    let fence = leadership.fence();
    let two = election(&bed.other().await, "two");
    let waiting = tokio::spawn(async move { leads(&two, 600 * SECOND).await });
    bed.pass(30, SECOND).await;
    assert!(!waiting.is_finished());
    leadership.resign().await.unwrap();
    bed.pass(3, SECOND).await;
    let next = waiting.now_or_never().expect("leads within a look or two").unwrap();
    assert!(next.fence() > fence && next.is_valid());
}

#[tokio::test]
async fn a_leader_that_died_is_followed_when_its_lease_has_ended_for_everybody() {
    let bed = Memory::new().await;
    // Acquired by a process that does not renew it.
    let request = Request::new(10 * SECOND).owner("dead");
    let _ = bed.other().await.acquire(&key("leader"), &request).await.unwrap();
    let two = election(&bed.leases, "two");
    let waiting = tokio::spawn(async move { leads(&two, 600 * SECOND).await });
    settle().await;
    bed.pass(110, SECOND / 10).await;
    assert!(!waiting.is_finished(), "its clock may be behind ours");
    bed.pass(20, SECOND / 10).await;
    let next = waiting.now_or_never().expect("soon then").unwrap();
    assert!(next.grant().is_valid());
}

#[tokio::test]
async fn a_leader_that_was_paused_or_cut_off_knows_that_it_does_not_lead() {
    let bed = Memory::new().await;
    let leadership = leads(&election(&bed.leases, "one"), Duration::ZERO).await;
    bed.clock.advance(10 * SECOND);
    assert!(!leadership.is_valid(), "at once");
    settle().await;
    assert!(leadership.lost().now_or_never().is_some() && leadership.cancellation().is_cancelled());
    bed.pass(2, SECOND).await;
    let leadership = leads(&election(&bed.leases, "one"), Duration::ZERO).await;
    for op in [Op::Put, Op::Get] {
        bed.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Hang)));
    }
    bed.pass(9, SECOND).await;
    assert!(leadership.lost().now_or_never().is_none());
    bed.pass(1, SECOND).await;
    assert!(leadership.lost().now_or_never().is_some() && !leadership.is_valid());
}

#[tokio::test]
async fn who_observes_hears_of_new_leaders_only() {
    let bed = Memory::new().await;
    let (sender, mut heard) = unbounded_channel();
    let mut leaders = election(&bed.leases, "observer").observe();
    tokio::spawn(async move {
        while let Some(leader) = leaders.next().await {
            let _ = sender.send(leader.map(|leader| leader.map(|leader| leader.owner)).ok());
        }
    });
    let mut hear = async || {
        bed.pass(30, SECOND / 10).await;
        let mut all = Vec::new();
        while let Ok(leader) = heard.try_recv() {
            all.push(leader.unwrap());
        }
        all
    };
    let (one, two) = (election(&bed.other().await, "one"), election(&bed.other().await, "two"));
    assert_eq!(hear().await, [None]);
    let leadership = leads(&one, Duration::ZERO).await;
    assert_eq!(hear().await, [Some("one".to_owned())]);
    for _ in 0..20 {
        assert_eq!(hear().await, [], "that it goes on leading is no news");
    }
    leadership.resign().await.unwrap();
    assert_eq!(hear().await, [None]);
    let leadership = leads(&two, Duration::ZERO).await;
    assert_eq!(hear().await, [Some("two".to_owned())]);
    // The same candidate again is a new leader.
    leadership.resign().await.unwrap();
    let _leadership = leads(&two, Duration::ZERO).await;
    assert_eq!(hear().await, [Some("two".to_owned())]);
}

#[tokio::test]
async fn looking_who_leads_is_one_read_and_no_activity() {
    let bed = Memory::new().await;
    let one = election(&bed.leases, "one");
    bed.pass(5, SECOND).await;
    let (before, idle) = (bed.store.requests(), bed.store.idle_for());
    assert_eq!(one.leader().await.unwrap(), None);
    let made = bed.store.requests().since(&before);
    assert_eq!((made.of(RequestKind::Get), made.total()), (1, 1));
    assert_eq!(bed.store.idle_for(), idle);
}
