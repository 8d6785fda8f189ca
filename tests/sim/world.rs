//! True time, and what each machine makes of it. Nothing here waits: time is moved to the next thing that is due.

use crate::events::Trap;
use async_trait::async_trait;
use leasehold::{
    Clock,
    clock::{Moment, Timestamp},
};
use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hasher},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

/// How far the clocks of any two machines may differ, as agreed in the store.
pub const SKEW_MICROS: i64 = 1_000_000;

/// The machine on which the store itself runs: its clock is true, and it never stops.
pub const STORE: usize = 0;

pub const SECOND: i64 = 1_000_000;

/// A machine's clocks.
#[derive(Debug, Default)]
struct Machine {
    /// By how much its monotonic clock is too fast, in millionths, and since when.
    rate: i64,
    origin: i64,
    /// For how long its monotonic clock has stood still so far.
    stood_still: i64,
    /// Since when it stands still.
    still_since: Option<i64>,
    /// How far its wall clock is from true time, and how that grows: so much in a second, since then.
    offset: i64,
    drift: i64,
    drift_since: i64,
    /// Whether it is held within half of the skew, so that any two such machines are within all of it.
    sound: bool,
    /// When its wall clock was last outside of that.
    unsound_at: i64,
    /// When its wall clock was last set.
    set_at: i64,
    /// When its monotonic clock was last resumed.
    stopped_at: i64,
    /// Until when it is not run, and none of its timers fires.
    asleep_until: Option<i64>,
    /// What it falls asleep at, and for how long.
    trap: Option<(Trap, i64, bool)>,
    dirty: bool,
    /// By its monotonic clock.
    timers: BTreeMap<(i64, u64), Waker>,
}

impl Machine {
    fn monotonic(&self, now: i64) -> i64 {
        let ran = self.still_since.unwrap_or(now) - self.stood_still;
        ran + (ran - self.origin) * self.rate / 1_000_000
    }

    /// When that clock will have come to this, in true time and never too early.
    fn when(&self, monotonic: i64) -> i64 {
        if self.rate == 0 {
            return monotonic.saturating_add(self.stood_still);
        }
        let ran = i128::from(monotonic - self.origin) * 1_000_000 / i128::from(1_000_000 + self.rate);
        let ran = i64::try_from(ran).unwrap_or(i64::MAX / 2);
        self.origin.saturating_add(ran).saturating_add(self.stood_still).saturating_add(2)
    }

    fn wake(&mut self, now: i64) {
        self.asleep_until = None;
        self.dirty = true;
        if let Some(since) = self.still_since.take() {
            self.stood_still += now - since;
            self.stopped_at = now;
        }
        // What it read of its clock before it slept may be what it acts on now.
        if self.unsound_at != i64::MAX && self.unsound_at != i64::MIN {
            self.unsound_at = now;
        }
    }

    fn offset(&self, now: i64) -> i64 {
        let offset = self.offset + self.drift * (now - self.drift_since) / SECOND;
        if self.sound { offset.clamp(-SKEW_MICROS / 2, SKEW_MICROS / 2) } else { offset }
    }
}

/// How often a machine stalls in the middle of its work, and for how long.
#[derive(Debug, Clone, Default)]
pub struct Stalls {
    pub per_100_000: u64,
    pub longest: i64,
}

#[derive(Debug)]
struct State {
    now: i64,
    machines: Vec<Machine>,
    number: u64,
    dice: u64,
    stalls: Stalls,
    stalled: u64,
    /// The auditor looks at clocks without disturbing anything.
    watching: bool,
    /// Every wall clock shows the beginning of time, so that only the monotonic clocks count.
    without_wall: bool,
    hash: DefaultHasher,
    line: String,
    lines: Option<Vec<String>>,
}

/// Shared by everything that is simulated.
#[derive(Debug, Clone)]
pub struct World(Arc<Mutex<State>>);

