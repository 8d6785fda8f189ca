//! With faults, with clients that give up and clocks that differ, no promise is broken.

use super::*;

#[derive(Debug, Clone)]
enum Turn {
    Acquire {
        client: usize,
        key: usize,
        ttl_ms: u64,
        asked: Option<Asked>,
        wait_ms: u64,
    },
    Renew {
        client: usize,
        key: usize,
    },
    Release {
        client: usize,
        key: usize,
    },
    Get {
        client: usize,
        key: usize,
    },
    Pass {
        millis: u64,
    },
    /// Drops one of the operations under way.
    Cancel {
        number: usize,
    },
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let ttl = select(&[1000u64, 2000, 5000, 10_000, 60_000][..]);
    let wait = select(&[0u64, 0, 500, 5000, 60_000][..]);
    let at = || (0..CLIENTS, 0..KEYS);
    let turn = prop_oneof![
        6 => (at(), ttl, asked(), wait).prop_map(|((client, key), ttl_ms, asked, wait_ms)| {
            Turn::Acquire { client, key, ttl_ms, asked, wait_ms }
        }),
        4 => at().prop_map(|(client, key)| Turn::Renew { client, key }),
        4 => at().prop_map(|(client, key)| Turn::Release { client, key }),
        1 => at().prop_map(|(client, key)| Turn::Get { client, key }),
        6 => select(&[1u64, 10, 50, 250, 1000, 3000][..]).prop_map(|millis| Turn::Pass { millis }),
        1 => (0..8usize).prop_map(|number| Turn::Cancel { number }),
    ];
    vec(turn, 1..50)
}

fn rates(seed: u64) -> Rates {
    let often = [10, 40, 100][(seed % 3) as usize];
    let mut rates = Rates::none().with(Fault::Duplicate, often);
    for status in [409, 412, 500, 503] {
        rates = rates
            .with(Fault::Refuse(Answer::Status(status)), often / 2)
            .with(Fault::Lose(Answer::Status(status)), often / 2);
    }
    rates
        .with(Fault::Lose(Answer::Drop), often)
        .with(Fault::Lose(Answer::Hang), often / 4)
        .with(Fault::Refuse(Answer::Hang), often / 4)
        .with(Fault::Late(Duration::from_millis(700), Answer::Status(500)), often / 2)
        .with(Fault::Late(Duration::from_secs(4), Answer::Drop), often / 4)
        .with(Fault::Delay(Duration::from_millis(150)), often)
        .with(Fault::Delay(Duration::from_millis(1200)), often / 4)
}

#[derive(Debug)]
struct Belief {
    client: usize,
    key: usize,
    grant: Grant,
    asked: Option<Asked>,
}

#[derive(Debug, Default)]
struct Beliefs {
    held: Vec<Belief>,
    /// Leases that their holder gave back, or tried to.
    given_back: BTreeSet<[u8; 16]>,
    /// Leases whose release was not begun, as far as their holder knows.
    stuck: BTreeSet<[u8; 16]>,
    fences: BTreeMap<usize, u64>,
    problems: Vec<String>,
}

impl Beliefs {
    fn check(&mut self) {
        // One problem is enough: what comes after follows from it.
        if !self.problems.is_empty() {
            return;
        }
        for key in 0..KEYS {
            let valid = self.held.iter().filter(|belief| belief.key == key && belief.grant.is_valid());
            let ids: BTreeSet<_> = valid.map(|belief| *belief.grant.lease_id().as_bytes()).collect();
            if ids.len() > 1 {
                self.problems.push(format!("two holders of {key} at once: {:?}", self.held));
            }
        }
    }

    fn believe(&mut self, belief: Belief) {
        let (client, id) = (belief.client, belief.grant.lease_id());
        self.held.retain(|old| old.client != client || old.grant.lease_id() != id);
        self.held.push(belief);
        self.check();
    }
}

struct World {
    clients: Vec<(Arc<Skewed>, Leases)>,
    beliefs: Mutex<Beliefs>,
}

impl World {
    fn with<T>(&self, look: impl FnOnce(&mut Beliefs) -> T) -> T {
        look(&mut self.beliefs.lock().unwrap())
    }

    fn problem(&self, what: String) {
        self.with(|beliefs| beliefs.problems.push(what));
    }

