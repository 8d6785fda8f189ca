//! A command that runs for as long as it may: while its lease is held, or its job is ours.

#[cfg(unix)]
use super::{
    processes,
    supervisor::{LOOK, Supervisor},
};
use crate::{
    config::Config,
    exit::{Failure, NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE},
    shell,
    signals::{Signal, Signals},
};
use leasehold::{Clock, SystemClock};
use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::process::{ChildStderr, Command};

/// What the command is run for: said when this program was killed meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct Reason(pub(crate) String);

/// A command that is to be started.
#[derive(Debug)]
pub(crate) struct Start {
    command: Command,
    program: OsString,
    reason: Reason,
    kill_after: Duration,
    /// It reads nothing from a terminal, so it may leave the terminal's foreground.
    own_group: bool,
    /// A file that goes with the command.
    file: Option<PathBuf>,
}

impl Start {
    /// The command, which finds in its environment what this program talks to.
    pub(crate) fn new(
        command: &[OsString],
        config: &Config,
        reason: Reason,
        kill_after: Duration,
    ) -> Result<Self, Failure> {
        let [program, arguments @ ..] = command else { return Err(Failure::usage("there is no command to run")) };
        let mut command = Command::new(program);
        command.args(arguments);
        // So that the program, called by the command, finds the same keys.
        command.env("LEASEHOLD_NAMESPACE", config.namespace.value.as_str());
        match &config.server {
            Some(server) => command.env("LEASEHOLD_SERVER", &server.value),
            None => command.env("LEASEHOLD_STORE", &config.store.value).env_remove("LEASEHOLD_SERVER"),
        };
        Ok(Self { command, program: program.clone(), reason, kill_after, own_group: false, file: None })
    }

    /// With a variable in its environment.
    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.command.env(name, value.into());
        self
    }

    /// Without one that this program was given itself.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Reads this file, which is removed if this program is killed; what it says on stderr goes through a pipe.
    pub(crate) fn reading(mut self, file: PathBuf) -> Result<Self, Failure> {
        let input = std::fs::File::open(&file).map_err(|error| {
            Failure::new(OWN_FAILURE, format!("the payload in {} cannot be read: {error}", file.display()))
        })?;
        self.command.stdin(input).stderr(Stdio::piped());
        (self.own_group, self.file) = (true, Some(file));
        Ok(self)
    }

    /// What it prints goes to stderr.
    #[cfg(unix)]
    pub(crate) fn printing_to_stderr(mut self) -> Self {
        if let Ok(stderr) = std::os::fd::AsFd::as_fd(&io::stderr()).try_clone_to_owned() {
            self.command.stdout(stderr);
        }
        self
    }

    #[cfg(not(unix))]
    pub(crate) fn printing_to_stderr(mut self) -> Self {
        self.command.stdout(Stdio::null());
        self
    }
}

#[derive(Debug)]
pub(crate) struct Child {
    child: tokio::process::Child,
    /// Whether somebody has asked it to end, or us.
    pub(crate) asked: bool,
    /// Ends the command if this process is killed. Whatever makes us forget the command without having waited for it ends
    /// it, too.
    #[cfg(unix)]
    supervisor: Supervisor,
    /// The whole group of the command is signalled where it has one of its own, led by its supervisor: away from a terminal.
    /// On a terminal it stays in ours, or it could not read from it.
    #[cfg(unix)]
    group: Option<rustix::process::Pid>,
    #[cfg(unix)]
    pid: Option<rustix::process::Pid>,
    /// Whether it was passed a signal: what it has started was as well, and may take longer to end.
    #[cfg(unix)]
    told: bool,
    /// Whether it stands still because we do.
    #[cfg(unix)]
    paused: bool,
}

impl Child {
    pub(crate) async fn start(start: Start) -> Result<Self, Failure> {
        let Start { mut command, program, reason, kill_after, own_group, file } = start;
        #[cfg(unix)]
        let mut supervisor = Supervisor::start(&reason.0, kill_after, file.as_deref()).await?;
        #[cfg(unix)]
        let group = supervisor.group().filter(|_| own_group || !io::IsTerminal::is_terminal(&io::stdin()));
        #[cfg(unix)]
        if let Some(group) = group {
            command.process_group(group.as_raw_pid());
        }
        #[cfg(not(unix))]
        let _ = (kill_after, own_group, reason, file);
        let child = command.spawn().map_err(|error| {
            let name = program.to_string_lossy();
            match error.kind() {
                io::ErrorKind::NotFound => Failure::new(NOT_FOUND, not_found(&name)),
                _ => Failure::new(NOT_EXECUTABLE, format!("{name} cannot be executed: {error}")),
            }
        })?;
        #[cfg(unix)]
        let pid = child.id().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        #[cfg(unix)]
        if let (None, Some(pid)) = (group, pid) {
            supervisor.guard(pid).await;
        }
        Ok(Self {
            #[cfg(unix)]
            pid,
            #[cfg(unix)]
            supervisor,
            #[cfg(unix)]
            group,
            #[cfg(unix)]
            told: false,
            #[cfg(unix)]
            paused: false,
            asked: false,
            child,
        })
    }

