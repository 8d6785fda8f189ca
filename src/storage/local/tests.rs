//! The promises of the embedded store, on real files.

use super::*;
use crate::{ErrorKind, clock::Timestamp, testkit::TestClock, timing::LONGEST_WRITE};
use object_store::{ObjectStoreExt, UpdateVersion};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::Path as FilePath,
    process::Command,
    sync::{Mutex, mpsc},
    task::Poll,
};
use tempfile::TempDir;

fn open(dir: &TempDir) -> LocalDirectory {
    LocalDirectory::open(dir.path()).unwrap()
}

fn fresh() -> (TempDir, LocalDirectory) {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    (dir, store)
}

fn name() -> Path {
    Path::from("orders/meta/k.pb")
}

async fn create(store: &LocalDirectory, body: &'static str) -> Result<PutResult> {
    store.put_opts(&name(), body.into(), PutMode::Create.into()).await
}

async fn update(store: &LocalDirectory, body: impl Into<PutPayload>, tag: Option<String>) -> Result<PutResult> {
    let mode = PutMode::Update(UpdateVersion { e_tag: tag, version: None });
    store.put_opts(&name(), body.into(), mode.into()).await
}

async fn body(store: &LocalDirectory) -> Result<String> {
    let bytes = store.get(&name()).await?.bytes().await?;
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

/// Calls back before every flush, with the path.
fn before_sync(store: &LocalDirectory, hook: impl Fn(&FilePath) -> io::Result<()> + Send + Sync + 'static) {
    *store.disk.before_sync.lock().unwrap() = Some(Arc::new(hook));
}

fn flushes(store: &LocalDirectory) -> Arc<Mutex<Vec<PathBuf>>> {
    let seen = Arc::new(Mutex::new(vec![]));
    let log = Arc::clone(&seen);
    before_sync(store, move |path| {
        log.lock().unwrap().push(path.to_path_buf());
        Ok(())
    });
    seen
}

fn is_flush_failure(error: &Error) -> bool {
    let Error::Generic { source, .. } = error else { return false };
    matches!(source.downcast_ref(), Some(LocalError::FlushFailed { .. })) && error.to_string().contains("reopened")
}

#[test]
fn errors_of_the_system_are_told_apart() {
    let told = |kind: io::ErrorKind| error::from_io("reading", FilePath::new("/x"), kind.into());
    assert!(matches!(told(io::ErrorKind::NotFound), Error::NotFound { .. }));
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
        assert!(matches!(told(kind), Error::PermissionDenied { .. }), "{kind}");
    }
    for kind in [io::ErrorKind::IsADirectory, io::ErrorKind::StorageFull, io::ErrorKind::TimedOut] {
        assert!(matches!(told(kind), Error::Generic { .. }), "{kind}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn an_object_that_cannot_be_read_is_not_taken_for_missing() {
    let (dir, store) = fresh();
    let file = dir.path().join("orders/meta/k.pb");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap();
    let unreadable = body(&store).await.unwrap_err();
    assert!(!matches!(unreadable, Error::NotFound { .. }), "{unreadable}");
    create(&store, "x").await.unwrap_err();
    update(&store, "x", Some("\"00\"".into())).await.unwrap_err();
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink(), "it is as it was");
}

#[tokio::test]
async fn an_object_where_a_folder_should_be_is_named_and_nothing_is_left_beside_it() {
    let (dir, store) = fresh();
    store.put(&Path::from("orders/meta"), "in the way".into()).await.unwrap();
    let refused = create(&store, "x").await.unwrap_err();
    assert!(refused.to_string().contains("an object and a folder at once"), "{refused}");
    assert!(!matches!(refused, Error::AlreadyExists { .. } | Error::NotFound { .. }), "{refused}");
    assert_eq!(fs::read_to_string(dir.path().join("orders/meta")).unwrap(), "in the way");
}

#[test]
fn names_are_spread_over_the_locks() {
    let shard = |number: usize| Name::new(FilePath::new("/"), &Path::from(format!("key-{number}"))).unwrap().shard();
    let shards: BTreeSet<usize> = (0..1000).map(shard).collect();
    assert!(shards.len() > name::SHARDS / 2 && shards.iter().all(|shard| *shard < name::SHARDS), "{shards:?}");
}

#[tokio::test]
async fn the_folder_that_the_store_keeps_for_itself_is_not_listed() {
    let (_dir, store) = fresh();
    create(&store, "x").await.unwrap();
    for prefix in [".leasehold", ".leasehold/.local", ".LEASEHOLD/.Local"] {
        let listed: Vec<_> = store.list(Some(&Path::from(prefix))).collect().await;
        assert!(listed.is_empty(), "{prefix}: {listed:?}");
    }
}

#[tokio::test]
async fn the_second_create_of_a_name_is_refused_and_changes_nothing() {
    let (dir, store) = fresh();
    create(&store, "first").await.unwrap();
    let refused = create(&store, "second").await.unwrap_err();
    assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused}");
    assert_eq!(body(&open(&dir)).await.unwrap(), "first");
}

