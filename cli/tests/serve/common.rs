//! A service in a process of its own, and a client for it.

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long a condition may take to come true on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Service {
    child: Child,
    pub(crate) base: String,
    pub(crate) store: PathBuf,
    pub(crate) token: Option<String>,
    client: Client,
    _folder: Option<tempfile::TempDir>,
}

/// An answer: its status, its code if it is a problem, and what it says.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.body[name].as_str().unwrap_or_else(|| panic!("no {name} in {self:?}")).to_owned()
    }

    pub(crate) fn fence(&self) -> u64 {
        self.body["fence"].as_u64().unwrap_or_else(|| panic!("no fence in {self:?}"))
    }

    #[track_caller]
    pub(crate) fn granted(self) -> Self {
        assert_eq!(self.status, 200, "{self:?}");
        self
    }
}

impl Service {
    /// On a store of its own.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut service = Self::start_on(folder.path(), flags);
        service._folder = Some(folder);
        service
    }

    /// With a token.
    pub(crate) fn start_locked(token: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, format!("{token}\n")).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let flags: Vec<&str> = [&["--token-file", &file][..], flags].concat();
        let mut service = Self::start_on(&folder.path().join("store"), &flags);
        service.token = Some(token.to_owned());
        service._folder = Some(folder);
        service
    }

    pub(crate) fn start_on(store: &Path, flags: &[&str]) -> Self {
        let url = url::Url::from_directory_path(store).unwrap();
        let mut service = Self::start_at(url.as_str(), Vec::new(), flags);
        service.store = store.to_owned();
        service
    }

    /// On whatever store, with what the environment says about it.
    pub(crate) fn start_at(url: &str, environment: Vec<(String, String)>, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(["serve", "--store", url]).args(flags).envs(environment);
        if !flags.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let base =
            line.split_whitespace().last().unwrap_or_else(|| panic!("it does not say where: {line:?}")).to_owned();
        let client = Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
        Self { child, base, store: PathBuf::new(), token: None, client, _folder: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> &str {
        self.base.split_once("://").unwrap().1
    }

    /// Dies without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and says how it did.
    pub(crate) fn terminate(&mut self) {
        let status = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let text = response.text().await.unwrap();
        if status >= 400 {
            assert_eq!(kind.as_deref(), Some("application/problem+json"), "{status} {text}");
        }
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        self.send(request.body(body.to_string())).await
    }

    pub(crate) async fn acquire(&self, key: &str, owner: &str) -> Answer {
        self.post("/v1/acquire", json!({ "key": key, "owner": owner })).await
    }

    /// The same request as often as it likes, by its key.
    pub(crate) async fn acquire_again(&self, idempotency_key: &str, body: Value) -> Answer {
        let request = self.request(Method::POST, "/v1/acquire").header("content-type", "application/json");
        self.send(request.header("idempotency-key", idempotency_key).body(body.to_string())).await
    }

    pub(crate) async fn release(&self, lease: &Answer) -> Answer {
        self.post("/v1/release", json!({ "key": lease.text("key"), "lease_id": lease.text("lease_id") })).await
    }

    /// What there is on a key, without touching it.
    pub(crate) async fn holder(&self, key: &str) -> Value {
        self.get(&format!("/v1/lease?peek=true&key={key}")).await.granted().body["holder"].clone()
    }

    /// One series of the metrics.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let scraped = self.get("/metrics").await;
        let text = scraped.body.as_str().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0., |value| value.parse().unwrap())
    }

    /// A connection of its own, with these bytes sent.
    pub(crate) fn raw(&self, bytes: &str) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something is so.
pub(crate) async fn until<F: AsyncFnMut() -> bool>(what: &str, mut condition: F) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "it never came to be that {what}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}
