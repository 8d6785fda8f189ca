//! Whether a store is in use: has it records, whatever became of its settings?

use super::open::no_store;
use crate::{
    Error, ErrorKind, Namespace, Result, index,
    kind::{Content, Declaration, Folder},
    storage::{
        Backend, Name,
        layout::{OURS, STORE_JSON},
    },
};
use std::path::Path;

/// How many folders that may be namespaces are looked into.
const LOOKED_INTO: usize = 8;

/// How many names of a folder are looked at: one request in any case, and names of others may come first.
const LOOKED_AT: usize = 100;

/// Whether the store has records, whatever became of its settings: one listing in a place that is empty, and one for each
/// folder that may have records elsewhere.
///
/// Where listing is denied this cannot be known. The store counts as new then, with a warning: refusing would keep those
/// who may not list from ever making one, and most stores do not tell them either that the settings are missing.
pub(super) async fn is_used(backend: &Backend, kinds: &[&'static Declaration]) -> Result<bool> {
    match has_records(backend, kinds).await {
        Err(error) if error.kind() == ErrorKind::Denied => {
            tracing::warn!(
                store = %backend.place,
                %error,
                "a new store is made without knowing whether records are there, as listing is denied"
            );
            Ok(false)
        }
        found => found,
    }
}

async fn has_records(backend: &Backend, kinds: &[&'static Declaration]) -> Result<bool> {
    let tops = backend.folders("").await?;
    let (mut namespaces, reserved): (Vec<&String>, Vec<&String>) =
        tops.iter().filter(|top| *top != OURS).partition(|top| Namespace::new(top.as_str()).is_ok());
    // First the one that most use: a bucket may have many folders of others.
    namespaces.sort_by_key(|name| *name != "default");
    namespaces.truncate(LOOKED_INTO);
    // Names that begin with a dot are ours, and there are few of them.
    for top in reserved.into_iter().chain(namespaces) {
        for (kind, folder) in own_folders(kinds, top) {
            let page = backend.page(&folder.path, None, LOOKED_AT).await?;
            let is_record = |name: &Name| name.as_str().strip_prefix(&folder.path).is_some_and(kind.is_record);
            let is_ours = |name: &Name| match folder.content {
                Content::Entries => index::parse_entry(&folder.path, name).is_some(),
                _ => is_record(name),
            };
            if page.names.iter().any(is_ours) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Where records are, and in a folder that is ours alone also entries: their records may be gone again.
fn own_folders<'a>(
    kinds: &'a [&'static Declaration],
    top: &'a str,
) -> impl Iterator<Item = (&'static Declaration, Folder)> + 'a {
    let folders = kinds.iter().flat_map(move |kind| (kind.folders)(top).into_iter().map(move |folder| (*kind, folder)));
    folders.filter(move |(_, folder)| match folder.content {
        Content::Records => true,
        Content::Entries => top.starts_with('.'),
        _ => false,
    })
}

/// What is said of a store that has records and no settings.
pub(super) fn settings_lost(place: &str) -> Error {
    Error::corrupt(format!(
        "{place} has records but no .leasehold/store.json, where all processes agree on their bounds: it was removed. \
         With other bounds two could hold one lock, so nothing is granted: restore it from a backup, or write it again \
         with the values in use: leasehold store repair"
    ))
}

/// Opening a folder makes it, so it is looked at before.
pub(super) fn folder_has_store(url: &str, kinds: &[&'static Declaration]) -> Result<()> {
    let Some(folder) =
        url::Url::parse(url).ok().filter(|url| url.scheme() == "file").and_then(|url| url.to_file_path().ok())
    else {
        return Ok(());
    };
    match folder.join(OURS).join(STORE_JSON).try_exists() {
        Ok(false) if !folder_has_records(&folder, kinds) => Err(no_store(url)),
        // Any other problem with it is reported when it is opened.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn folder_has_records(folder: &Path, kinds: &[&'static Declaration]) -> bool {
    let is_filled = |path: &str| folder.join(path).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    let has_records = |top: &str| top != OURS && own_folders(kinds, top).any(|(_, folder)| is_filled(&folder.path));
    let tops = folder.read_dir().into_iter().flatten().flatten().map(|inside| inside.file_name());
    tops.into_iter().any(|top| top.to_str().is_some_and(has_records))
}
