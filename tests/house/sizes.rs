//! How large a file, a type and the name of a test may be.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The longest file, in lines.
const LONGEST_FILE: usize = 600;

/// The most methods that a type has in all its inherent `impl` blocks together.
const MOST_METHODS: usize = 25;

/// The longest name of a test.
const LONGEST_NAME: usize = 75;

/// Files that are longer, and are to be split.
const LONG_FILES: &[&str] = &[];

/// Types that have more methods, by folder, with how many they may have until they are taken apart.
const LARGE_TYPES: &[(&str, &str, usize)] = &[
    ("src/job", "Job", 36),
    ("src/job", "Ledger", 29),
    ("src/job", "Queue", 26),
    ("src/job", "Shard", 54),
    ("src/job", "Work", 89),
    ("src/semaphore", "Actor", 31),
    ("src/storage", "Backend", 54),
    ("src/store", "Store", 35),
];

/// A file of Rust, by its path from the root of the repository.
struct File {
    path: String,
    text: String,
}

fn files(root: &Path, folders: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).filter(|path| path.is_dir()).collect();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                found.push(File { path, text });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(found.len() > 50, "the source is not where it was");
    found
}

/// Every file that is longer than it may be.
pub(crate) fn long_files(root: &Path) -> Vec<String> {
    let all = files(root, &["src", "testkit/src", "cli/src", "tests", "cli/tests"]);
    let long = all.iter().map(|file| (&file.path, file.text.lines().count()));
    let long = long.filter(|(path, lines)| *lines > LONGEST_FILE && !LONG_FILES.contains(&path.as_str()));
    long.map(|(path, lines)| format!("{path} has {lines} lines, of at most {LONGEST_FILE}")).collect()
}

/// Every type with more methods than it may have. Types of one name in one folder count as one.
pub(crate) fn large_types(root: &Path) -> Vec<String> {
    let mut methods: BTreeMap<(String, String), usize> = BTreeMap::new();
    let production = |file: &File| !file.path.contains("/tests/") && !file.path.ends_with("tests.rs");
    for file in files(root, &["src", "testkit/src", "cli/src"]).into_iter().filter(production) {
        for (name, count) in methods_of(&file.text) {
            *methods.entry((folder(&file.path), name)).or_default() += count;
        }
    }
    let most = |folder: &str, name: &str| {
        let known = LARGE_TYPES.iter().find(|(room, large, _)| (*room, *large) == (folder, name));
        known.map_or(MOST_METHODS, |(_, _, most)| *most)
    };
    let large = methods.into_iter().filter(|((folder, name), count)| *count > most(folder, name));
    large.map(|((folder, name), count)| format!("{folder}: {name} has {count} methods")).collect()
}

/// `src/lease` of `src/lease/guard.rs`; `src` of a file right in it.
fn folder(path: &str) -> String {
    let depth = if path.starts_with("src/") { 2 } else { 3 };
    let parts: Vec<&str> = path.split('/').collect();
    parts[..depth.min(parts.len() - 1)].join("/")
}

/// The methods in each inherent `impl` block of code that is not for tests.
pub(crate) fn methods_of(text: &str) -> Vec<(String, usize)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut found: Vec<(String, usize)> = Vec::new();
    // The column of the block that is open.
    let mut open: Option<usize> = None;
    for line in code.lines() {
        let column = line.len() - line.trim_start().len();
        match open {
            None => {
                if let Some(name) = inherent(line.trim_start()) {
                    found.push((name, 0));
                    open = Some(column);
                }
            }
            Some(at) if column == at && line.trim() == "}" => open = None,
            Some(at) if column == at + 4 && is_method(line.trim_start()) => {
                if let Some((_, count)) = found.last_mut() {
                    *count += 1;
                }
            }
            Some(_) => {}
        }
    }
    found
}

/// The type of `impl<T> Type<T> {`; nothing for `impl Trait for Type`.
fn inherent(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    if !rest.starts_with(['<', ' ']) || line.ends_with("{}") || rest.contains(" for ") {
        return None;
    }
    let rest = match rest.strip_prefix('<') {
        None => rest.trim_start(),
        Some(generics) => {
            let mut depth = 1;
            let end = generics.char_indices().find(|(_, c)| {
                depth += match c {
                    '<' => 1,
                    '>' => -1,
                    _ => 0,
                };
                depth == 0
            });
            generics[end?.0 + 1..].trim_start()
        }
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| rest[..end].to_owned())
}

fn is_method(line: &str) -> bool {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or("", |(_, rest)| rest),
        Some(rest) => rest,
        None => line,
    };
    line.split(' ').find(|word| !matches!(*word, "" | "const" | "async")).is_some_and(|word| word == "fn")
}

/// Every test whose name is too long to be read at once.
pub(crate) fn long_names(root: &Path) -> Vec<String> {
    let all = files(root, &["src", "testkit/src", "cli/src", "tests", "cli/tests"]);
    let names = all.iter().flat_map(|file| tests_in(&file.text).map(move |name| (&file.path, name)));
    names.filter(|(_, name)| name.len() > LONGEST_NAME).map(|(path, name)| format!("{path}: {name}")).collect()
}

/// The first function behind each attribute that makes one a test.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let marked =
        (0..lines.len()).filter(|at| lines[*at].starts_with("#[test") || lines[*at].starts_with("#[tokio::test"));
    let marked: Vec<usize> = marked.collect();
    marked.into_iter().filter_map(move |at| {
        let line = lines[at..].iter().find(|line| line.starts_with("fn ") || line.starts_with("async fn "))?;
        let name = line.trim_start_matches("async ").strip_prefix("fn ")?;
        Some(&name[..name.find('(')?])
    })
}
