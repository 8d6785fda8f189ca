//! lock and elect: a command that runs while a key is held, and is stopped when it is not.

use crate::{
    config::Config,
    duration,
    exit::{self, Failure, HELD, LOST, Outcome, TIMED_OUT},
    lease::{Asking, held},
    output,
    process::{Child, Reason, Start},
    signals::{Heard, Signal, Signals, stand_still},
    target::{GOODBYE, Guard, Locked, SHORT_GOODBYE, Target, Wanted, in_time, to_ask, to_open},
    view::Holder,
    waiting,
};
use clap::Args;
use leasehold::{Clock, Key, SystemClock};
use std::{ffi::OsString, time::Duration};

/// How a command came to its end.
#[derive(Debug)]
enum Ended {
    Exited(u8),
    /// The lease was lost; a signal that came meanwhile.
    Lost(Option<Signal>),
}

/// How long to wait before standing for election again when the store fails.
const AGAIN: Duration = Duration::from_secs(2);

/// How long to try to give back what was lost: it may still be there, but it ends by itself.
const GIVING_BACK: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct Lock {
    /// What to lock: any text
    key: Key,
    #[command(flatten)]
    run: Run,
    /// Wait for it if somebody else holds it: 10s, or forever
    #[arg(long, value_name = "TIME", value_parser = duration::parse_wait)]
    wait: Option<Duration>,
    /// Let this many hold it at once: a semaphore. All who name it must say the same number
    #[arg(short = 'n', long = "slots", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    slots: Option<u32>,
    /// Hold it for at least so long from when it was granted, also when the command has ended before. For jobs that start by
    /// the clock on several machines: the clocks differ, and the second must not find it free because the first was quick
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    at_least: Option<Duration>,
    /// What to end with when somebody else holds it; with 0 nothing is said either [default: 4, or 124 after waiting]
    #[arg(long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The name of the election: any text
    name: Key,
    #[command(flatten)]
    run: Run,
}

/// What `lock` and `elect` have in common.
#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    asking: Asking,
    /// How long the command may take to end by itself when the lease is lost, before it is killed
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "10s")]
    kill_after: Duration,
    /// The command, with its arguments. It finds LEASEHOLD_KEY, LEASEHOLD_LEASE and LEASEHOLD_FENCE in its environment, and LEASEHOLD_SLOT with -n
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A failure before the command was started is our own.
fn own(failure: Failure) -> Failure {
    match failure.code {
        exit::USAGE | HELD | TIMED_OUT | LOST | exit::NOT_FOUND | exit::NOT_EXECUTABLE => failure,
        _ => Failure { code: exit::OWN_FAILURE, ..failure },
    }
}

/// What became of asking for the key.
enum Asked {
    Granted(Guard),
    Held(Option<Holder>, Duration),
    /// The user wants to go.
    Told(Signal),
}

impl Lock {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let wanted = self.run.wanted(config);
        let mut signals = Signals::new().map_err(own)?;
        let opened = match open(config, self.wait, &mut signals).await? {
            Ok(opened) => opened,
            Err(signal) => return Ok(signal.exit_code()),
        };
        match ask(config, &opened, (&self.key, self.slots), &wanted, self.wait, &mut signals).await.map_err(own)? {
            Asked::Told(signal) => Ok(signal.exit_code()),
            Asked::Held(holder, again) => {
                let failure = held(config, &self.key, holder.as_ref(), again, self.wait);
                if self.conflict_exit_code == Some(0) {
                    tracing::info!("{failure}");
                    return Ok(0);
                }
                Err(Failure { code: self.conflict_exit_code.unwrap_or(failure.code), ..failure })
            }
            Asked::Granted(guard) => match self.run.under(guard, &self.key, config, self.at_least, &mut signals).await?
            {
                Ended::Exited(code) => Ok(code),
                Ended::Lost(_) => Ok(LOST),
            },
        }
    }
}

