//! The names of the library's own objects, which do not depend on the kinds of record.

use super::Name;

/// The folder that is the library's own. No namespace can begin with a dot.
pub(crate) const OURS: &str = ".leasehold";

/// The file name of the record that every process reads first.
pub(crate) const STORE_JSON: &str = "store.json";

/// Where probes and diagnoses write.
pub(crate) const PROBE: &str = ".leasehold/probe/";

/// Where the interventions of operators are written down.
pub(crate) const REPAIRS: &str = ".leasehold/repairs/";

/// Where the processes of a local directory say that they are alive.
pub(crate) const PROCESSES: &str = ".leasehold/.local/process";

/// The record that every process reads first.
pub(crate) fn store_json() -> Name {
    Name::new(format!("{OURS}/{STORE_JSON}"))
}

/// One of the objects by which the store is asked for its time.
pub(crate) fn time_object(number: u8) -> Name {
    Name::new(format!("{OURS}/time-{number}"))
}

/// Whether a folder right in [`OURS`] is one of these.
pub(crate) fn is_own_folder(folder: &str) -> bool {
    [PROBE, REPAIRS].iter().any(|path| path.strip_prefix(OURS).map(|path| path.trim_matches('/')) == Some(folder))
}

/// Whether an object right in [`OURS`] is one of these. `time` is what earlier versions called the one time object.
pub(crate) fn is_own_object(name: &Name) -> bool {
    let last = name.last();
    last == STORE_JSON || last == "time" || last.starts_with("time-")
}
