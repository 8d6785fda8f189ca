//! How a process works with queues: values that it is opened with.

use crate::duration::text;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a process works with queues. What holds for all processes stands in [`QueueSettings`](super::QueueSettings).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct JobOptions {
    /// How this process is called where others see that it has a job; `user@host:pid` if it is not said.
    pub owner: Option<String>,
    /// The shards of a queue that this process makes (2).
    pub shards: u16,
    /// How soon a claim that waits looks again for the first time (100 ms); less and less often from then on.
    #[serde(with = "text")]
    pub poll_interval: Duration,
    /// How often a claim that waits looks at the least (10 s).
    #[serde(with = "text")]
    pub max_poll_interval: Duration,
    /// How long an answer for a job is waited for before it is said to be unknown (30 s). It stays queued.
    #[serde(with = "text")]
    pub answer_timeout: Duration,
    /// Whether parts are packed when they are enqueued (yes): what does not shrink is stored as it is.
    pub pack: bool,
    /// How long a job that is enqueued by itself waits at the most for others of this process, to go into one segment with
    /// them (2 ms on this machine, else 20 ms); zero for never. It waits only while another one is on its way: a job that
    /// comes alone is sent at once.
    #[serde(with = "crate::duration::optional")]
    pub linger: Option<Duration>,
    /// The shortest time between two commits of this process to one shard; none where the store takes any number.
    #[serde(with = "crate::duration::optional")]
    pub commit_interval: Option<Duration>,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            owner: None,
            shards: 2,
            poll_interval: Duration::from_millis(100),
            max_poll_interval: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            pack: true,
            linger: None,
            commit_interval: None,
        }
    }
}
