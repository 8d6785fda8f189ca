//! The loop, the cache and the settling of doubt, on a number in a store that fails as it is told to.

use super::{Cached, Change, Changed, InFlight, Known, Patience, Plan, Settled, Unchanged, settle};
use crate::{
    Clock as _, Error, ErrorKind, Result, Store, WriteId,
    clock::Timestamp,
    storage::{
        Backend, Name,
        cas::{self, Outcome, Record, Seen, Slot, Stamp},
    },
    store::Probing,
    testkit::{Answer, Fault, FaultStore, Op, Rule, SeededGenerator, TestClock},
};
use bytes::Bytes;
use futures_util::FutureExt;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Number {
    write_id: WriteId,
    revision: u64,
    value: u64,
}

impl Record for Number {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }
}

#[derive(Debug, Clone)]
struct NumberSlot;

const NAME: &str = "numbers/one";

impl Slot for NumberSlot {
    type Record = Number;

    fn name(&self) -> Name {
        Name::new(NAME)
    }

    fn encode(&self, number: &Number) -> Result<Bytes> {
        Ok(format!("{} {} {}", number.write_id, number.revision, number.value).into())
    }

    fn decode(&self, body: Bytes) -> Result<Number> {
        let text = String::from_utf8_lossy(&body).into_owned();
        let mut words = text.split(' ');
        let mut next = || words.next().ok_or_else(|| Error::corrupt("a word is missing"));
        let number = |word: &str| word.parse().map_err(|_| Error::corrupt(format!("{word} is no number")));
        let write_id = next()?.parse::<WriteId>().map_err(|error| Error::corrupt(error.to_string()))?;
        Ok(Number { write_id, revision: number(next()?)?, value: number(next()?)? })
    }
}

fn number(Stamp { write_id, revision }: Stamp, value: u64) -> Number {
    Number { write_id, revision, value }
}

/// A store in memory, and the clock that it is on.
struct Bed {
    clock: TestClock,
    objects: FaultStore,
    backend: Arc<Backend>,
}

const PATIENCE: Patience = Patience { within: Duration::from_secs(15), conflicts: 4 };

impl Bed {
    async fn new() -> Self {
        let clock = TestClock::at(Timestamp::from_millis(1_767_225_600_000));
        let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
        let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock().lists_in_order();
        let store = builder.clock(Arc::new(clock.clone())).probing(Probing::Never).open().await.unwrap();
        let backend = Arc::clone(store.backend());
        Self { clock, objects, backend }
    }

    fn fails(&self, rule: Rule) {
        self.objects.faults().script(rule.on(NAME));
    }

    async fn read(&self) -> Option<Arc<Seen<Number>>> {
        cas::read(&self.backend, &NumberSlot).await.unwrap().map(Arc::new)
    }

    fn change(&self, base: Option<Arc<Seen<Number>>>) -> Change<NumberSlot, u32> {
        Change::new(&self.backend, NumberSlot, base, PATIENCE)
    }

    /// Somebody else writes.
    async fn overwrite(&self, value: u64) -> Arc<Seen<Number>> {
        let mut change = self.change(self.read().await);
        let changed = change.run(|_, stamp| Ok((0, Plan::<_, ()>::Write(number(stamp, value))))).await.unwrap();
        match changed {
            Changed::Won(seen, _) => Arc::new(seen),
            Changed::Stopped(()) => unreachable!("it always writes"),
        }
    }

    /// Lets time pass whenever nothing else happens.
    async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.clock.wait_for_sleepers(1) => self.clock.advance(Duration::from_millis(50)),
            }
        }
    }
}

/// Writes one more than is there, with the number of the attempt as its ticket; also says how often it was asked.
async fn increment(bed: &Bed, change: &mut Change<NumberSlot, u32>) -> (Result<(u64, u64, u32)>, u32) {
    let mut asked = 0;
    let changed = bed.run(change.run(|there, stamp| {
        asked += 1;
        let value = there.map_or(0, |seen| seen.record().value) + 1;
        Ok((asked, Plan::<_, ()>::Write(number(stamp, value))))
    }));
    let won = changed.await.map(|changed| match changed {
        Changed::Won(seen, ticket) => (seen.record().value, seen.record().revision, ticket),
        Changed::Stopped(()) => unreachable!("it always writes"),
    });
    (won, asked)
}

#[tokio::test]
async fn a_create_and_an_update_are_won() {
    let bed = Bed::new().await;
    let (won, _) = increment(&bed, &mut bed.change(None)).await;
    assert_eq!(won.unwrap(), (1, 1, 1));
    let mut change = bed.change(bed.read().await);
    let (won, asked) = increment(&bed, &mut change).await;
    assert_eq!((won.unwrap(), asked, change.is_in_doubt()), ((2, 2, 1), 1, false));
}

