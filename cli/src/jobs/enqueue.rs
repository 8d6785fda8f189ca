//! enqueue: jobs go into a queue, and their ids are printed.

use crate::{
    config::Config,
    duration,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Embedded,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use clap::Args;
use leasehold::{
    clock::Timestamp,
    job::{Fate, JobId, NewJob, Queue},
};
use serde::{Deserialize, Serialize};
use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    time::Duration,
};

/// Of a file so many jobs are sent together, or as many as have this many bytes.
const JOBS: usize = 10_000;
const BYTES: usize = 32 << 20;

#[derive(Debug, Args)]
pub(crate) struct Enqueue {
    /// The queue: any text of 1 to 64 bytes. It is made when it is first used
    queue: String,
    /// What the job carries: text, or - for what comes on standard input; '' for a job that carries nothing
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    payload: Option<String>,
    /// A file with a job on each line, which is its payload and must be JSON; - for standard input
    #[arg(long, value_name = "NDJSON")]
    file: Option<PathBuf>,
    /// Each line of the file describes a job: {"payload": any JSON, or "payload_b64": base 64, "kind", "priority", "at",
    /// "in", "key", "unique", "tenant", "id", "max_attempts", "timeout"}. What it does not say, the flags say for all
    #[arg(long, requires = "file", conflicts_with = "payload")]
    described: bool,
    #[command(flatten)]
    how: How,
    /// Your own name for this call, which makes it safe to repeat: the same call enqueues nothing twice, and prints the same
    /// ids, while its jobs live and for 10 minutes after
    #[arg(long, value_name = "TEXT")]
    request_id: Option<String>,
}

/// How a job is to be run.
#[derive(Debug, Clone, Default, Args)]
struct How {
    /// Not before this time: 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "after")]
    at: Option<Timestamp>,
    /// Not before so much later: 10m
    #[arg(long = "in", value_name = "TIME", value_parser = duration::parse)]
    after: Option<Duration>,
    /// Lower ones come first; below 0 is urgent, and comes before everything else [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,
    /// Jobs of one key are limited together, if the queue has a limit
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// Dropped as a duplicate if another job of this key waits or runs
    #[arg(long, value_name = "TEXT")]
    unique: Option<String>,
    /// What kind of job it is, for whoever runs it
    #[arg(long, value_name = "TEXT")]
    kind: Option<String>,
    /// On whose behalf: tenants take turns
    #[arg(long, value_name = "TEXT")]
    tenant: Option<String>,
    /// Your own id for the job, shown wherever it is
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    /// How many attempts may fail [default: what the queue says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: Option<u32>,
    /// How long one attempt may take [default: any time]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
}

/// A time such as `2026-12-24T18:00:00Z`.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    let wrong = || "write it like 2026-12-24T18:00:00Z".to_owned();
    let at = humantime::parse_rfc3339_weak(text).map_err(|_| wrong())?;
    let since = at.duration_since(std::time::UNIX_EPOCH).map_err(|_| wrong())?;
    Ok(Timestamp::from_millis(i64::try_from(since.as_millis()).map_err(|_| wrong())?))
}

/// As JSON has bytes that are no text.
pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A line of a file that describes its jobs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    payload: Option<serde_json::Value>,
    payload_b64: Option<String>,
    kind: Option<String>,
    priority: Option<i16>,
    at: Option<String>,
    #[serde(rename = "in")]
    after: Option<String>,
    key: Option<String>,
    unique: Option<String>,
    tenant: Option<String>,
    id: Option<String>,
    max_attempts: Option<u32>,
    timeout: Option<String>,
}

