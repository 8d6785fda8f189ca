//! Two processes share one local directory; one of them is killed again and again. No write is lost, none is applied
//! twice, and no record is ever torn.

#![allow(clippy::disallowed_methods, reason = "drives real processes")]

use leasehold_testkit::LocalDirectory;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion, path::Path};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    env,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::process::{ExitStatusExt, parent_id},
    path::{Path as FilePath, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const KILLS: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);

/// The ids of all writes so far, oldest first, under their number and a checksum.
#[derive(Debug, Default, PartialEq)]
struct Record(Vec<String>);

impl Record {
    fn encode(&self) -> String {
        let ids = self.0.join(" ");
        format!("{}\n{ids}\n{:x?}", self.0.len(), &Sha256::digest(&ids)[..8])
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = str::from_utf8(bytes).expect("torn: not text");
        let ids = text.lines().nth(1).unwrap_or_else(|| panic!("torn: {text:?}"));
        let record = Self(ids.split_whitespace().map(String::from).collect());
        assert_eq!(record.encode(), text, "torn");
        record
    }
}

fn key() -> Path {
    Path::from("counter/meta/the-one.pb")
}

async fn read(store: &LocalDirectory) -> (Record, PutMode) {
    match store.get(&key()).await {
        Ok(found) => {
            let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: None };
            (Record::decode(&found.bytes().await.unwrap()), PutMode::Update(version))
        }
        Err(Error::NotFound { .. }) => (Record::default(), PutMode::Create),
        Err(error) => panic!("{error}"),
    }
}

/// One writer: says what it is about to write, writes, and says what was answered.
#[test]
#[ignore = "started by the test below"]
fn one_of_two_processes() {
    let Some(dir) = env::var_os("LEASEHOLD_TEST_DIR").map(PathBuf::from) else { return };
    let writer = env::var("LEASEHOLD_TEST_WRITER").unwrap();
    let mut log = OpenOptions::new().append(true).create(true).open(dir.join(log_of(&writer))).unwrap();
    let (parent, stop) = (parent_id(), dir.join("stop"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = LocalDirectory::open(dir.join("root")).unwrap();
        let life = std::process::id();
        for attempt in 0.. {
            if stop.exists() || parent_id() != parent {
                return;
            }
            let (mut record, mode) = read(&store).await;
            let id = format!("{writer}-{life}-{attempt}");
            record.0.push(id.clone());
            // In one piece: half a line of one life would swallow the first of the next.
            let mut say = |what: &str| log.write_all(format!("{what} {id}\n").as_bytes()).unwrap();
            say("intent");
            match store.put_opts(&key(), record.encode().into(), mode.into()).await {
                Ok(_) => say("ack"),
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => say("lost"),
                Err(error) => panic!("{error}"),
            }
        }
    });
}

fn log_of(writer: &str) -> String {
    format!("{writer}.log")
}

struct Writer {
    name: &'static str,
    dir: PathBuf,
    child: Child,
}

impl Writer {
    fn start(dir: &FilePath, name: &'static str) -> Self {
        let output = File::create(dir.join(format!("{name}.err"))).unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "two_processes::one_of_two_processes", "--ignored", "--nocapture"])
            .env("LEASEHOLD_TEST_DIR", dir)
            .env("LEASEHOLD_TEST_WRITER", name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { name, dir: dir.to_path_buf(), child }
    }

    fn said(&self, what: &str) -> Vec<String> {
        let log = fs::read_to_string(self.dir.join(log_of(self.name))).unwrap_or_default();
        let ids = log.lines().filter_map(|line| line.split_once(' ')).filter(|(said, _)| *said == what);
        ids.map(|(_, id)| id.to_owned()).collect()
    }

    /// Waits until it has begun, or finished, so many writes more.
    fn wait_for(&mut self, what: &str, more: usize) {
        let goal = self.said(what).len() + more;
        self.wait_until(|writer| writer.said(what).len() >= goal);
    }

    fn wait_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "{} makes no progress", self.name);
            assert!(self.child.try_wait().unwrap().is_none(), "{} ended: {}", self.name, self.last_words());
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether its latest write is being prepared, at this moment. (Or the other one's.)
    fn is_writing(&self) -> bool {
        let private = fs::read_dir(self.dir.join("root/.leasehold/.local")).unwrap();
        private.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("tmp-"))
    }

    /// Whether its latest write can be seen, and may not be on disk yet.
    fn has_landed(&self) -> bool {
        let record = fs::read(self.dir.join("root").join(key().as_ref())).unwrap_or_default();
        let last = self.said("intent").pop();
        !record.is_empty() && last.is_some_and(|last| Record::decode(&record).0.contains(&last))
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{} ended by itself: {}", self.name, self.last_words());
    }

    fn last_words(&self) -> String {
        fs::read_to_string(self.dir.join(format!("{}.err", self.name))).unwrap_or_default()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_processes_lose_nothing_while_one_of_them_is_killed_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut steady = Writer::start(dir.path(), "steady");
    let mut mortal = Writer::start(dir.path(), "mortal");
    for round in 0..KILLS {
        mortal.wait_for("intent", 1 + round % 2);
        match round % 4 {
            0 => {}
            1 => mortal.wait_until(Writer::is_writing),
            _ => mortal.wait_until(Writer::has_landed),
        }
        mortal.kill();
        steady.wait_for("ack", 1);
        mortal = Writer::start(dir.path(), "mortal");
    }
    mortal.wait_for("ack", 1);
    fs::write(dir.path().join("stop"), "").unwrap();
    for writer in [&mut steady, &mut mortal] {
        let status = writer.child.wait().unwrap();
        assert!(status.success(), "{}: {}", writer.name, writer.last_words());
    }

    let store = LocalDirectory::open(dir.path().join("root")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (Record(applied), _) = runtime.block_on(read(&store));
    let once: BTreeSet<_> = applied.iter().collect();
    assert_eq!(once.len(), applied.len(), "a write was applied twice");
    let all = |what| [&steady, &mortal].map(|writer| writer.said(what)).concat();
    let (intents, acked, lost) = (all("intent"), all("ack"), all("lost"));
    assert!(acked.iter().all(|id| once.contains(id)), "a write that was acknowledged is not there");
    assert!(!lost.iter().any(|id| once.contains(id)), "a write that was refused is there");
    assert!(applied.iter().all(|id| intents.contains(id)), "a write that nobody made is there");
    let unknown = intents.len() - acked.len() - lost.len();
    let landed = applied.len() - acked.len();
    assert!(landed > 0, "no writer died between its write and its answer: the test has lost its edge");
    assert!(unknown <= KILLS && landed <= unknown, "{landed} of {unknown} writes of the killed have landed");
    println!("{} applied, {} refused, {landed} of {unknown} unknown ones landed", applied.len(), lost.len());

    let names = runtime.block_on(futures_util::TryStreamExt::try_collect::<Vec<_>>(store.list(None))).unwrap();
    assert_eq!(names.len(), 1, "temporary files are not objects: {names:?}");
    let left = fs::read_dir(dir.path().join("root/.leasehold/.local")).unwrap().count();
    assert!(left <= 3, "the killed leave at most one temporary file, the lock, and the lock of the check: {left}");
}