#[tokio::test]
async fn after_a_conflict_the_plan_sees_what_came_first() {
    let bed = Bed::new().await;
    let old = bed.overwrite(10).await;
    bed.overwrite(20).await;
    let (won, asked) = increment(&bed, &mut bed.change(Some(old))).await;
    assert_eq!((won.unwrap(), asked), ((21, 3, 2), 2));
}

#[tokio::test]
async fn a_plan_that_stops_writes_nothing() {
    let bed = Bed::new().await;
    let there = bed.overwrite(10).await;
    let mut change = bed.change(Some(there));
    let stopped = change.run(|there, _| Ok((0, Plan::Stop(there.map(|seen| seen.record().value))))).await.unwrap();
    assert!(matches!(stopped, Changed::Stopped(Some(10))));
    assert_eq!(bed.read().await.unwrap().record().revision, 1);
}

#[tokio::test]
async fn a_write_that_landed_unheard_is_won_with_its_own_ticket() {
    let bed = Bed::new().await;
    let base = bed.overwrite(10).await;
    bed.fails(Rule::once(Op::Put, Fault::Lose(Answer::Status(503))));
    let (won, asked) = increment(&bed, &mut bed.change(Some(base))).await;
    assert_eq!((won.unwrap(), asked), ((11, 2, 1), 1), "read back, and not written twice");
}

#[tokio::test]
async fn a_write_in_doubt_is_tried_again_on_its_base_and_won() {
    let bed = Bed::new().await;
    let base = bed.overwrite(10).await;
    bed.fails(Rule::once(Op::Put, Fault::Refuse(Answer::Drop)).times(3));
    let (won, asked) = increment(&bed, &mut bed.change(Some(base))).await;
    assert_eq!((won.unwrap(), asked), ((11, 2, 4), 4));
}

#[tokio::test]
async fn out_of_patience_in_doubt_the_outcome_is_unknown_and_can_be_continued() {
    let bed = Bed::new().await;
    let base = bed.overwrite(10).await;
    bed.fails(Rule::always(Op::Put, Fault::Refuse(Answer::Drop)));
    let began = bed.clock.monotonic();
    let mut change = bed.change(Some(base));
    let (unknown, _) = increment(&bed, &mut change).await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::Unknown);
    assert!(change.is_in_doubt());
    let took = bed.clock.monotonic().since(began);
    assert!((PATIENCE.within..2 * PATIENCE.within).contains(&took), "{took:?}");
    bed.objects.faults().clear();
    let (won, _) = increment(&bed, &mut change).await;
    assert_eq!((won.unwrap().0, change.is_in_doubt()), (11, false));
}

#[tokio::test]
async fn a_plan_may_not_stop_while_its_write_may_yet_land() {
    let bed = Bed::new().await;
    let base = bed.overwrite(10).await;
    bed.fails(Rule::once(Op::Put, Fault::Late(Duration::from_secs(1), Answer::Drop)));
    let (mut change, mut asked) = (bed.change(Some(base)), 0);
    let changed = bed.run(change.run(|_, stamp| {
        asked += 1;
        Ok((asked, if asked == 1 { Plan::Write(number(stamp, 11)) } else { Plan::Stop(()) }))
    }));
    assert_eq!(changed.await.err().map(|error| error.kind()), Some(ErrorKind::Unknown));
    assert!(change.is_in_doubt());
}

#[tokio::test]
async fn conflicts_are_bounded() {
    let bed = Bed::new().await;
    let mut there = bed.overwrite(0).await;
    let mut change = bed.change(Some(Arc::clone(&there)));
    // Each plan is overtaken before it is sent.
    let (objects, mut asked) = (bed.objects.clone(), 0);
    let error = bed
        .run(change.run(|_, stamp| {
            asked += 1;
            let revision = there.record().revision + 1;
            let faster = Number { write_id: WriteId::from([asked; 16]), revision, value: 0 };
            objects.put_object(NAME, NumberSlot.encode(&faster).unwrap());
            there = Arc::new(cas::read(&bed.backend, &NumberSlot).now_or_never().unwrap().unwrap().unwrap());
            Ok((0, Plan::<_, ()>::Write(number(stamp, 1))))
        }))
        .await
        .err()
        .unwrap();
    assert_eq!((error.kind(), u32::from(asked)), (ErrorKind::Unavailable, PATIENCE.conflicts));
    assert!(error.to_string().starts_with("numbers/one changes too fast: 4 writes in a row"), "{error}");
    assert!(!change.is_in_doubt());
}

#[tokio::test]
async fn an_error_of_the_plan_ends_the_change() {
    let bed = Bed::new().await;
    let mut change = bed.change(None);
    let ended = change.run(|_, _| Err::<(u32, Plan<Number, ()>), _>(Error::config("no"))).await;
    assert_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Config));
    assert!(bed.read().await.is_none());
}

