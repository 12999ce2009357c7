//! Counts running operations, and notifies when none is left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts without a lock: a waiter first announces itself, and the last operation notifies only if there is
/// a waiter.
#[derive(Default)]
pub(crate) struct InFlight {
    running: AtomicUsize,
    awaited: AtomicBool,
    none_left: Notify,
}

impl InFlight {
    pub(crate) fn enter(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self) {
        // Each side writes first and then reads what the other wrote, in one total order (SeqCst): either
        // the waiter sees a count of zero, or this code sees that there is a waiter.
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 && self.awaited.load(Ordering::SeqCst) {
            self.none_left.notify_waiters();
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.running.load(Ordering::SeqCst) == 0
    }

    pub(crate) async fn none(&self) {
        self.awaited.store(true, Ordering::SeqCst);
        loop {
            let mut told = std::pin::pin!(self.none_left.notified());
            told.as_mut().enable();
            if self.is_zero() {
                return;
            }
            told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_last_one_out_wakes_who_waits() {
        for _ in 0..500 {
            let count = Arc::new(InFlight::default());
            count.enter();
            let waiter = tokio::spawn({
                let count = Arc::clone(&count);
                async move { count.none().await }
            });
            let leaver = tokio::spawn({
                let count = Arc::clone(&count);
                async move { count.leave() }
            });
            leaver.await.unwrap();
            let patience = std::time::Duration::from_secs(10);
            tokio::time::timeout(patience, waiter).await.expect("it is told").unwrap();
        }
    }
}
