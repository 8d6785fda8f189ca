//! The transcripts in `tests/cmd` are what the program says, word for word. They double as its documentation.

use crate::home::{Home, PROGRAM};
use std::path::Path;
use trycmd::TestCases;

/// Plays one transcript, in a home of its own.
fn play(transcript: &str) {
    let home = Home::new();
    let folder = home.path("");
    let home_text = folder.display().to_string().trim_end_matches('/').to_owned();
    let store = format!("file://{home_text}/store");
    let program = Path::new(PROGRAM);
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let cases = TestCases::new();
    cases.register_bin("sh", Path::new("/bin/sh")).register_bin("leasehold", program);
    for (name, value) in [
        ("HOME", home_text.clone()),
        ("XDG_CONFIG_HOME", home_text.clone()),
        ("LEASEHOLD_STORE", store.clone()),
        ("STORE_DIR", format!("{home_text}/store")),
        ("LEASEHOLD_OWNER", "alice@laptop".to_owned()),
        ("PATH", path),
        ("NO_COLOR", "1".to_owned()),
    ] {
        cases.env(name, value);
    }
    cases.insert_var("[STORE]", store).unwrap().insert_var("[HOME]", home_text).unwrap();
    cases.case(format!("tests/cmd/{transcript}.md"));
    cases.run();
}

#[test]
fn help() {
    play("help");
}

#[test]
fn jobs() {
    play("jobs");
}

#[test]
fn leases() {
    play("leases");
}

#[test]
fn lock() {
    play("lock");
}

#[test]
fn mistakes() {
    play("mistakes");
}

#[test]
fn operating() {
    play("operating");
}

#[test]
fn queues() {
    play("queues");
}

#[test]
fn streams() {
    play("streams");
}

#[test]
fn txn() {
    play("txn");
}