impl How {
    fn job(&self, payload: Vec<u8>) -> NewJob {
        let mut job = if payload.is_empty() { NewJob::empty() } else { NewJob::new(payload) };
        if let Some(at) = self.at {
            job = job.due_at(at);
        }
        if let Some(after) = self.after {
            job = job.due_in(after);
        }
        if let Some(priority) = self.priority {
            job = job.priority(priority);
        }
        if let Some(most) = self.max_attempts {
            job = job.max_attempts(most);
        }
        if let Some(longest) = self.timeout {
            job = job.timeout(longest);
        }
        self.named(job)
    }

    /// With whatever it is called by.
    fn named(&self, mut job: NewJob) -> NewJob {
        if let Some(key) = &self.key {
            job = job.key(key);
        }
        if let Some(key) = &self.unique {
            job = job.unique_key(key);
        }
        if let Some(kind) = &self.kind {
            job = job.kind(kind);
        }
        if let Some(tenant) = &self.tenant {
            job = job.tenant(tenant);
        }
        match &self.id {
            Some(id) => job.caller_id(id),
            None => job,
        }
    }

    /// A job of a line that is its payload.
    fn plain(&self, line: &str) -> Result<NewJob, String> {
        serde_json::from_str::<serde::de::IgnoredAny>(line)
            .map_err(|error| format!("it is no JSON ({error}); write a job as one line of JSON"))?;
        Ok(self.job(line.trim().as_bytes().to_vec()))
    }

    /// A job of a line that describes it.
    fn described(&self, line: &str) -> Result<NewJob, String> {
        let line: Described = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let payload = match (line.payload, line.payload_b64) {
            (Some(_), Some(_)) => return Err("payload and payload_b64 cannot both be meant".to_owned()),
            (_, Some(text)) => {
                STANDARD.decode(&text).map_err(|error| format!("payload_b64 is not standard base64: {error}"))?
            }
            // Text is text, whatever carries it.
            (Some(serde_json::Value::String(text)), None) => text.into_bytes(),
            (Some(value), None) => value.to_string().into_bytes(),
            (None, None) => Vec::new(),
        };
        let span = |text: &Option<String>| text.as_deref().map(duration::parse).transpose();
        let at = line.at.as_deref().map(time).transpose()?;
        let after = span(&line.after)?;
        if at.is_some() && after.is_some() {
            return Err("at and in cannot both be meant".to_owned());
        }
        // A time of its own takes the place of either flag.
        let (at, after) = if at.is_some() || after.is_some() { (at, after) } else { (self.at, self.after) };
        let how = Self {
            at,
            after,
            priority: line.priority.or(self.priority),
            key: line.key.or_else(|| self.key.clone()),
            unique: line.unique.or_else(|| self.unique.clone()),
            kind: line.kind.or_else(|| self.kind.clone()),
            tenant: line.tenant.or_else(|| self.tenant.clone()),
            id: line.id.or_else(|| self.id.clone()),
            max_attempts: line.max_attempts.or(self.max_attempts),
            timeout: span(&line.timeout)?.or(self.timeout),
        };
        Ok(how.job(payload))
    }
}

#[derive(Debug, Serialize)]
struct Enqueued<'a> {
    id: JobId,
    queue: &'a str,
}

