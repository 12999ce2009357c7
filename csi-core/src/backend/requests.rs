//! Requests to a backend that is slow, limits its callers, or fails now and then.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::time::{Instant, sleep, timeout_at};

use super::failure::Failure;
use super::rate_limit::RateLimit;
use crate::error::{Error, Result};

/// The pauses between repeated requests by default: from one to two times this, then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A limit without an end: 100 years. No clock counts to the end of `Duration::MAX`.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The longest time for which a `Retry-After` stops all requests.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// How a driver talks to its backend: not faster than the backend allows, again after a failure that passes, and
/// until an operation of the backend has ended. A clone is the same backend.
///
/// ```
/// # use csi_core::backend::{Backend, Failure};
/// # use csi_core::{Result, prelude::*};
/// # struct Disk { id: String }
/// # struct Api;
/// # impl Api {
/// #     async fn create_disk(&self, _: &str, _: u64) -> Result<Disk, Failure> { Ok(Disk { id: "d-1".into() }) }
/// #     async fn is_ready(&self, _: &str) -> Result<Option<()>, Failure> { Ok(Some(())) }
/// # }
/// use std::time::Duration;
///
/// struct Driver {
///     api: Api, // one HTTP request in each method
///     backend: Backend,
/// }
///
/// impl Driver {
///     fn new(api: Api) -> Self {
///         Self { api, backend: Backend::new().rate(20, Duration::from_secs(1)) }
///     }
///
///     async fn create(&self, request: &CreateVolumeRequest) -> Result<Volume> {
///         let size = request.capacity_range.choose(10 << 30, 1 << 30)?;
///         // The API returns the disk of this name if it exists: so a repeated request makes no second disk.
///         let disk = self.backend.request(|| self.api.create_disk(request.name.as_str(), size)).await?;
///         self.backend.poll(|| self.api.is_ready(&disk.id)).await?;
///         Ok(Volume::new(VolumeId::new(disk.id)?, size))
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # use csi_core::proto::v1;
/// # let wire = v1::CreateVolumeRequest {
/// #     name: "pvc-1".into(),
/// #     volume_capabilities: vec![v1::VolumeCapability {
/// #         access_mode: Some(v1::volume_capability::AccessMode { mode: 1 }),
/// #         access_type: Some(v1::volume_capability::AccessType::Block(Default::default())),
/// #     }],
/// #     ..Default::default()
/// # };
/// # Driver::new(Api).create(&wire.try_into()?).await.map(drop) }
/// ```
///
/// Nothing here needs to know about the caller's deadline: the driver's method runs to its end, and a repeated call
/// joins it. A call can therefore take longer than the process lives: see [the module](super#after-a-restart).
#[derive(Debug, Clone)]
pub struct Backend {
    limit: Arc<RateLimit>,
    request_time_limit: Duration,
    poll_time_limit: Duration,
    first_pause: Duration,
}

impl Default for Backend {
    fn default() -> Self {
        Self {
            limit: Arc::new(RateLimit::new(Duration::ZERO, 1)),
            request_time_limit: Duration::from_secs(60),
            poll_time_limit: Duration::from_secs(600),
            first_pause: FIRST_PAUSE,
        }
    }
}

impl Backend {
    /// Creates a backend without a rate limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends at most this many requests at once, and as many in each period: the backend's limit for one account. All
    /// calls share it. 0 requests mean no limit.
    #[must_use]
    pub fn rate(mut self, requests: u32, period: Duration) -> Self {
        let interval = period.min(LONGEST).checked_div(requests).unwrap_or_default();
        self.limit = Arc::new(RateLimit::new(interval, requests.max(1)));
        self
    }

    /// How long [`request`](Self::request) repeats a request, with its pauses, from its first turn by the
    /// [`rate`](Self::rate) on. The default is one minute.
    #[must_use]
    pub fn request_time_limit(mut self, limit: Duration) -> Self {
        self.request_time_limit = limit.min(LONGEST);
        self
    }

