//! A user with an empty home, and the program in their hands.

use std::{
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// Longer than anything here takes on a machine that does something else as well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A home directory that nobody has used yet.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.0.path().join(inside)
    }

    /// Where the store is when nothing says otherwise.
    pub(crate) fn store(&self) -> PathBuf {
        self.path(".local/share/leasehold")
    }

    /// The program, with nothing of the machine's own environment but where programs are.
    pub(crate) fn leasehold(&self, arguments: &[&str]) -> Command {
        let mut command = self.at_home(PROGRAM);
        command.args(arguments);
        command
    }

    /// A shell that finds the program.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = self.at_home("sh");
        command.args(["-c", script]);
        command
    }

    fn at_home(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        let folder = PathBuf::from(PROGRAM).parent().unwrap().display().to_string();
        command.env_clear().env("HOME", self.0.path()).env("PATH", format!("{folder}:{path}")).env("USER", "alice");
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.leasehold(arguments).output().unwrap())
    }

    /// Starts it, with what it says kept for later.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.leasehold(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> String {
        let ran = self.run(&[arguments, &["-o", "json"]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out
    }
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The text of a field of flat JSON.
pub(crate) fn field(json: &str, name: &str) -> String {
    let (_, rest) = json.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {json}"));
    rest.trim_start_matches('"').split(['"', ',', '}']).next().unwrap().to_owned()
}

/// Waits until something is so.
#[allow(clippy::disallowed_methods, reason = "real processes have real time")]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for a process that was started, for as long as patience lasts.
pub(crate) fn ended(mut child: Child) -> Ran {
    until("the program ends", || child.try_wait().unwrap().is_some());
    Ran::from(child.wait_with_output().unwrap())
}