    fn excuse(&self, doing: &str, error: &leasehold::Error) {
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) {
            self.problem(format!("{doing}: {:?}: {error}", error.kind()));
        }
    }

    async fn acquire(&self, client: usize, key: usize, request: Request, asked: Option<Asked>, wait: Duration) {
        let leases = &self.clients[client].1;
        let floor = self.with(|beliefs| beliefs.fences.get(&key).copied());
        let own = |beliefs: &mut Beliefs| -> BTreeSet<[u8; 16]> {
            let own = beliefs.held.iter().filter(|old| asked.is_some() && old.key == key && old.asked == asked);
            // By the clock of the one who asks.
            let alive =
                own.filter(|old| old.grant.is_valid() && old.grant.expires_at() > self.clients[client].0.wall());
            alive.map(|old| *old.grant.lease_id().as_bytes()).collect()
        };
        let before = self.with(own);
        let answer = match wait.is_zero() {
            true => leases.acquire(&name(key), &request).await,
            false => leases.acquire_within(&name(key), &request, wait).await,
        };
        match answer {
            Ok(Acquired::Granted(grant)) => self.with(|beliefs| {
                if !grant.is_valid() {
                    beliefs.problems.push(format!("{grant:?} was over when it was granted"));
                }
                let fence = grant.fence().get();
                if floor.is_some_and(|floor| fence <= floor) && asked.is_none() {
                    beliefs.problems.push(format!("{grant:?} is not above {floor:?}"));
                }
                let highest = beliefs.fences.entry(key).or_default();
                *highest = fence.max(*highest);
                // Shared by a request id, and given back by another process while this answer was on its way.
                if !beliefs.given_back.contains(grant.lease_id().as_bytes()) {
                    beliefs.believe(Belief { client, key, grant, asked });
                }
            }),
            Ok(Acquired::Held(held)) => {
                let own: BTreeSet<_> = before.intersection(&self.with(own)).copied().collect();
                if let Some(by) = held.by.filter(|by| own.contains(by.lease_id.as_bytes())) {
                    self.problem(format!("client {client} was refused its own lease {by:?}"));
                }
            }
            Err(error) => self.excuse("acquire", &error),
        }
    }

    fn latest(&self, client: usize, key: usize) -> Option<(Grant, Option<Asked>)> {
        self.with(|beliefs| {
            let latest = beliefs.held.iter().rev().find(|belief| belief.client == client && belief.key == key);
            latest.map(|belief| (belief.grant.clone(), belief.asked))
        })
    }

    async fn renew(&self, client: usize, key: usize) {
        let Some((old, asked)) = self.latest(client, key) else { return };
        match self.clients[client].1.renew(&old).await {
            Ok(Renewed::Renewed(grant)) => self.with(|beliefs| {
                if !grant.is_valid() {
                    beliefs.problems.push(format!("{grant:?} was over when it was renewed"));
                }
                if grant.lease_id() != old.lease_id() || grant.fence() != old.fence() {
                    beliefs.problems.push(format!("{old:?} was renewed as {grant:?}"));
                }
                // Given back while it was being renewed: then no process believes in it any more.
                if !beliefs.given_back.contains(grant.lease_id().as_bytes()) {
                    beliefs.believe(Belief { client, key, grant, asked });
                }
            }),
            Ok(Renewed::Lost(loss)) => self.with(|beliefs| {
                let given_back = beliefs.given_back.contains(old.lease_id().as_bytes());
                if old.is_valid() && !given_back {
                    beliefs.problems.push(format!("{old:?} was lost before its time: {loss:?}"));
                }
                beliefs.held.retain(|belief| belief.client != client || belief.grant.lease_id() != old.lease_id());
            }),
            Err(error) => self.excuse("renew", &error),
        }
    }

    async fn release(&self, client: usize, key: usize) {
        let Some((old, _)) = self.latest(client, key) else { return };
        let id = *old.lease_id().as_bytes();
        self.with(|beliefs| {
            beliefs.held.retain(|belief| belief.grant.lease_id() != old.lease_id());
            beliefs.given_back.insert(id);
            // Until it is known otherwise: this may be dropped anywhere.
            beliefs.stuck.insert(id);
        });
        match self.clients[client].1.release(&old).await {
            // In doubt it is finished in the background.
            Err(error) if error.kind() != ErrorKind::Unknown => self.excuse("release", &error),
            _ => self.with(|beliefs| {
                beliefs.stuck.remove(&id);
            }),
        }
    }

    async fn take(self: Arc<Self>, turn: Turn) {
        match turn {
            Turn::Acquire { client, key, ttl_ms, asked, wait_ms } => {
                self.acquire(client, key, asking(ttl_ms, asked), asked, Duration::from_millis(wait_ms)).await;
            }
            Turn::Renew { client, key } => self.renew(client, key).await,
            Turn::Release { client, key } => self.release(client, key).await,
            Turn::Get { client, key } => {
                if let Err(error) = self.clients[client].1.get(&name(key)).await {
                    self.excuse("get", &error);
                }
            }
            Turn::Pass { .. } | Turn::Cancel { .. } => {}
        }
    }

    /// Time passes a little at a time, and every belief is checked at each step.
    async fn pass(&self, memory: &Memory, time: Duration, step: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(step);
            memory.clock.advance(step);
            calm().await;
            self.with(Beliefs::check);
            left -= step;
        }
    }

    fn verdict(&self, watch: &Mutex<Watch>) -> TestResult {
        watch.lock().unwrap().verdict()?;
        self.with(|beliefs| {
            prop_assert!(beliefs.problems.is_empty(), "{:#?}", beliefs.problems);
            Ok(())
        })
    }
}

