//! Examples at the end of every command's `--help`: most people read nothing else.

use clap::Command;

/// By the path of the command.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "lock",
        &[
            "leasehold lock backup -- ./backup.sh",
            "leasehold lock deploy --wait 10m -- sh -c 'make build && make deploy'",
            "leasehold lock nightly --at-least 50s --conflict-exit-code 0 -- ./nightly.sh    # from cron",
        ],
    ),
    (
        "enqueue",
        &[
            "leasehold enqueue emails '{\"to\":\"ann@example.org\"}' --kind welcome",
            "leasehold enqueue emails --in 10m --key ann hello",
            "leasehold enqueue thumbnails --file images.ndjson --request-id import-7",
        ],
    ),
    (
        "work",
        &[
            "leasehold work emails -- ./send.sh",
            "leasehold work thumbnails --concurrency 4 --timeout 5m -- sh -c 'convert - out/$LEASEHOLD_JOB.png'",
            "leasehold work emails --drain -- cat",
        ],
    ),
    ("queue list", &["leasehold queue list", "leasehold queue list -o json"]),
    ("queue show", &["leasehold queue show emails"]),
    ("queue pause", &["leasehold queue pause emails", "leasehold queue pause emails --for 1h"]),
    ("queue resume", &["leasehold queue resume emails"]),
    (
        "queue set",
        &[
            "leasehold queue set emails max_attempts=5 backoff.base=10s",
            "leasehold queue set emails key_limit=1 kinds.newsletter.timeout=10m",
            "leasehold queue set emails rate=none",
        ],
    ),
    ("queue purge", &["leasehold queue purge emails --dry-run", "leasehold queue purge emails --confirm"]),
    ("job get", &["leasehold job get emails 01932c07-a5b0-7000-8000-000000000000"]),
    ("job list", &["leasehold job list emails --state retrying", "leasehold job list emails --limit 1000 -o json"]),
    ("job cancel", &["leasehold job cancel emails 01932c07-a5b0-7000-8000-000000000000"]),
    ("job retry", &["leasehold job retry emails 01932c07-a5b0-7000-8000-000000000000"]),
    ("job pause", &["leasehold job pause emails 01932c07-a5b0-7000-8000-000000000000"]),
    ("job resume", &["leasehold job resume emails 01932c07-a5b0-7000-8000-000000000000"]),
    ("dead list", &["leasehold dead list emails", "leasehold dead list emails --reason stalled -o json"]),
    (
        "dead get",
        &[
            "leasehold dead get emails 01932c07-a5b0-7000-8000-000000000000",
            "leasehold dead get emails 01932c07-a5b0-7000-8000-000000000000 --part args > payload",
        ],
    ),
    (
        "dead redrive",
        &[
            "leasehold dead redrive emails 01932c07-a5b0-7000-8000-000000000000",
            "leasehold dead redrive emails --kind newsletter --per-second 10",
            "leasehold dead redrive emails --all --dry-run",
        ],
    ),
    ("dead purge", &["leasehold dead purge emails --before 2026-01-01T00:00:00Z --confirm"]),
    ("inflight", &["leasehold inflight", "leasehold inflight emails --stuck"]),
    (
        "stream publish",
        &[
            "leasehold stream publish events.login '{\"user\":\"ann\"}'",
            "leasehold stream publish events.audit.login ann --stream events.audit --key ann",
            "leasehold stream publish events.import --file events.ndjson",
        ],
    ),
    (
        "stream read",
        &[
            "leasehold stream read events.login",
            "leasehold stream read events.login --from 2026-12-24T18:00:00Z --limit 10 -o json",
            "leasehold stream read events.login --group mail",
        ],
    ),
    ("stream tail", &["leasehold stream tail events.login", "leasehold stream tail events.login --from 42 -o json"]),
    ("stream list", &["leasehold stream list"]),
    ("stream groups", &["leasehold stream groups events.login", "leasehold stream groups events.login --remove mail"]),
    ("stream trim", &["leasehold stream trim events.login", "leasehold stream trim --all"]),
    ("stream apply", &["leasehold stream apply"]),
    ("archive run", &["leasehold archive run", "leasehold archive run audit --once"]),
    ("archive status", &["leasehold archive status -o json"]),
    ("archive verify", &["leasehold archive verify audit"]),
    ("put", &["leasehold put reports/today --fence 1767225600000000 report.csv"]),
    ("semaphore show", &["leasehold semaphore show builds -o json"]),
    ("semaphore resize", &["leasehold semaphore resize builds 5"]),
    ("elect", &["leasehold elect scheduler -- ./scheduler.sh"]),
    (
        "acquire",
        &[
            "leasehold acquire orders/42 --ttl 10m --note 'rebuilding the index'",
            "leasehold acquire orders/42 --wait 1m -o json",
        ],
    ),
    ("renew", &["leasehold renew orders/42 --lease 0123456789abcdef0123456789abcdef"]),
    (
        "release",
        &[
            "leasehold release orders/42 --lease 0123456789abcdef0123456789abcdef",
            "leasehold release orders/42 --force --reason 'its host is gone'",
        ],
    ),
    ("get", &["leasehold get orders/42", "leasehold get orders/42 --exit-code || echo held"]),
    ("watch", &["leasehold watch orders/42 --until-free", "leasehold watch --prefix orders/ --every 30s -o json"]),
    ("list", &["leasehold list", "leasehold list --all --prefix orders/ -o json"]),
    ("txn begin", &["leasehold txn begin -o json"]),
    ("txn decide", &["leasehold txn decide 01932c07-a5b0-7000-8000-000000000000 commit"]),
    ("txn get", &["leasehold txn get 01932c07-a5b0-7000-8000-000000000000"]),
    ("txn forget", &["leasehold txn forget 01932c07-a5b0-7000-8000-000000000000"]),
    ("sweep", &["leasehold sweep --dry-run", "leasehold sweep --all-namespaces"]),
    (
        "doctor",
        &["leasehold doctor --store s3://bucket/prefix", "leasehold doctor --store s3://bucket/prefix --fix-hint"],
    ),
    ("fsck", &["leasehold fsck --all-namespaces", "leasehold fsck --repair"]),
    ("store show", &["leasehold store show -o json"]),
    ("store set", &["leasehold store set --max-ttl 2h --all-processes-stopped"]),
    ("store repair", &["leasehold store repair", "leasehold store repair --confirm --reason 'it was deleted'"]),
    ("serve", &["leasehold serve", "leasehold serve --store s3://bucket/prefix --listen 127.0.0.1:7420"]),
    ("bench", &["leasehold bench", "leasehold bench cycle --concurrency 8 --duration 10s"]),
    ("config show", &["leasehold config show"]),
    ("completions", &["leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold"]),
    ("man", &["leasehold man > ~/.local/share/man/man1/leasehold.1"]),
];

