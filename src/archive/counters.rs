//! What is counted of the archive.

crate::counters::counters! {
    /// Messages that this process has archived.
    messages => "leasehold_archive_messages_total", "Messages written to the archive";
    /// Files that this process has written.
    files => "leasehold_archive_files_total", "Files written to the archive";
    /// Steps that failed: tried again.
    failures => "leasehold_archive_failures_total", "Attempts to archive that failed and will be repeated";
    /// How often an archiver was found to be behind.
    alerts => "leasehold_archive_alerts_total", "Times that an archiver fell behind its limits";
}

/// The gauges of how far behind an archiver is.
pub(crate) const LAG_MESSAGES: &str = "leasehold_archive_lag_messages";
pub(crate) const LAG_BYTES: &str = "leasehold_archive_lag_bytes";
pub(crate) const LAG_SECONDS: &str = "leasehold_archive_lag_seconds";

/// Says what the gauges are, once.
pub(crate) fn describe_lag() {
    metrics::describe_gauge!(LAG_MESSAGES, metrics::Unit::Count, "Messages that are not archived, by domain");
    metrics::describe_gauge!(LAG_BYTES, metrics::Unit::Bytes, "Bytes that are not archived, by domain");
    metrics::describe_gauge!(
        LAG_SECONDS,
        metrics::Unit::Seconds,
        "Age of the oldest message that is not archived, by domain"
    );
}
