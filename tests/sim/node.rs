//! A machine: a runtime of its own, which is run for as long as it has anything to do and is dropped when it crashes.

use futures_util::task::AtomicWaker;
use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};
use tokio::runtime::{Builder, Handle, Runtime};

/// Set when a runtime has nothing left to do but wait.
#[derive(Debug, Default)]
struct Idle {
    is: AtomicBool,
    waker: AtomicWaker,
}

/// A runtime on this thread, without timers or sockets: nothing in it can wait for the real world.
#[derive(Debug)]
pub struct Machine {
    runtime: Runtime,
    idle: Arc<Idle>,
}

impl Machine {
    pub fn boot() -> Self {
        let idle = Arc::new(Idle::default());
        let parked = Arc::clone(&idle);
        let mut builder = Builder::new_current_thread();
        builder.on_thread_park(move || {
            parked.is.store(true, Ordering::Relaxed);
            parked.waker.wake();
        });
        let runtime = builder.build().expect("a runtime without drivers needs nothing that could be missing");
        Self { runtime, idle }
    }

    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Runs every task until all of them wait.
    pub fn run(&self) {
        self.idle.is.store(false, Ordering::Relaxed);
        self.runtime.block_on(poll_fn(|context| {
            if self.idle.is.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            self.idle.waker.register(context.waker());
            Poll::Pending
        }));
    }
}
