//! The contract that a store must keep, as checks that any store can be put through.

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream};
use leasehold::{
    Result, Store,
    internals::{Objects, Reading, Register, Verdict},
    store::Probing,
};
use object_store::ObjectStore;
use std::{collections::BTreeSet, fmt, sync::Arc};

/// One promise of the contract, and whether the store keeps it.
#[derive(Debug, Clone)]
pub struct Check {
    /// The promise.
    pub name: &'static str,
    /// What went wrong, if anything.
    pub result: std::result::Result<(), String>,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(()) => write!(f, "ok: {}", self.name),
            Err(why) => write!(f, "BROKEN: {}: {why}", self.name),
        }
    }
}

/// Puts any object store through the contract, below a fresh prefix.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let checks = leasehold_testkit::conformance(std::sync::Arc::new(object_store::memory::InMemory::new())).await?;
/// assert!(checks.iter().all(|check| check.result.is_ok()), "{checks:#?}");
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn conformance(store: Arc<dyn ObjectStore>) -> Result<Vec<Check>> {
    let opened = Store::builder().object_store(store).prefix("leasehold-conformance").probing(Probing::Never);
    Ok(conformance_of(&opened.open().await?).await)
}

/// Puts an opened store through the contract.
pub async fn conformance_of(store: &Store) -> Vec<Check> {
    let objects = Objects::new(store);
    let id = objects.fresh_id().to_string();
    let tester = Tester { store, objects, id };
    let check = |name, result| Check { name, result };
    vec![
        check("a create makes an object once", tester.creates_once().await),
        check("an update needs the current version", tester.updates_the_current().await),
        check("an update of a missing object fails", tester.leaves_the_missing_alone().await),
        check("a lost swap learns what is there", tester.tells_the_loser().await),
        check("of racing creates exactly one wins", tester.races(false).await),
        check("of racing updates exactly one wins", tester.races(true).await),
        check("no increment is lost or made twice", tester.counts().await),
        check("a write is read at once on every handle", tester.reads_writes().await),
        check("a delete is done when the object is gone, also twice", tester.deletes().await),
        check("pages come in order, whole, at any size", tester.pages().await),
        check("folders are found one level deep", tester.folders().await),
        check("the longest names and bodies of ours are kept", tester.keeps_limits().await),
    ]
}

struct Tester<'a> {
    store: &'a Store,
    objects: Objects,
    id: String,
}

type Outcome = std::result::Result<(), String>;

/// Fails a check with a message unless the condition holds.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message()) }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

