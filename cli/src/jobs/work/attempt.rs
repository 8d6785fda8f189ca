//! One attempt at a job: its command from start to end, and what is said of the job.

use super::{
    Stop, Work,
    codes::{Codes, Meaning},
    payload::{Folder, Payload},
};
use crate::{
    config::Config,
    duration::{self, millis},
    exit::{Failure, NOT_EXECUTABLE, NOT_FOUND},
    output::{self, Format},
    process::{Child, Reason, Start},
};
use leasehold::{
    Clock, SystemClock,
    job::{AttemptEnd, Job, JobState, Queue},
};
use serde::Serialize;
use std::{collections::VecDeque, ffi::OsString, io::Write, time::Duration};
use tokio::{io::AsyncReadExt, process::ChildStderr, task::JoinHandle};

/// How often to see whether a job is still ours. No network is asked.
const LOOK: Duration = Duration::from_millis(200);
/// How often to ask whether somebody has cancelled a job that runs: one read.
const ASK: Duration = Duration::from_secs(5);
/// As much of what a command says last is its error: a ledger keeps no more.
const TAIL: usize = 250;
/// How long what a command has left behind may keep its stderr open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What has become of an attempt.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    job: String,
    attempt: u32,
    fence: u64,
    /// `done`, `failed`, `dead`, `again`, `given_back`, `lost`, `cancelled` or `unknown`.
    pub(super) end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// When it runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    duration_ms: u64,
    /// Why no command can be run at all.
    #[serde(skip)]
    pub(super) cannot_run: Option<Failure>,
}

/// How a command came to its end.
enum Ended {
    Exited(u8),
    /// The job is somebody else's, or may be.
    Lost,
    /// It took too long.
    Late(Duration),
    /// Told to go.
    Stopped,
    /// Somebody has cancelled the job.
    Cancelled,
}

/// Runs the commands of one process.
#[derive(Debug)]
pub(super) struct Runner {
    command: Vec<OsString>,
    config: Config,
    queue: Queue,
    codes: Codes,
    timeout: Option<Duration>,
    kill_after: Duration,
    again_after: Duration,
    folder: Folder,
    pub(super) stop: Stop,
    #[cfg(unix)]
    groups: std::sync::Mutex<Vec<rustix::process::Pid>>,
}

impl Runner {
    pub(super) fn new(work: &Work, config: &Config, queue: Queue, codes: Codes) -> Result<Self, Failure> {
        Ok(Self {
            command: work.command.clone(),
            config: config.clone(),
            queue,
            codes,
            timeout: work.timeout,
            kill_after: work.kill_after,
            again_after: work.again_after,
            folder: Folder::new()?,
            stop: Stop::new(),
            #[cfg(unix)]
            groups: std::sync::Mutex::default(),
        })
    }

    pub(super) fn tidy(&self) {
        self.folder.tidy();
    }

    /// Runs the command for a job, and says what has become of it.
    pub(super) async fn run(&self, job: Job) -> Done {
        let clock = SystemClock::new();
        let began = clock.monotonic();
        let mut done = Done {
            job: job.id().to_string(),
            attempt: job.attempt(),
            fence: job.fence().get(),
            end: "given_back",
            exit_code: None,
            error: None,
            due: None,
            duration_ms: 0,
            cannot_run: None,
        };
        match self.command(&job).await {
            Ok((ended, tail)) => self.answer(job, ended, tail, &mut done).await,
            Err(failure) if matches!(failure.code, NOT_FOUND | NOT_EXECUTABLE) => {
                // It is not the job's fault, and the next one would fare no better.
                give_back(job).await;
                done.cannot_run = Some(failure);
            }
            Err(failure) => {
                give_back(job).await;
                done.cannot_run = Some(failure);
            }
        }
        done.duration_ms = millis(clock.monotonic().since(began));
        done
    }

