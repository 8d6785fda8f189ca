//! What the library and the program depend on: licences, sources, what is not wanted, and versions that come twice.

use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::Path,
    process::Command,
};

/// Licences that a program may be given away with.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// TLS is rustls, requests to clouds are `object_store`'s, the runtime is tokio.
const BANNED: &[&str] = &["async-std", "aws-sdk-s3", "native-tls", "openssl", "openssl-sys", "smol"];

/// Packages that come in several versions today, because others have not caught up. Nothing is to be added lightly.
const TWICE: &[&str] = &[
    "base64",
    "crypto-common",
    "digest",
    "getrandom",
    "hashbrown",
    "itertools",
    "r-efi",
    "rand",
    "rand_core",
    "shlex",
    "syn",
    "unicode-width",
    "windows-sys",
];

/// One package, as `cargo metadata` shows it.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    /// `None` for what is in this repository.
    pub(crate) source: Option<String>,
}

/// Everything that is built on this machine, with every feature.
pub(crate) fn all(root: &Path) -> Vec<Package> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--all-features", "--filter-platform", &host()])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    serde_json::from_slice::<Metadata>(&asked.stdout).unwrap().packages
}

fn host() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).arg("-vV").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    said.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

/// What is wrong with these packages.
pub(crate) fn problems(packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let name = &package.name;
        versions.entry(name).or_default().insert(&package.version);
        match package.license.as_deref().map(allows) {
            Some(true) => {}
            Some(false) => found.push(format!("{name}: the licence {:?} is not allowed", package.license)),
            None => found.push(format!("{name} names no licence")),
        }
        if BANNED.contains(&name.as_str()) {
            found.push(format!("{name} is not wanted: {BANNED:?}"));
        }
        if package
            .source
            .as_ref()
            .is_some_and(|source| !source.starts_with("registry+") && !source.starts_with("sparse+"))
        {
            found.push(format!("{name} comes from {:?} and from no registry", package.source));
        }
    }
    let twice = versions.into_iter().filter(|(name, versions)| versions.len() > 1 && !TWICE.contains(name));
    found.extend(twice.map(|(name, versions)| format!("{name} comes in several versions: {versions:?}")));
    found
}

/// Whether a licence expression (SPDX, or with the slash of old manifests) can be met by what is allowed.
pub(crate) fn allows(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.as_slice();
    any_of(&mut words) && words.is_empty()
}

fn any_of(words: &mut &[&str]) -> bool {
    let mut met = all_of(words);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        met |= all_of(words);
    }
    met
}

fn all_of(words: &mut &[&str]) -> bool {
    let mut met = one(words);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        met &= one(words);
    }
    met
}

fn one(words: &mut &[&str]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = any_of(words);
            *words = words.strip_prefix(&[")"]).unwrap_or(&["unclosed"]);
            met
        }
        // An exception only allows more.
        [name, "WITH", _, rest @ ..] | [name, rest @ ..] => {
            *words = rest;
            ALLOWED.contains(name)
        }
        [] => false,
    }
}
