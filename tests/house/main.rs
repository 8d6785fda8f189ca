//! The order of the rooms: which module may look at which, and which of them know no kind of record by name. How large
//! files, types and names may be, and what the project may depend on.
//!
//! `LEASEHOLD_UPDATE_DOCS=1 cargo test --test house` writes the graph into `docs/ARCHITECTURE.md`, and `docs/METRICS.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod graph;
mod metrics;
mod packages;
mod proto;
mod sizes;
mod source;
mod walks;
mod words;

use graph::Graph;
use source::Source;
use std::{env, fs, path::Path};

/// From top to bottom. A room looks only at rooms that stand below its own line.
const LAYERS: &[&[&str]] = &[
    &["internals"],
    &["store"],
    &["archive"],
    &["job"],
    &["stream"],
    &["semaphore", "session"],
    &["decision", "fenced", "lease"],
    &["fsck", "sweep"],
    &["kind"],
    &["record"],
    &["index", "shared"],
    &["storage"],
];

/// Whatever is not named above is a small value without requests. Among themselves they only must not form a cycle.
const VALUES: &str = "values";

/// These know the trait of a kind, and no kind by name.
const KIND_BLIND: &[&str] = &["fsck", "index", "kind", "record", "shared", "storage", "sweep"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn graph() -> Graph {
    Graph::of(&Source::read(&root().join("src")))
}

#[test]
fn no_room_looks_up_and_none_looks_at_itself_through_others() {
    let graph = graph();
    assert_eq!(graph.upward(LAYERS), Vec::<String>::new(), "a room looks only downwards");
    assert_eq!(graph.cycle(), None, "modules that look at each other are one module");
}

#[test]
fn an_upward_edge_and_a_cycle_are_found() {
    let source = |uses: &str| Source::of("storage", &format!("use crate::{{Error, {uses}}};\n"));
    let mut up = Graph::of(&[source("lease::Engine"), Source::of("lease", "use crate::storage::Backend;")]);
    assert_eq!(up.upward(LAYERS), ["storage looks up at lease"]);
    assert_eq!(up.cycle().as_deref(), Some("lease -> storage -> lease"));
    up = Graph::of(&[source("clock::Timestamp"), Source::of("clock", "fn f() { crate::fence::g() }")]);
    assert_eq!((up.upward(LAYERS).len(), up.cycle()), (0, None));
    let through_super = Source::of("storage", "use super::lease::Engine;");
    let lease = || Source::of("lease", "");
    assert_eq!(Graph::of(&[through_super, lease()]).upward(LAYERS), ["storage looks up at lease"]);
    // What is written for tests does not count.
    let tested = Source::of("storage", "#[cfg(test)]\nmod tests {\n    use crate::store::Store;\n}\n");
    assert_eq!(Graph::of(&[tested]).upward(LAYERS), Vec::<String>::new());
}

#[test]
fn the_graph_in_the_documentation_is_that_of_the_code() {
    let path = root().join("docs/ARCHITECTURE.md");
    let text = fs::read_to_string(&path).unwrap();
    let drawn = graph().draw(LAYERS, VALUES);
    let (before, rest) = text.split_once(graph::BEGINS).expect("the page says where the graph begins");
    let (_, after) = rest.split_once(graph::ENDS).expect("the page says where the graph ends");
    let wanted = format!("{before}{}\n{drawn}{}{after}", graph::BEGINS, graph::ENDS);
    if env::var_os("LEASEHOLD_UPDATE_DOCS").is_some() {
        fs::write(&path, wanted).unwrap();
    } else {
        assert!(text == wanted, "docs/ARCHITECTURE.md does not show this graph:\n{drawn}");
    }
}

#[test]
fn the_reference_of_metrics_is_what_the_code_registers() {
    let path = root().join("docs/METRICS.md");
    let wanted = metrics::page();
    if env::var_os("LEASEHOLD_UPDATE_DOCS").is_some() {
        fs::write(&path, wanted).unwrap();
    } else {
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "docs/METRICS.md is not this; LEASEHOLD_UPDATE_DOCS=1 writes it:\n{wanted}");
    }
}