impl Tester<'_> {
    fn register(&self, name: &str) -> Register {
        Register::new(self.store, &format!("{}-{name}", self.id))
    }

    /// A swap without competition, retried while the store is unavailable.
    async fn set(
        &self,
        register: &Register,
        base: Option<Reading>,
        value: u64,
    ) -> std::result::Result<Reading, String> {
        let mut swap = register.swap(base);
        for retry in 0..10 {
            match swap.attempt(value).await {
                Verdict::Won { reading, .. } => return Ok(reading),
                Verdict::Unknown(error) if error.is_retryable() => self.objects.pause(retry).await,
                other => return Err(format!("expected to win, got {other:?}")),
            }
        }
        Err("no verdict after ten tries".to_owned())
    }

    async fn creates_once(&self) -> Outcome {
        let register = self.register("once");
        let first = self.set(&register, None, 1).await?;
        match register.swap(None).attempt(2).await {
            Verdict::Lost(Some(there)) if there.write_id() == first.write_id() => Ok(()),
            other => Err(format!("a second create ended as {other:?}")),
        }
    }

    async fn updates_the_current(&self) -> Outcome {
        let register = self.register("current");
        let first = self.set(&register, None, 1).await?;
        let second = self.set(&register, Some(first.clone()), 2).await?;
        match register.swap(Some(first)).attempt(3).await {
            Verdict::Lost(Some(there)) => ensure(there.value() == 2, || format!("{there:?} was lost"))?,
            other => return Err(format!("a stale update ended as {other:?}")),
        }
        let read = register.read().await.map_err(text)?.ok_or("gone")?;
        self.set(&register, Some(read), 4).await?;
        match register.swap(Some(second)).attempt(5).await {
            Verdict::Lost(Some(there)) if there.value() == 4 => Ok(()),
            other => Err(format!("an update on an older version ended as {other:?}")),
        }
    }

    async fn leaves_the_missing_alone(&self) -> Outcome {
        let register = self.register("missing");
        let reading = self.set(&register, None, 1).await?;
        self.objects.delete(&[register.object_name()]).await.map_err(text)?;
        match register.swap(Some(reading)).attempt(2).await {
            Verdict::Lost(None) => {}
            other => return Err(format!("ended as {other:?}")),
        }
        let there = register.read().await.map_err(text)?;
        ensure(there.is_none(), || format!("it came back: {there:?}"))
    }

    async fn tells_the_loser(&self) -> Outcome {
        let register = self.register("loser");
        let base = self.set(&register, None, 1).await?;
        let winner = self.set(&register, Some(base.clone()), 2).await?;
        match register.swap(Some(base)).attempt(3).await {
            Verdict::Lost(Some(there)) => {
                ensure(there.write_id() == winner.write_id(), || format!("{there:?}"))?;
                self.set(&register, Some(there), 4).await.map(drop)
            }
            other => Err(format!("ended as {other:?}")),
        }
    }

    async fn races(&self, update: bool) -> Outcome {
        for round in 0..5 {
            let register = self.register(&format!("race-{update}-{round}"));
            let base = if update { Some(self.set(&register, None, 0).await?) } else { None };
            let swaps = (1..=16).map(|value| {
                let (register, base) = (register.clone(), base.clone());
                async move {
                    let mut swap = register.swap(base);
                    for retry in 0..20 {
                        match swap.attempt(value).await {
                            Verdict::Won { .. } => return Ok(Some(value)),
                            Verdict::Lost(_) => return Ok(None),
                            Verdict::Unknown(error) if retry == 19 => return Err(text(error)),
                            Verdict::Unknown(_) => self.objects.pause(retry).await,
                        }
                    }
                    Ok(None)
                }
            });
            let ended: std::result::Result<Vec<_>, String> = join_all(swaps).await.into_iter().collect();
            let winners: Vec<u64> = ended?.into_iter().flatten().collect();
            let there = register.read().await.map_err(text)?.ok_or("nothing was written")?;
            ensure(winners == [there.value()], || format!("winners {winners:?}, in the store {}", there.value()))?;
        }
        Ok(())
    }

    async fn counts(&self) -> Outcome {
        let register = self.register("counter");
        let tasks = (0..4).map(|_| async {
            let mut made = Vec::new();
            for _ in 0..10 {
                made.push(register.increment().await.map_err(text)?.value());
            }
            Ok::<_, String>(made)
        });
        let made: std::result::Result<Vec<_>, String> = join_all(tasks).await.into_iter().collect();
        let made: BTreeSet<u64> = made?.into_iter().flatten().collect();
        ensure(made == (1..=40).collect(), || format!("values made: {made:?}"))
    }

    async fn reads_writes(&self) -> Outcome {
        let register = self.register("read");
        let mut reading = self.set(&register, None, 0).await?;
        for value in 1..=20 {
            reading = self.set(&register, Some(reading), value).await?;
            for there in self.objects.get_by_each_handle(&register.object_name()).await.map_err(text)? {
                let body = there.ok_or("the write is not there")?;
                let expected = format!("{}", reading.write_id());
                let body = String::from_utf8_lossy(&body);
                ensure(body.contains(&expected), || format!("read {body}, wrote {expected}"))?;
            }
        }
        Ok(())
    }

    async fn deletes(&self) -> Outcome {
        let names = self.fill("delete", 120).await?;
        for _ in 0..2 {
            self.objects.delete(&names).await.map_err(text)?;
        }
        let there = self.objects.get(&names[0]).await.map_err(text)?;
        ensure(there.is_none(), || "still there".to_owned())
    }

    async fn pages(&self) -> Outcome {
        let names = self.fill("page", 105).await?;
        let start = format!("{}/page/", self.folder());
        for size in [1, 10, 104, 105, 1000] {
            let mut found: Vec<String> = Vec::new();
            loop {
                let after = found.last().map(String::as_str);
                let (page, more) = self.objects.page(&start, after, size).await.map_err(text)?;
                ensure(page.len() <= size, || format!("{} names in a page of {size}", page.len()))?;
                ensure(!(page.is_empty() && more), || "an empty page in the middle".to_owned())?;
                found.extend(page);
                if !more || (size == 1 && found.len() == 5) {
                    break;
                }
            }
            ensure(found == names[..found.len()], || format!("page size {size}: {found:?}"))?;
            ensure(size == 1 || found.len() == names.len(), || format!("page size {size}: {} names", found.len()))?;
        }
        let (partial, _) = self.objects.page(&format!("{start}n-10"), None, 1000).await.map_err(text)?;
        ensure(partial == names[100..], || format!("by a prefix: {partial:?}"))
    }

    async fn folders(&self) -> Outcome {
        for folder in ["2026010100", "2026010101"] {
            let name = format!("{}/deep/{folder}/x/y", self.folder());
            self.objects.put(&name, Bytes::from_static(b"{}")).await.map_err(text)?;
        }
        let folders = self.objects.folders(&format!("{}/deep/", self.folder())).await.map_err(text)?;
        ensure(folders == ["2026010100", "2026010101"], || format!("{folders:?}"))
    }

    async fn keeps_limits(&self) -> Outcome {
        let name = format!("{}/{}.pb", self.folder(), "x!2f".repeat(50));
        let body = Bytes::from(vec![0xff; 64 * 1024]);
        self.objects.put(&name, body.clone()).await.map_err(text)?;
        let there = self.objects.get(&name).await.map_err(text)?.ok_or("not there")?;
        ensure(there == body, || "the body is another one".to_owned())
    }

    fn folder(&self) -> String {
        format!(".leasehold/conformance/{}", self.id)
    }

    /// Writes so many objects; returns their names in order.
    async fn fill(&self, what: &str, count: usize) -> std::result::Result<Vec<String>, String> {
        let names: Vec<String> = (0..count).map(|number| format!("{}/{what}/n-{number:03}", self.folder())).collect();
        let written: Vec<Result<()>> = stream::iter(names.clone())
            .map(|name| async move { self.objects.put(&name, Bytes::from_static(b"{}")).await })
            .buffer_unordered(16)
            .collect()
            .await;
        written.into_iter().collect::<Result<()>>().map_err(text)?;
        Ok(names)
    }
}
