//! Looking needs no right to write.

use crate::home::{Home, PROGRAM, Ran};
use std::{fs, os::unix::fs::PermissionsExt, os::unix::process::CommandExt, path::Path, process::Command};

/// A user who may read everything in a home of root's, and write nothing.
const NOBODY: u32 = 65534;

fn let_others_read(path: &Path, folder: u32, file: u32) {
    let mode = if path.is_dir() { folder } else { file };
    if path.is_dir() {
        fs::read_dir(path).unwrap().flatten().for_each(|entry| let_others_read(&entry.path(), folder, file));
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Root may write anywhere, so it becomes somebody else; others take the right from themselves.
fn as_reader(home: &Home, arguments: &[&str]) -> Ran {
    let root = home.path("").metadata().is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    let mut command: Command = home.leasehold(arguments);
    if root {
        command.uid(NOBODY).gid(NOBODY);
    }
    Ran::from(command.output().unwrap())
}

#[test]
fn whoever_may_only_read_a_folder_can_look_at_everything_in_it() {
    let home = Home::new();
    home.json(&["acquire", "held", "--ttl", "10m"]);
    let_others_read(&home.path(""), 0o555, 0o444);
    let program = Path::new(PROGRAM);
    assert!(program.exists());
    let looks: [(&[&str], &str); 5] = [
        (&["get", "held"], "state       held"),
        (&["list"], "held"),
        (&["fsck"], "nothing is wrong"),
        (&["store", "show"], "max_ttl"),
        (&["watch", "free", "--until-free"], "free"),
    ];
    for (command, said) in looks {
        let ran = as_reader(&home, command);
        assert!(ran.code == 0 && ran.out.contains(said), "{command:?}: {ran:?}");
    }
    let doctor = as_reader(&home, &["doctor"]);
    assert_eq!(doctor.code, 1, "{doctor:?}");
    assert!(doctor.out.contains("get         ok") && doctor.out.contains("put         FAILED"), "{doctor:?}");
    let lock = as_reader(&home, &["lock", "x", "--", "echo", "never"]);
    assert!(lock.code == 125 && lock.out.is_empty() && lock.err.contains("ermission denied"), "{lock:?}");
    assert!(!lock.err.contains("s3:") && !lock.err.contains("Generic"), "{lock:?}");
    let_others_read(&home.path(""), 0o755, 0o644);
}
