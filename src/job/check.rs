//! What fsck looks for in queues, and how it is repaired.

use super::{
    apply::Op,
    core::{Core, Shared},
    fetch::Read,
    layout::{Listed, Place, SegmentName},
    ledger::{self, Ledger},
    settings::QueueSlot,
};
use crate::{
    Namespace, Result,
    kind::{Context, Damage, Finding, Object},
    storage::{Name, bodies::Way, cas},
};
use std::sync::Arc;

/// For so long after the end of its session a claim may wait to be met by a worker.
const UNMET_MILLIS: i64 = 600_000;

/// Looks at one object of a queue.
pub(super) async fn check(shared: &Arc<Shared>, object: &Object<'_>, cx: &Context) -> Result<Option<Finding>> {
    let unknown = || Ok(Some(Finding::unknown(object.name)));
    let below = object.name.as_str().strip_prefix(&object.folder.path).unwrap_or_default();
    let Some((queue, rest)) = below.split_once('/') else { return unknown() };
    let Some(queue) = super::queues::name_of(queue) else { return unknown() };
    let core = shared.core(&Namespace::new(object.folder.top.as_str())?, &queue)?;
    let name = object.name;
    match rest.split('/').next().unwrap_or_default() {
        "queue.json" => settings(&core, name, cx).await,
        "ledger" => of_ledger(&core, name).await,
        "dead" if core.layout.parse_letters(name.as_str()).is_some() => Ok(None),
        "in" | "at" => match core.layout.parse(name.as_str()) {
            Listed::Segment(segment) => of_segment(&core, name, &segment, cx).await,
            Listed::Foreign => unknown(),
        },
        "seg" => match core.layout.parse_seg(name.as_str()) {
            Some(id) => of_kept(&core, name, id, cx).await,
            None => unknown(),
        },
        _ => unknown(),
    }
}

/// The settings can be read, and every shard has its ledger.
async fn settings(core: &Arc<Core>, name: &Name, cx: &Context) -> Result<Option<Finding>> {
    let slot = QueueSlot { layout: Arc::clone(&core.layout), queue: Arc::clone(&core.name) };
    let ever = match cas::read(core.backend(), &slot).await {
        Ok(Some(seen)) => seen.record().shards_ever,
        Ok(None) => return Ok(None),
        Err(error) if error.is_retryable() => return Err(error),
        Err(error) => {
            let finding = Finding::new(Damage::Unreadable, name, error.to_string());
            return Ok(Some(finding.advise("restore it from a backup: its shards and their jobs are all there")));
        }
    };
    for shard in 0..ever {
        let path = Name::new(core.layout.ledger(u8::try_from(shard).unwrap_or(u8::MAX)));
        if core.backend().get_range(&path, 0..1, Way::First).await?.is_some() {
            continue;
        }
        let finding = Finding::new(Damage::MissingRecord, &path, "the ledger of a shard is gone: nothing of it runs");
        if cx.repairs().is_none() {
            return Ok(Some(finding.advise("repair it: it is made again of its segments, and jobs may run twice")));
        }
        let rebuilt = super::rebuild::rebuild(core).await?;
        let (segments, jobs) = (rebuilt.segments, rebuilt.jobs);
        return Ok(Some(finding.repaired(format!(
            "made again, with {jobs} jobs of {segments} segments that only it had named; jobs may run twice"
        ))));
    }
    Ok(None)
}

/// Each job is in one place, and what the ledger names is there.
async fn of_ledger(core: &Arc<Core>, name: &Name) -> Result<Option<Finding>> {
    let Some(fetched) = core.backend().get(name).await? else {
        return Ok(None);
    };
    let ledger = match ledger::decode(&fetched.body) {
        Ok(ledger) => ledger,
        Err(ledger::Unusable::Later(format)) => {
            return Ok(Some(Finding::new(Damage::LaterFormat, name, format!("format {format}")).harmless()));
        }
        Err(ledger::Unusable::Damaged(why)) => {
            let advice = "nothing runs from this shard: move the object away, and repair again; jobs may run twice";
            return Ok(Some(Finding::new(Damage::Unreadable, name, why).advise(advice)));
        }
    };
    if let Err(why) = ledger.check() {
        let finding = Finding::new(Damage::Unreadable, name, why);
        return Ok(Some(finding.advise("its jobs are not all in one place: report this")));
    }
    if let Some(gone) = missing_segment(core, &ledger).await? {
        let finding = Finding::new(Damage::MissingRecord, &gone, "its jobs have not ended, and it is gone");
        return Ok(Some(finding.advise("restore it from a backup, or cancel its jobs")));
    }
    Ok(unmet(core, &ledger, name))
}

