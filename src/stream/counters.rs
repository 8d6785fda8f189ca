//! What is counted of streams.

crate::counters::counters! {
    /// Messages that this process has appended.
    appended => "leasehold_stream_messages_appended_total", "Messages appended to streams";
    /// Segments that this process has created.
    segments => "leasehold_stream_segments_total", "Segments of streams created";
    /// Creates that came second to another process's.
    lost_races => "leasehold_stream_lost_races_total", "Segments whose number another process took first";
    /// Segments that were created below the beginning of their log, and whose messages were appended again.
    stale_appends => "leasehold_stream_stale_appends_total", "Segments of paused processes that were appended again";
    /// Messages that were read.
    read => "leasehold_stream_messages_read_total", "Messages read from streams";
    /// Messages that were trimmed before somebody read them.
    missed => "leasehold_stream_messages_missed_total", "Messages that were trimmed before their reader came to them";
    /// Segments that this process has trimmed.
    trimmed => "leasehold_stream_segments_trimmed_total", "Segments of streams deleted after their time";
    /// Trims that an archiver or a group kept from deleting what was old enough.
    trims_held => "leasehold_stream_trims_held_total", "Trims held up by an archiver or a group that is behind";
    /// Trims that failed.
    trims_failed => "leasehold_stream_trims_failed_total", "Trims that failed and were left to the next sweep";
    /// Groups that stopped keeping messages.
    groups_expired => "leasehold_stream_groups_expired_total", "Groups of consumers that expired";
    /// Messages that consumers gave up.
    dead_letters => "leasehold_stream_dead_letters_total", "Messages that consumers gave up";
}
