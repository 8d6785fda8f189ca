//! Without faults every answer is that of a model of a lease that fits on a page.

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Acquire {
        client: usize,
        key: usize,
        ttl_ms: u64,
        asked: Option<Asked>,
    },
    Renew {
        client: usize,
        key: usize,
    },
    RenewById {
        client: usize,
        key: usize,
        ttl_ms: Option<u64>,
    },
    Release {
        client: usize,
        key: usize,
    },
    ReleaseById {
        client: usize,
        key: usize,
    },
    Get {
        client: usize,
        key: usize,
    },
    Peek {
        client: usize,
        key: usize,
    },
    Pass {
        micros: u64,
    },
    /// To the edge of the lease on a key, by the clock of a client.
    PassTo {
        client: usize,
        key: usize,
        with_skew: bool,
        micros: i64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ttl = || select(&[1u64, 1000, 1500, 5000, 30_000, 3_600_000, 7_200_000][..]);
    let at = || (0..CLIENTS, 0..KEYS);
    let passing = prop_oneof![
        select(&[1u64, 999, 1000, 250_000, 1_000_000, 10_000_000, 3_600_000_000, 7_200_000_000][..]),
        0..3_000_000u64,
        0..4_000_000_000u64,
    ];
    let step = prop_oneof![
        6 => (at(), ttl(), asked())
            .prop_map(|((client, key), ttl_ms, asked)| Step::Acquire { client, key, ttl_ms, asked }),
        4 => at().prop_map(|(client, key)| Step::Renew { client, key }),
        1 => (at(), option::of(ttl())).prop_map(|((client, key), ttl_ms)| Step::RenewById { client, key, ttl_ms }),
        3 => at().prop_map(|(client, key)| Step::Release { client, key }),
        1 => at().prop_map(|(client, key)| Step::ReleaseById { client, key }),
        2 => at().prop_map(|(client, key)| Step::Get { client, key }),
        2 => at().prop_map(|(client, key)| Step::Peek { client, key }),
        2 => passing.prop_map(|micros| Step::Pass { micros }),
        4 => (at(), any::<bool>(), select(&[-1000i64, -1, 0, 1, 1000][..]))
            .prop_map(|((client, key), with_skew, micros)| Step::PassTo { client, key, with_skew, micros }),
    ];
    vec(step, 1..60)
}

#[derive(Debug, Clone)]
struct ModelLease {
    id: LeaseId,
    fence: u64,
    expires: Timestamp,
    ttl: Duration,
    asked: Option<Asked>,
}

#[derive(Debug, Clone, Default)]
struct ModelKey {
    lease: Option<ModelLease>,
    last_fence: Option<u64>,
}

#[derive(Debug, Clone)]
struct ModelBelief {
    grant: Grant,
    expires: Timestamp,
    deadline: Moment,
    ttl: Duration,
}

struct Agreement {
    memory: Memory,
    watch: Arc<Mutex<Watch>>,
    clients: Vec<(Arc<Skewed>, Leases)>,
    keys: Vec<ModelKey>,
    beliefs: BTreeMap<(usize, usize), ModelBelief>,
}

/// Whether the limits of the store allow it.
fn is_allowed(ttl_ms: u64) -> bool {
    (1000..=3_600_000).contains(&ttl_ms)
}

fn expiry(ttl: Duration, now: Timestamp) -> Timestamp {
    Ttl::new(ttl).unwrap().expiry(now).unwrap()
}

impl Agreement {
    async fn new() -> Self {
        let memory = Memory::new();
        let clients = clients(&memory, 0).await;
        let watch = Watch::over(&memory);
        Self { memory, watch, clients, keys: vec![ModelKey::default(); KEYS], beliefs: BTreeMap::new() }
    }

    fn now(&self, client: usize) -> (Moment, Timestamp) {
        (self.clients[client].0.monotonic(), self.clients[client].0.wall())
    }

    /// The lease that others must respect at this time.
    fn standing(&self, key: usize, wall: Timestamp) -> Option<&ModelLease> {
        self.keys[key].lease.as_ref().filter(|lease| wall < lease.expires.plus(SKEW).plus(Duration::from_millis(1)))
    }

