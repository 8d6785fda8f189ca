//! The walk over everything in the store, a page at a time.

use super::{Checkable, Content, Finding, Folder, FsckOptions, Report};
use crate::{
    Result,
    store::{Agreement, Backend, Name, Walk},
};
use futures_util::{StreamExt, stream};
use std::{collections::BTreeSet, sync::Arc};

/// How many names are listed at once, and how many of them are looked at side by side.
const PAGE: usize = 1000;
const SIDE_BY_SIDE: usize = 16;

/// What the library has for itself in a folder of its own, beside what expires.
const OURS: &str = ".leasehold";
const KEPT_IN_OURS: [&str; 2] = ["store.json", "time"];
const FOLDERS_IN_OURS: [&str; 2] = ["probe", "repairs"];

/// Where copies of what was moved aside are, in every namespace.
pub(crate) const ASIDE: &str = ".aside";

/// Looks at everything. An error means that nothing could be looked at; whatever fails later is counted.
pub(crate) async fn run(
    backend: &Arc<Backend>,
    kinds: &[Arc<dyn Checkable>],
    agreement: &Agreement,
    options: FsckOptions,
) -> Result<Report> {
    let began = backend.clock.monotonic();
    let before = backend.requests();
    let mut report = Report::default();
    backend.refresh_time().await?;
    if options.repair.is_some() {
        backend.trust_clock(agreement).await?;
    }
    let tops = match &options.namespace {
        Some(namespace) => vec![namespace.to_string()],
        None => {
            let (tops, beside) = backend.level("").await?;
            // Names beside ours may be anything: the bucket may have other users.
            beside.iter().for_each(|name| report.add(Finding::unknown(name).harmless()));
            tops.into_iter().collect()
        }
    };
    for top in &tops {
        let folders: Vec<(&Arc<dyn Checkable>, Folder)> =
            kinds.iter().flat_map(|kind| kind.folders(top).into_iter().map(move |folder| (kind, folder))).collect();
        if folders.is_empty() {
            report.add(Finding::unknown(&Name::new(format!("{top}/"))).harmless());
            continue;
        }
        if let Err(error) = look_around(backend, top, &folders, &mut report).await {
            fail(&mut report, &error);
        }
        for (kind, folder) in &folders {
            if let Err(error) = walk(backend, kind, folder, &options, &mut report).await {
                fail(&mut report, &error);
            }
        }
    }
    report.requests = backend.requests().since(&before).total();
    report.duration_ms = u64::try_from(backend.clock.monotonic().since(began).as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

fn fail(report: &mut Report, error: &crate::Error) {
    tracing::warn!(%error, "could not be looked at");
    report.failures += 1;
    report.last_error = Some(error.to_string());
}

/// What lies beside the folders of a kind and is neither one of them nor the library's own.
async fn look_around(
    backend: &Backend,
    top: &str,
    folders: &[(&Arc<dyn Checkable>, Folder)],
    report: &mut Report,
) -> Result<()> {
    let (inside, beside) = backend.level(&format!("{top}/")).await?;
    // A namespace that was named, and never used.
    if inside.is_empty() && beside.is_empty() {
        return Ok(());
    }
    let first = |folder: &Folder| folder.path[top.len() + 1..].split('/').next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = folders.iter().map(|(_, folder)| first(folder)).collect();
    // A folder that has nothing of ours may be anybody's: one word about it is enough.
    if inside.iter().all(|folder| !known.contains(folder)) && top != OURS {
        report.add(Finding::unknown(&Name::new(format!("{top}/"))).harmless());
        return Ok(());
    }
    let expected =
        |folder: &str| known.contains(folder) || folder == ASIDE || top == OURS && FOLDERS_IN_OURS.contains(&folder);
    for folder in inside.iter().filter(|folder| !expected(folder)) {
        report.add(Finding::unknown(&Name::new(format!("{top}/{folder}/"))));
    }
    let ours = |name: &Name| KEPT_IN_OURS.contains(&name.last()) || name.last().starts_with("time-");
    for name in beside.iter().filter(|name| top != OURS || !ours(name)) {
        report.add(Finding::unknown(name));
    }
    Ok(())
}

async fn walk(
    backend: &Backend,
    kind: &Arc<dyn Checkable>,
    folder: &Folder,
    options: &FsckOptions,
    report: &mut Report,
) -> Result<()> {
    let mut names = Walk::new(&folder.path, None);
    loop {
        let page = names.next(backend, PAGE).await?;
        let count = page.names.len() as u64;
        let repair = options.repair.as_deref();
        // Made first and then run: a closure in the stream would keep callers from spawning the whole walk.
        let checks: Vec<_> = page.names.iter().map(|name| kind.check(folder, name, repair)).collect();
        let mut looked = stream::iter(checks).buffered(SIDE_BY_SIDE);
        while let Some(found) = looked.next().await {
            match found {
                Ok(found) => found.into_iter().for_each(|finding| {
                    tracing::info!(damage = %finding.damage, name = finding.name, detail = finding.detail, "found");
                    report.add(finding);
                }),
                Err(error) => fail(report, &error),
            }
        }
        match folder.content {
            Content::Records => report.records += count,
            Content::Markers => report.markers += count,
            Content::Entries => report.entries += count,
        }
        if let Some(tell) = &options.progress {
            tell(report);
        }
        if !page.more || page.names.is_empty() {
            return Ok(());
        }
    }
}
