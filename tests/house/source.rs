//! The source of the library, without what is written for its own tests.

use std::{fs, path::Path};

/// One file.
pub(crate) struct Source {
    /// The first folder below `src/`, or the name of a file right in it.
    pub(crate) room: String,
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn of(room: &str, text: &str) -> Self {
        Self { room: room.to_owned(), path: format!("{room}.rs"), text: without_tests(text) }
    }

    /// A file in a folder below `src/`.
    pub(crate) fn at(path: &str, text: &str) -> Self {
        let room = path.split('/').next().unwrap_or(path).to_owned();
        Self { room, path: path.to_owned(), text: without_tests(text) }
    }

    /// How many modules it is in, the crate not counted.
    pub(crate) fn depth(&self) -> usize {
        self.path.trim_end_matches("/mod.rs").split('/').count()
    }

    /// Every file below a folder, but for `lib.rs` and files of tests.
    pub(crate) fn read(src: &Path) -> Vec<Self> {
        let mut found = Vec::new();
        let mut folders = vec![src.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(src).unwrap().to_str().unwrap().replace('\\', "/");
                if path.is_dir() && !name.ends_with("/tests") {
                    folders.push(path);
                } else if name.ends_with(".rs") && name != "lib.rs" && !name.ends_with("tests.rs") {
                    let room = name.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
                    let text = without_tests(&fs::read_to_string(&path).unwrap());
                    found.push(Self { room, path: name, text });
                }
            }
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        assert!(found.len() > 50, "the source is not where it was");
        found
    }
}

/// What stands behind `#[cfg(test)]`, up to the line that closes it in the same column.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let column = line.len() - line.trim_start().len();
        let closes = |line: &str| {
            line.len() - line.trim_start().len() == column && (line.trim() == "}" || line.trim_end().ends_with(';'))
        };
        lines.by_ref().find(|line| closes(line));
    }
    kept
}
