//! The walks through the code in the documentation: each step names a file and a function, which must exist.

use std::{fs, path::Path};

/// Every step of a page that leads nowhere. A step is `src/file.rs: function`, as code.
pub(crate) fn broken(root: &Path, page: &str) -> (usize, Vec<String>) {
    let steps: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|code| is_step(code)).collect();
    let broken = steps.iter().filter(|step| !exists(root, step)).map(|step| (*step).to_owned()).collect();
    (steps.len(), broken)
}

fn is_step(code: &str) -> bool {
    code.split_once(": ").is_some_and(|(file, _)| file.starts_with("src/") && file.ends_with(".rs"))
}

fn exists(root: &Path, step: &str) -> bool {
    let Some((file, functions)) = step.split_once(": ") else { return false };
    let Ok(text) = fs::read_to_string(root.join(file)) else { return false };
    functions.split(", ").all(|name| {
        let name = name.rsplit("::").next().unwrap_or(name);
        let opens = |rest: &str| rest.starts_with(['(', '<']);
        text.match_indices(&format!("fn {name}")).any(|(at, found)| opens(&text[at + found.len()..]))
    })
}
