//! Listings in the byte order of the full names, folder by folder, reading no more than is asked for.

use super::{
    blocking,
    disk::Disk,
    error::{from_io, is_missing},
    name::{is_private, segment_fits},
};
use futures_util::{StreamExt, stream, stream::BoxStream};
use object_store::{ListResult, ObjectMeta, Result, path::Path};
use std::{
    fs::{self, DirEntry},
    io,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    vec,
};

/// How many objects are looked up in one visit to a blocking thread.
const BATCH: usize = 128;

/// All objects below the prefix whose name is greater than the offset.
pub(super) fn stream(
    disk: Arc<Disk>,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let walk =
        Walk { pending: Some(Folder::new(&disk.root, prefix)), offset: offset.map(Path::to_string), open: vec![] };
    stream::unfold(Some(walk), move |walk| {
        let disk = Arc::clone(&disk);
        async move {
            let mut walk = walk?;
            let visit = blocking(move || {
                disk.check()?;
                let batch: Vec<_> = walk.by_ref().take(BATCH).collect();
                let more = batch.len() == BATCH;
                Ok((batch, more.then_some(walk)))
            });
            let (batch, walk) = visit.await.unwrap_or_else(|error| (vec![Err(error)], None));
            Some((stream::iter(batch), walk))
        }
    })
    .flatten()
    .boxed()
}

/// The objects and the folders right below the prefix.
pub(super) async fn with_delimiter(disk: Arc<Disk>, prefix: Option<&Path>) -> Result<ListResult> {
    let folder = Folder::new(&disk.root, prefix);
    blocking(move || {
        disk.check()?;
        let mut result = ListResult { common_prefixes: vec![], objects: vec![], extensions: Default::default() };
        for entry in folder.sorted(None)? {
            match folder.child(&entry) {
                Child::Folder(child) if child.holds_object()? => {
                    result.common_prefixes.push(Path::parse(&child.name)?);
                }
                Child::Folder(_) => {}
                Child::Object(name, file) => result.objects.extend(look_up(&name, &file)?),
            }
        }
        Ok(result)
    })
    .await
}

struct Walk {
    /// To be read next, before what is open.
    pending: Option<Folder>,
    offset: Option<String>,
    /// From the prefix down to where the walk is, with the entries still to come.
    open: Vec<(Folder, vec::IntoIter<String>)>,
}

impl Iterator for Walk {
    type Item = Result<ObjectMeta>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(folder) = self.pending.take() {
                match folder.sorted(self.offset.as_deref()) {
                    Ok(entries) => self.open.push((folder, entries.into_iter())),
                    Err(error) => return Some(Err(error)),
                }
            }
            let (folder, entries) = self.open.last_mut()?;
            match entries.next().map(|entry| folder.child(&entry)) {
                None => drop(self.open.pop()),
                Some(Child::Folder(child)) => self.pending = Some(child),
                Some(Child::Object(name, file)) => {
                    if let Some(found) = look_up(&name, &file).transpose() {
                        return Some(found);
                    }
                }
            }
        }
    }
}

struct Folder {
    path: PathBuf,
    /// Empty, or with a slash at its end: what the names of all objects below begin with.
    name: String,
}

enum Child {
    Folder(Folder),
    Object(String, PathBuf),
}

impl Folder {
    fn new(root: &FilePath, prefix: Option<&Path>) -> Self {
        let mut path = root.to_path_buf();
        match prefix.map(Path::as_ref).unwrap_or_default() {
            "" => Self { path, name: String::new() },
            prefix => {
                path.extend(prefix.split('/'));
                Self { path, name: format!("{prefix}/") }
            }
        }
    }

    fn child(&self, entry: &str) -> Child {
        let (path, name) = (self.path.join(entry.trim_end_matches('/')), format!("{}{entry}", self.name));
        match entry.ends_with('/') {
            true => Child::Folder(Self { path, name }),
            false => Child::Object(name, path),
        }
    }

    /// What lies after the offset, in order. Folders end in a slash: `a-1` comes before `a/1`, as their names do.
    fn sorted(&self, offset: Option<&str>) -> Result<Vec<String>> {
        let mut found = vec![];
        self.visit(|entry| {
            if offset.is_none_or(|offset| self.reaches_beyond(&entry, offset)) {
                found.push(entry);
            }
            true
        })?;
        found.sort_unstable();
        Ok(found)
    }