    /// Waits for its end: its exit code, or as a shell reports the signal that ended it. Once a signal was passed on, also
    /// for the end of all that it has started: that may be at work still, to leave things in order.
    pub(crate) async fn ended(&mut self) -> Result<u8, Failure> {
        let status = self.child.wait().await;
        #[cfg(unix)]
        while self.told && self.is_left() {
            SystemClock::new().sleep(LOOK).await;
        }
        status
            .map(code)
            .map_err(|error| Failure::new(OWN_FAILURE, format!("the command cannot be waited for: {error}")))
    }

    /// What it says on stderr, if that goes through a pipe.
    pub(crate) fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// It has ended, and what it has left behind on purpose may stay.
    pub(crate) async fn part(self) {
        #[cfg(unix)]
        self.supervisor.dismiss().await;
    }

    #[cfg(unix)]
    pub(crate) fn pass_on(&mut self, signal: Signal) {
        self.asked = true;
        // In a group of its own it has heard nothing yet.
        if self.group.is_some() || !signal.came_from_the_terminal() {
            self.told = true;
            self.kill(signal.0);
        }
    }

    /// It must not run on while nobody renews its lease. In our own group it was told when we were, and may have something
    /// to put in order first.
    #[cfg(unix)]
    pub(crate) fn pause(&mut self) {
        if self.group.is_some() {
            self.paused = true;
            self.kill(rustix::process::Signal::STOP);
        }
    }

    #[cfg(unix)]
    pub(crate) fn resume(&mut self) {
        if std::mem::take(&mut self.paused) {
            self.kill(rustix::process::Signal::CONT);
        }
    }

    #[cfg(unix)]
    fn kill(&self, signal: rustix::process::Signal) {
        // It may be gone already.
        let _ = match (self.group, self.pid) {
            (Some(group), _) => rustix::process::kill_process_group(group, signal),
            (None, Some(pid)) => rustix::process::kill_process(pid, signal),
            (None, None) => Ok(()),
        };
    }

    /// The group of processes that it is in, if that is its own.
    #[cfg(unix)]
    pub(crate) fn group(&self) -> Option<rustix::process::Pid> {
        self.group
    }

    /// Whether anything of it is left.
    #[cfg(unix)]
    fn is_left(&self) -> bool {
        self.group.is_some_and(|group| processes::has_others(group.as_raw_pid(), group.as_raw_pid()))
    }

    /// Makes it end: asked first, killed when it takes too long. Returns when it is gone, with what came meanwhile: `signals`
    /// are passed on, if somebody listens to them here.
    #[cfg(unix)]
    pub(crate) async fn stop(
        &mut self,
        kill_after: Duration,
        mut signals: Option<&mut Signals>,
    ) -> Result<Option<Signal>, Failure> {
        let clock = SystemClock::new();
        let deadline = clock.monotonic().plus(kill_after);
        let (mut told, mut killed, mut gone) = (None, false, false);
        self.kill(rustix::process::Signal::TERM);
        // Whatever stands still hears it when it goes on.
        self.kill(rustix::process::Signal::CONT);
        loop {
            if gone && (killed || !self.is_left()) {
                return Ok(told);
            }
            let left = deadline.since(clock.monotonic());
            let pause = if gone { left.min(LOOK) } else { left };
            tokio::select! {
                biased;
                ended = self.child.wait(), if !gone => {
                    ended.map_err(|error| Failure::new(OWN_FAILURE, format!("the command cannot be waited for: {error}")))?;
                    gone = true;
                }
                signal = next(&mut signals) => {
                    told = Some(signal);
                    self.pass_on(signal);
                }
                () = clock.sleep(pause), if !killed => {
                    if deadline.since(clock.monotonic()).is_zero() {
                        self.kill(rustix::process::Signal::KILL);
                        killed = true;
                    }
                }
            }
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn pass_on(&mut self, _: Signal) {
        self.asked = true;
    }

    #[cfg(not(unix))]
    pub(crate) fn pause(&mut self) {}

    #[cfg(not(unix))]
    pub(crate) fn resume(&mut self) {}

    #[cfg(not(unix))]
    pub(crate) async fn stop(&mut self, _: Duration, _: Option<&mut Signals>) -> Result<Option<Signal>, Failure> {
        let killed = self.child.kill().await;
        killed.map_err(|error| Failure::new(OWN_FAILURE, format!("the command cannot be killed: {error}")))?;
        Ok(None)
    }
}

/// The next signal, if anybody listens.
#[cfg(unix)]
async fn next(signals: &mut Option<&mut Signals>) -> Signal {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// What is a line for a shell in one word is not the name of a program.
fn not_found(name: &str) -> String {
    match name.contains([' ', '|', ';', '&', '>', '<']) {
        true => format!("{name} was not found; if it is a line for a shell, write: -- sh -c {}", shell::quoted(name)),
        false => format!("{name} was not found: check its spelling"),
    }
}

/// Its exit code, or as a shell reports the signal that ended it.
fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().map_or(OWN_FAILURE, |code| u8::try_from(code).unwrap_or(u8::MAX))
}