    fn start(&self, job: &Job, payload: &Payload) -> Result<Start, Failure> {
        let reason = Reason(format!("worked on job {} of {}", job.id(), self.queue.name()));
        let mut start = Start::new(&self.command, &self.config, reason, self.kill_after)?
            .env("LEASEHOLD_JOB", job.id().to_string())
            .env("LEASEHOLD_ATTEMPT", job.attempt().to_string())
            .env("LEASEHOLD_FENCE", job.fence().to_string())
            .env("LEASEHOLD_QUEUE", self.queue.name())
            .env("LEASEHOLD_JOB_FILE", &payload.0)
            .reading(payload.0.clone())?;
        for (name, value) in [
            ("LEASEHOLD_JOB_KIND", job.kind()),
            ("LEASEHOLD_JOB_KEY", job.key()),
            ("LEASEHOLD_JOB_TENANT", job.tenant()),
            ("LEASEHOLD_JOB_CALLER_ID", job.caller_id()),
        ] {
            // No environment can have a zero byte in it.
            start = match value.filter(|value| !value.contains('\0')) {
                Some(value) => start.env(name, value),
                None => start.without(name),
            };
        }
        Ok(match self.config.output.value {
            Format::Json => start.printing_to_stderr(),
            Format::Table => start,
        })
    }

    async fn command(&self, job: &Job) -> Result<(Ended, String), Failure> {
        let payload = self.folder.write(job.id(), job.attempt(), &job.args())?;
        let mut child = Child::start(self.start(job, &payload)?).await?;
        let _paused = self.remember(&child);
        let tail = child.stderr().map(|stderr| tokio::spawn(tail(stderr)));
        let timeout = match job.timeout().or(self.timeout) {
            Some(longest) => Some(longest),
            None => self.queue.settings().await?.timeout_of(job.kind()),
        };
        let ended = tokio::select! {
            biased;
            code = child.ended() => Ended::Exited(code?),
            () = lost(job) => Ended::Lost,
            () = self.stop.cancelled() => Ended::Stopped,
            () = self.cancelled(job) => Ended::Cancelled,
            longest = late(timeout) => Ended::Late(longest),
        };
        if !matches!(ended, Ended::Exited(_)) {
            child.stop(self.kill_after, None).await?;
        }
        child.part().await;
        Ok((ended, last_words(tail).await))
    }

    /// Until somebody has cancelled a job.
    async fn cancelled(&self, job: &Job) {
        let clock = SystemClock::new();
        loop {
            clock.sleep(ASK).await;
            match self.queue.get(job.id()).await {
                Ok(Some(info)) if info.state == JobState::Cancelled => return,
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, job = %job.id(), "whether it was cancelled is not known"),
            }
        }
    }

    /// Says what has become of a job. `done` says what the queue made of that.
    async fn answer(&self, job: Job, ended: Ended, tail: String, done: &mut Done) {
        let id = job.id();
        let answering = match ended {
            Ended::Lost => {
                output::complain(format_args!(
                    "job {id} is not ours any more: this process was too slow to renew its session, so another may run it; \
                     its command was stopped"
                ));
                done.end = "lost";
                return;
            }
            Ended::Stopped => job.release(),
            Ended::Cancelled => {
                done.end = "cancelled";
                job.cancelled()
            }
            Ended::Late(longest) => {
                let error = format!("stopped after {}; {tail}", duration::short(longest));
                (done.end, done.error) = ("failed", Some(cut(error.trim_end_matches("; "))));
                job.fail(done.error.as_deref().unwrap_or_default())
            }
            Ended::Exited(code) => {
                done.exit_code = Some(code);
                let error = || cut(if tail.is_empty() { format!("exit code {code}") } else { tail.clone() }.trim());
                match self.codes.meaning(code) {
                    Meaning::Done => {
                        done.end = "done";
                        job.finish()
                    }
                    Meaning::Again => {
                        done.end = "again";
                        job.snooze(self.again_after)
                    }
                    Meaning::Dead => {
                        (done.end, done.error) = ("dead", Some(error()));
                        job.fail_for_good(done.error.as_deref().unwrap_or_default())
                    }
                    Meaning::Failed => {
                        (done.end, done.error) = ("failed", Some(error()));
                        job.fail(done.error.as_deref().unwrap_or_default())
                    }
                }
            }
        };
        match answering.await {
            Ok(end) => self.told(&id.to_string(), end, done),
            Err(error) => {
                done.end = "unknown";
                output::complain(format_args!("what was said of job {id} may not have reached the queue: {error}"));
            }
        }
    }

    /// What the queue made of it, where that is not what was said.
    fn told(&self, id: &str, end: AttemptEnd, done: &mut Done) {
        match end {
            AttemptEnd::Finished { .. } => {}
            AttemptEnd::Waits { until } => {
                done.due = Some(until.to_string());
                if done.end == "failed" {
                    let (attempt, error) = (done.attempt, done.error.as_deref().unwrap_or_default());
                    let error = crate::view::printable(error.lines().last().unwrap_or_default());
                    output::say(format_args!("job {id} failed (attempt {attempt}): {error}; again at {until}"));
                }
            }
            AttemptEnd::Dead => {
                done.end = "dead";
                let error = done.error.as_deref().and_then(|error| error.lines().last()).unwrap_or_default();
                output::complain(format_args!("job {id} is dead: {}", crate::view::printable(error)));
            }
            AttemptEnd::Cancelled => {
                done.end = "cancelled";
                output::say(format_args!("job {id} was cancelled"));
            }
            AttemptEnd::AnsweredBefore => {}
            AttemptEnd::Stale(stale) => {
                done.end = "lost";
                output::complain(format_args!("what became of job {id} counts no more: {stale}"));
            }
            other => tracing::warn!(job = id, ?other, "the queue's answer is not known to this version"),
        }
    }
}