#[tokio::test]
async fn an_update_needs_the_tag_of_what_is_there() {
    let (_dir, store) = fresh();
    let missing = update(&store, "x", Some("\"00\"".into())).await.unwrap_err();
    assert!(matches!(missing, Error::Precondition { .. }), "{missing}");
    let first = create(&store, "first").await.unwrap();
    let second = update(&store, "second", first.e_tag.clone()).await.unwrap();
    let stale = update(&store, "third", first.e_tag).await.unwrap_err();
    assert!(matches!(stale, Error::Precondition { .. }), "{stale}");
    assert!(matches!(update(&store, "third", None).await, Err(Error::Generic { .. })));
    assert_eq!(body(&store).await.unwrap(), "second");
    assert_eq!(store.head(&name()).await.unwrap().e_tag, second.e_tag);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_64_racing_creates_and_of_64_racing_updates_one_wins() {
    let (dir, store) = fresh();
    let other = open(&dir);
    for round in 0..4 {
        let mode = match store.head(&name()).await {
            Ok(meta) => PutMode::Update(UpdateVersion { e_tag: meta.e_tag, version: None }),
            Err(_) => PutMode::Create,
        };
        let racers: Vec<_> = (0..64)
            .map(|racer| {
                // Two opened stores lock as two processes do.
                let store = if racer % 2 == 0 { store.clone() } else { other.clone() };
                let mode = mode.clone();
                tokio::spawn(async move {
                    let body = format!("{round}:{racer}");
                    store.put_opts(&name(), body.clone().into(), mode.into()).await.map(|_| body)
                })
            })
            .collect();
        let mut winners = vec![];
        for racer in racers {
            match racer.await.unwrap() {
                Ok(body) => winners.push(body),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(winners, [body(&store).await.unwrap()]);
    }
}

#[tokio::test]
async fn a_read_honours_conditions_ranges_and_head() {
    let (_dir, store) = fresh();
    let tag = create(&store, "0123456789").await.unwrap().e_tag;
    let name = name();
    let get = |options| store.get_opts(&name, options);
    let unchanged = get(GetOptions::new().with_if_none_match(tag.clone())).await.unwrap_err();
    assert!(matches!(unchanged, Error::NotModified { .. }), "{unchanged}");
    let changed = get(GetOptions::new().with_if_match(Some("\"00\""))).await.unwrap_err();
    assert!(matches!(changed, Error::Precondition { .. }), "{changed}");
    let part = get(GetOptions::new().with_if_match(tag).with_range(Some(2..5))).await.unwrap();
    assert_eq!((part.range.clone(), part.meta.size), (2..5, 10));
    assert_eq!(part.bytes().await.unwrap(), "234");
    let suffix = get(GetOptions::new().with_range(Some(GetRange::Suffix(3)))).await.unwrap();
    assert_eq!(suffix.bytes().await.unwrap(), "789");
    assert!(get(GetOptions::new().with_range(Some(20..30))).await.is_err());
    let head = get(GetOptions::new().with_head(true)).await.unwrap();
    assert_eq!((head.meta.size, head.bytes().await.unwrap().len()), (10, 0));
    assert_eq!(store.get_ranges(&name, &[0..1, 8..20]).await.unwrap(), ["0", "89"]);
}

#[tokio::test]
async fn locks_and_temporary_files_are_nobodys_objects() {
    let (dir, store) = fresh();
    create(&store, "x").await.unwrap();
    let private = dir.path().join(".leasehold/.local");
    assert!(fs::read_dir(&private).unwrap().count() > 0, "there is something to hide");
    fs::write(private.join("tmp-00"), "secret").unwrap();
    let hidden = Path::from(".leasehold/.local/tmp-00");
    assert!(matches!(store.get(&hidden).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.delete(&hidden).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.put(&hidden, "x".into()).await, Err(Error::Generic { .. })));
    assert!(matches!(store.copy(&name(), &hidden).await, Err(Error::Generic { .. })));
    for prefix in [None, Some(Path::from(".leasehold")), Some(Path::from(".leasehold/.local"))] {
        let listed: Vec<_> = store.list(prefix.as_ref()).try_collect().await.unwrap();
        assert!(listed.iter().all(|meta| meta.location == name()), "{listed:?}");
        let result = store.list_with_delimiter(prefix.as_ref()).await.unwrap();
        assert!(result.objects.is_empty() && result.common_prefixes.iter().all(|p| p.as_ref() == "orders"));
    }
}

#[tokio::test]
async fn what_a_killed_writer_left_does_no_harm_and_does_not_pile_up() {
    let (dir, store) = fresh();
    let private = dir.path().join(".leasehold/.local");
    for shard in 0..name::SHARDS {
        fs::write(private.join(format!("tmp-{shard:02}")), "half of a rec".repeat(1000)).unwrap();
    }
    create(&store, "whole").await.unwrap();
    assert_eq!(body(&store).await.unwrap(), "whole");
    assert_eq!(store.list(None).count().await, 1);
    for i in 0..300 {
        store.put(&Path::from(format!("n/{i}")), "x".into()).await.unwrap();
    }
    let left: Vec<_> = fs::read_dir(&private).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.len() <= 2 * name::SHARDS + 1, "{left:?}");
}

#[tokio::test]
async fn an_object_cannot_also_be_a_folder() {
    let (_dir, store) = fresh();
    create(&store, "x").await.unwrap();
    let below = Path::from("orders/meta/k.pb/below");
    assert!(matches!(store.get(&below).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.delete(&below).await, Err(Error::NotFound { .. })));
    let refused = store.put(&below, "x".into()).await.unwrap_err();
    assert!(refused.to_string().contains("an object and a folder at once"), "{refused}");
    let folder = Path::from("orders/meta");
    assert!(matches!(store.get(&folder).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.delete(&folder).await, Err(Error::NotFound { .. })));
    let refused = store.put_opts(&folder, "x".into(), PutMode::Create.into()).await.unwrap_err();
    assert!(refused.to_string().contains("an object and a folder at once"), "{refused}");
    assert_eq!(body(&store).await.unwrap(), "x");
}

#[tokio::test]
async fn deletes_go_on_after_one_that_fails_and_take_empty_hours_with_them() {
    let (dir, store) = fresh();
    let names = ["i/2025010100/a", "i/2025010100/b", "i/2025010101/a", "n/meta/k"].map(Path::from);
    for name in &names {
        store.put(name, "x".into()).await.unwrap();
    }
    let doomed = [&names[0], &Path::from("i/2025010100/missing"), &names[1], &names[3]].map(|name| Ok(name.clone()));
    let answers: Vec<_> = store.delete_stream(stream::iter(doomed).boxed()).collect().await;
    assert!(matches!(answers[1], Err(Error::NotFound { .. })));
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3, "{answers:?}");
    assert!(!dir.path().join("i/2025010100").exists(), "the hour was empty");
    assert!(dir.path().join("i/2025010101/a").exists());
    assert!(dir.path().join("n/meta").exists(), "other folders are left alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_into_an_hour_that_is_being_removed_succeeds() {
    let (_dir, store) = fresh();
    let churn = |who: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            for i in 0..100 {
                let name = Path::from(format!("i/2025010100/{who}-{i}"));
                store.put(&name, "x".into()).await.unwrap();
                store.delete(&name).await.unwrap();
            }
        })
    };
    for task in [churn(0), churn(1), churn(2)] {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn copies_and_renames_keep_to_their_mode() {
    let (_dir, store) = fresh();
    create(&store, "x").await.unwrap();
    let (copy, moved) = (Path::from("copy"), Path::from("moved"));
    store.copy_if_not_exists(&name(), &copy).await.unwrap();
    assert!(matches!(store.copy_if_not_exists(&name(), &copy).await, Err(Error::AlreadyExists { .. })));
    store.rename(&copy, &moved).await.unwrap();
    assert!(matches!(store.get(&copy).await, Err(Error::NotFound { .. })));
    assert_eq!(store.get(&moved).await.unwrap().bytes().await.unwrap(), "x");
    assert!(matches!(store.rename_if_not_exists(&moved, &name()).await, Err(Error::AlreadyExists { .. })));
    store.rename(&name(), &name()).await.unwrap();
    assert_eq!(body(&store).await.unwrap(), "x");
    assert!(matches!(store.put_multipart(&name()).await, Err(Error::NotImplemented { .. })));
}

#[tokio::test]
async fn a_write_flushes_the_file_before_the_rename_and_every_new_folder_after_it() {
    let (dir, store) = fresh();
    let root = fs::canonicalize(dir.path()).unwrap();
    let target = root.join("orders/meta/k.pb");
    let seen = Arc::new(Mutex::new(vec![]));
    let (log, file) = (Arc::clone(&seen), target.clone());
    before_sync(&store, move |path| {
        log.lock().unwrap().push((path.to_path_buf(), file.exists()));
        Ok(())
    });
    create(&store, "x").await.unwrap();
    let first = std::mem::take(&mut *seen.lock().unwrap());
    assert!(first[0].0.to_str().unwrap().contains("tmp-") && !first[0].1, "{first:?}");
    let folders: BTreeSet<_> = first[1..].iter().map(|(path, visible)| (path.clone(), *visible)).collect();
    let expected = [root.clone(), root.join("orders"), root.join("orders/meta")].map(|folder| (folder, true));
    assert_eq!(folders, BTreeSet::from(expected));
    store.put(&name(), "y".into()).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2, "folders are flushed once");
}

