//! The walk over everything in the store, a page at a time.

use super::{Checked, Finding, FsckOptions, Report};
use crate::{
    Result,
    kind::{Content, Context, Folder, Kind, Object},
    storage::{
        Backend, Name, Walk,
        layout::{self, OURS},
    },
};
use futures_util::{StreamExt, stream};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How many names are listed at once, and how many of them are looked at side by side.
const PAGE: usize = 1000;
const SIDE_BY_SIDE: usize = 16;

/// Looks at everything. An error means that nothing could be looked at; whatever fails later is counted.
pub(crate) async fn run(
    backend: &Arc<Backend>,
    kinds: &[Arc<dyn Kind>],
    max_clock_skew: Duration,
    options: FsckOptions,
) -> Result<Report> {
    let began = backend.clock.monotonic();
    let before = backend.requests();
    let looked = kinds.iter().map(|kind| (kind.declaration().name, Checked::default()));
    let mut report = Report { kinds: looked.collect(), ..Report::default() };
    let cx = Context::new(Arc::clone(backend)).checking(options.repair.as_deref());
    backend.refresh_time().await?;
    if options.repair.is_some() {
        backend.trust_clock(max_clock_skew).await?;
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
        let of = |kind| (Kind::declaration(kind).folders)(top).into_iter();
        let folders: Vec<(&Arc<dyn Kind>, Folder)> =
            kinds.iter().flat_map(|kind| of(&**kind).map(move |folder| (kind, folder))).collect();
        if folders.is_empty() {
            report.add(Finding::unknown(&Name::new(format!("{top}/"))).harmless());
            continue;
        }
        if let Err(error) = look_around(backend, top, &folders, &mut report).await {
            fail(&mut report, &error);
        }
        let walked = |folder: &Folder| matches!(folder.content, Content::Records | Content::Entries | Content::Filed);
        for (kind, folder) in folders.iter().filter(|(_, folder)| walked(folder)) {
            if let Err(error) = walk(backend, &***kind, folder, &options, &cx, &mut report).await {
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
    folders: &[(&Arc<dyn Kind>, Folder)],
    report: &mut Report,
) -> Result<()> {
    let (inside, beside) = backend.level(&format!("{top}/")).await?;
    // All of it is set aside.
    if folders.iter().any(|(_, folder)| folder.content == Content::Aside && folder.path.len() == top.len() + 1) {
        return Ok(());
    }
    // A namespace that was named, and never used.
    if inside.is_empty() && beside.is_empty() {
        return Ok(());
    }
    let first = |folder: &Folder| folder.path[top.len() + 1..].split('/').next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = folders.iter().map(|(_, folder)| first(folder)).collect();
    // A folder without any known name belongs to another program: one finding for it is enough.
    if inside.iter().all(|folder| !known.contains(folder)) && !top.starts_with('.') {
        report.add(Finding::unknown(&Name::new(format!("{top}/"))).harmless());
        return Ok(());
    }
    let older = folders.iter().any(|(_, folder)| folder.content == Content::OlderLayout);
    let strange = |name: &Name| if older { Finding::older(name) } else { Finding::unknown(name) };
    let expected = |folder: &str| known.contains(folder) || top == OURS && layout::is_own_folder(folder);
    for folder in inside.iter().filter(|folder| !expected(folder)) {
        report.add(strange(&Name::new(format!("{top}/{folder}/"))));
    }
    for name in beside.iter().filter(|name| top != OURS || !layout::is_own_object(name)) {
        report.add(strange(name));
    }
    Ok(())
}

async fn walk(
    backend: &Backend,
    kind: &dyn Kind,
    folder: &Folder,
    options: &FsckOptions,
    cx: &Context,
    report: &mut Report,
) -> Result<()> {
    let mut names = Walk::new(&folder.path, None);
    loop {
        let page = names.next(backend, PAGE).await?;
        let count = page.names.len() as u64;
        // Made first and then run: a closure in the stream would keep callers from spawning the whole walk.
        let objects: Vec<_> = page.names.iter().map(|name| Object { folder, name }).collect();
        let checks: Vec<_> = objects.iter().map(|object| kind.check(object, cx)).collect();
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
        let of_kind = report.kinds.entry(kind.declaration().name).or_default();
        let (all, of_kind) = match folder.content {
            Content::Entries | Content::Filed => (&mut report.entries, &mut of_kind.entries),
            _ => (&mut report.records, &mut of_kind.records),
        };
        *all += count;
        *of_kind += count;
        if let Some(tell) = &options.progress {
            tell(report);
        }
        if !page.more || page.names.is_empty() {
            return Ok(());
        }
    }
}
