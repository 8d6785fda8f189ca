//! A folder that several users of one machine share. Real users, so only the superuser can run these.

use crate::home::{PROGRAM, Ran};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

const ROOT: User = User { uid: 0, group: 0 };
const ALICE: User = User { uid: 61_001, group: 61_001 };
const BOB: User = User { uid: 61_002, group: 61_002 };
const TEAM: u32 = 61_000;

/// Enough for most of the locks, of which there are 64.
const KEYS: usize = 24;

#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    group: u32,
}

/// A folder for the store, and the program where every user can run it.
struct Machine {
    folder: TempDir,
}

impl Machine {
    /// `None`, having said so, where users cannot be changed.
    #[allow(clippy::print_stderr, reason = "whoever reads the log must see that it did not run")]
    fn new(owner: u32, group: u32, mode: u32) -> Option<Self> {
        let mut try_it = Command::new("setpriv");
        try_it.args(["--reuid=61001", "--regid=61001", "--groups=61000", "true"]);
        if !try_it.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: only the superuser, with setpriv, can be several users");
            return None;
        }
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(PROGRAM, folder.path().join("leasehold")).unwrap();
        let machine = Self { folder };
        fs::create_dir(machine.store()).unwrap();
        chown(machine.store(), Some(owner), Some(group)).unwrap();
        fs::set_permissions(machine.store(), fs::Permissions::from_mode(mode)).unwrap();
        Some(machine)
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn run(&self, user: User, umask: &str, arguments: &str) -> Ran {
        let (program, store) = (self.folder.path().join("leasehold"), self.store());
        let script = format!("umask {umask}; {} --store file://{} {arguments}", program.display(), store.display());
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.group), format!("--groups={TEAM}")]);
        command.args(["sh", "-c", &script]).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", "/nonexistent").current_dir("/").stdin(Stdio::null());
        Ran::from(command.output().unwrap())
    }

    /// One user after the other locks all keys and a namespace of his own, and then they do it again.
    fn all_lock_everything(&self, users: &[(User, &str)]) {
        for round in 0..2 {
            for &(user, umask) in users {
                for key in 0..KEYS {
                    let ran = self.run(user, umask, &format!("lock key-{key} -- echo mine"));
                    assert_eq!((ran.code, ran.out.as_str()), (0, "mine\n"), "round {round}, {user:?}, {ran:?}");
                }
                // Made by the first, swept and used by the next.
                for namespace in users.iter().map(|(user, _)| format!("of-{}", user.uid)) {
                    let ran = self.run(user, umask, &format!("--namespace {namespace} lock key -- echo mine"));
                    assert_eq!(ran.code, 0, "round {round}, {user:?}, {ran:?}");
                }
            }
        }
    }
}

/// Every file and folder below.
fn everything(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            let below = if path.is_dir() { everything(&path) } else { vec![] };
            std::iter::once(path).chain(below)
        })
        .collect()
}

#[test]
fn what_the_superuser_makes_in_the_store_of_a_user_is_that_users() {
    let Some(machine) = Machine::new(ALICE.uid, ALICE.group, 0o755) else { return };
    machine.all_lock_everything(&[(ROOT, "077"), (ALICE, "022")]);
    for path in everything(&machine.store()) {
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (ALICE.uid, ALICE.group), "{}", path.display());
    }
}

#[test]
fn a_folder_of_a_group_works_for_the_group_whatever_their_umasks() {
    let Some(machine) = Machine::new(0, TEAM, 0o2770) else { return };
    machine.all_lock_everything(&[(ALICE, "022"), (BOB, "077"), (ROOT, "077")]);
    for path in everything(&machine.store()) {
        let meta = fs::metadata(&path).unwrap();
        let wanted = if meta.is_dir() { 0o2770 } else { 0o660 };
        assert_eq!((meta.gid(), meta.mode() & 0o7777), (TEAM, wanted), "{}", path.display());
    }
    let stranger = User { uid: 61_003, group: 61_003 };
    let mut shut_out = Command::new("setpriv");
    shut_out.args([format!("--reuid={}", stranger.uid), format!("--regid={}", stranger.group)]);
    shut_out.args(["--clear-groups", "ls"]).arg(machine.store()).stderr(Stdio::null()).stdout(Stdio::null());
    assert!(!shut_out.status().unwrap().success(), "and for nobody else");
}

#[test]
fn a_folder_of_a_group_need_not_hand_its_group_on_by_itself() {
    let Some(machine) = Machine::new(ALICE.uid, TEAM, 0o770) else { return };
    machine.all_lock_everything(&[(ALICE, "022"), (BOB, "077")]);
}

#[test]
fn a_folder_of_everybody_works_for_everybody() {
    let Some(machine) = Machine::new(0, 0, 0o1777) else { return };
    machine.all_lock_everything(&[(ALICE, "022"), (BOB, "077"), (ROOT, "022")]);
}

#[test]
fn what_a_killed_writer_of_another_user_left_is_no_obstacle() {
    let Some(machine) = Machine::new(0, 0, 0o777) else { return };
    machine.all_lock_everything(&[(BOB, "022")]);
    let private = machine.store().join(".leasehold/.local");
    for shard in 0..64 {
        let left = private.join(format!("tmp-{shard:02}"));
        fs::write(&left, "half").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o600)).unwrap();
        // A lock that others may read is enough.
        let lock = private.join(format!("lock-{shard:02}"));
        fs::File::options().create(true).append(true).open(&lock).unwrap();
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
        chown(&lock, Some(0), Some(0)).unwrap();
    }
    machine.all_lock_everything(&[(ALICE, "022")]);
}

#[test]
fn an_error_names_what_could_not_be_written_and_no_bucket() {
    let Some(machine) = Machine::new(ALICE.uid, ALICE.group, 0o755) else { return };
    let store = machine.store();
    let (folder, private) = (store.display().to_string(), store.join(".leasehold/.local").display().to_string());
    let refused = machine.run(BOB, "022", "lock key -- true");
    let advice = "give the user of this process write access to it, or choose another directory";
    assert!(refused.err.contains(&format!("{folder} cannot be written")), "{}", refused.err);
    assert!(refused.err.contains(advice) && refused.code != 0, "{}", refused.err);

    machine.all_lock_everything(&[(ALICE, "022")]);
    let denied = machine.run(BOB, "022", "lock key-0 -- true");
    assert!(denied.err.contains(&format!("writing into {private}/process: Permission denied")), "{}", denied.err);
    assert!(denied.err.trim_end().ends_with(advice) && denied.code != 0, "{}", denied.err);
    // Without the folder's own name, which is made of random letters.
    let said = denied.err.replace(&folder, "");
    for of_others in ["s3:", "S3", "credentials", "LocalDirectory", "lacked the necessary privileges"] {
        assert!(!said.contains(of_others), "{of_others}: {said}");
    }
    // Looking needs no permission to write.
    let seen = machine.run(BOB, "022", "get key-0");
    assert_eq!(seen.code, 0, "{seen:?}");

    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).unwrap();
    let shut = machine.run(BOB, "022", "lock key-0 -- true");
    assert!(shut.err.contains(&folder) && shut.code != 0, "{}", shut.err);
}
