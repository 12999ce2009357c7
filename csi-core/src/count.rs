//! A count of what runs, and the wait until nothing does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::sync::Notify;

/// Counts what runs. A clone shares the count.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<State>);

#[derive(Default)]
struct State {
    running: AtomicUsize,
    /// Wakes those who wait, whenever nothing runs any more.
    ended: Notify,
}

impl Count {
    /// Counts one more, until the returned value is dropped.
    pub(crate) fn begin(&self) -> Counted {
        self.0.running.fetch_add(1, SeqCst);
        Counted(Arc::clone(&self.0))
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.running.load(SeqCst) == 0
    }

    /// Completes when nothing runs, although something can begin at once again.
    pub(crate) async fn zero(&self) {
        let ended = self.0.ended.notified();
        let mut ended = std::pin::pin!(ended);
        // From here on no end is missed.
        ended.as_mut().enable();
        if !self.is_zero() {
            ended.await;
        }
    }
}

/// Something that runs.
pub(crate) struct Counted(Arc<State>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, SeqCst) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn the_wait_completes_with_the_last_end() {
        let mut context = Context::from_waker(Waker::noop());
        let count = Count::default();
        let first = count.begin();
        let second = count.clone().begin();
        let zero = count.zero();
        let mut zero = std::pin::pin!(zero);
        assert!(zero.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(zero.as_mut().poll(&mut context).is_pending() && !count.is_zero());
        drop(second);
        let _begun_again = count.begin();
        assert!(zero.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn the_wait_completes_at_once_while_nothing_runs() {
        let count = Count::default();
        drop(count.begin());
        let zero = count.zero();
        assert!(std::pin::pin!(zero).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
