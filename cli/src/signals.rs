//! The signals by which somebody asks the program, or the command that it runs, to end, to stand still or to go on.

#[cfg(unix)]
pub(crate) use unix::{Signal, Signals, stand_still};

#[cfg(not(unix))]
pub(crate) use other::{Signal, Signals, stand_still};

/// What somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(unix), expect(dead_code, reason = "nobody can ask for it there"))]
pub(crate) enum Heard {
    /// To end, or what the command has been taught.
    Asked(Signal),
    /// Ctrl-Z.
    Pause,
    /// To go on after a pause.
    Resume,
}

#[cfg(unix)]
mod unix {
    use super::Heard;
    use crate::exit::Failure;
    use futures_util::future::{poll_fn, select_all};
    use rustix::process::Signal as Number;
    use std::pin::pin;
    use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

    /// Everything by which somebody asks a program to end, or to do what it has been taught.
    const PASSED_ON: [Number; 6] = [Number::INT, Number::TERM, Number::HUP, Number::QUIT, Number::USR1, Number::USR2];
    /// By which somebody lets it stand still, and go on.
    const TAKEN: [Number; 2] = [Number::TSTP, Number::CONT];

    /// Until somebody lets the program go on. Perhaps not before this returns: the system stops one thread after the other.
    pub(crate) fn stand_still() {
        // It is there to be signalled, and by itself it may be.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Number::STOP);
    }

    /// One that has come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Signal(pub(crate) Number);

    impl Signal {
        /// As a shell would report a program that ended by it.
        pub(crate) fn exit_code(self) -> u8 {
            u8::try_from(128 + self.0.as_raw()).unwrap_or(u8::MAX)
        }

        /// Whether it asks a program that has been taught nothing else to end.
        pub(crate) fn asks_to_end(self) -> bool {
            !matches!(self.0, Number::USR1 | Number::USR2)
        }

        /// The terminal has sent it to the whole foreground, which the command is part of: once is enough.
        pub(crate) fn came_from_the_terminal(self) -> bool {
            let ours = || Some(rustix::termios::tcgetpgrp(std::io::stdin()).ok()? == rustix::process::getpgrp());
            matches!(self.0, Number::INT | Number::QUIT) && ours().unwrap_or(false)
        }
    }

    /// Whether whoever started us has switched a signal off; where that cannot be found out, it is not.
    fn is_ignored(number: Number) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        ignored & (1 << (number.as_raw() - 1)) != 0
    }

    /// Listening, from when it was made: no signal ends the program any more.
    #[derive(Debug)]
    pub(crate) struct Signals(Vec<(Number, Stream)>);

    impl Signals {
        pub(crate) fn new() -> Result<Self, Failure> {
            let listen = |number: Number| Ok((number, signal(SignalKind::from_raw(number.as_raw()))?));
            // Whoever was started to survive the terminal's end (`nohup`), or not to be stopped from it, is left alone.
            let kept = |number: &Number| matches!(*number, Number::HUP | Number::TSTP) && is_ignored(*number);
            let wanted = PASSED_ON.into_iter().chain(TAKEN).filter(|number| !kept(number));
            let streams: std::io::Result<_> = wanted.map(listen).collect();
            Ok(Self(streams.map_err(|error| Failure::failed(format!("signals cannot be received: {error}")))?))
        }

        /// The next that asks to end. Pauses are taken on the way.
        pub(crate) async fn next(&mut self) -> Signal {
            loop {
                match self.heard().await {
                    Heard::Asked(signal) => return signal,
                    Heard::Pause => stand_still(),
                    Heard::Resume => {}
                }
            }
        }

        pub(crate) async fn heard(&mut self) -> Heard {
            let next = self.0.iter_mut().map(|(number, stream)| {
                let number = *number;
                Box::pin(async move {
                    let mut stream = pin!(stream);
                    poll_fn(|context| stream.poll_recv(context)).await;
                    Signal(number)
                })
            });
            match select_all(next).await.0 {
                Signal(Number::TSTP) => Heard::Pause,
                Signal(Number::CONT) => Heard::Resume,
                signal => Heard::Asked(signal),
            }
        }
    }
}

#[cfg(not(unix))]
mod other {
    use super::Heard;
    use crate::exit::Failure;

    pub(crate) fn stand_still() {}

    /// Ctrl-C.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Signal;

    impl Signal {
        pub(crate) fn exit_code(self) -> u8 {
            130
        }

        pub(crate) fn asks_to_end(self) -> bool {
            true
        }
    }

    #[derive(Debug)]
    pub(crate) struct Signals;

    impl Signals {
        pub(crate) fn new() -> Result<Self, Failure> {
            Ok(Self)
        }

        pub(crate) async fn next(&mut self) -> Signal {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            Signal
        }

        pub(crate) async fn heard(&mut self) -> Heard {
            Heard::Asked(self.next().await)
        }
    }
}