    fn believe(&mut self, client: usize, key: usize, grant: Grant, deadline: Moment) -> Result<(), TestCaseError> {
        let lease = self.keys[key].lease.clone().unwrap();
        prop_assert_eq!(grant.lease_id(), lease.id);
        prop_assert_eq!(grant.fence().get(), lease.fence);
        prop_assert_eq!(grant.expires_at(), lease.expires);
        prop_assert_eq!(grant.ttl(), lease.ttl);
        prop_assert!(grant.is_valid());
        let belief = ModelBelief { grant, expires: lease.expires, deadline, ttl: lease.ttl };
        self.beliefs.insert((client, key), belief);
        Ok(())
    }

    /// A renewal with a shorter time to live ends no belief before its time.
    fn not_before(&self, client: usize, key: usize, id: LeaseId, deadline: Moment) -> Moment {
        let before = self.beliefs.get(&(client, key)).filter(|belief| belief.grant.lease_id() == id);
        before.map_or(deadline, |before| before.deadline.max(deadline))
    }

    async fn acquire(&mut self, client: usize, key: usize, ttl_ms: u64, asked: Option<Asked>) -> TestResult {
        let (moment, wall) = self.now(client);
        let ttl = Duration::from_millis(ttl_ms);
        let answer = self.clients[client].1.acquire(&name(key), &asking(ttl_ms, asked)).await;
        if !is_allowed(ttl_ms) {
            prop_assert_eq!(answer.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
            return Ok(());
        }
        let answer = answer.unwrap();
        let standing = self.standing(key, wall).cloned();
        match (answer, standing) {
            (Acquired::Held(held), Some(lease)) => {
                prop_assert!(asked.is_none() || lease.asked != asked || wall >= lease.expires, "it is its own lease");
                prop_assert_eq!(held.by.map(|by| by.lease_id), Some(lease.id));
                prop_assert!(held.retry_after >= lease.expires.plus(SKEW).since(wall));
                Ok(())
            }
            (Acquired::Granted(grant), Some(lease)) => {
                prop_assert!(asked.is_some() && lease.asked == asked && wall < lease.expires, "it is held: {lease:?}");
                let expires = expiry(ttl, wall).max(lease.expires);
                self.keys[key].lease = Some(ModelLease { expires, ttl, ..lease });
                let deadline = self.not_before(client, key, grant.lease_id(), moment.plus(ttl));
                self.believe(client, key, grant, deadline)
            }
            (Acquired::Granted(grant), None) => {
                let micros = u64::try_from(wall.as_micros()).unwrap();
                let fence = match self.keys[key].last_fence {
                    Some(last) => micros.max(last + 1),
                    None => micros + 26_000_000,
                };
                let lease = ModelLease { id: grant.lease_id(), fence, expires: expiry(ttl, wall), ttl, asked };
                self.keys[key] = ModelKey { lease: Some(lease), last_fence: Some(fence) };
                self.believe(client, key, grant, moment.plus(ttl))
            }
            // Over by the wall clock: the second witness may still have to say so.
            (Acquired::Held(held), None) => {
                prop_assert_eq!(held.by.map(|by| by.lease_id), self.keys[key].lease.as_ref().map(|lease| lease.id));
                Ok(())
            }
        }
    }

    /// `old` is what the client believed so far, if it goes by that.
    fn renewed(
        &mut self,
        at: (usize, usize),
        now: (Moment, Timestamp),
        asked: (LeaseId, Duration, Option<ModelBelief>),
        answer: Renewed,
    ) -> TestResult {
        let ((client, key), (moment, wall), (id, ttl, old)) = (at, now, asked);
        let lease = self.keys[key].lease.clone();
        let alive = lease.as_ref().filter(|lease| lease.id == id && wall < lease.expires);
        let alive = alive.filter(|_| old.as_ref().is_none_or(|old| moment < old.deadline)).cloned();
        match (answer, alive) {
            (Renewed::Renewed(grant), Some(lease)) => {
                let expires = expiry(ttl, wall).max(lease.expires);
                self.keys[key].lease = Some(ModelLease { expires, ttl, ..lease });
                let deadline = old.map_or(moment.plus(ttl), |old| {
                    moment.plus(ttl).min(old.deadline.plus(expires.since(old.expires)))
                });
                let deadline = self.not_before(client, key, id, deadline);
                self.believe(client, key, grant, deadline)
            }
            (Renewed::Lost(loss), None) => {
                let other = lease.filter(|lease| lease.id != id);
                prop_assert_eq!(loss.taken_by.map(|by| by.lease_id), other.map(|lease| lease.id));
                prop_assert_eq!(loss.fence.map(|fence| fence.get()), self.keys[key].last_fence);
                Ok(())
            }
            (answer, alive) => Err(TestCaseError::fail(format!("{answer:?}, of {alive:?}"))),
        }
    }

    fn seen(&self, key: usize, wall: Timestamp, status: &Status) -> TestResult {
        let holder = status.holder.as_ref().map(|holder| (holder.lease_id, holder.fence.get(), holder.expires_at));
        let whole = |lease: &ModelLease| (lease.id, lease.fence, lease.expires);
        let standing = self.standing(key, wall).map(whole);
        // Over by the wall clock: the second witness may still have to say so.
        let late = self.keys[key].lease.as_ref().map(whole).filter(|_| status.may_have_ended);
        prop_assert!(holder == standing || standing.is_none() && holder == late, "{holder:?}, of {standing:?}");
        prop_assert_eq!(status.last_fence.map(|fence| fence.get()), self.keys[key].last_fence);
        prop_assert!(!status.waited_for);
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> TestResult {
        match *step {
            Step::Acquire { client, key, ttl_ms, asked } => self.acquire(client, key, ttl_ms, asked).await?,
            Step::Renew { client, key } => {
                let Some(old) = self.beliefs.get(&(client, key)).cloned() else { return Ok(()) };
                let now = self.now(client);
                let answer = self.clients[client].1.renew(&old.grant).await.unwrap();
                self.renewed((client, key), now, (old.grant.lease_id(), old.ttl, Some(old)), answer)?;
            }
            Step::RenewById { client, key, ttl_ms } => {
                let Some(lease) = self.keys[key].lease.clone() else { return Ok(()) };
                let now = self.now(client);
                let ttl = ttl_ms.map(Duration::from_millis);
                let answer = self.clients[client].1.renew_by_id(&name(key), lease.id, ttl).await;
                if !ttl_ms.is_none_or(is_allowed) {
                    prop_assert_eq!(answer.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
                    return Ok(());
                }
                let ttl = ttl.unwrap_or(lease.ttl);
                self.renewed((client, key), now, (lease.id, ttl, None), answer.unwrap())?;
            }
            Step::Release { client, key } => {
                let Some(belief) = self.beliefs.get(&(client, key)) else { return Ok(()) };
                self.clients[client].1.release(&belief.grant).await.unwrap();
                let id = belief.grant.lease_id();
                let lease = &mut self.keys[key].lease;
                *lease = lease.take().filter(|lease| lease.id != id);
            }
            Step::ReleaseById { client, key } => {
                let Some(lease) = self.keys[key].lease.take() else { return Ok(()) };
                self.clients[client].1.release_by_id(&name(key), lease.id).await.unwrap();
            }
            Step::Get { client, key } => {
                let status = self.clients[client].1.get(&name(key)).await.unwrap();
                let wall = self.now(client).1;
                self.seen(key, wall, &status)?;
                // What has ended is cleared.
                let lease = self.keys[key].lease.take();
                self.keys[key].lease = lease.filter(|_| status.holder.is_some());
            }
            Step::Peek { client, key } => {
                let status = self.clients[client].1.peek(&name(key)).await.unwrap();
                self.seen(key, self.now(client).1, &status)?;
            }
            Step::Pass { micros } => self.memory.clock.advance(Duration::from_micros(micros)),
            Step::PassTo { client, key, with_skew, micros } => {
                let Some(lease) = &self.keys[key].lease else { return Ok(()) };
                let edge = lease.expires.plus(if with_skew { SKEW } else { Duration::ZERO });
                let target = Timestamp::from_micros(edge.as_micros() + micros);
                self.memory.clock.advance(target.since(self.now(client).1));
            }
        }
        for ((client, key), belief) in &self.beliefs {
            let (moment, wall) = self.now(*client);
            let valid = moment < belief.deadline && wall < belief.expires;
            prop_assert_eq!(belief.grant.is_valid(), valid, "client {} of {}: {:?}", client, key, belief);
        }
        self.watch.lock().unwrap().verdict()
    }
}

#[test]
fn without_faults_every_answer_is_that_of_the_model() {
    check(256, &steps(), |steps| {
        on_one_thread(async {
            let mut agreement = Agreement::new().await;
            for step in &steps {
                agreement.step(step).await?;
            }
            Ok(())
        })
    });
}