#[tokio::test]
async fn a_reader_flushes_what_it_did_not_write_and_does_so_once() {
    let (dir, writer) = fresh();
    let written = create(&writer, "x").await.unwrap();
    let seen = flushes(&writer);
    body(&writer).await.unwrap();
    assert!(seen.lock().unwrap().is_empty(), "it flushed that itself");

    let reader = open(&dir);
    let seen = flushes(&reader);
    body(&reader).await.unwrap();
    let root = fs::canonicalize(dir.path()).unwrap();
    let flushed: BTreeSet<_> = seen.lock().unwrap().drain(..).collect();
    let chain = ["orders/meta/k.pb", "orders/meta", "orders", ""].map(|part| root.join(part));
    assert_eq!(flushed, BTreeSet::from(chain));
    body(&reader).await.unwrap();
    assert!(seen.lock().unwrap().is_empty());

    let base = update(&writer, "y", written.e_tag).await.unwrap().e_tag;
    assert!(matches!(create(&reader, "z").await, Err(Error::AlreadyExists { .. })));
    assert_eq!(seen.lock().unwrap().drain(..).count(), 2, "the loser is told of what is on disk");
    body(&reader).await.unwrap();
    update(&writer, "z", base).await.unwrap();
    reader.head(&name()).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn after_a_failed_flush_nothing_is_answered_until_the_store_is_reopened() {
    for broken in ["tmp-", "orders/meta"] {
        let (dir, store) = fresh();
        let tag = create(&store, "old").await.unwrap().e_tag;
        before_sync(&store, move |path| match path.to_str().unwrap().contains(broken) {
            true => Err(io::Error::other("input/output error")),
            false => Ok(()),
        });
        assert!(is_flush_failure(&update(&store, "new", tag.clone()).await.unwrap_err()));
        *store.disk.before_sync.lock().unwrap() = None;
        assert!(is_flush_failure(&body(&store).await.unwrap_err()));
        assert!(is_flush_failure(&update(&store, "newer", tag).await.unwrap_err()));
        assert!(is_flush_failure(&store.delete(&name()).await.unwrap_err()));
        assert!(is_flush_failure(&store.list(None).try_next().await.unwrap_err()));
        assert!(is_flush_failure(&store.list_with_delimiter(None).await.unwrap_err()));
        let expected = if broken == "tmp-" { "old" } else { "new" };
        assert_eq!(body(&open(&dir)).await.unwrap(), expected, "{broken}");
    }
}

#[tokio::test]
async fn a_reader_that_fails_to_flush_answers_nothing_more() {
    let (dir, writer) = fresh();
    create(&writer, "x").await.unwrap();
    let reader = open(&dir);
    before_sync(&reader, |_| Err(io::Error::other("input/output error")));
    assert!(is_flush_failure(&body(&reader).await.unwrap_err()));
    *reader.disk.before_sync.lock().unwrap() = None;
    assert!(is_flush_failure(&body(&reader).await.unwrap_err()));
    assert_eq!(body(&writer).await.unwrap(), "x");
}

#[tokio::test]
async fn a_delete_that_cannot_be_flushed_is_not_confirmed() {
    let (_dir, store) = fresh();
    create(&store, "x").await.unwrap();
    before_sync(&store, |_| Err(io::Error::other("input/output error")));
    assert!(is_flush_failure(&store.delete(&name()).await.unwrap_err()));
}

#[tokio::test]
async fn no_room_for_flushing_the_new_file_is_a_definite_failure() {
    let (dir, store) = fresh();
    let tag = create(&store, "old").await.unwrap().e_tag;
    before_sync(&store, |_| Err(io::ErrorKind::StorageFull.into()));
    let full = update(&store, "new", tag.clone()).await.unwrap_err();
    assert!(full.to_string().contains("disk full"), "{full}");
    *store.disk.before_sync.lock().unwrap() = None;
    assert_eq!(body(&store).await.unwrap(), "old");
    let shard = Name::new(&store.disk.root, &name()).unwrap().shard();
    assert!(!dir.path().join(format!(".leasehold/.local/tmp-{shard:02}")).exists());
    update(&store, "new", tag).await.unwrap();
}

/// A write that another process keeps waiting, given up by its caller.
#[tokio::test]
async fn a_write_that_waits_for_the_lock_when_it_is_given_up_is_not_applied_late() {
    let (dir, store) = fresh();
    let shard = Name::new(&store.disk.root, &name()).unwrap().shard();
    let lock = File::create(dir.path().join(format!(".leasehold/.local/lock-{shard:02}"))).unwrap();
    lock.lock().unwrap();
    let mut writing = Box::pin(create(&store, "late"));
    assert!(matches!(futures_util::poll!(&mut writing), Poll::Pending));
    drop(writing);
    lock.unlock().unwrap();
    // Takes its turn after the one that was given up.
    let missing = update(&store, "x", Some("\"00\"".into())).await.unwrap_err();
    assert!(missing.to_string().contains("no such object"), "{missing}");
    create(&store, "first").await.unwrap();
}

#[tokio::test]
async fn a_write_that_is_given_up_before_the_rename_is_not_applied() {
    let (_dir, store) = fresh();
    let ((staged, is_staged), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let may_go_on = Mutex::new(may_go_on);
    before_sync(&store, move |_| {
        staged.send(()).unwrap();
        may_go_on.lock().unwrap().recv().unwrap();
        Ok(())
    });
    let mut writing = Box::pin(create(&store, "late"));
    assert!(matches!(futures_util::poll!(&mut writing), Poll::Pending));
    is_staged.recv().unwrap();
    drop(writing);
    *store.disk.before_sync.lock().unwrap() = None;
    go_on.send(()).unwrap();
    let missing = update(&store, "x", Some("\"00\"".into())).await.unwrap_err();
    assert!(missing.to_string().contains("no such object"), "{missing}");
}

#[tokio::test]
async fn a_directory_that_is_replaced_under_an_open_store_is_noticed() {
    let outer = TempDir::new().unwrap();
    let root = outer.path().join("root");
    let store = LocalDirectory::open(&root).unwrap();
    create(&store, "x").await.unwrap();
    fs::rename(&root, outer.path().join("gone")).unwrap();
    for _ in 0..2 {
        let error = body(&store).await.unwrap_err();
        assert!(error.to_string().contains("reopen"), "{error}");
        assert!(store.put(&name(), "y".into()).await.unwrap_err().to_string().contains("reopen"));
        LocalDirectory::open(&root).unwrap();
    }
}

#[tokio::test]
async fn a_lock_file_that_is_replaced_is_noticed() {
    let (dir, store) = fresh();
    create(&store, "x").await.unwrap();
    let shard = Name::new(&store.disk.root, &name()).unwrap().shard();
    fs::remove_file(dir.path().join(format!(".leasehold/.local/lock-{shard:02}"))).unwrap();
    for _ in 0..2 {
        let error = store.put(&name(), "y".into()).await.unwrap_err();
        assert!(error.to_string().contains("reopen"), "{error}");
        open(&dir).put(&name(), "z".into()).await.unwrap();
    }
}

#[test]
fn a_file_is_refused_as_a_directory_and_a_missing_one_is_made() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    for root in ["file", "file/below"] {
        let refused = LocalDirectory::open(dir.path().join(root)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config);
        assert!(refused.to_string().contains("is not a directory"), "{refused}");
    }
    LocalDirectory::open(dir.path().join("made/on/the/way")).unwrap();
    assert!(dir.path().join("made/on/the/way").is_dir());
    assert_eq!(LocalDirectory::open("").unwrap_err().kind(), ErrorKind::Config);
}

#[test]
fn a_store_works_without_a_runtime() {
    let (_dir, store) = fresh();
    create(&store, "x").now_or_never().unwrap().unwrap();
    assert_eq!(body(&store).now_or_never().unwrap().unwrap(), "x");
}

/// A filesystem of its own, taken away at the end. Only the superuser may mount one.
struct Mounted(TempDir);

impl Mounted {
    fn new(test: &str) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "leasehold-test"])
            .arg(dir.path())
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            eprintln!("SKIPPED: {test} needs to mount a tmpfs");
        }
        mounted.then_some(Self(dir))
    }

    fn make_read_only(&self) {
        assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(self.0.path()).status().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_leaves_the_old_record() {
    let Some(disk) = Mounted::new("a full disk") else { return };
    let store = open(&disk.0);
    let tag = create(&store, "old").await.unwrap().e_tag;
    for _ in 0..3 {
        let full = update(&store, vec![7; 200_000], tag.clone()).await.unwrap_err();
        assert!(full.to_string().contains("disk full"), "{full}");
        assert_eq!(body(&store).await.unwrap(), "old");
    }
    assert_eq!(store.list(None).count().await, 1);
    update(&store, "there is room for this one", tag).await.unwrap();
    assert_eq!(body(&open(&disk.0)).await.unwrap(), "there is room for this one");
}

#[tokio::test]
async fn a_read_only_disk_can_be_looked_at_and_not_written() {
    let Some(disk) = Mounted::new("a read-only disk") else { return };
    drop(create(&open(&disk.0), "old").await.unwrap());
    let opened = open(&disk.0);
    disk.make_read_only();
    for store in [LocalDirectory::open(disk.0.path()).unwrap(), opened] {
        let denied = store.put(&name(), "new".into()).await.unwrap_err();
        assert!(matches!(denied, Error::PermissionDenied { .. }), "{denied}");
        assert!(denied.to_string().contains("write access"), "{denied}");
        assert_eq!(body(&store).await.unwrap(), "old");
    }
}

#[tokio::test]
async fn a_write_that_its_process_slept_over_is_not_applied() {
    let dir = TempDir::new().unwrap();
    let clock = TestClock::at(Timestamp::from_millis(0));
    let disk = Disk::open(dir.path(), Arc::new(clock.clone())).unwrap();
    let store = LocalDirectory { disk: Arc::new(disk) };
    let slept = LONGEST_WRITE + std::time::Duration::from_millis(1);
    before_sync(&store, move |path| {
        let staged = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tmp-"));
        staged.then(|| clock.advance(slept));
        Ok(())
    });
    create(&store, "late").await.unwrap_err();
    assert!(matches!(body(&store).await, Err(Error::NotFound { .. })));
}
