//! A store must prove that it keeps its conditions before it is trusted with a lock.
//!
//! Several S3 look-alikes accept conditional headers and ignore them, or check first and write later: both give one
//! lock to two holders. Needs neither LIST nor DELETE permission.

use super::{
    Backend, Name, Version,
    cas::{Cas, Outcome, Record, Seen, Slot, Stamp},
    layout,
};
use crate::{Error, ErrorKind, Result, WriteId, generator::GeneratorExt};
use bytes::Bytes;
use futures_util::future::join_all;
use object_store::PutMode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How many writers race, and how often.
const RACERS: usize = 8;
const ROUNDS: usize = 2;

/// How often one step is tried when the store fails for a passing reason.
const TRIES: u32 = 5;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Mark {
    write_id: WriteId,
    revision: u64,
}

impl Record for Mark {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }
}

#[derive(Debug, Clone)]
struct MarkSlot(Name);

impl Slot for MarkSlot {
    type Record = Mark;

    fn name(&self) -> Name {
        self.0.clone()
    }

    fn encode(&self, mark: &Mark) -> Result<Bytes> {
        Ok(serde_json::to_vec(mark)
            .map_err(|error| Error::corrupt("a probe cannot be written down").with_source(error))?
            .into())
    }

    fn decode(&self, body: Bytes) -> Result<Mark> {
        serde_json::from_slice(&body)
            .map_err(|error| Error::corrupt(format!("{} is not what was written", self.0)).with_source(error))
    }
}

/// Runs every rule once; the error names the first one that the store breaks.
pub(crate) async fn probe(backend: &Arc<Backend>) -> Result<()> {
    let probe = Probe { backend };
    let mut used = Vec::new();
    let result = probe.run(&mut used).await;
    if !used.is_empty() {
        let deleted = backend.delete(&used).await;
        if let Some(error) = deleted.error {
            tracing::debug!(%error, "the probe's objects stay: they do no harm");
        }
    }
    result
}

struct Probe<'a> {
    backend: &'a Arc<Backend>,
}

