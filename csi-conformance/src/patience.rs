//! Asking again until something has come about, for as long as a call may take.

use std::time::Duration;

use tokio::time::Instant;

use crate::cx::Cx;

/// How often somebody asked, and how long it may go on.
pub(crate) struct Patience {
    rounds: u32,
    since: Instant,
    most: Duration,
}

impl Cx {
    /// From now on.
    pub(crate) fn patience(&self) -> Patience {
        Patience { rounds: 0, since: Instant::now(), most: self.settings.deadline }
    }
}

impl Patience {
    /// Waits before the next question, longer each time; false when there is to be none.
    pub(crate) async fn again(&mut self) -> bool {
        if self.since.elapsed() >= self.most {
            return false;
        }
        // The first two come at once: much is there already when it is asked for again.
        let millis = (u64::from(self.rounds).saturating_sub(1) * 20).min(500);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        self.rounds += 1;
        true
    }

    /// What came all the time, in words.
    pub(crate) fn words(&self, came: &str) -> String {
        format!("{came}, {} times in {:.0} s", self.rounds + 1, self.since.elapsed().as_secs_f64())
    }
}
