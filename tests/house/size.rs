//! How large files and types may become.

use crate::source::Source;
use std::{collections::BTreeMap, fs, path::Path};

const LONGEST_FILE: usize = 600;
const MOST_METHODS: usize = 25;

/// Types that have more methods and may not get any more: module, name, methods.
const LARGE: &[(&str, &str, usize)] = &[("job", "Work", 89), ("storage", "Backend", 41)];

/// Every file below a folder that is too long, tests included.
pub(crate) fn long_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let lines = fs::read_to_string(&path).unwrap().lines().count();
                if lines > LONGEST_FILE {
                    found.push(format!("{} has {lines} lines", path.display()));
                }
            }
        }
    }
    found
}

/// Every type with too many methods, over all its blocks in one module.
pub(crate) fn large_types(sources: &[Source]) -> Vec<String> {
    let mut methods: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for source in sources {
        let mut of = None;
        for line in source.text.lines() {
            if line.starts_with("impl") {
                of = own_type(line);
            } else if line.starts_with('}') {
                of = None;
            } else if let Some(name) = &of
                && is_method(line)
            {
                *methods.entry((source.room.as_str(), name.clone())).or_default() += 1;
            }
        }
    }
    let most = |room: &str, name: &str| {
        LARGE.iter().find(|large| (large.0, large.1) == (room, name)).map_or(MOST_METHODS, |large| large.2)
    };
    let too_many = methods.into_iter().filter(|((room, name), count)| *count > most(room, name));
    too_many.map(|((room, name), count)| format!("{room}: {name} has {count} methods")).collect()
}

/// The type that a block is of, unless it implements a trait.
fn own_type(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        // What is generic has no blanks behind its last bracket.
        Some(generic) => generic.split_once("> ")?.1,
        None => rest.trim_start(),
    };
    if rest.contains(" for ") {
        return None;
    }
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    Some(rest[..end].to_owned())
}

fn is_method(line: &str) -> bool {
    let Some(item) = line.strip_prefix("    ").filter(|item| !item.starts_with(' ')) else { return false };
    let item = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, rest)| rest),
        Some(rest) => rest.trim_start(),
        None => item,
    };
    let item = item.trim_start_matches("const ").trim_start_matches("async ");
    item.starts_with("fn ")
}
