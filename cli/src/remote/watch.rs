//! Watching through a service: server-sent events, taken up again where they break off.

use super::{Refused, Remote};
use crate::{
    exit::Failure,
    view::Status,
    wire::{KeyStatus, Problem},
};
use futures_util::{StreamExt, stream, stream::BoxStream};
use leasehold::{Clock, Key};
use std::time::Duration;

/// How long to wait before asking again, and how long at the most.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);

/// How long nothing may arrive: the service says every 15 s that it is alive.
const SILENCE: Duration = Duration::from_secs(45);

struct Watch {
    remote: Remote,
    key: Key,
    /// What arrives, until it breaks off.
    chunks: Option<BoxStream<'static, reqwest::Result<Vec<u8>>>>,
    /// What has arrived and is not a whole event yet.
    buffer: Vec<u8>,
    told: Option<KeyStatus>,
    pause: Duration,
    failing: bool,
}

impl Remote {
    /// What there is on a key, and then every change. That the service does not answer is told once.
    pub(crate) fn watch(&self, key: &Key) -> BoxStream<'static, Result<Status, Failure>> {
        let watch = Watch {
            remote: self.clone(),
            key: key.clone(),
            chunks: None,
            buffer: Vec::new(),
            told: None,
            pause: FIRST,
            failing: false,
        };
        stream::unfold(Some(watch), |watch| async move {
            let mut watch = watch?;
            match watch.next().await {
                Ok(item) => Some((item, Some(watch))),
                Err(failure) => Some((Err(failure), None)),
            }
        })
        .boxed()
    }
}

impl Watch {
    /// The next item, or the last one.
    async fn next(&mut self) -> Result<Result<Status, Failure>, Failure> {
        loop {
            if let Some(event) = self.event() {
                match event {
                    Ok(status) if self.told.as_ref() == Some(&status) => {}
                    Ok(status) => {
                        let shown = Status::try_from(&status).map_err(Failure::from)?;
                        self.told = Some(status);
                        return Ok(Ok(shown));
                    }
                    Err(problem) => {
                        let refused = Refused::Problem(Box::new(problem));
                        // What no waiting mends would be told again and again.
                        return if refused.is_retryable() { Ok(Err(refused.into())) } else { Err(refused.into()) };
                    }
                }
                continue;
            }
            let arrived = match &mut self.chunks {
                Some(chunks) => tokio::select! {
                    biased;
                    arrived = chunks.next() => arrived,
                    () = self.remote.clock.sleep(SILENCE) => None,
                },
                None => {
                    let connected = tokio::select! {
                        biased;
                        connected = connect(&self.remote, &self.key) => connected,
                        () = self.remote.clock.sleep(SILENCE) => Err(Refused::Silent(format!("{} did not answer", self.remote.base))),
                    };
                    match connected {
                        Ok(chunks) => {
                            (self.chunks, self.pause, self.failing) = (Some(chunks), FIRST, false);
                            self.buffer.clear();
                        }
                        Err(refused) if refused.is_retryable() => {
                            let told = std::mem::replace(&mut self.failing, true);
                            if !told {
                                return Ok(Err(refused.into()));
                            }
                            self.remote.clock.sleep(self.pause).await;
                            self.pause = (self.pause * 2).min(LONGEST);
                        }
                        Err(refused) => return Err(refused.into()),
                    }
                    continue;
                }
            };
            match arrived {
                Some(Ok(bytes)) => self.buffer.extend(bytes),
                Some(Err(_)) | None => {
                    self.chunks = None;
                    self.remote.clock.sleep(FIRST).await;
                }
            }
        }
    }

    /// A whole event, if there is one. Comments only say that the service is alive.
    fn event(&mut self) -> Option<Result<KeyStatus, Problem>> {
        loop {
            let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
            let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&event);
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let parsed = match (field("event:"), field("data:")) {
                (Some("status"), Some(data)) => serde_json::from_str(data).ok().map(Ok),
                (Some("problem"), Some(data)) => serde_json::from_str(data).ok().map(Err),
                _ => None,
            };
            if parsed.is_some() {
                return parsed;
            }
        }
    }
}

/// What arrives from now on, as it comes.
async fn connect(remote: &Remote, key: &Key) -> Result<BoxStream<'static, reqwest::Result<Vec<u8>>>, Refused> {
    let silent = |why: String| Refused::Silent(format!("{} did not answer: {why}", remote.base));
    let request = remote.about("/v1/watch", &[("key", key.as_bytes())]);
    let response = request.send().await.map_err(|error| silent(super::innermost(&error)))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec())).boxed());
    }
    Err(match response.bytes().await.ok().and_then(|body| serde_json::from_slice(&body).ok()) {
        Some(problem) => Refused::Problem(Box::new(problem)),
        None => silent(format!("the answer was {status}")),
    })
}