impl Elect {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let wanted = self.run.wanted(config);
        let mut signals = Signals::new().map_err(own)?;
        let opened = match open(config, None, &mut signals).await? {
            Ok(opened) => opened,
            Err(signal) => return Ok(signal.exit_code()),
        };
        loop {
            match ask(config, &opened, (&self.name, None), &wanted, Some(duration::FOREVER), &mut signals).await {
                Ok(Asked::Told(signal)) => return Ok(signal.exit_code()),
                Ok(Asked::Held(..)) => {}
                Ok(Asked::Granted(guard)) => {
                    tracing::info!(name = %self.name, fence = %guard.fence(), "elected");
                    match self.run.under(guard, &self.name, config, None, &mut signals).await? {
                        Ended::Exited(code) => return Ok(code),
                        // Told to go while the command was being stopped: do not stand again.
                        Ended::Lost(Some(signal)) => return Ok(signal.exit_code()),
                        Ended::Lost(None) => output::say(format_args!("standing for {} again", self.name)),
                    }
                }
                Err(failure) if failure.code == exit::UNAVAILABLE => {
                    output::say(format_args!("warning: {failure}; standing for {} again", self.name));
                    let clock = SystemClock::new();
                    tokio::select! {
                        () = clock.sleep(AGAIN) => {}
                        signal = signals.next() => return Ok(signal.exit_code()),
                    }
                }
                Err(failure) => return Err(own(failure)),
            }
        }
    }
}

/// Opens the store, unless somebody wants to go before it answers.
async fn open(
    config: &Config,
    wait: Option<Duration>,
    signals: &mut Signals,
) -> Result<Result<Target, Signal>, Failure> {
    tokio::select! {
        biased;
        opened = in_time(config, to_open(config, wait), Target::open(config)) => opened.map(Ok).map_err(own),
        signal = signals.next() => Ok(Err(signal)),
    }
}

/// Asks for the key. Whoever is told to go while waiting leaves no lease behind.
async fn ask(
    config: &Config,
    opened: &Target,
    (key, slots): (&Key, Option<u32>),
    wanted: &Wanted,
    wait: Option<Duration>,
    signals: &mut Signals,
) -> Result<Asked, Failure> {
    let asked = {
        let longest = wait.unwrap_or_default();
        let locking = async {
            match slots {
                Some(size) => opened.slot(&config.namespace.value, (key, size), wanted, longest).await,
                None => waiting::told(opened, key, wait, opened.lock(key, wanted, longest)).await,
            }
        };
        tokio::select! {
            biased;
            locked = in_time(config, to_ask(config, wait), locking) => Ok(locked),
            signal = signals.next() => Err(signal),
        }
    };
    match asked {
        Ok(Ok(Locked::Granted(guard))) => Ok(Asked::Granted(guard)),
        Ok(Ok(Locked::Held(holder, again))) => Ok(Asked::Held(holder, again)),
        Ok(Err(failure)) => {
            if failure.code == exit::UNAVAILABLE && wait.is_some_and(|wait| wait < duration::FOREVER) {
                opened.say_goodbye(key, SHORT_GOODBYE).await;
            }
            Err(failure)
        }
        Err(signal) => {
            opened.say_goodbye(key, GOODBYE).await;
            Ok(Asked::Told(signal))
        }
    }
}

impl Run {
    /// What this command asks for. Its note says which process to look for; arguments may be secret, so they stay out.
    fn wanted(&self, config: &Config) -> Wanted {
        let mut wanted = self.asking.wanted(config);
        wanted.note.get_or_insert_with(|| {
            let program =
                self.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
            let program: String = program.chars().take(200).collect();
            format!("pid {}: {program}", std::process::id())
        });
        wanted
    }

    /// Runs the command for as long as the guard is good, and gives the lease back when it is gone.
    async fn under(
        &self,
        guard: Guard,
        key: &Key,
        config: &Config,
        at_least: Option<Duration>,
        signals: &mut Signals,
    ) -> Result<Ended, Failure> {
        let granted = SystemClock::new().monotonic();
        tracing::info!(%key, fence = guard.fence(), lease = guard.lease_id(), "acquired");
        let mut child = match self.start(&guard, key, config).await {
            Ok(child) => child,
            Err(failure) => {
                release(guard, key, Duration::MAX, signals).await;
                return Err(failure);
            }
        };
        let ended = self.run(&guard, key, &mut child, signals).await?;
        let asked = child.asked;
        child.part().await;
        let left = at_least.map(|time| granted.plus(time).since(SystemClock::new().monotonic()));
        if let (Ended::Exited(_), Some(left)) = (&ended, left.filter(|left| !left.is_zero()))
            && !hold(&guard, key, left, asked, signals).await
        {
            output::say(format_args!("told to go: {key} is not given back, and is free when its lease has expired"));
            guard.leave();
            return Ok(ended);
        }
        let limit = if let Ended::Lost(_) = ended { GIVING_BACK } else { Duration::MAX };
        release(guard, key, limit, signals).await;
        Ok(ended)
    }

