//! What is in flight: who has which job, since when.

use super::Tracker;
use crate::{
    Fence, JobId, Result,
    clock::Timestamp,
    job::{
        fetch::Read,
        ledger::{Claim, Ledger},
    },
};
use serde::Serialize;

/// A job in the hands of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InFlight {
    /// Its id in the other system; the queue's own if it has none.
    pub id: String,
    /// Its id in the queue.
    pub job: JobId,
    /// How its process calls itself.
    pub owner: String,
    /// Since when, by the store's clock.
    #[serde(rename = "since_ms")]
    pub since: Timestamp,
    /// Until when its session lasts at least, as its process knew at its last commit here.
    #[serde(rename = "session_until_ms")]
    pub session_until: Timestamp,
    /// The fence of its attempt.
    pub fence: Fence,
}

impl Tracker {
    /// The jobs that are in the hands of processes, up to `most`: one read for each shard, and one for each object that
    /// this process has not read before.
    pub async fn in_flight(&self, most: usize) -> Result<Vec<InFlight>> {
        let core = &self.queue.core;
        let shards = core.settings().await?.record().shards_ever;
        let mut found = Vec::new();
        for number in 0..shards {
            let shard = core.shard(u8::try_from(number).unwrap_or(u8::MAX));
            let seen = shard.look().await?;
            for claim in &seen.record().claims {
                self.of_claim(seen.record(), claim, &mut found).await?;
                if found.len() >= most {
                    found.truncate(most);
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    async fn of_claim(&self, ledger: &Ledger, claim: &Claim, found: &mut Vec<InFlight>) -> Result<()> {
        let core = &self.queue.core;
        let session = ledger.session(claim.session);
        for item in &claim.items {
            let Some(row) = ledger.row(item.row) else { continue };
            let read = match core.layout.segment(&row.name) {
                Some(_) => Some(core.shared.segments.read(core.backend(), &core.layout, &row.name).await?),
                None => None,
            };
            for position in item.open.iter() {
                let index = item.run.from + position;
                let job = row.name.id.job(index);
                let own = match &read {
                    Some(Read::Loaded(loaded)) => loaded.table.jobs.get(usize::from(index)),
                    _ => None,
                };
                let own = own.and_then(|entry| entry.caller_id.as_deref());
                found.push(InFlight {
                    id: own.map_or_else(|| job.to_string(), str::to_owned),
                    job,
                    owner: session.map(|session| session.owner.to_string()).unwrap_or_default(),
                    since: Timestamp::from_millis(claim.at),
                    session_until: Timestamp::from_millis(session.map_or(0, |session| session.until)),
                    fence: claim.fence,
                });
            }
        }
        Ok(())
    }
}
