//! What all processes agree on is lost or damaged: nothing is granted until somebody has written it again.

use crate::home::{Home, Ran, field};
use std::{fs, path::PathBuf};

fn file(home: &Home) -> PathBuf {
    home.store().join(".leasehold/store.json")
}

/// A store that was used with a bound of its own, and a key that is held in it.
fn used() -> Home {
    let home = Home::new();
    assert_eq!(home.run(&["lock", "used", "--", "true"]).code, 0);
    let set = home.run(&["store", "set", "--max-clock-skew", "10s", "--all-processes-stopped"]);
    assert_eq!(set.code, 0, "{set:?}");
    home.json(&["acquire", "held", "--ttl", "10m"]);
    home
}

/// Whatever is asked of the store is refused, and the way out is named.
fn is_refused(home: &Home) {
    let commands: [&[&str]; 8] = [
        &["lock", "x", "--", "echo", "never"],
        &["acquire", "x"],
        &["get", "held"],
        &["list"],
        &["fsck", "--repair"],
        &["sweep"],
        &["store", "show"],
        &["store", "set", "--max-ttl", "2h", "--all-processes-stopped"],
    ];
    for command in commands {
        let Ran { code, out, err } = home.run(command);
        assert!(code == 1 || code == 125, "{command:?}: {code} {err}");
        assert!(err.contains("leasehold store repair") && out.is_empty(), "{command:?}: {out} {err}");
    }
}

fn log(home: &Home) -> String {
    let mut log = String::new();
    for entry in fs::read_dir(home.store().join(".leasehold/repairs")).unwrap().flatten() {
        log += &fs::read_to_string(entry.path()).unwrap();
    }
    log
}

#[test]
fn settings_that_were_lost_beside_records_are_not_made_anew_with_the_defaults() {
    let home = used();
    fs::remove_file(file(&home)).unwrap();
    is_refused(&home);
    assert!(!file(&home).exists(), "it was made anew");
    let shown = home.run(&["store", "repair"]);
    assert_eq!(shown.code, 2, "{shown:?}");
    assert!(shown.err.contains("max_clock_skew    10s       from the last change"), "{}", shown.err);
    assert!(shown.err.contains("--confirm"), "{}", shown.err);
    assert!(!file(&home).exists(), "nothing is written before somebody vouches for it");
    let repaired = home.json(&["store", "repair", "--confirm", "--reason", "a lifecycle rule took it"]);
    assert_eq!((field(&repaired, "max_clock_skew_ms"), field(&repaired, "epoch")), ("10000".into(), "3".into()));
    assert!(log(&home).contains("settings_repaired") && log(&home).contains("a lifecycle rule took it"));
    assert_eq!(home.run(&["acquire", "held"]).code, 4, "what was held is held");
    assert_eq!(home.run(&["lock", "x", "--", "true"]).code, 0);
}

#[test]
fn settings_that_were_damaged_are_written_again_from_what_is_left_of_them() {
    let home = used();
    let whole = fs::read_to_string(file(&home)).unwrap();
    // With a repair log that says nothing of them.
    fs::remove_dir_all(home.store().join(".leasehold/repairs")).unwrap();
    fs::write(file(&home), whole.replace("10000", "20000")).unwrap();
    is_refused(&home);
    let shown = home.run(&["store", "repair"]);
    assert!(shown.err.contains("max_clock_skew    20s       from what is left"), "{}", shown.err);
    // Whoever knows better must have stopped everybody.
    let better = ["store", "repair", "--max-clock-skew", "10s", "--confirm", "--reason", "a flipped bit"];
    let refused = home.run(&better);
    assert!(refused.code == 2 && refused.err.contains("--all-processes-stopped"), "{refused:?}");
    let repaired = home.json(&[&better[..], &["--all-processes-stopped"]].concat());
    assert_eq!((field(&repaired, "max_clock_skew_ms"), field(&repaired, "epoch")), ("10000".into(), "3".into()));
    assert!(log(&home).contains("20000"), "the damaged one is kept");
    assert_eq!(home.run(&["acquire", "held"]).code, 4);
}

#[test]
fn settings_that_were_cut_are_refused_and_defaults_are_named_as_such() {
    let home = used();
    fs::remove_dir_all(home.store().join(".leasehold/repairs")).unwrap();
    fs::write(file(&home), "{\"format\":1").unwrap();
    is_refused(&home);
    let shown = home.run(&["store", "repair", "--max-clock-skew", "10s"]);
    assert!(shown.err.contains("max_clock_skew    10s       as you say"), "{}", shown.err);
    assert!(shown.err.contains("max_ttl           1h        the default: nothing is known of it"), "{}", shown.err);
}

#[test]
fn what_can_be_read_and_what_is_not_there_is_not_repaired() {
    let home = Home::new();
    let nowhere = home.run(&["store", "repair", "--confirm", "--reason", "why not"]);
    assert!(nowhere.code == 1 && nowhere.err.contains("there is no store"), "{nowhere:?}");
    assert!(!home.store().exists());
    home.json(&["acquire", "x"]);
    let fine = home.run(&["store", "repair", "--confirm", "--reason", "why not"]);
    assert!(fine.code == 1 && fine.err.contains("nothing to repair"), "{fine:?}");
    let unexplained = home.run(&["store", "repair", "--confirm"]);
    assert!(unexplained.code == 2 && unexplained.err.contains("--reason"), "{unexplained:?}");
}
