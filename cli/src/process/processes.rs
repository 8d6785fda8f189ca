//! The processes of this machine: who started whom, and which group each belongs to.

use std::fs;

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
}

/// All that run: what has ended and was not waited for is left out.
pub(super) fn all() -> Vec<Process> {
    match fs::read_dir("/proc/self") {
        Ok(_) => from_proc(),
        Err(_) => from_ps(),
    }
}

/// Whether a group has a member beside one process.
pub(super) fn has_others(group: i32, but: i32) -> bool {
    all().iter().any(|process| process.group == group && process.pid != but)
}

/// Those of `known` that are still there, and all that they have started.
pub(super) fn with_descendants(known: &[i32], all: &[Process]) -> Vec<i32> {
    let mut found: Vec<i32> = all.iter().map(|process| process.pid).filter(|pid| known.contains(pid)).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = all.iter().filter(|process| process.parent == parent).map(|process| process.pid);
        let new: Vec<i32> = children.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
        next += 1;
    }
    found
}

/// Linux has a file for each.
fn from_proc() -> Vec<Process> {
    let Ok(folders) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = folders.filter_map(|folder| folder.ok()?.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter_map(|pid| in_proc(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// `42 (a name (with) anything) S 1 42 ...`
fn in_proc(stat: &str) -> Option<Process> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    let mut fields = stat.rsplit(") ").next()?.split(' ');
    let state = fields.next()?;
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (!matches!(state, "Z" | "X")).then_some(Process { pid, parent, group })
}

/// Other systems have a program that tells.
fn from_ps() -> Vec<Process> {
    let output = std::process::Command::new("ps").args(["-A", "-o", "pid=,ppid=,pgid=,stat="]).output();
    let Ok(output) = output else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(in_ps).collect()
}

/// `42 1 42 S+`
fn in_ps(line: &str) -> Option<Process> {
    let mut fields = line.split_whitespace();
    let mut number = || fields.next()?.parse().ok();
    let (pid, parent, group) = (number()?, number()?, number()?);
    (!fields.next()?.starts_with('Z')).then_some(Process { pid, parent, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let process = Some(Process { pid: 42, parent: 7, group: 9 });
        assert_eq!(in_proc("42 (sh) S 7 9 9 0 -1"), process);
        assert_eq!(in_proc("42 (a) S 1 2 (b) S 7 9 9 0 -1"), process);
        assert_eq!(in_proc("42 (sh) Z 7 9 9 0 -1"), None, "it has ended");
        assert_eq!(in_proc(""), None);
        assert_eq!(in_ps("   42     7     9 Ss+"), process);
        assert_eq!(in_ps("   42     7     9 Z"), None, "it has ended");
    }

    #[test]
    fn this_process_is_among_all_and_in_its_group() {
        let (pid, group) = (rustix::process::getpid(), rustix::process::getpgrp());
        for found in [all(), from_ps()] {
            // Not every machine has `ps`.
            let ours = found.iter().find(|process| process.pid == pid.as_raw_pid());
            assert!(found.is_empty() || ours.is_some_and(|process| process.group == group.as_raw_pid()), "{ours:?}");
        }
        assert!(!all().is_empty());
    }

    #[test]
    fn descendants_are_found_below_descendants_and_not_beside_them() {
        let process = |pid, parent| Process { pid, parent, group: 1 };
        let all = [process(1, 0), process(5, 4), process(4, 3), process(3, 1), process(9, 1), process(6, 3)];
        assert_eq!(with_descendants(&[3], &all), [3, 4, 6, 5]);
        assert_eq!(with_descendants(&[4, 9, 77], &all), [4, 9, 5], "77 has ended");
    }
}
