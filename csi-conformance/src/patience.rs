//! Asking again until something has come about, for as long as a call may take.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::Outcome;
use crate::wire::Call;

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

/// Too much at once, which a caller answers by coming again.
pub(crate) fn is_for_later(code: Code) -> bool {
    matches!(code, Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted)
}

/// The call until it is OK or is refused for another reason than what else goes on, as a caller repeats it.
pub(crate) async fn patiently<C: Call>(cx: &Cx, request: C) -> Outcome<C::Answer> {
    let mut wait = cx.patience();
    loop {
        match cx.call(request.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(refusal)
                if matches!(refusal.code, Code::Aborted | Code::Unavailable) && wait.again().await => {}
            Err(refusal) => {
                let due = "OK, once what is pending has ended";
                return Err(cx.failure(&request, wait.words(&cx.told(&refusal)), due));
            }
        }
    }
}

/// All of them at once, and those again that were put off; their answers in the requests' order.
pub(crate) async fn all_at_once<C: Call>(cx: &Cx, requests: Vec<C>) -> Outcome<Vec<C::Answer>> {
    let mut all = Vec::new();
    for (request, answer) in requests.clone().into_iter().zip(cx.at_once(requests).await) {
        all.push(match answer {
            Ok(answer) => answer,
            Err(refusal) if is_for_later(refusal.code) => patiently(cx, request).await?,
            Err(refusal) => {
                let due = "OK, or ABORTED while another is pending";
                return Err(cx.failure(&request, cx.told(&refusal), due));
            }
        });
    }
    Ok(all)
}
