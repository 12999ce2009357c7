//! What one request to the backend failed with.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Reason};

/// One failed request to the backend: the condition, and whether the same request can succeed later.
///
/// `?` on an [`Error`] makes a final failure, one that no repetition changes.
#[derive(Debug)]
pub struct Failure {
    pub(super) error: Error,
    /// How long the backend wants no request, if the same request can succeed later.
    pub(super) retry_after: Option<Duration>,
}

impl Failure {
    /// Creates a failure that can be over soon, so that the request is repeated. `error` is the answer to the caller
    /// if it is not over in time.
    pub fn temporary(error: Error) -> Self {
        Self { error, retry_after: Some(Duration::ZERO) }
    }

    /// Creates a temporary failure from the error of an HTTP client: there is no answer, so the backend might have done
    /// what the request asked for ([`Error::OutcomeUnknown`]).
    pub fn no_answer(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::temporary(Error::OutcomeUnknown(Reason::from_error(error)))
    }

    /// Says when the backend takes requests again. [`Backend`](super::Backend) sends none before.
    #[must_use]
    pub fn after(self, pause: Duration) -> Self {
        Self { retry_after: Some(pause), ..self }
    }

    /// Creates the failure that an HTTP status means (RFC 9110, section 15), with `text` for the caller. `retry_after`
    /// is the value of the header `Retry-After`, in either of its forms.
    ///
    /// | status | condition | repeated |
    /// |---|---|---|
    /// | 401, 403: the driver's own credentials are refused | [`Error::Unhealthy`] | |
    /// | 409, 423 | [`Error::Pending`] | |
    /// | 507 | [`Error::NoSpace`] | |
    /// | 425, 429, 503: the request was not worked on | [`Error::Unavailable`] | yes, after `Retry-After` |
    /// | 408, any other 5xx: it might have been | [`Error::OutcomeUnknown`] | yes, after `Retry-After` |
    /// | any other | [`Error::Internal`] | |
    ///
    /// What a backend means by 404, by 400 and 422, or by a code of its own in the body (a quota is
    /// [`Error::LimitReached`]), only its driver knows: look at these first. The same holds for 401 and 403 if the
    /// credentials are those of the call ([`Error::Unauthenticated`], [`Error::PermissionDenied`]).
    ///
    /// ```
    /// use csi_core::Error;
    /// use csi_core::backend::Failure;
    ///
    /// let failure = Failure::from_http(429, Some("120"), "create disk: too many requests");
    /// assert!(matches!(Error::from(failure), Error::Unavailable(_)));
    /// ```
    pub fn from_http(status: u16, retry_after: Option<&str>, text: impl Into<Reason>) -> Self {
        let reason = text.into();
        let error = match status {
            401 | 403 => Error::Unhealthy(reason),
            409 | 423 => Error::Pending(reason),
            507 => Error::NoSpace(reason),
            425 | 429 | 503 => Error::Unavailable(reason),
            408 | 500..=599 => Error::OutcomeUnknown(reason),
            _ => Error::Internal(reason),
        };
        let is_temporary = matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown(_));
        if !is_temporary {
            return Self::from(error);
        }
        Self::temporary(error).after(retry_after.and_then(pause).unwrap_or_default())
    }
}

/// The time until a `Retry-After`: a number of seconds, or a date.
fn pause(retry_after: &str) -> Option<Duration> {
    let text = retry_after.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, retry_after: None }
    }
}

/// For a request that is sent only once.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::Rpc;
    use tonic::Code;

    use super::*;

    /// What the provisioner sees if nothing else is known: UNAVAILABLE keeps it asking, other codes end in a new try
    /// only while the claim exists.
    #[test]
    fn a_status_has_a_condition_and_is_repeated_if_that_can_help() {
        for (status, code, is_repeated) in [
            (400, Code::Internal, false),
            (401, Code::Internal, false),
            (403, Code::Internal, false),
            (404, Code::Internal, false),
            (409, Code::Aborted, false),
            (408, Code::Unavailable, true),
            (500, Code::Unavailable, true),
            (504, Code::Unavailable, true),
            (507, Code::ResourceExhausted, false),
            // It did nothing, so the claim can be deleted.
            (429, Code::Internal, true),
            (503, Code::Internal, true),
        ] {
            let failure = Failure::from_http(status, None, "x");
            let found = (failure.error.code(Rpc::CreateVolume), failure.retry_after.is_some());
            assert_eq!(found, (code, is_repeated), "{status}");
        }
    }

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_date() {
        let retry = |text| Failure::from_http(503, Some(text), "x").retry_after;
        assert_eq!(retry(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(retry("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let hour = Duration::from_secs(3600);
        let date = httpdate::fmt_http_date(SystemTime::now() + hour);
        let Some(pause) = retry(&date) else { panic!("{date} is a date") };
        assert!(pause <= hour && pause > hour / 2, "{pause:?}");
        for bad in ["", "soon", "-1", "1.5"] {
            assert_eq!(retry(bad), Some(Duration::ZERO), "{bad:?}");
        }
        assert_eq!(Failure::from_http(403, Some("120"), "x").retry_after, None);
    }
}