    /// How long [`poll`](Self::poll) waits for the end of an operation. The default is ten minutes.
    #[must_use]
    pub fn poll_time_limit(mut self, limit: Duration) -> Self {
        self.poll_time_limit = limit.min(LONGEST);
        self
    }

    /// The pause before the first repetition: from one to two times this. Each further one is twice as long, at most 30
    /// seconds. The default is 500 ms; a test with a fake backend sets a few milliseconds.
    #[must_use]
    pub fn first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause.min(LONGEST);
        self
    }

    /// Sends a request, and repeats it after a temporary [`Failure`], with growing random pauses, and not before
    /// `Retry-After` says. `Retry-After` stops the requests of all calls, for five minutes at most.
    ///
    /// A repetition must be harmless: the request names what it creates, by an idempotency key or a unique name. If the
    /// API has neither, let each attempt look for the object by its tag first.
    ///
    /// # Errors
    /// - That of a final failure, at once.
    /// - That of the last temporary failure, when no further attempt fits into the time limit. After an attempt with
    ///   [`Error::OutcomeUnknown`] it is that error too if the backend was not available, or refused the credentials.
    /// - [`Error::OutcomeUnknown`] for an attempt that has not ended by then.
    pub async fn request<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut pauses = self.pauses();
        self.limit.wait().await;
        let end = Instant::now() + self.request_time_limit;
        let mut is_unknown = false;
        loop {
            let answer = timeout_at(end, attempt()).await.unwrap_or_else(|_| Err(self.unanswered()));
            let Failure { mut error, retry_after } = match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            is_unknown |= matches!(error, Error::OutcomeUnknown(_));
            if is_unknown {
                error = as_unknown(error);
            }
            let Some(asked) = retry_after else { return Err(error) };
            let asked = asked.min(LONGEST_RETRY_AFTER);
            if !asked.is_zero() {
                self.limit.pause(asked);
            }
            let pause = pauses.next().unwrap_or(LONGEST_PAUSE).max(asked);
            if Instant::now() + pause >= end {
                return Err(error);
            }
            tracing::debug!("the backend is asked again in {:.1}s: {error}", pause.as_secs_f64());
            sleep(pause).await;
            self.limit.wait().await;
            if Instant::now() >= end {
                return Err(error);
            }
        }
    }

    /// Asks again and again, by [`request`](Self::request), until an operation of the backend has ended: `look` returns
    /// `None` while it runs.
    ///
    /// # Errors
    /// - That of a final failure: so `look` returns one if the operation has failed.
    /// - [`Error::OutcomeUnknown`] if the operation still runs at the time limit, or if the backend does not answer, or
    ///   refuses the driver's credentials. The caller then sees UNAVAILABLE and repeats its call.
    pub async fn poll<T, F>(&self, mut look: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<Option<T>, Failure>>,
    {
        let end = Instant::now() + self.poll_time_limit;
        let mut pauses = self.pauses();
        loop {
            match self.request(&mut look).await {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {}
                Err(error) => return Err(as_unknown(error)),
            }
            let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
            if Instant::now() + pause >= end {
                let limit = self.poll_time_limit.as_secs();
                return Err(Error::OutcomeUnknown(
                    format!("the backend has not finished within {limit} s; it goes on").into(),
                ));
            }
            sleep(pause).await;
        }
    }

    fn unanswered(&self) -> Failure {
        let limit = self.request_time_limit.as_secs();
        Error::OutcomeUnknown(format!("the backend has not answered within {limit} s").into()).into()
    }

    fn pauses(&self) -> impl Iterator<Item = Duration> {
        let policy = ExponentialBuilder::new().with_min_delay(self.first_pause).with_max_delay(LONGEST_PAUSE);
        policy.with_jitter().without_max_times().build()
    }
}

