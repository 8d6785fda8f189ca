//! A store that is damaged in every way is named and brought back, with the program alone.

use crate::home::{Home, field};
use std::{fs, path::PathBuf};

fn fence(home: &Home, key: &str) -> u64 {
    field(&home.json(&["get", key]), "last_fence").parse().unwrap()
}

/// The files below a folder of the store.
fn files(home: &Home, folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![home.store().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

#[test]
fn a_store_that_is_damaged_in_every_way_is_brought_back() {
    let home = Home::new();
    let held = field(&home.json(&["acquire", "held", "--ttl", "10m"]), "lease_id");
    for key in ["cut", "empty", "flipped", "swapped", "unfiled", "removed"] {
        home.json(&["acquire", key, "--ttl", "10m"]);
    }
    let record = |key: &str| home.store().join(format!("default/meta/{key}.pb"));
    let before: Vec<(&str, u64)> = ["held", "cut", "empty", "flipped", "swapped", "unfiled", "removed"]
        .map(|key| (key, fence(&home, key)))
        .to_vec();

    let whole = fs::read(record("cut")).unwrap();
    fs::write(record("cut"), &whole[..whole.len() / 2]).unwrap();
    fs::write(record("empty"), "").unwrap();
    let mut flipped = fs::read(record("flipped")).unwrap();
    flipped[30] ^= 1;
    fs::write(record("flipped"), flipped).unwrap();
    fs::copy(record("held"), record("swapped")).unwrap();
    for entry in files(&home, "default/.lease-index").into_iter().filter(|entry| entry.ends_with("unfiled")) {
        fs::remove_file(entry).unwrap();
    }
    fs::remove_file(record("removed")).unwrap();
    fs::write(home.store().join("default/meta/Notes.txt"), "?").unwrap();

    let found = home.run(&["fsck", "-o", "json"]);
    assert_eq!(found.code, 1, "{found:?}");
    for (damage, count) in [("unreadable", 4), ("missing_entry", 1), ("missing_record", 1), ("unknown_name", 1)] {
        assert!(found.out.contains(&format!("\"{damage}\":{count}")), "{damage} is not in {}", found.out);
    }
    assert!(home.run(&["acquire", "cut"]).err.contains("cannot be read"), "nothing is granted on damage");

    let table = home.run(&["fsck", "--repair"]);
    assert_eq!(table.code, 1, "what is none of ours is left: {table:?}");
    assert!(table.out.contains("6 repaired, 1 open"), "{}", table.out);
    fs::remove_file(home.store().join("default/meta/Notes.txt")).unwrap();
    let again = home.run(&["fsck"]);
    assert_eq!(again.code, 0, "{again:?}");

    // What was held is held, and can be renewed.
    assert_eq!(home.run(&["renew", "held", "--lease", &held]).code, 0);
    for (key, fence_before) in before {
        assert!(fence(&home, key) >= fence_before, "{key}: the fence fell");
        if ["cut", "empty", "flipped", "swapped"].contains(&key) {
            // Closed for as long as somebody may believe in its old lease, unless an operator knows better.
            assert_eq!(home.run(&["acquire", key]).code, 4, "{key}");
            assert_eq!(home.run(&["release", key, "--force", "--reason", "nobody runs"]).code, 0, "{key}");
        }
        if key != "held" && key != "unfiled" {
            let grant = home.json(&["acquire", key]);
            assert!(field(&grant, "fence").parse::<u64>().unwrap() > fence_before, "{key}");
        }
    }
    assert_eq!(files(&home, "default/.aside").len(), 4, "a copy of each record is kept");
    assert_eq!(home.run(&["fsck"]).code, 0);
}

#[test]
fn a_forced_release_says_from_whom_and_keeps_the_reason() {
    let home = Home::new();
    let before = home.json(&["acquire", "x", "--owner", "bob", "--ttl", "10m"]);
    let refused = home.run(&["release", "x", "--force"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    let forced = home.run(&["release", "x", "--force", "--reason", "its host burnt down", "-o", "json"]);
    assert_eq!(forced.code, 0);
    assert!(forced.out.contains(r#""owner":"bob""#), "{}", forced.out);
    let number = |json: &str| field(json, "fence").parse::<u64>().unwrap();
    assert!(forced.err.contains("taken away by force"), "{}", forced.err);
    let kept = files(&home, ".leasehold/repairs");
    assert_eq!(kept.len(), 1);
    let text = fs::read_to_string(&kept[0]).unwrap();
    assert!(text.contains("its host burnt down") && text.contains("alice@"), "{text}");
    let lease = field(&before, "lease_id");
    let lost = home.run(&["renew", "x", "--lease", &lease]);
    assert_eq!(lost.code, 3, "{lost:?}");
    assert!(number(&home.json(&["acquire", "x"])) > number(&before));
    let nobody = home.run(&["release", "y", "--force", "--reason", "why not"]);
    assert!(nobody.code == 3 && nobody.err.contains("nobody holds y"), "{nobody:?}");
}

#[test]
fn settings_change_only_when_everybody_has_stopped() {
    let home = Home::new();
    home.json(&["acquire", "x"]);
    let refused = home.run(&["store", "set", "--max-ttl", "2h"]);
    assert!(refused.code == 2 && refused.err.contains("--all-processes-stopped"), "{refused:?}");
    assert!(home.json(&["store", "show"]).contains(r#""epoch":1,"#));
    let wrong = home.run(&["store", "set", "--margin", "1s", "--all-processes-stopped"]);
    assert!(wrong.code == 1 && wrong.err.contains("margin"), "{wrong:?}");
    // A lease that lives shows that somebody is mistaken, in whatever namespace it is.
    let lease = field(&home.json(&["acquire", "y", "--namespace", "other", "--ttl", "10m"]), "lease_id");
    assert_eq!(home.run(&["release", "x", "--force", "--reason", "test"]).code, 0);
    let held = home.run(&["store", "set", "--max-ttl", "2h", "--all-processes-stopped"]);
    assert!(held.code == 4 && held.err.contains("y in namespace other"), "{held:?}");
    assert!(home.json(&["store", "show"]).contains(r#""epoch":1,"#), "nothing was changed");
    assert_eq!(home.run(&["release", "y", "--namespace", "other", "--lease", &lease]).code, 0);
    let changed = home.run(&["store", "set", "--max-ttl", "2h", "--all-processes-stopped", "-o", "json"]);
    assert!(changed.code == 0 && changed.out.contains(r#""epoch":2,"#), "{changed:?}");
    assert!(changed.out.contains(r#""max_ttl_ms":7200000"#), "{}", changed.out);
    let nothing = home.run(&["store", "set", "--all-processes-stopped"]);
    assert_eq!(nothing.code, 2);
}
