//! What the leases protect: a service that remembers the highest fence it has seen and refuses lower ones. It lives in
//! the driver's process and never dies.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A write that was made, in the order in which they were.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Applied {
    pub(super) key: String,
    pub(super) fence: u64,
    pub(super) lease: String,
    /// The number that the writer has counted to.
    pub(super) count: u64,
    pub(super) id: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Call {
    /// Begins to work with a key: from here on no lower fence gets through. Returns the number that is there.
    Enter { key: String, fence: u64 },
    /// Writes the number that follows the one read.
    Write { key: String, fence: u64, lease: String, count: u64, id: String },
    /// Tells others of a transaction.
    Offer { txn: String },
    /// A transaction that a worker has reported, not too long ago.
    Pick { number: u32 },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Count(u64),
    Done,
    Refused,
    Txn(Option<String>),
}

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<String, (u64, u64)>,
    journal: Vec<Applied>,
    txns: Vec<String>,
}

impl State {
    fn answer(&mut self, call: Call) -> Reply {
        match call {
            Call::Enter { key, fence } => match self.values.entry(key).or_default() {
                (highest, _) if fence < *highest => Reply::Refused,
                (highest, count) => {
                    *highest = fence;
                    Reply::Count(*count)
                }
            },
            Call::Write { key, fence, lease, count, id } => match self.values.entry(key.clone()).or_default() {
                (highest, _) if fence < *highest => Reply::Refused,
                value => {
                    // The whole is replaced: a writer that was not alone would undo another's work.
                    *value = (fence, count);
                    self.journal.push(Applied { key, fence, lease, count, id });
                    Reply::Done
                }
            },
            Call::Offer { txn } => {
                self.txns.push(txn);
                Reply::Done
            }
            Call::Pick { number } => {
                let latest = &self.txns[self.txns.len().saturating_sub(20)..];
                Reply::Txn((!latest.is_empty()).then(|| latest[number as usize % latest.len()].clone()))
            }
        }
    }
}

pub(super) struct Resource {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Resource {
    /// Serves until the process ends.
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { address, state }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn journal(&self) -> Vec<Applied> {
        self.state.lock().unwrap().journal.clone()
    }
}

/// Until the client goes, which it may do in the middle of a line.
fn serve(stream: &TcpStream, state: &Mutex<State>) {
    let _ = stream.set_nodelay(true);
    let mut writer = stream;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(call) = serde_json::from_str(&line) else { return };
        let reply = state.lock().unwrap().answer(call);
        if writeln!(writer, "{}", serde_json::to_string(&reply).unwrap()).is_err() {
            return;
        }
    }
}

/// A process's connection to it.
pub(super) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(super) fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    fn call(&mut self, call: &Call) -> Reply {
        writeln!(self.reader.get_mut(), "{}", serde_json::to_string(call).unwrap()).unwrap();
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// The number that is there; `None` if the fence is too low.
    pub(super) fn enter(&mut self, key: &str, fence: u64) -> Option<u64> {
        match self.call(&Call::Enter { key: key.into(), fence }) {
            Reply::Count(count) => Some(count),
            _ => None,
        }
    }

    pub(super) fn write(&mut self, applied: Applied) -> bool {
        let Applied { key, fence, lease, count, id } = applied;
        matches!(self.call(&Call::Write { key, fence, lease, count, id }), Reply::Done)
    }

    pub(super) fn offer(&mut self, txn: String) {
        self.call(&Call::Offer { txn });
    }

    pub(super) fn pick(&mut self, number: u32) -> Option<String> {
        match self.call(&Call::Pick { number }) {
            Reply::Txn(txn) => txn,
            _ => None,
        }
    }
}