    /// Whether an entry is an object after the offset, or a folder that may hold one.
    fn reaches_beyond(&self, entry: &str, offset: &str) -> bool {
        let name = format!("{}{entry}", self.name);
        name.as_str() > offset || (entry.ends_with('/') && offset.starts_with(&name))
    }

    /// A folder left behind empty is not a common prefix. In no order, and only as far as the first object.
    fn holds_object(&self) -> Result<bool> {
        let mut found = false;
        let mut folders = vec![];
        self.visit(|entry| {
            match self.child(&entry) {
                Child::Folder(child) => folders.push(child),
                Child::Object(..) => found = true,
            }
            !found
        })?;
        for folder in folders {
            found = found || folder.holds_object()?;
        }
        Ok(found)
    }

    /// Shows what is in the folder until told to stop; nothing, if it has vanished.
    fn visit(&self, mut go_on: impl FnMut(String) -> bool) -> Result<()> {
        let name = self.name.trim_end_matches('/');
        if is_private(name) || (!name.is_empty() && !name.split('/').all(|segment| segment_fits(segment).is_ok())) {
            return Ok(());
        }
        let visited = fs::read_dir(&self.path).and_then(|entries| {
            for entry in entries {
                if self.visible(&entry?)?.is_some_and(|entry| !go_on(entry)) {
                    break;
                }
            }
            Ok(())
        });
        match visited {
            Err(error) if !is_missing(&error) => Err(from_io("listing", &self.path, error)),
            _ => Ok(()),
        }
    }

    /// The entry as a part of a name, unless it cannot be one.
    fn visible(&self, entry: &DirEntry) -> io::Result<Option<String>> {
        let file_name = entry.file_name();
        let Some(segment) = file_name.to_str().filter(|segment| segment_fits(segment).is_ok()) else {
            return Ok(None);
        };
        // The root may be a disk of its own, where only the superuser may look into this one.
        if is_private(&format!("{}{segment}", self.name)) || (self.name.is_empty() && segment == "lost+found") {
            return Ok(None);
        }
        let mut kind = entry.file_type();
        if kind.as_ref().is_ok_and(fs::FileType::is_symlink) {
            kind = fs::metadata(entry.path()).map(|meta| meta.file_type());
        }
        Ok(match kind {
            Ok(kind) if kind.is_dir() => Some(format!("{segment}/")),
            Ok(kind) if kind.is_file() => Some(segment.to_owned()),
            Err(error) if !is_missing(&error) => return Err(error),
            _ => None,
        })
    }
}