#[allow(clippy::too_many_lines, reason = "one random story")]
async fn chaos(seed: u64, turns: Vec<Turn>) -> TestResult {
    let memory = Memory::new();
    let clients = clients(&memory, seed).await;
    let watch = Watch::over(&memory);
    let world = Arc::new(World { clients, beliefs: Mutex::default() });
    memory.store.faults().roll(SeededGenerator::new(seed), rates(seed));
    let mut under_way: Vec<JoinHandle<()>> = Vec::new();
    for turn in turns {
        match turn {
            Turn::Pass { millis } => {
                let time = Duration::from_millis(millis);
                world.pass(&memory, time, Duration::from_millis(25)).await;
            }
            Turn::Cancel { number } => {
                under_way.retain(|task| !task.is_finished());
                if let Some(task) = under_way.get(number) {
                    task.abort();
                }
            }
            turn => under_way.push(tokio::spawn(Arc::clone(&world).take(turn))),
        }
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        world.verdict(&watch)?;
    }
    memory.store.faults().clear();
    // Everything comes to its end, and what was granted to callers that have gone is given back.
    for _ in 0..100 {
        world.pass(&memory, Duration::from_secs(1), Duration::from_millis(100)).await;
        if under_way.iter().all(JoinHandle::is_finished) {
            break;
        }
    }
    for task in under_way {
        prop_assert!(task.is_finished(), "an operation does not end");
        if let Err(error) = task.await {
            prop_assert!(error.is_cancelled(), "{error}");
        }
    }
    world.pass(&memory, Duration::from_secs(10), Duration::from_millis(100)).await;
    world.verdict(&watch)?;
    for key in 0..KEYS {
        let holder = world.clients[0].1.peek(&name(key)).await.unwrap().holder;
        let Some(holder) = holder.filter(|holder| holder.expires_at > memory.clock.wall()) else { continue };
        let record = watch.lock().unwrap().records[["a", "b"][key]].clone();
        let asked = record.lease.is_some_and(|lease| lease.request_id.is_some());
        let id = *holder.lease_id.as_bytes();
        let known = world.with(|beliefs| {
            beliefs.stuck.contains(&id) || beliefs.held.iter().any(|belief| *belief.grant.lease_id().as_bytes() == id)
        });
        prop_assert!(asked || known, "nobody wants {holder:?}, and it was not freed");
    }
    // And everything can be had again.
    let longest = Duration::from_secs(60) + 2 * SKEW;
    for key in 0..KEYS {
        for client in 0..CLIENTS {
            let leases = world.clients[client].1.clone();
            let asked = tokio::spawn(async move {
                let request = asking(1000, None);
                let grant = leases.acquire_within(&name(key), &request, longest).await?.granted();
                if let Some(grant) = &grant {
                    leases.release(grant).await?;
                }
                Ok::<_, leasehold::Error>(grant)
            });
            for _ in 0..700 {
                if asked.is_finished() {
                    break;
                }
                world.pass(&memory, Duration::from_millis(100), Duration::from_millis(100)).await;
            }
            prop_assert!(asked.is_finished(), "client {client} waits for {key} for ever");
            let granted = asked.await.unwrap();
            prop_assert!(matches!(granted, Ok(Some(_))), "client {client} cannot have {key}: {granted:?}");
        }
    }
    world.verdict(&watch)
}

#[test]
fn with_faults_no_promise_is_broken() {
    check(256, &(any::<u64>(), turns()), |(seed, turns)| on_one_thread(chaos(seed, turns)));
}