impl Enqueue {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        if let (Some(_), Some(id)) = (&self.file, &self.how.id)
            && !self.described
        {
            return Err(Failure::usage(format!(
                "--id {id} cannot be the id of every job of a file: describe the jobs with --described"
            )));
        }
        // Before a store is made where there was none.
        let payload = self.payload()?;
        let opened = Embedded::open(config).await?;
        let queue = super::queue(&opened, config, &self.queue)?;
        match (payload, &self.file) {
            (Some(payload), _) => {
                self.send(config, &queue, vec![self.how.job(payload)], 0).await?;
            }
            (None, Some(file)) => self.send_file(config, &queue, file).await?,
            (None, None) => return Err(Failure::usage("say what the job carries")),
        }
        Ok(0)
    }

    fn payload(&self) -> Result<Option<Vec<u8>>, Failure> {
        match self.payload.as_deref() {
            Some("-") => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_to_end(&mut bytes);
                read.map_err(|error| Failure::failed(format!("standard input cannot be read: {error}")))?;
                Ok(Some(bytes))
            }
            Some(text) => Ok(Some(text.as_bytes().to_vec())),
            None => Ok(None),
        }
    }

    /// Sends a file, some thousand jobs at a time. Nothing of a part is sent in which a line is wrong.
    async fn send_file(&self, config: &Config, queue: &Queue, file: &PathBuf) -> Result<(), Failure> {
        let is_stdin = file.as_os_str() == "-";
        let named = if is_stdin { "standard input".to_owned() } else { file.display().to_string() };
        let unreadable = |error: std::io::Error| Failure::failed(format!("{named} cannot be read: {error}"));
        let input: Box<dyn Read + Send> = match is_stdin {
            true => Box::new(std::io::stdin()),
            false => Box::new(std::fs::File::open(file).map_err(unreadable)?),
        };
        let bar = output::spinner();
        let (mut jobs, mut bytes, mut sent, mut part) = (Vec::new(), 0, 0, 0);
        for (number, line) in BufReader::new(input).lines().enumerate() {
            let line = line.map_err(unreadable)?;
            if line.trim().is_empty() {
                continue;
            }
            let job = if self.described { self.how.described(&line) } else { self.how.plain(&line) };
            jobs.push(job.map_err(|why| {
                let before = if sent == 0 {
                    "nothing was enqueued".to_owned()
                } else {
                    format!("{sent} jobs before are enqueued")
                };
                Failure::usage(format!("{named}, line {}: {why}; {before}", number + 1))
            })?);
            bytes += line.len();
            if jobs.len() >= JOBS || bytes >= BYTES {
                sent += self.send(config, queue, std::mem::take(&mut jobs), part).await?;
                (bytes, part) = (0, part + 1);
                bar.set_message(format!("{sent} jobs enqueued"));
            }
        }
        sent += self.send(config, queue, jobs, part).await?;
        bar.finish_and_clear();
        if sent == 0 {
            output::say(format_args!("{named} has no jobs"));
        }
        Ok(())
    }

    /// Sends jobs together, and prints their ids. Returns how many there are.
    async fn send(&self, config: &Config, queue: &Queue, jobs: Vec<NewJob>, part: u32) -> Result<usize, Failure> {
        let mut call = queue.enqueue_many(jobs);
        if let Some(id) = &self.request_id {
            // Each part of a file is a call of its own.
            call = call.request_id(if part == 0 { id.clone() } else { format!("{id}/{part}") });
        }
        match call.await {
            Ok(ids) => {
                self.print(config, &ids)?;
                Ok(ids.len())
            }
            Err(failed) => {
                let known = failed.fates().iter().filter_map(|fate| match fate {
                    Fate::Enqueued(id) => Some(*id),
                    _ => None,
                });
                self.print(config, &known.collect::<Vec<_>>())?;
                let doubt = failed.fates().iter().filter(|fate| matches!(fate, Fate::Unknown(_))).count();
                let mut failure = Failure::from(leasehold::Error::from(failed));
                if doubt > 0 {
                    failure.message.push_str(&format!(
                        "; {doubt} may or may not be: enqueue with --request-id TEXT, and repeat the same call until it is known"
                    ));
                }
                Err(failure)
            }
        }
    }

    fn print(&self, config: &Config, ids: &[JobId]) -> Result<(), Failure> {
        if ids.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = match config.output.value {
            Format::Table => ids.iter().map(ToString::to_string).collect(),
            Format::Json => {
                let line = |id: &JobId| serde_json::to_string(&Enqueued { id: *id, queue: &self.queue });
                let lines: Result<_, _> = ids.iter().map(line).collect();
                lines.map_err(|error| Failure::failed(format!("cannot be written as JSON: {error}")))?
            }
        };
        output::print(lines.join("\n"))
    }
}