/// The object, unless it has vanished. Its ETag would cost reading it.
fn look_up(name: &str, file: &FilePath) -> Result<Option<ObjectMeta>> {
    let meta = fs::metadata(file).and_then(|meta| {
        let (size, last_modified) = (meta.len(), meta.modified()?.into());
        Ok(ObjectMeta { location: Path::default(), last_modified, size, e_tag: None, version: None })
    });
    match meta {
        Ok(meta) => Ok(Some(ObjectMeta { location: Path::parse(name)?, ..meta })),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(from_io("listing", file, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::LocalDirectory, *};
    use futures_util::TryStreamExt;
    use object_store::{ObjectStore, ObjectStoreExt};
    use tempfile::TempDir;

    async fn store_of(names: &[&str]) -> (TempDir, LocalDirectory) {
        let dir = TempDir::new().unwrap();
        let store = LocalDirectory::open(dir.path()).unwrap();
        for name in names {
            store.put(&Path::from(*name), "x".into()).await.unwrap();
        }
        (dir, store)
    }

    async fn names(listing: BoxStream<'static, Result<ObjectMeta>>) -> Vec<String> {
        listing.map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap()
    }

    const UNSORTED: [&str; 9] = ["b", "a/1", "a-1", "a0", "a/1-x/y", "a.b/c", "a/10", "a/1x", ".leasehold/store.json"];

    #[tokio::test]
    async fn a_listing_is_in_the_byte_order_of_the_full_names() {
        let (_dir, store) = store_of(&UNSORTED).await;
        let mut sorted = UNSORTED;
        sorted.sort_unstable();
        let listed = names(store.list(None)).await;
        assert_eq!(listed, sorted);
        let before = |left, right| listed.iter().position(|n| n == left) < listed.iter().position(|n| n == right);
        assert!(before("a-1", "a/1") && before("a.b/c", "a/1") && before("a/1-x/y", "a/10") && before("a/1x", "a0"));
    }

    #[tokio::test]
    async fn an_offset_cuts_the_listing_wherever_it_falls() {
        let (_dir, store) = store_of(&UNSORTED).await;
        let all = names(store.list(None)).await;
        for offset in all.iter().map(String::as_str).chain(["", "a", "a/", "a/1-x", "a/1-x/z", "a/2", "zzz", ".l"]) {
            let listed = names(store.list_with_offset(None, &Path::parse(offset).unwrap())).await;
            let offset = offset.trim_end_matches('/');
            let expected: Vec<_> = all.iter().filter(|name| name.as_str() > offset).cloned().collect();
            assert_eq!(listed, expected, "after {offset:?}");
        }
        let below = names(store.list_with_offset(Some(&Path::from("a")), &Path::from("a/1-x"))).await;
        assert_eq!(below, ["a/1-x/y", "a/10", "a/1x"]);
    }

    #[tokio::test]
    async fn a_folder_wholly_before_the_offset_is_not_read() {
        let (dir, store) = store_of(&["i/2025010100/a", "i/2025010101/b"]).await;
        let read = Folder::new(&fs::canonicalize(dir.path()).unwrap(), Some(&Path::from("i")));
        assert_eq!(read.sorted(Some("i/2025010100/z")).unwrap(), ["2025010100/", "2025010101/"]);
        assert_eq!(read.sorted(Some("i/20250101000")).unwrap(), ["2025010101/"]);
        assert_eq!(read.sorted(Some("i/2025010101")).unwrap(), ["2025010101/"]);
        assert!(read.sorted(Some("i/2025010102")).unwrap().is_empty());
        assert_eq!(names(store.list_with_offset(None, &Path::from("i/20250101000"))).await, ["i/2025010101/b"]);
    }

    #[tokio::test]
    async fn a_prefix_is_made_of_whole_segments() {
        let (_dir, store) = store_of(&["a/1", "ab/1", "a-1", "c"]).await;
        assert_eq!(names(store.list(Some(&Path::from("a")))).await, ["a/1"]);
        assert!(names(store.list(Some(&Path::from("c")))).await.is_empty(), "an object is not its own prefix");
        assert!(names(store.list(Some(&Path::from("nothing/here")))).await.is_empty());
        assert!(names(store.list(Some(&Path::parse("bad\\name").unwrap()))).await.is_empty());
    }

    #[tokio::test]
    async fn more_objects_than_one_batch_come_complete_and_in_order() {
        let (dir, store) = store_of(&["many/x"]).await;
        let mut expected: Vec<_> = (0..3 * BATCH).map(|i| format!("many/{i}")).collect();
        for name in &expected {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        expected.push("many/x".into());
        expected.sort_unstable();
        assert_eq!(names(store.list(None)).await, expected);
    }

    #[tokio::test]
    async fn what_vanishes_during_the_walk_is_skipped() {
        let (dir, store) = store_of(&["a/1", "b/1", "c"]).await;
        let root = fs::canonicalize(dir.path()).unwrap();
        let mut walk = Walk { pending: Some(Folder::new(&root, None)), offset: None, open: vec![] };
        assert_eq!(walk.next().unwrap().unwrap().location, Path::from("a/1"));
        fs::remove_dir_all(dir.path().join("b")).unwrap();
        fs::remove_file(dir.path().join("c")).unwrap();
        assert!(walk.next().is_none());
        drop(store);
    }

    #[tokio::test]
    async fn an_empty_folder_is_not_a_common_prefix() {
        let (dir, store) = store_of(&["n/meta/k", "n/o", "top"]).await;
        fs::create_dir_all(dir.path().join("ghost/of/a/folder")).unwrap();
        fs::create_dir_all(dir.path().join("n/ghost")).unwrap();
        let top = store.list_with_delimiter(None).await.unwrap();
        assert_eq!(top.common_prefixes, [Path::from("n")], "the private folder is no prefix either");
        assert_eq!(top.objects.iter().map(|meta| meta.location.as_ref()).collect::<Vec<_>>(), ["top"]);
        let below = store.list_with_delimiter(Some(&Path::from("n"))).await.unwrap();
        assert_eq!(below.common_prefixes, [Path::from("n/meta")]);
        assert_eq!(below.objects.len(), 1);
    }

    #[tokio::test]
    async fn files_that_cannot_be_objects_are_not_listed() {
        let (dir, store) = store_of(&["a"]).await;
        for name in ["back\\slash", "line\nbreak"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        fs::write(dir.path().join("lost+found/x"), "x").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(dir.path().join("nowhere"), dir.path().join("dangling")).unwrap();
        assert_eq!(names(store.list(None)).await, ["a"]);
    }
}