async fn missing_segment(core: &Arc<Core>, ledger: &Ledger) -> Result<Option<Name>> {
    for row in &ledger.rows {
        let Some(path) = core.layout.segment(&row.name).map(Name::new) else { continue };
        if core.backend().get_range(&path, 0..1, Way::First).await?.is_none() {
            // It may have ended since the ledger was read.
            let now = cas::read(core.backend(), &core.ledger_slot(ledger.shard)).await?;
            if now.is_some_and(|now| now.record().row_of(row.name.id).is_some()) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

/// Claims of sessions that ended long ago: no worker has been there since.
fn unmet(core: &Arc<Core>, ledger: &Ledger, name: &Name) -> Option<Finding> {
    let now = core.backend().store_time()?.as_millis();
    let over = |session: &&ledger::Session| {
        session.until.saturating_add(UNMET_MILLIS) < now
            && ledger.claims.iter().any(|claim| claim.session == session.id)
    };
    let session = ledger.sessions.iter().find(over)?;
    let detail = format!("{:?} has jobs in hand and was last heard of more than ten minutes ago", session.owner);
    Some(Finding::new(Damage::MissingRecord, name, detail).advise("the next worker takes them: start one").harmless())
}

/// A segment in the inbox can be read, and its shard is one that is looked at.
async fn of_segment(core: &Arc<Core>, path: &Name, name: &SegmentName, cx: &Context) -> Result<Option<Finding>> {
    let shard = u16::from(name.id.shard());
    let known = core.settings().await?;
    if shard >= known.record().shards_ever {
        let finding = Finding::new(Damage::MissingRecord, path, format!("nobody looks at shard {shard}"));
        if cx.repairs().is_none() {
            return Ok(Some(finding.advise("repair it: the queue gets that shard again")));
        }
        let before = known.record().settings.shards;
        let with =
            |shards: u16| move |settings: &super::QueueSettings| super::QueueSettings { shards, ..settings.clone() };
        super::manage::change_settings(core, with(shard + 1)).await?;
        super::manage::change_settings(core, with(before)).await?;
        return Ok(Some(finding.repaired("the queue has that shard again: its jobs are worked off")));
    }
    Ok(match core.shared.segments.read(core.backend(), &core.layout, name).await? {
        Read::Loaded(_) | Read::Missing => None,
        Read::Later(format) => Some(Finding::new(Damage::LaterFormat, path, format!("format {format}")).harmless()),
        Read::Damaged(why) => {
            let finding = Finding::new(Damage::Unreadable, path, why);
            Some(finding.advise("the next worker that meets it moves it to the dead letters as it is").harmless())
        }
    })
}

/// A segment that only a ledger names is named by it.
async fn of_kept(core: &Arc<Core>, path: &Name, id: super::id::SegmentId, cx: &Context) -> Result<Option<Finding>> {
    let shard = core.shard(id.shard());
    let Some(seen) = cas::read(core.backend(), &core.ledger_slot(id.shard())).await? else {
        // The ledger is lost: that is found where the settings are looked at.
        return Ok(None);
    };
    let named = |ledger: &Ledger| ledger.row_of(id).is_some() || ledger.outbox_spills.contains(&id);
    if named(seen.record()) {
        let name = SegmentName { id, place: Place::Seg, jobs: 0 };
        return Ok(match core.shared.segments.read(core.backend(), &core.layout, &name).await? {
            Read::Damaged(why) if seen.record().row_of(id).is_some() => {
                let finding = Finding::new(Damage::Unreadable, path, why);
                Some(finding.advise("restore it from a backup, or cancel its jobs"))
            }
            _ => None,
        });
    }
    let finding =
        Finding::new(Damage::MissingRecord, path, "no ledger names it: what it had has ended or lives elsewhere");
    if cx.repairs().is_none() {
        return Ok(Some(finding.advise("workers delete it within an hour, or a repair does").harmless()));
    }
    shard.ask(vec![Op::RaiseEpoch { candidates: vec![id] }]).await?;
    Ok(Some(finding.repaired("deleted, after no commit could name it any more")))
}
