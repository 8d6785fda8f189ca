//! Data on stdout and everything else on stderr, no colours and no bars away from a terminal, and words for every mistake.

use crate::home::{Home, Ran};
use std::{fs, os::unix::fs::PermissionsExt, process::Stdio};

#[test]
fn stdout_is_data_only_and_without_colour() {
    let home = Home::new();
    home.json(&["acquire", "x"]);
    for arguments in
        [&["list"][..], &["get", "x"], &["sweep"], &["fsck"], &["doctor"], &["store", "show"], &["config", "show"]]
    {
        let ran = home.run(&[arguments, &["-v", "-o", "json"]].concat());
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        assert_eq!(ran.out.lines().count(), 1, "{arguments:?}: {}", ran.out);
        assert!(ran.out.starts_with(['{', '[']), "{arguments:?}: {}", ran.out);
        assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let home = Home::new();
    home.json(&["acquire", "x"]);
    let mut list =
        home.leasehold(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(list.stdout.take());
    let ran = crate::home::ended(list);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let home = Home::new();
    let folder = home.path(".config/leasehold");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), "namespace = \"file\"\nttl = \"5s\"\n[settings]\nrequest_timeout = \"2s\"\n")
        .unwrap();
    let shown = |arguments: &[&str], variable: Option<&str>| {
        let mut command = home.leasehold(&[arguments, &["config", "show"]].concat());
        variable.map(|value| command.env("LEASEHOLD_NAMESPACE", value));
        let ran = Ran::from(command.output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let file = folder.join("config.toml").display().to_string();
    let rows = shown(&[], None);
    for row in
        [format!("namespace file {file}"), format!("ttl 5s {file}"), format!("settings.request_timeout 2s {file}")]
    {
        assert!(rows.contains(&row), "{row} is not in {rows:?}");
    }
    assert!(rows.contains(&"settings.bulk_timeout 30s default".to_owned()), "{rows:?}");
    assert!(shown(&[], Some("environment")).contains(&"namespace environment LEASEHOLD_NAMESPACE".to_owned()));
    assert!(shown(&["--namespace", "flag"], Some("environment")).contains(&"namespace flag --namespace".to_owned()));
}

#[test]
fn a_mistake_in_the_configuration_is_named_with_its_line() {
    let home = Home::new();
    let file = home.path("config.toml");
    let at = file.display().to_string();
    for (text, line, words) in [
        ("stroe = \"./x\"\n", "line 1", "stroe"),
        ("\n[settings]\nrequest_timeuot = \"2s\"\n", "line 3", "request_timeuot"),
        ("store = \"./x\"\nttl = [\n", "line 2", ""),
    ] {
        fs::write(&file, text).unwrap();
        let ran = home.run(&["--config", &at, "list"]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains(&at) && ran.err.contains(line) && ran.err.contains(words), "{text:?}: {}", ran.err);
    }
    fs::write(&file, "ttl = \"soon\"\n").unwrap();
    let ran = home.run(&["--config", &at, "list"]);
    assert!(ran.code == 2 && ran.err.contains("ttl = \"soon\""), "{ran:?}");
    let missing = home.run(&["--config", "./nowhere.toml", "list"]);
    assert!(missing.code == 2 && missing.err.contains("nowhere.toml"), "{missing:?}");
}

#[test]
fn looking_makes_no_store_where_a_name_is_misspelt() {
    let home = Home::new();
    let typo = format!("file://{}", home.path("typo").display());
    let looks = [
        &["list"][..],
        &["get", "x"],
        &["watch", "x"],
        &["fsck"],
        &["sweep"],
        &["store", "show"],
        &["release", "x", "--force", "--reason", "x"],
    ];
    for arguments in looks {
        let ran = home.run(&[arguments, &["--store", &typo]].concat());
        assert_eq!(ran.code, 1, "{arguments:?}: {ran:?}");
        assert!(ran.err.contains("there is no store at") && ran.err.contains("typo"), "{arguments:?}: {}", ran.err);
    }
    assert!(!home.path("typo").exists());
}

#[test]
fn a_folder_that_may_only_be_read_is_named() {
    let home = Home::new();
    let folder = home.path("read-only");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    // Whoever is root may write it all the same.
    if fs::write(folder.join("try"), "").is_err() {
        let ran = home.run(&["acquire", "x", "--store", &folder.display().to_string()]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.err.contains("cannot be written") && ran.err.contains("write access"), "{}", ran.err);
    }
    let ran = home.run(&["acquire", "x", "--store", "/proc/leasehold"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("/proc/leasehold cannot be used as a store"), "{}", ran.err);
}

#[test]
fn every_shell_gets_its_completions_and_the_manual_has_every_command() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ran = home.run(&["completions", shell]);
        assert!(ran.code == 0 && ran.out.contains("leasehold"), "{shell}: {}", ran.err);
    }
    let manual = home.run(&["man"]).out;
    for words in [
        ".TH leasehold",
        "LEASEHOLD LOCK",
        "LEASEHOLD TXN DECIDE",
        "LEASEHOLD STORE SET",
        "Exit codes",
        "conflict\\-exit\\-code",
    ] {
        assert!(manual.contains(words), "{words} is not in the manual");
    }
}
