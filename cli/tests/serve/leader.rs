//! The sidecar of `deploy/kubernetes/leader-election.yaml` and its application, run as they stand there.

use crate::common::{PATIENCE, Service, until};
use serde_json::json;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Instant,
};

/// The scripts in the file: the application's, then the sidecar's, with their folder in place of `/leader`.
fn scripts(folder: &Path) -> [String; 2] {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/leader-election.yaml");
    let text = std::fs::read_to_string(file).unwrap().replace("/leader/", &format!("{}/", folder.display()));
    let scripts: Vec<String> = text
        .split("            - |\n")
        .skip(1)
        .map(|block| block.lines().map_while(|line| line.strip_prefix("              ")).collect::<Vec<_>>().join("\n"))
        .collect();
    scripts.try_into().expect("two scripts")
}

/// A shell with what it says, killed with everything that it has started: as the end of a container does.
struct Container {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Container {
    fn start(script: &str, service: &Service, pod: &str) -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_leasehold"));
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.args(["-c", script]).env("PATH", path).env("POD_NAME", pod).env("POD_IP", "10.0.0.1");
        command.env("LEASEHOLD_SERVER", &service.base).env_remove("LEASEHOLD_STORE");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (lines, last) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&said));
        std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(|line| *last.lock().unwrap() = line));
        Self { child, said }
    }

    /// What it said last.
    fn says(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Stopped first, so that none sees another one die and puts things in order; then children before their parents, as a
    /// stopped process whose parent dies is woken up.
    fn kill(&mut self) {
        for signal in ["-STOP", "-KILL"] {
            for pid in family(self.child.id()).into_iter().rev() {
                let _ = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status();
            }
        }
        self.child.wait().unwrap();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process and all that come from it.
fn family(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    std::iter::once(pid).chain(children.flat_map(family)).collect()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_killed_sidecar_leaves_no_leader() {
    let folder = tempfile::tempdir().unwrap();
    let fence = folder.path().join("fence");
    let service = Service::start(&[]);
    let [application, sidecar] = scripts(folder.path());
    let app = Container::start(&application, &service, "a");
    let mut leader = Container::start(&sidecar, &service, "a");
    until("the application leads", async || app.says().starts_with("leading with fence ")).await;
    let leads = service.get("/v1/elections/leader?name=scheduler").await.granted();
    assert_eq!(app.says(), format!("leading with fence {}", leads.body["leader"]["fence"]));

    // Everything in the container dies at once: nobody puts anything in order.
    leader.kill();
    let killed = Instant::now();
    assert!(fence.exists(), "the file is left");
    until("the application does not lead", async || app.says() == "following").await;
    assert!(fence.exists() && killed.elapsed() < PATIENCE, "it was the age of the file that told");
    let lease = service.get("/v1/elections/leader?name=scheduler").await.granted();
    assert_eq!(lease.body["leader"]["owner"], "a", "it stops before anybody else can begin: {lease:?}");

    // Somebody else leads by the time that the container is started again.
    let other = json!({ "name": "scheduler", "candidate": "b", "ttl_ms": 60_000, "wait_ms": 30_000 });
    let other = service.post("/v1/elections/campaign", other).await.granted();
    let waiting = Container::start(&sidecar, &service, "a");
    until("the file of the last one is gone", async || !fence.exists()).await;
    assert_eq!(app.says(), "following");
    let resigned = json!({ "key": "scheduler", "lease_id": other.text("lease_id") });
    service.post("/v1/elections/resign", resigned).await.granted();
    until("the application leads again", async || app.says().starts_with("leading with fence ")).await;
    let fence_of = |said: String| said.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(fence_of(app.says()) > other.fence());
    drop(waiting);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_sidecar_whose_elect_alone_is_killed_stops_touching_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let fence = folder.path().join("fence");
    let service = Service::start(&[]);
    let [application, sidecar] = scripts(folder.path());
    let app = Container::start(&application, &service, "a");
    let mut leader = Container::start(&sidecar, &service, "a");
    until("the application leads", async || app.says().starts_with("leading with fence ")).await;
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();
    until("the inner script has ended", async || !fence.exists()).await;
    until("the application does not lead", async || app.says() == "following").await;
}