impl Probe<'_> {
    async fn run(&self, used: &mut Vec<Name>) -> Result<()> {
        let slot = self.fresh(used);
        let created = self.write(&slot, None).await?;
        self.reads_latest(&slot, &created, "a read after a write, on another connection, shows the write").await?;

        self.must_conflict(&slot, PutMode::Create, "a create of an existing object fails").await?;
        let updated = self.write(&slot, Some(created.clone())).await?;
        self.reads_latest(&slot, &updated, "a read after an overwrite, on another connection, shows the overwrite")
            .await?;

        let stale = PutMode::Update(created.version().into());
        self.must_conflict(&slot, stale, "an update that names an older version fails").await?;
        self.reads_latest(&slot, &updated, "a write that was refused is not applied").await?;

        let missing = self.fresh(used);
        let update = PutMode::Update(updated.version().into());
        let rule = "an update of a missing object fails";
        self.must_conflict(&missing, update, rule).await?;
        if self.backend.get(&missing.0).await?.is_some() {
            return Err(self.unsafe_store(rule));
        }

        for _ in 0..ROUNDS {
            let slot = self.fresh(used);
            let winner = self.race(&slot, PutMode::Create, "of racing creates exactly one wins").await?;
            let update = PutMode::Update((&winner).into());
            self.race(&slot, update, "of racing updates exactly one wins").await?;
        }
        Ok(())
    }

    fn fresh(&self, used: &mut Vec<Name>) -> MarkSlot {
        let name = Name::new(format!("{}{}", layout::PROBE, WriteId::from(self.backend.generator.bytes())));
        used.push(name.clone());
        MarkSlot(name)
    }

    fn unsafe_store(&self, rule: &str) -> Error {
        Error::config(format!(
            "{} is not safe for locks: it breaks the rule that {rule}; two holders of one lock would be possible, so \
             use another store, or a newer version of this one",
            self.backend.place
        ))
    }

    /// A write without a competitor must succeed, however often it has to be retried.
    async fn write(&self, slot: &MarkSlot, base: Option<Seen<Mark>>) -> Result<Seen<Mark>> {
        let mut cas = Cas::new(Arc::clone(self.backend), slot.clone(), base);
        let mut tries = 0;
        loop {
            match cas.attempt((), |_, Stamp { write_id, revision }| Mark { write_id, revision }).await {
                Outcome::Won(seen, ()) => return Ok(seen),
                Outcome::Lost(_) => {
                    return Err(self.unsafe_store("a conditional write that nobody competes with succeeds"));
                }
                Outcome::Unknown(error) if error.is_retryable() && tries < TRIES => {
                    self.backend.pause(tries).await;
                    tries += 1;
                }
                Outcome::Unknown(error) => return Err(error),
            }
        }
    }

    async fn must_conflict(&self, slot: &MarkSlot, mode: PutMode, rule: &str) -> Result<()> {
        let mut tries = 0;
        loop {
            let mark = Mark { write_id: WriteId::random(&*self.backend.generator), revision: 9 };
            match self.backend.put(&slot.0, slot.encode(&mark)?, mode.clone(), self.backend.request_timeout).await {
                Ok(_) => return Err(self.unsafe_store(rule)),
                Err(refusal) if refusal.conflict => return Ok(()),
                Err(refusal) if refusal.error.is_retryable() && tries < TRIES => {
                    self.backend.pause(tries).await;
                    tries += 1;
                }
                Err(refusal) => return Err(refusal.error),
            }
        }
    }

    async fn reads_latest(&self, slot: &MarkSlot, written: &Seen<Mark>, rule: &str) -> Result<()> {
        let other_connection = &self.backend.bulk;
        let there = self.backend.get_once(&slot.0, other_connection).await?;
        let there = there.map(|fetched| slot.decode(fetched.body)).transpose()?;
        if there.is_some_and(|mark| mark.write_id == written.record().write_id) {
            Ok(())
        } else {
            Err(self.unsafe_store(rule))
        }
    }

    /// Lets several writers loose at once on the same base, and returns the version of the one that won.
    async fn race(&self, slot: &MarkSlot, mode: PutMode, rule: &str) -> Result<Version> {
        let mut tries = 0;
        loop {
            let marks: Vec<Mark> = (0..RACERS)
                .map(|_| Mark { write_id: WriteId::random(&*self.backend.generator), revision: 1 })
                .collect();
            let writes = marks.iter().map(|mark| async {
                let body = slot.encode(mark).map_err(super::backend::Refusal::from)?;
                self.backend.put(&slot.0, body, mode.clone(), self.backend.request_timeout).await
            });
            let answers = join_all(writes).await;
            let winners: Vec<&Mark> =
                marks.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(mark, _)| mark).collect();
            if winners.len() > 1 {
                return Err(self.unsafe_store(rule));
            }
            let there = self.backend.get(&slot.0).await?;
            let there =
                there.map(|fetched| slot.decode(fetched.body).map(|mark| (mark, fetched.version))).transpose()?;
            match (winners.first(), there) {
                (Some(winner), Some((mark, version))) if mark.write_id == winner.write_id => return Ok(version),
                (Some(_), _) => return Err(self.unsafe_store(rule)),
                // No writer was told of a win, yet one of them is there: its answer was lost.
                (None, Some((mark, version))) if marks.iter().any(|tried| tried.write_id == mark.write_id) => {
                    return Ok(version);
                }
                (None, _) if tries < TRIES => {
                    self.backend.pause(tries).await;
                    tries += 1;
                }
                (None, _) => {
                    let error = answers.into_iter().find_map(std::result::Result::err).map(|refusal| refusal.error);
                    return Err(
                        error.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the probe's race had no end"))
                    );
                }
            }
        }
    }
}