#[tokio::test]
async fn a_store_that_went_back_under_a_write_is_not_tried_again() {
    let bed = Bed::new().await;
    bed.overwrite(10).await;
    let old = bed.objects.object(NAME).unwrap().0;
    let base = bed.overwrite(20).await;
    bed.objects.put_object(NAME, old);
    let (regressed, asked) = increment(&bed, &mut bed.change(Some(base))).await;
    let error = regressed.unwrap_err();
    assert_eq!((error.kind(), asked), (ErrorKind::Regressed, 1), "told as what it is, and not tried again");
    assert!(error.to_string().contains("numbers/one went back from revision 2 to 1"), "{error}");
}

#[tokio::test]
async fn a_cache_reports_a_record_that_went_back_once() {
    let bed = Bed::new().await;
    bed.overwrite(10).await;
    let old = bed.objects.object(NAME).unwrap().0;
    bed.overwrite(20).await;
    let seen = || async { cas::read(&bed.backend, &NumberSlot).await.unwrap() };
    let mut cached = Cached::default();
    cached.learn(seen().await).unwrap();
    assert_eq!(cached.record().map(|number| number.value), Some(20));
    bed.objects.put_object(NAME, old);
    assert_eq!(cached.learn(seen().await).unwrap_err().kind(), ErrorKind::Regressed);
    assert!(matches!(cached.known(), Known::Nothing) && cached.base().is_none(), "nothing may be based on either");
    cached.learn(seen().await).unwrap();
    assert_eq!((cached.record().map(|number| number.value), cached.learnt()), (Some(10), 3));
}

#[tokio::test]
async fn a_record_that_was_removed_may_begin_again_at_revision_one() {
    let bed = Bed::new().await;
    bed.overwrite(10).await;
    bed.overwrite(20).await;
    let mut cached = Cached::default();
    cached.learn(cas::read(&bed.backend, &NumberSlot).await.unwrap()).unwrap();
    bed.objects.delete_object(NAME);
    cached.learn(cas::read(&bed.backend, &NumberSlot).await.unwrap()).unwrap();
    assert!(matches!(cached.known(), Known::Absent));
    bed.overwrite(30).await;
    cached.learn(cas::read(&bed.backend, &NumberSlot).await.unwrap()).unwrap();
    assert_eq!((cached.revision(), cached.record().map(|number| number.value)), (1, Some(30)));
}

/// Leaves the number as it is.
struct Same(std::sync::atomic::AtomicU32);

impl Unchanged<NumberSlot, u32> for Same {
    fn ticket(&self) -> u32 {
        100 + self.0.fetch_add(1, Relaxed)
    }

    fn record(&self, _: &u32, base: Option<&Seen<Number>>, stamp: Stamp) -> Number {
        number(stamp, base.map_or(0, |seen| seen.record().value))
    }
}

/// A write of 99 on 10 whose future is dropped before its answer, and what settling it comes to.
async fn dropped(fault: Fault) -> (Bed, Settled<Number, u32>) {
    let bed = Bed::new().await;
    let base = bed.overwrite(10).await;
    bed.fails(Rule::once(Op::Put, fault));
    let mut in_flight = InFlight::on(&bed.backend, NumberSlot, Some(base));
    let write = in_flight.attempt(None, 1, |_, stamp| number(stamp, 99));
    assert!(write.now_or_never().is_none(), "it hangs");
    assert!(in_flight.is_in_doubt(), "dropping it forgets nothing");
    let settled = bed.run(settle(&bed.backend, &mut in_flight, &Same(0.into()))).await.unwrap();
    (bed, settled)
}

#[tokio::test]
async fn a_write_that_was_dropped_in_doubt_and_landed_is_found() {
    let (bed, settled) = dropped(Fault::Lose(Answer::Hang)).await;
    assert!(matches!(&settled, Settled::Landed(seen, 1) if seen.record().value == 99), "{settled:?}");
    assert_eq!(bed.read().await.unwrap().record().revision, 2, "nothing else was written");
}

#[tokio::test]
async fn a_write_that_was_dropped_in_doubt_cannot_land_after_it_was_settled() {
    let (bed, settled) = dropped(Fault::Late(Duration::from_secs(600), Answer::Hang)).await;
    assert!(matches!(&settled, Settled::Landed(seen, 100) if seen.record().value == 10), "{settled:?}");
    bed.clock.advance(Duration::from_secs(700));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bed.read().await.unwrap().record().value, 10);
}

#[tokio::test]
async fn writes_in_doubt_that_were_overtaken_are_lost() {
    let bed = Bed::new().await;
    let base = bed.overwrite(10).await;
    bed.fails(Rule::once(Op::Put, Fault::Refuse(Answer::Drop)));
    let mut in_flight = InFlight::on(&bed.backend, NumberSlot, Some(base));
    let outcome = in_flight.attempt(None, 1, |_, stamp| number(stamp, 99)).await;
    assert!(matches!(outcome, Some(Outcome::Unknown(_))) && in_flight.may_land());
    bed.overwrite(20).await;
    let settled = settle(&bed.backend, &mut in_flight, &Same(0.into())).await.unwrap();
    assert!(matches!(&settled, Settled::Lost(Some(seen)) if seen.record().value == 20), "{settled:?}");
}