impl World {
    pub fn new(start: Timestamp, machines: usize, seed: u64, stalls: Stalls, traced: bool) -> Self {
        let machine = |_| Machine {
            sound: true,
            unsound_at: i64::MIN,
            set_at: i64::MIN,
            stopped_at: i64::MIN,
            ..Machine::default()
        };
        Self(Arc::new(Mutex::new(State {
            now: start.as_micros(),
            machines: (0..machines).map(machine).collect(),
            number: 0,
            dice: seed | 1,
            stalls,
            stalled: 0,
            watching: false,
            without_wall: false,
            hash: DefaultHasher::new(),
            line: String::new(),
            lines: traced.then(Vec::new),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> i64 {
        self.lock().now
    }

    /// Adds a line to the trace: always to its hash, to its text only if the trace is printed.
    pub fn note(&self, line: fmt::Arguments<'_>) {
        let mut state = self.lock();
        let state = &mut *state;
        state.line.clear();
        // Writing to a string cannot fail.
        let _ = fmt::write(&mut state.line, line);
        state.hash.write_i64(state.now);
        state.hash.write(state.line.as_bytes());
        if let Some(lines) = &mut state.lines {
            let at = Timestamp::from_micros(state.now).to_datetime().unwrap_or_default();
            lines.push(format!("{} {}", at.format("%d %H:%M:%S%.6f"), state.line));
        }
    }

    pub fn hash(&self) -> u64 {
        self.lock().hash.finish()
    }

    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone().unwrap_or_default()
    }

    /// From now on every machine runs as it should.
    pub fn run_smoothly(&self) {
        let mut state = self.lock();
        state.stalls = Stalls::default();
        state.machines.iter_mut().for_each(|machine| machine.trap = None);
    }

    pub fn stalled(&self) -> u64 {
        self.lock().stalled
    }

    /// Looks at clocks as the auditor does: no stall comes of it.
    pub fn watching<T>(&self, look: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.lock().watching, true);
        let seen = look();
        self.lock().watching = before;
        seen
    }

    /// Calls `look` without disturbing anything, and with every wall clock at the beginning of time.
    pub fn without_wall<T>(&self, look: impl FnOnce() -> T) -> T {
        self.lock().without_wall = true;
        let seen = self.watching(look);
        self.lock().without_wall = false;
        seen
    }

    pub fn clock(&self, machine: usize) -> NodeClock {
        NodeClock { world: self.clone(), machine }
    }

    /// Sets a machine's wall clock, and how fast it goes wrong from here on, in microseconds a second.
    pub fn set_clock(&self, machine: usize, offset: i64, drift: i64, sound: bool) {
        let mut state = self.lock();
        let now = state.now;
        let machine = &mut state.machines[machine];
        if !machine.sound {
            machine.unsound_at = now;
        }
        (machine.offset, machine.drift, machine.drift_since, machine.sound) = (offset, drift, now, sound);
        machine.set_at = now;
        if !sound {
            machine.unsound_at = i64::MAX;
        }
    }

    /// Makes a machine's monotonic clock too fast from now on, by so many millionths, or too slow.
    pub fn set_rate(&self, machine: usize, rate: i64) {
        let mut state = self.lock();
        let now = state.now;
        let machine = &mut state.machines[machine];
        (machine.rate, machine.origin) = (rate, now);
    }

    /// Whether the wall clock of a machine has been within its bound ever since.
    pub fn sound_since(&self, machine: usize, since: i64) -> bool {
        self.lock().machines[machine].unsound_at < since
    }

    /// Whether its wall clock was not set since.
    pub fn unset_since(&self, machine: usize, since: i64) -> bool {
        self.lock().machines[machine].set_at < since
    }

    /// Whether its monotonic clock has not stood still since.
    pub fn awake_since(&self, machine: usize, since: i64) -> bool {
        let state = self.lock();
        let machine = &state.machines[machine];
        machine.still_since.is_none() && machine.stopped_at < since
    }

    /// Whether at least one of its clocks was always right: with neither, no machine can know how old anything is.
    pub fn has_a_clock(&self, machine: usize) -> bool {
        self.awake_since(machine, 0) || self.sound_since(machine, 0)
    }

    /// The machine does nothing for this long; with `still`, its monotonic clock does not even count the time.
    pub fn put_to_sleep(&self, machine: usize, lasts: i64, still: bool) {
        let mut state = self.lock();
        let now = state.now;
        let machine = &mut state.machines[machine];
        machine.asleep_until = Some(now + lasts);
        machine.still_since = still.then_some(now);
    }

    /// The machine will be put to sleep just as it does this.
    pub fn set_trap(&self, machine: usize, trap: Trap, lasts: i64, still: bool) {
        self.lock().machines[machine].trap = Some((trap, lasts, still));
    }

    /// Tells of a write, which may be the one that a trap waits for.
    pub fn sends(&self, machine: usize, name: &str) {
        self.spring(machine, |trap| matches!(trap, Trap::Writes(wanted) if name.contains(wanted)));
    }

    /// Tells of a read that the store has just answered, which may be the one that a trap waits for.
    pub fn answers(&self, machine: usize, name: &str) {
        self.spring(machine, |trap| matches!(trap, Trap::Reads(wanted) if name.contains(wanted)));
    }

    fn spring(&self, machine: usize, is_it: impl Fn(Trap) -> bool) {
        let trap = {
            let mut state = self.lock();
            let trap = &mut state.machines[machine].trap;
            if trap.is_some_and(|(trap, ..)| is_it(trap)) { trap.take() } else { None }
        };
        if let Some((trap, lasts, still)) = trap {
            self.note(format_args!("machine {machine} falls asleep for {} ms at {trap:?}", lasts / 1000));
            self.put_to_sleep(machine, lasts, still);
        }
    }

    pub fn is_asleep(&self, machine: usize) -> bool {
        self.lock().machines[machine].asleep_until.is_some()
    }

    /// When it will be awake.
    pub fn awake_at(&self, machine: usize) -> Option<i64> {
        self.lock().machines[machine].asleep_until
    }

    /// Something has come in for a machine.
    pub fn touch(&self, machine: usize) {
        self.lock().machines[machine].dirty = true;
    }

    /// Whether a machine has anything to do; it is about to be done.
    pub fn take_dirty(&self, machine: usize) -> bool {
        let mut state = self.lock();
        let machine = &mut state.machines[machine];
        machine.asleep_until.is_none() && std::mem::take(&mut machine.dirty)
    }

    /// When the next timer is due, or the next machine wakes, in true time.
    pub fn next_timer(&self) -> Option<i64> {
        let state = self.lock();
        let next = state.machines.iter().filter_map(|machine| match machine.asleep_until {
            Some(until) => Some(until),
            None => Some(machine.when(machine.timers.keys().next()?.0)),
        });
        next.min()
    }

    /// Moves time forward and fires what is due.
    pub fn advance_to(&self, then: i64) {
        let mut due = Vec::new();
        {
            let mut state = self.lock();
            state.now = state.now.max(then);
            let now = state.now;
            for machine in &mut state.machines {
                if machine.asleep_until.is_some_and(|until| until <= now) {
                    machine.wake(now);
                }
                if machine.asleep_until.is_some() {
                    continue;
                }
                let monotonic = machine.monotonic(now);
                while let Some(first) = machine.timers.first_entry()
                    && first.key().0 <= monotonic
                {
                    machine.dirty = true;
                    due.push(first.remove());
                }
            }
        }
        due.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// A number below `below`; a generator of its own, so that clocks do not change what clients do.
    fn roll(&mut self, below: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % below.max(1)
    }

    /// Now and then a machine is held up between two of its instructions, for any length of time.
    fn stall(&mut self, machine: usize) {
        if self.watching || machine == STORE || self.stalls.per_100_000 == 0 {
            return;
        }
        if self.roll(100_000) < self.stalls.per_100_000 {
            let longest = self.stalls.longest.unsigned_abs() >> self.roll(4);
            let by = self.roll(longest.max(1)) as i64;
            self.now += by;
            self.stalled += 1;
            self.hash.write_i64(by);
            if let Some(lines) = &mut self.lines {
                lines.push(format!("    machine {machine} stalls for {} ms", by / 1000));
            }
        }
    }
}

/// The clocks of one machine.
#[derive(Clone)]
pub struct NodeClock {
    world: World,
    machine: usize,
}

impl fmt::Debug for NodeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the clock of machine {}", self.machine)
    }
}

#[async_trait]
impl Clock for NodeClock {
    fn wall(&self) -> Timestamp {
        let mut state = self.world.lock();
        state.stall(self.machine);
        if state.without_wall {
            return Timestamp::from_micros(0);
        }
        let now = state.now;
        Timestamp::from_micros(now + state.machines[self.machine].offset(now))
    }

    fn monotonic(&self) -> Moment {
        let mut state = self.world.lock();
        state.stall(self.machine);
        let micros = state.machines[self.machine].monotonic(state.now);
        Moment::from_origin(Duration::from_micros(micros.unsigned_abs()))
    }

    async fn sleep(&self, duration: Duration) {
        let until = {
            let state = self.world.lock();
            let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
            // The real clock counts whole microseconds too: never too early.
            let up = i64::from(!duration.subsec_nanos().is_multiple_of(1000));
            state.machines[self.machine].monotonic(state.now).saturating_add(micros).saturating_add(up)
        };
        Sleep { clock: self, until, number: None }.await;
    }
}

struct Sleep<'a> {
    clock: &'a NodeClock,
    until: i64,
    number: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.world.lock();
        let now = state.now;
        state.number += 1;
        let fresh = state.number;
        let machine = &mut state.machines[self.clock.machine];
        if machine.monotonic(now) >= self.until {
            drop(state);
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or(fresh);
        machine.timers.insert((self.until, number), context.waker().clone());
        drop(state);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let removed = self.clock.world.lock().machines[self.clock.machine].timers.remove(&(self.until, number));
            drop(removed);
        }
    }
}
