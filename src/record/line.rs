//! The right to change one record, which one operation of a process has at a time: a fair lock with two priorities.

use crate::sync::Locked as _;
use std::{
    collections::VecDeque,
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::oneshot;

/// A fair lock: the value goes to those who wait in the order of asking, urgent ones first.
pub(crate) struct Line<T>(Mutex<State<T>>);

struct State<T> {
    /// `None` while it is locked. It is given back to the next in line, so that no newcomer can jump the line.
    free: Option<T>,
    /// Made when an operation has to wait, which on most records never happens.
    waiting: Option<Box<Waiting<T>>>,
}

struct Waiting<T> {
    first: VecDeque<oneshot::Sender<Right<T>>>,
    others: VecDeque<oneshot::Sender<Right<T>>>,
}

/// The priority of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Before all that wait in turn.
    First,
    /// In the order of asking.
    InTurn,
}

/// The locked value. Dropped, it goes to the next in line.
pub(crate) struct Right<T> {
    line: Arc<Line<T>>,
    value: Option<T>,
}

impl<T> Line<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(State { free: Some(value), waiting: None }))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.locked()
    }

    /// The value, if it is not locked; then no operation waits for it either.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Right<T>> {
        let value = self.lock().free.take()?;
        Some(Right { line: Arc::clone(self), value: Some(value) })
    }

    /// Whether it is not locked.
    pub(crate) fn is_free(&self) -> bool {
        self.lock().free.is_some()
    }

    /// The value, when it is this operation's turn. One that is dropped while it waits, or just as it is served, is
    /// passed over.
    pub(crate) async fn take(self: Arc<Self>, order: Order) -> Right<T> {
        loop {
            let served = {
                let mut state = self.lock();
                if let Some(value) = state.free.take() {
                    drop(state);
                    return Right { line: self, value: Some(value) };
                }
                let waiting = state.waiting.get_or_insert_default();
                let (sender, served) = oneshot::channel();
                match order {
                    Order::First => waiting.first.push_back(sender),
                    Order::InTurn => waiting.others.push_back(sender),
                }
                served
            };
            if let Ok(right) = served.await {
                return right;
            }
        }
    }
}

impl<T> State<T> {
    fn next(&mut self) -> Option<oneshot::Sender<Right<T>>> {
        let waiting = self.waiting.as_mut()?;
        let next = waiting.first.pop_front().or_else(|| waiting.others.pop_front());
        if next.is_none() {
            self.waiting = None;
        }
        next
    }
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { first: VecDeque::new(), others: VecDeque::new() }
    }
}

impl<T: Default> Default for Line<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for Line<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("free", &self.lock().free.is_some()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Right<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Right").finish_non_exhaustive()
    }
}

impl<T> Deref for Right<T> {
    type Target = T;

    #[allow(clippy::expect_used, reason = "the value is there until the right is dropped")]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("a right has its value until it is dropped")
    }
}

impl<T> DerefMut for Right<T> {
    #[allow(clippy::expect_used, reason = "the value is there until the right is dropped")]
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("a right has its value until it is dropped")
    }
}

impl<T> Drop for Right<T> {
    fn drop(&mut self) {
        while let Some(value) = self.value.take() {
            let next = {
                let mut state = self.line.lock();
                match state.next() {
                    Some(next) => next,
                    None => {
                        state.free = Some(value);
                        return;
                    }
                }
            };
            // Sent as a right of its own: if it is dropped on the way, with the operation that waited, it goes on from there.
            let right = Self { line: Arc::clone(&self.line), value: Some(value) };
            if let Err(mut unwanted) = next.send(right) {
                self.value = unwanted.value.take();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn line() -> Arc<Line<Vec<u32>>> {
        Arc::default()
    }

    /// Stands in line, and writes its number down when it is served.
    fn stand(line: &Arc<Line<Vec<u32>>>, order: Order, number: u32) -> impl Future<Output = ()> + use<> {
        let line = Arc::clone(line);
        async move { line.take(order).await.push(number) }
    }

    #[test]
    fn urgent_operations_go_first_and_each_in_the_order_of_asking() {
        let line = line();
        let right = line.try_take().expect("free");
        let numbers = [(Order::InTurn, 3), (Order::InTurn, 4), (Order::First, 1), (Order::First, 2)];
        let mut waiting: Vec<_> = numbers.map(|(order, number)| Box::pin(stand(&line, order, number))).into();
        waiting.iter_mut().for_each(|one| assert_eq!(one.now_or_never_by_ref(), None, "it is taken"));
        assert!(line.try_take().is_none(), "it is taken");
        drop(right);
        assert!(line.try_take().is_none(), "nobody jumps the line");
        for served in [2, 3, 0, 1] {
            assert_eq!(waiting[served].now_or_never_by_ref(), Some(()));
        }
        assert_eq!(*line.try_take().expect("free again"), [1, 2, 3, 4]);
    }

    #[test]
    fn one_dropped_while_it_waits_or_as_it_is_served_is_passed_over() {
        let line = line();
        let right = line.try_take().expect("free");
        let mut waiting: Vec<_> = (0..4).map(|number| Box::pin(stand(&line, Order::InTurn, number))).collect();
        waiting.iter_mut().for_each(|one| assert_eq!(one.now_or_never_by_ref(), None));
        let mut last = waiting.pop().expect("four");
        // The second goes while it waits; the first is served and never looks, and then the third as well.
        drop(waiting.remove(1));
        drop(right);
        drop(waiting);
        assert_eq!(last.now_or_never_by_ref(), Some(()));
        assert_eq!(*line.try_take().expect("free again"), [3]);
    }

    #[test]
    fn a_panic_gives_the_right_back() {
        let line = line();
        let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _right = line.try_take().expect("free");
            panic!("on purpose");
        }));
        assert!(panicking.is_err() && line.try_take().is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_at_a_time_has_it_whoever_gives_up_meanwhile() {
        let line: Arc<Line<u64>> = Arc::default();
        let tasks: Vec<_> = (0..64)
            .map(|number| {
                let line = Arc::clone(&line);
                tokio::spawn(async move {
                    let order = if number % 3 == 0 { Order::First } else { Order::InTurn };
                    for _ in 0..200 {
                        let mut right = Arc::clone(&line).take(order).await;
                        let before = *right;
                        tokio::task::yield_now().await;
                        *right = before + 1;
                        drop(right);
                        // Asks once more and does not wait for it.
                        drop(Arc::clone(&line).take(order).now_or_never());
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*line.try_take().expect("free again"), 64 * 200);
    }

    trait PolledOnce: Future + Unpin {
        fn now_or_never_by_ref(&mut self) -> Option<Self::Output> {
            (&mut *self).now_or_never()
        }
    }

    impl<F: Future + Unpin> PolledOnce for F {}
}
