//! The way from one client to the server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

/// The way from one client to the server. Clones are the same way.
#[derive(Debug, Clone)]
pub struct Link {
    state: watch::Sender<LinkState>,
    crash: Arc<Mutex<Option<Crash>>>,
    is_crashed: watch::Sender<bool>,
}

/// What the way does with requests, answers and the events of watches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinkState {
    /// Requests and answers arrive after this time, in each direction.
    Delay(Duration),
    /// Requests fail at once, and watches end.
    Cut,
    /// Requests arrive, and answers do not.
    AnswersLost,
    /// Nothing arrives until the state changes.
    Held,
}

#[derive(Debug, Clone, Copy)]
struct Crash {
    writes: usize,
    is_last_done: bool,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            state: watch::Sender::new(LinkState::Delay(Duration::from_millis(1))),
            crash: Arc::default(),
            is_crashed: watch::Sender::new(false),
        }
    }

    /// Changes the state.
    pub fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }

    /// The client crashes right after its n-th write from now, not counting events: the write is done, and from then on
    /// nothing arrives in either direction, not even the answer to this write.
    pub fn cut_after(&self, writes: usize) {
        assert!(writes > 0, "`cut_before(1)` lets no write through");
        *self.crash.lock().unwrap() = Some(Crash { writes, is_last_done: true });
    }

    /// The client crashes right before its n-th write from now, not counting events: this write is not done, and from
    /// then on nothing arrives in either direction.
    pub fn cut_before(&self, writes: usize) {
        assert!(writes > 0, "writes are counted from 1");
        *self.crash.lock().unwrap() = Some(Crash { writes, is_last_done: false });
    }

    /// Waits for the crash, so that a test can end the client's tasks at this point.
    pub async fn crashed(&self) {
        // The sender is a field, so it cannot be gone.
        let _ = self.is_crashed.subscribe().wait_for(|crashed| *crashed).await;
    }

    /// Counts a request, and says whether it is served.
    pub(super) fn admits(&self, is_write: bool) -> bool {
        if *self.is_crashed.borrow() {
            return false;
        }
        let mut crash = self.crash.lock().unwrap();
        let Some(planned) = crash.as_mut().filter(|_| is_write) else { return true };
        planned.writes -= 1;
        if planned.writes > 0 {
            return true;
        }
        let is_last_done = planned.is_last_done;
        *crash = None;
        self.set(LinkState::Held);
        self.is_crashed.send_replace(true);
        is_last_done
    }

    /// Passes a request or an answer.
    pub(super) async fn pass(&self, is_answer: bool) -> Result<(), std::io::Error> {
        let mut state = self.state.subscribe();
        loop {
            let now = *state.borrow_and_update();
            match now {
                LinkState::Delay(delay) => {
                    tokio::time::sleep(delay).await;
                    return Ok(());
                }
                LinkState::Cut => return Err(std::io::Error::other("connection refused")),
                LinkState::AnswersLost if !is_answer => return Ok(()),
                LinkState::AnswersLost => std::future::pending().await,
                LinkState::Held => drop(state.changed().await),
            }
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }
}