    async fn start(&self, guard: &Guard, key: &Key, config: &Config) -> Result<Child, Failure> {
        let start = Start::new(&self.command, config, Reason(format!("held {key}")), self.kill_after)?;
        let start = start
            .env("LEASEHOLD_LEASE", guard.lease_id())
            .env("LEASEHOLD_FENCE", guard.fence().to_string())
            .env("LEASEHOLD_KEY", as_argument(key));
        let start = match guard.slot() {
            Some(slot) => start.env("LEASEHOLD_SLOT", slot.to_string()),
            None => start,
        };
        Child::start(start).await
    }

    /// Until the command has ended, or was stopped because the lease is lost.
    async fn run(&self, guard: &Guard, key: &Key, child: &mut Child, signals: &mut Signals) -> Result<Ended, Failure> {
        loop {
            tokio::select! {
                biased;
                code = child.ended() => {
                    // Nobody looked after the lease while the machine was suspended: ask before calling it a success.
                    if guard.is_valid() {
                        return Ok(Ended::Exited(code?));
                    }
                    output::complain(format_args!(
                        "the lease on {key} was lost before the command had ended, {}",
                        why_invalid(guard).await
                    ));
                    return Ok(Ended::Lost(None));
                }
                why = guard.lost() => {
                    output::complain(format_args!("the lease on {key} is lost, {why}: stopping the command"));
                    return Ok(Ended::Lost(child.stop(self.kill_after, Some(signals)).await?));
                }
                heard = signals.heard() => match heard {
                    Heard::Asked(signal) => child.pass_on(signal),
                    Heard::Pause => {
                        child.pause();
                        stand_still();
                    }
                    Heard::Resume if guard.is_valid() => child.resume(),
                    // It was lost meanwhile, and the command is about to be stopped.
                    Heard::Resume => {}
                },
            }
        }
    }
}

/// Holds the key for a while after the command has ended. Whether it may be given back then: who is told to go leaves it to
/// its time to live, which keeps the promise for longer than giving it back would.
async fn hold(guard: &Guard, key: &Key, left: Duration, asked: bool, signals: &mut Signals) -> bool {
    if asked {
        return false;
    }
    tracing::info!(%key, "the command has ended; the key is held for {} more", duration::short(left));
    let clock = SystemClock::new();
    tokio::select! {
        biased;
        why = guard.lost() => {
            let left = duration::short(left);
            output::say(format_args!("warning: the lease on {key} is lost, {why}; it was to be held for {left} more"));
            true
        }
        _ = signals.next() => false,
        () = clock.sleep(left) => true,
    }
}

/// Why a guard is not valid any more. It is found out before it is told.
async fn why_invalid(guard: &Guard) -> String {
    let clock = SystemClock::new();
    tokio::select! {
        biased;
        why = guard.lost() => why,
        () = clock.sleep(Duration::from_secs(2)) => "its time was over before it was renewed".to_owned(),
    }
}

/// Gives the lease back, for as long as nobody wants to go.
async fn release(guard: Guard, key: &Key, limit: Duration, signals: &mut Signals) {
    let clock = SystemClock::new();
    let failed = tokio::select! {
        biased;
        released = guard.release() => released.err().map(|error| error.to_string()),
        _ = signals.next() => Some("told to go".to_owned()),
        () = clock.sleep(limit) => Some("no answer came in time".to_owned()),
    };
    if failed.is_none() {
        tracing::info!(%key, "released");
    }
    if let Some(why) = failed {
        output::say(format_args!("warning: {key} could not be released and will expire by itself: {why}"));
    }
}

fn as_argument(key: &Key) -> OsString {
    #[cfg(unix)]
    {
        std::os::unix::ffi::OsStringExt::from_vec(key.as_bytes().to_vec())
    }
    #[cfg(not(unix))]
    key.to_string().into()
}