/// Something was begun, and goes on whether or not the backend says how far it is.
fn as_unknown(error: Error) -> Error {
    match error {
        Error::Unavailable(reason) | Error::Unhealthy(reason) => Error::OutcomeUnknown(reason),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn refused(status: u16, retry_after: Option<&str>) -> Failure {
        Failure::from_http(status, retry_after, format!("status {status}"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_temporary_failure_is_repeated_with_growing_pauses() {
        let begun = Instant::now();
        let times = std::cell::RefCell::new(Vec::new());
        let answer = Backend::new()
            .request(|| async {
                let mut times = times.borrow_mut();
                times.push(begun.elapsed());
                if times.len() < 6 { Err(refused(500, None)) } else { Ok(times.len()) }
            })
            .await;
        assert_eq!(answer.unwrap(), 6);
        let times = times.into_inner();
        let pauses: Vec<f64> = times.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect();
        for (pause, least) in pauses.iter().zip([0.5, 1.0, 2.0, 4.0, 8.0]) {
            // A timer of tokio has a granularity of a millisecond.
            assert!((least..=2.0 * least + 0.002).contains(pause), "{pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_limit_can_have_no_end() {
        let no_end = Duration::MAX;
        let backend = Backend::new().rate(1, no_end).request_time_limit(no_end).poll_time_limit(no_end);
        assert_eq!(backend.poll(|| async { Ok(Some(1)) }).await.unwrap(), 1);
        let refused =
            backend.first_pause(no_end).request(|| async { Err::<(), _>(refused(500, None)) }).await;
        assert!(refused.is_err(), "no pause fits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_final_failure_is_not_repeated() {
        let attempts = Cell::new(0);
        let answer: Result<()> = Backend::new()
            .request(|| async {
                attempts.set(attempts.get() + 1);
                Err(refused(403, None))
            })
            .await;
        assert!(matches!(answer, Err(Error::Unhealthy(_))));
        assert_eq!(attempts.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_error_is_the_answer_when_time_is_over() {
        let backend = Backend::new().request_time_limit(Duration::from_secs(20));
        let begun = Instant::now();
        let answer: Result<()> = backend.request(|| async { Err(refused(503, None)) }).await;
        assert!(matches!(answer, Err(Error::Unavailable(_))));
        assert!(begun.elapsed() <= Duration::from_secs(20));

        let answer: Result<()> = backend.request(std::future::pending).await;
        let error = answer.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
        assert_eq!(error.to_string(), "the backend has not answered within 20 s");
    }

    /// Also a date that the driver's own clock has passed already.
    #[tokio::test(start_paused = true)]
    async fn a_retry_after_of_no_time_does_not_end_the_pauses() {
        for now in ["0", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            let attempts = Cell::new(0);
            let answer: Result<()> = Backend::new()
                .request(|| async {
                    attempts.set(attempts.get() + 1);
                    if attempts.get() < 100 { Err(refused(503, Some(now))) } else { Ok(()) }
                })
                .await;
            assert!(attempts.get() < 10, "{now}: {} requests in a minute", attempts.get());
            assert!(matches!(answer, Err(Error::Unavailable(_))));
        }
    }

    /// The wait for a turn is not a part of the time limit, and a turn that comes too late is not used.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_waited_long_for_its_turn_is_not_cut_short() {
        let backend = Backend::new().rate(1, Duration::from_secs(1));
        let call = async |backend: Backend, number: u32| {
            let mut attempts = 0;
            let attempt = || {
                attempts += 1;
                async move {
                    sleep(Duration::from_secs(1)).await;
                    if number == 0 { Err(refused(503, None)) } else { Ok(()) }
                }
            };
            (backend.request(attempt).await, attempts)
        };
        let calls: Vec<_> = (0..200).map(|number| tokio::spawn(call(backend.clone(), number))).collect();
        for (number, call) in calls.into_iter().enumerate() {
            let (answer, attempts) = call.await.unwrap();
            let is_due =
                if number == 0 { matches!(answer, Err(Error::Unavailable(_))) } else { answer.is_ok() };
            assert!(is_due && attempts == 1, "{number}: {attempts} attempts, {answer:?}");
        }
    }

    /// The first attempt can have begun what the others were refused: INTERNAL would make the provisioner forget it.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_an_answer_is_not_forgotten() {
        for (statuses, is_unknown) in [([503, 503], false), ([504, 503], true), ([504, 401], true)] {
            let mut attempts = statuses.into_iter().chain(std::iter::repeat(503));
            let attempt = || {
                let status = attempts.next().unwrap();
                async move { Err(refused(status, None)) }
            };
            let answer: Result<()> = Backend::new().request(attempt).await;
            let error = answer.unwrap_err();
            assert_eq!(matches!(error, Error::OutcomeUnknown(_)), is_unknown, "{statuses:?}: {error:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_stops_the_requests_of_all_calls() {
        let backend = Backend::new();
        let begun = Instant::now();
        let is_first = Cell::new(true);
        let refused_once = backend.request(|| async {
            if is_first.replace(false) { Err(refused(429, Some("30"))) } else { Ok(begun.elapsed()) }
        });
        let other = async {
            sleep(Duration::from_secs(1)).await;
            backend.clone().request(|| async { Ok::<_, Failure>(begun.elapsed()) }).await
        };
        let (repeated, other) = tokio::join!(refused_once, other);
        for sent in [repeated.unwrap(), other.unwrap()] {
            assert_eq!(sent.as_secs(), 30);
        }
        // A day would be a denial of service: the call fails, and the others go on after five minutes.
        let day: Result<()> = backend.request(|| async { Err(refused(503, Some("86400"))) }).await;
        assert!(matches!(day, Err(Error::Unavailable(_))));
        assert_eq!(begun.elapsed().as_secs(), 30);
        backend.request(|| async { Ok::<_, Failure>(()) }).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 330);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_is_polled_until_it_has_ended() {
        let backend = Backend::new();
        let looks = Cell::new(0);
        let look = || async {
            looks.set(looks.get() + 1);
            match looks.get() {
                2 => Err(refused(502, None)),
                5 => Ok(Some("ready")),
                _ => Ok(None),
            }
        };
        assert_eq!(backend.poll(look).await.unwrap(), "ready");
        assert_eq!(looks.get(), 5);

        let failed: Result<()> =
            backend.poll(|| async { Err(Error::LimitReached("no room in the zone".into()).into()) }).await;
        assert!(matches!(failed, Err(Error::LimitReached(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_are_the_drivers_choice() {
        let backend = Backend::new().first_pause(Duration::from_millis(2));
        let looks = Cell::new(0);
        let begun = Instant::now();
        let look = || async {
            looks.set(looks.get() + 1);
            Ok((looks.get() == 5).then_some(()))
        };
        backend.poll(look).await.unwrap();
        // 2, 4, 8 and 16 ms, each with up to its own length more.
        let paused = begun.elapsed();
        assert!((Duration::from_millis(30)..Duration::from_millis(70)).contains(&paused), "{paused:?}");
    }

    /// The caller must ask again, because the backend's operation goes on: INTERNAL would make the provisioner forget it.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_goes_on_is_no_final_error() {
        let backend = Backend::new();
        let begun = Instant::now();
        let running: Result<()> = backend.poll(|| async { Ok(None) }).await;
        let silent: Result<()> = backend.poll(|| async { Err(refused(503, None)) }).await;
        let revoked: Result<()> = backend.poll(|| async { Err(refused(401, None)) }).await;
        for error in [running, silent, revoked].map(Result::unwrap_err) {
            assert_eq!(error.code(csi_proto::Rpc::CreateVolume), tonic::Code::Unavailable, "{error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(11 * 60));
    }
}
