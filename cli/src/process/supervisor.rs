//! A small process that ends the command when `leasehold` itself is gone. Nobody can catch `kill -9` or the kernel's
//! out-of-memory killer, but a pipe to a process that has ended is closed: the supervisor waits for that.
//!
//! It leads the command's process group, so the group's number belongs to nobody else for as long as it runs, and it is
//! there before the command is: at no moment does the command run without it.

use super::processes;
use crate::{
    exit::{Failure, OWN_FAILURE},
    output,
    signals::Signals,
};
use leasehold::{Clock, SystemClock, clock::Moment};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use std::{
    ffi::OsString,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
};

/// What the program is called when it is to be the supervisor: no command of its own, for nobody should call it.
const NAME: &str = "leasehold-supervisor";

/// How often to see whether what was told to end is gone.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// The supervisor, as the program sees it.
#[derive(Debug)]
pub(super) struct Supervisor {
    process: Child,
    /// Never closed by us while the command may run: that is what it waits for.
    pipe: ChildStdin,
}

impl Supervisor {
    /// Starts it, and waits until no signal but `KILL` can end it.
    ///
    /// `reason` says why the command runs; `file` is removed if this program is killed.
    pub(super) async fn start(reason: &str, kill_after: Duration, file: Option<&Path>) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let why = "the process that would end the command if this one is killed cannot be started";
            Failure::new(OWN_FAILURE, format!("{why}: {error}; nothing was run"))
        };
        // The program may have been replaced since it was started.
        let program = match std::path::Path::new("/proc/self/exe").exists() {
            true => OsString::from("/proc/self/exe"),
            false => std::env::current_exe().map_err(failed)?.into_os_string(),
        };
        let mut command = Command::new(program);
        command
            .arg0(NAME)
            .arg(kill_after.as_millis().to_string())
            .arg(reason)
            .args(file)
            .current_dir("/")
            .process_group(0);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(pipe), Some(mut ready)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        ready.read_u8().await.map_err(failed)?;
        Ok(Self { process, pipe })
    }

    /// The group that it leads.
    pub(super) fn group(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.process.id()?).ok()?)
    }

    /// Tells it of a command that is not in its group.
    pub(super) async fn guard(&mut self, pid: Pid) {
        // Without a supervisor there is nobody to tell.
        let _ = self.pipe.write_all(format!("{}\n", pid.as_raw_pid()).as_bytes()).await;
    }

    /// The command has ended: what it has left behind on purpose may stay.
    pub(super) async fn dismiss(mut self) {
        // It may be gone already.
        let _ = self.process.kill().await;
    }
}

/// What this process is for, if it was started as a supervisor.
pub(crate) fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next()? != NAME {
        return None;
    }
    let kill_after = arguments.next().and_then(|text| text.to_str()?.parse().ok()).map_or(LOOK, Duration::from_millis);
    let reason = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let code = match supervise(&reason, kill_after, arguments.next().map(PathBuf::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure.message);
            ExitCode::from(failure.code)
        }
    };
    Some(code)
}

fn supervise(reason: &str, kill_after: Duration, file: Option<PathBuf>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("a command is not supervised ({reason}): {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    // From now on it outlives what is sent to the command's group.
    let _signals = runtime.block_on(async { Signals::new() })?;
    io::stdout().write_all(b"!").and_then(|()| io::stdout().flush()).map_err(failed)?;
    let mut guarded = Vec::new();
    // Until nobody holds the other end any more.
    for line in io::stdin().lock().lines() {
        guarded.extend(line.ok().and_then(|line| line.parse::<i32>().ok()));
    }
    let clock = SystemClock::new();
    let deadline = clock.monotonic().plus(kill_after);
    runtime.block_on(async {
        match guarded.is_empty() {
            true => end_group(&clock, deadline, reason).await,
            false => end_tree(guarded, &clock, deadline, reason).await,
        }
    });
    if let Some(file) = file {
        // It and its folder may be gone already; a folder with other files stays.
        let _ = std::fs::remove_file(&file);
        let _ = file.parent().map(std::fs::remove_dir);
    }
    Ok(())
}

fn told(reason: &str) {
    output::complain(format_args!("leasehold was killed while it {reason}: its command was told to stop"));
}

/// Ends the group that this process leads, itself at last.
async fn end_group(clock: &SystemClock, deadline: Moment, reason: &str) {
    let group = getpid();
    if !processes::has_others(group.as_raw_pid(), group.as_raw_pid()) {
        return;
    }
    // It has members: this process is one.
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
    told(reason);
    while processes::has_others(group.as_raw_pid(), group.as_raw_pid()) {
        if deadline.since(clock.monotonic()).is_zero() {
            let _ = kill_process_group(group, Signal::KILL);
            return;
        }
        clock.sleep(LOOK).await;
    }
}

/// Ends a command that shares the group of a terminal's foreground with others, and all that it has started.
async fn end_tree(mut guarded: Vec<i32>, clock: &SystemClock, deadline: Moment, reason: &str) {
    let send = |pids: &[i32], signal: Signal| {
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // It may have ended since it was seen.
            let _ = kill_process(pid, signal);
        }
    };
    let mut asked = Vec::new();
    loop {
        guarded = processes::with_descendants(&guarded, &processes::all());
        if guarded.is_empty() {
            return;
        }
        if deadline.since(clock.monotonic()).is_zero() {
            return send(&guarded, Signal::KILL);
        }
        let new: Vec<i32> = guarded.iter().copied().filter(|pid| !asked.contains(pid)).collect();
        send(&new, Signal::TERM);
        send(&new, Signal::CONT);
        if asked.is_empty() {
            told(reason);
        }
        asked.extend(new);
        clock.sleep(LOOK).await;
    }
}