#[test]
fn rooms_that_know_no_kind_do_not_use_the_words_of_one() {
    let sources = Source::read(&root().join("src"));
    let blind = sources.iter().filter(|source| KIND_BLIND.contains(&source.room.as_str()));
    let found: Vec<String> = blind.flat_map(words::of_a_kind).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn the_words_of_a_kind_are_found_in_names_comments_and_messages() {
    let found = |text: &str| words::of_a_kind(&Source::of("sweep", text)).len();
    for text in ["report.leases_cleared", "struct LeaseSweep;", "// decisions, too", "\"no marker\"", "fn txn()"] {
        assert_eq!(found(text), 1, "{text}");
    }
    for text in ["leasehold", "LeaseholdError", "released()", "decided"] {
        assert_eq!(found(text), 0, "{text}");
    }
}

#[test]
fn no_file_type_or_name_of_a_test_is_too_large() {
    assert_eq!(sizes::long_files(root()), Vec::<String>::new(), "split it by what it is about");
    assert_eq!(sizes::large_types(root()), Vec::<String>::new(), "take it apart");
    assert_eq!(sizes::long_names(root()), Vec::<String>::new(), "75 characters are enough");
}

#[test]
fn methods_are_counted_in_inherent_blocks_outside_of_tests() {
    let text = "impl<T: Into<u8>> Large<T> {\n    pub(crate) async fn a() {}\n\n    fn b() {\n        fn inner() {}\n    }\n}\n\
                impl Large {\n    const C: u8 = 1;\n    pub const fn c() {}\n}\n\
                impl Drop for Large {\n    fn drop(&mut self) {}\n}\n\
                #[cfg(test)]\nmod tests {\n    impl Large {\n        fn d() {}\n    }\n}\n";
    let large = |count| ("Large".to_owned(), count);
    assert_eq!(sizes::methods_of(text), [large(2), large(1)]);
}

#[test]
fn every_dependency_has_an_allowed_licence_and_source_and_one_version() {
    assert_eq!(packages::problems(&packages::all(root())), Vec::<String>::new());
}

#[test]
fn a_wrong_licence_source_package_or_second_version_is_found() {
    let package = |name: &str, version: &str, license: &str, source: &str| packages::Package {
        name: name.to_owned(),
        version: version.to_owned(),
        license: (!license.is_empty()).then(|| license.to_owned()),
        source: Some(source.to_owned()),
    };
    let registry = "registry+https://example.org/index";
    assert_eq!(packages::problems(&[package("good", "1.0.0", "MIT", registry)]), Vec::<String>::new());
    for wrong in [
        &[package("a", "1.0.0", "GPL-3.0", registry)][..],
        &[package("a", "1.0.0", "", registry)],
        &[package("openssl", "1.0.0", "MIT", registry)],
        &[package("a", "1.0.0", "MIT", "git+https://example.org/a")],
        &[package("a", "1.0.0", "MIT", registry), package("a", "2.0.0", "MIT", registry)],
    ] {
        assert_eq!(packages::problems(wrong).len(), 1, "{wrong:?}");
    }
    for (expression, allowed) in [
        ("MIT OR GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("MIT/Apache-2.0", true),
        ("(GPL-3.0 OR MIT) AND Unicode-3.0", true),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
        ("GPL-2.0 OR LGPL-2.1 AND MIT", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(packages::allows(expression), allowed, "{expression}");
    }
}

/// These may make conditional writes: the record module, the probe of a store, and what both are made of.
const WRITERS: &[&str] = &["record/", "storage/cas.rs", "storage/probe.rs", "internals/"];

#[test]
fn conditional_writes_have_one_caller_besides_the_probe() {
    let sources = Source::read(&root().join("src"));
    let is_writer = |path: &str| WRITERS.iter().any(|writer| path.starts_with(writer));
    let others = sources.iter().filter(|source| !is_writer(&source.path));
    let found: Vec<&str> = others.filter(|source| names_cas(&source.text)).map(|source| source.path.as_str()).collect();
    assert_eq!(found, Vec::<&str>::new(), "write through src/record");
    assert!(
        names_cas("use crate::storage::cas::{self, Cas};") && !names_cas("use crate::storage::cas::Seen; // a CAS")
    );
}

/// Whether a text names the type that makes conditional writes.
fn names_cas(text: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "Cas")
}

#[test]
fn the_files_of_leases_do_not_look_at_each_other_in_a_cycle() {
    let sources = Source::read(&root().join("src"));
    assert_eq!(Graph::within("lease", &sources).cycle(), None);
    let guard = Source::at("lease/guard.rs", "use super::{keeper::Keeper, Leases};");
    let keeper = Source::at("lease/keeper.rs", "use super::guard::Guard;");
    assert_eq!(Graph::within("lease", &[guard, keeper]).cycle().as_deref(), Some("guard -> keeper -> guard"));
}

#[test]
fn every_step_of_the_walks_in_the_documentation_exists() {
    let page = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let (steps, broken) = walks::broken(root(), &page);
    assert!(steps > 30, "only {steps} steps were found");
    assert_eq!(broken, Vec::<String>::new());
    let wrong = "`src/lease/plan.rs: no_such_rule` and `src/nowhere.rs: renew`";
    assert_eq!(walks::broken(root(), wrong).1.len(), 2);
}