#[cfg(unix)]
mod groups {
    use super::{Child, Runner};
    use rustix::process::{Pid, Signal, kill_process_group};
    use std::sync::{MutexGuard, PoisonError};

    /// A command that runs; forgotten when this is dropped.
    pub(super) struct Remembered<'a>(&'a Runner, Option<Pid>);

    impl Drop for Remembered<'_> {
        fn drop(&mut self) {
            self.0.groups().retain(|group| Some(*group) != self.1);
        }
    }

    impl Runner {
        fn groups(&self) -> MutexGuard<'_, Vec<Pid>> {
            self.groups.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(super) fn remember(&self, child: &Child) -> Remembered<'_> {
            self.groups().extend(child.group());
            Remembered(self, child.group())
        }

        fn send(&self, signal: Signal) {
            for group in self.groups().iter() {
                // Its supervisor leads it, and is there for as long as we know of it.
                let _ = kill_process_group(*group, signal);
            }
        }

        /// No command may run on while nobody renews the session.
        pub(in super::super) fn pause(&self) {
            self.send(Signal::STOP);
        }

        pub(in super::super) fn resume(&self) {
            self.send(Signal::CONT);
        }
    }
}

#[cfg(not(unix))]
impl Runner {
    fn remember(&self, _: &Child) {}

    pub(super) fn pause(&self) {}

    pub(super) fn resume(&self) {}
}

async fn give_back(job: Job) {
    // Nobody has run it; if this does not reach the queue, the end of our session will.
    if let Err(error) = job.release().await {
        tracing::warn!(%error, "a job could not be given back yet");
    }
}

/// Until a job may be somebody else's.
async fn lost(job: &Job) {
    let clock = SystemClock::new();
    while job.is_ours() {
        clock.sleep(LOOK).await;
    }
}

async fn late(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(longest) => {
            SystemClock::new().sleep(longest).await;
            longest
        }
        None => std::future::pending().await,
    }
}

/// Passes on what a command says on stderr, and keeps the end of it.
async fn tail(mut stderr: ChildStderr) -> String {
    let (mut kept, mut buffer) = (VecDeque::new(), [0; 4096]);
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        // With no stderr there is nobody to tell.
        let _ = std::io::stderr().write_all(&buffer[..count]);
        kept.extend(&buffer[..count]);
        kept.drain(..kept.len().saturating_sub(TAIL));
    }
    String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned()
}

async fn last_words(tail: Option<JoinHandle<String>>) -> String {
    let Some(mut tail) = tail else { return String::new() };
    let clock = SystemClock::new();
    tokio::select! {
        biased;
        text = &mut tail => text.unwrap_or_default(),
        () = clock.sleep(LAST_WORDS) => {
            tail.abort();
            String::new()
        }
    }
}

/// The end of a text, no longer than a queue keeps.
fn cut(text: &str) -> String {
    let from = text.len().saturating_sub(TAIL);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_between_two_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(TAIL);
        assert_eq!(cut(&long), "ä".repeat(TAIL / 2));
        assert_eq!(cut(&format!("x{long}")).chars().next(), Some('ä'));
    }
}
