//! Appending: what arrives while one segment is being created goes into the next one.
//!
//! A segment is the next number of its log, created once. Whoever loses the race for a number reads the winner and takes the
//! number after it. The danger is a *stale appender*: a process that was paused between its look at the end of the log and
//! its create, while its number was taken, grew old and was trimmed. Its create succeeds, below the beginning of the log, where
//! nobody reads. So what is answered more than half an hour after the look counts only if the log still begins before it.

use super::{
    Message,
    partition::{Partition, Tail},
    records::Cursor,
    segment::Segment,
};
use crate::{Error, Result, WriteId, storage::Created, stream::look::Look, sync::Locked as _};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::oneshot;

/// The most messages in a segment, and about the most bytes.
pub(crate) const MOST_MESSAGES: usize = 1000;
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// For how long one segment is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one caller wants to append, in one piece.
#[derive(Debug)]
struct Waiting {
    messages: Vec<Message>,
    bytes: usize,
    answer: oneshot::Sender<Result<u64>>,
}

/// What goes into one segment, and who waits for it.
#[derive(Debug)]
struct Flight {
    messages: Vec<Message>,
    answers: Vec<(usize, oneshot::Sender<Result<u64>>)>,
    /// What was sent and may have landed: nobody else may have this body.
    sent: Option<(Cursor, WriteId, Bytes)>,
}

#[derive(Debug, Default)]
struct State {
    tail: Option<Tail>,
    /// Stays here when the future that drives it is dropped: whoever comes next goes on with it.
    flight: Option<Flight>,
}

/// Appends to one log for all of a process.
#[derive(Debug)]
pub(crate) struct Appender {
    partition: Partition,
    queue: Mutex<VecDeque<Waiting>>,
    state: tokio::sync::Mutex<State>,
}

impl Appender {
    pub(crate) fn new(partition: Partition) -> Self {
        Self { partition, queue: Mutex::default(), state: tokio::sync::Mutex::default() }
    }

    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.queue.locked()
    }

    /// Appends messages that fit into one segment, and returns the offset of the first. They stay together and in order.
    pub(crate) async fn append(&self, messages: Vec<Message>) -> Result<u64> {
        let (answer, mut answered) = oneshot::channel();
        let bytes = messages.iter().map(Message::size).sum();
        self.queue().push_back(Waiting { messages, bytes, answer });
        loop {
            let mut state = tokio::select! {
                biased;
                answer = &mut answered => return answer.unwrap_or_else(|_| Err(gone())),
                state = self.state.lock() => state,
            };
            match answered.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => return Err(gone()),
                Err(oneshot::error::TryRecvError::Empty) => self.fly(&mut state).await,
            }
        }
    }

    /// Carries one segment to its end, and tells those who wait for it.
    async fn fly(&self, state: &mut State) {
        if state.flight.is_none() {
            state.flight = self.board();
        }
        let ended = match state.flight.is_some() {
            true => self.land(state).await,
            false => return,
        };
        if ended.is_err() {
            state.tail = None;
        }
        let Some(flight) = state.flight.take() else { return };
        let counters = &self.partition.shared.counters;
        if ended.is_ok() {
            counters.appended(flight.messages.len() as u64);
            counters.segments(1);
        }
        let mut before = 0;
        for (count, answer) in flight.answers {
            let first = ended.clone().map(|base| base + before as u64);
            // Whoever has gone away does not want to know.
            let _ = answer.send(first);
            before += count;
        }
    }

    /// Takes from the queue what fits into one segment.
    fn board(&self) -> Option<Flight> {
        let mut queue = self.queue();
        let mut flight = Flight { messages: Vec::new(), answers: Vec::new(), sent: None };
        let mut bytes = 0;
        while let Some(next) = queue.front() {
            let fits = flight.messages.len() + next.messages.len() <= MOST_MESSAGES && bytes + next.bytes <= MOST_BYTES;
            if !fits && !flight.messages.is_empty() {
                break;
            }
            let Some(next) = queue.pop_front() else { break };
            // Dropped while it waited, and nothing was sent of it.
            if next.answer.is_closed() {
                continue;
            }
            bytes += next.bytes;
            flight.answers.push((next.messages.len(), next.answer));
            flight.messages.extend(next.messages);
        }
        (!flight.messages.is_empty()).then_some(flight)
    }

    /// Creates the segment under the next number, whichever that turns out to be. Returns the offset of its first message.
    async fn land(&self, state: &mut State) -> Result<u64> {
        let backend = &self.partition.shared.backend;
        let give_up = backend.clock.monotonic().plus(PATIENCE);
        loop {
            let tail = match state.tail {
                Some(tail) => tail,
                None => *state.tail.insert(self.partition.tail().await?),
            };
            let Some(flight) = &mut state.flight else { return Err(gone()) };
            let (at, id, body) = match &flight.sent {
                Some(sent) => sent.clone(),
                None => flight.sent.insert(self.seal(&tail, &flight.messages)).clone(),
            };
            let sent = Look::now(backend);
            let left = give_up.since(backend.clock.monotonic());
            let ours =
                |there: &crate::storage::Fetched| Segment::decode(&there.body).is_ok_and(|there| there.write_id == id);
            let created = backend.create_settled(&self.partition.path.segment(at.number), &body, ours, left).await?;
            let is_stale = tail.look.is_stale(backend);
            match created {
                Created::Won => {
                    let next = Cursor { offset: at.offset + flight.messages.len() as u64, number: at.number + 1 };
                    let appended = self.appended(&tail);
                    if is_stale && at.number < self.partition.beginning().await?.first.number {
                        // It lies below the beginning of the log: nobody will read it, and the next trim deletes it.
                        self.partition.shared.counters.stale_appends(1);
                        (flight.sent, state.tail) = (None, None);
                        continue;
                    }
                    state.tail = Some(Tail { next, appended, look: sent });
                    return Ok(at.offset);
                }
                // What is there may itself lie below the beginning.
                Created::Taken(_) if is_stale => (flight.sent, state.tail) = (None, None),
                Created::Taken(there) => {
                    let winner = self.partition.decode(at.number, &there)?;
                    let next = Cursor { offset: winner.end(), number: at.number + 1 };
                    state.tail = Some(Tail { next, appended: winner.appended, look: sent });
                    flight.sent = None;
                    self.partition.shared.counters.lost_races(1);
                }
            }
            if backend.clock.monotonic() >= give_up {
                return Err(Error::unavailable(format!(
                    "{} is appended to too fast by others: try again later",
                    self.partition.path.stream
                )));
            }
        }
    }

    /// By the store's clock, and never before the segment before it.
    fn appended(&self, tail: &Tail) -> crate::clock::Timestamp {
        let backend = &self.partition.shared.backend;
        backend.store_time().unwrap_or_else(|| backend.clock.wall()).max(tail.appended)
    }

    fn seal(&self, tail: &Tail, messages: &[Message]) -> (Cursor, WriteId, Bytes) {
        let backend = &self.partition.shared.backend;
        let write_id = WriteId::random(&*backend.generator);
        let Cursor { offset: base, number } = tail.next;
        let segment = Segment { number, base, write_id, appended: self.appended(tail), messages: messages.to_vec() };
        (tail.next, write_id, segment.encode())
    }
}

/// Only if the task that drove it has panicked.
fn gone() -> Error {
    Error::unknown(
        "whether the messages were appended is not known: what appended them has ended; look at the stream again",
    )
}