fn of(path: &str) -> Option<String> {
    let (_, lines) = EXAMPLES.iter().find(|(known, _)| *known == path)?;
    Some(format!("Examples:\n  {}", lines.join("\n  ")))
}

/// The program, with an example below the help of each of its commands.
pub(crate) fn with_examples(program: Command) -> Command {
    below(program, "")
}

fn below(mut command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    for name in names {
        let path = format!("{path} {name}").trim_start().to_owned();
        command = command.mut_subcommand(name, |inner| {
            let inner = below(inner, &path);
            match of(&path) {
                Some(examples) => inner.after_help(examples),
                None => inner,
            }
        });
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The words of a line as a shell has them, up to what is the shell's own.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut rest) = (Vec::new(), line.trim());
        while !rest.is_empty() && !rest.starts_with(['#', '|', '>', '&']) {
            let (word, after) = match rest.strip_prefix('\'') {
                Some(quoted) => quoted.split_once('\'').unwrap(),
                None => rest.split_once(' ').unwrap_or((rest, "")),
            };
            words.push(word.to_owned());
            rest = after.trim_start();
        }
        words
    }

    fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
        for inner in command.get_subcommands() {
            let path = format!("{path} {}", inner.get_name()).trim_start().to_owned();
            match inner.has_subcommands() {
                true => leaves(inner, &path, found),
                false => found.push(path),
            }
        }
    }

    #[test]
    fn every_command_has_an_example_and_every_example_is_understood() {
        let program = crate::Cli::command();
        let mut paths = Vec::new();
        leaves(&program, "", &mut paths);
        for path in &paths {
            assert!(of(path).is_some(), "{path} has no example");
        }
        assert_eq!(paths.len(), EXAMPLES.len(), "there are examples of commands that are gone");
        for (path, lines) in EXAMPLES {
            for line in *lines {
                assert!(line.starts_with(&format!("leasehold {path}")), "{line}");
                let understood = program.clone().try_get_matches_from(words(line));
                assert!(understood.is_ok(), "{line}: {}", understood.unwrap_err());
            }
        }
    }
}
