//! The errors of this crate, and their conditions in an answer to a CSI call.

use std::fmt;
use std::time::Duration;

use csi_core::proto::escape;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with the Kubernetes API.
///
/// A driver's method returns it with `?`: an error that a retry can cure becomes
/// [`csi_core::Error::Unavailable`], every other one [`csi_core::Error::Internal`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The API server refused the request, or could not be reached.
    Api {
        /// What was asked: `read node worker-1`.
        action: String,
        /// The answer of the API server, or the failure of the connection.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    TimedOut {
        /// What was asked.
        action: String,
        /// How long the answer was awaited.
        limit: Duration,
    },
    /// The object does not exist.
    NotFound {
        /// The object's kind and name: `node worker-1`.
        object: String,
    },
    /// A field that is needed is missing or has a value that can't be used.
    Invalid {
        /// The object and the field: `node worker-1: label topology.kubernetes.io/zone`.
        field: String,
        /// What is wrong with it, and how to fix it.
        reason: String,
    },
    /// This process is not the leader, or no longer is.
    NotLeading,
}

impl Error {
    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), reason: reason.into() }
    }

    /// The answer of the API server, if there was one.
    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether the same request can succeed later, although nobody changes the cluster's
    /// configuration: no answer, an overloaded API server, a conflict.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) => {
                    status.is_conflict() || status.code == 429 || status.code == 410 || status.code >= 500
                }
                kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => true,
                _ => false,
            },
            Self::NotFound { .. } | Self::Invalid { .. } | Self::NotLeading => false,
        }
    }

    /// Another client changed the object since it was read.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_conflict)
    }

    /// An object of this name exists.
    pub fn is_taken(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_already_exists)
    }

    /// The object does not exist.
    pub fn is_missing(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// How long the API server asks to wait before the next request.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }
}

/// One line: the names of objects and the API server's own text are escaped.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Api { action, .. } => match self.status() {
                Some(status) => {
                    let rules = " (csi_kube::rules lists the rules that the driver needs)";
                    // A quota, Pod Security and a namespace that is being deleted forbid too, in other words.
                    let is_by_rules = status.is_forbidden() && status.message.contains(" cannot ");
                    let hint = if is_by_rules { rules } else { "" };
                    format!("{action}: the API server answered {}: {}{hint}", status.code, status.message)
                }
                None => format!("{action}: no answer from the API server"),
            },
            Self::TimedOut { action, limit } => {
                format!("{action}: no answer from the API server within {limit:?}")
            }
            Self::NotFound { object } => format!("{object} does not exist"),
            Self::Invalid { field, reason } => format!("{field} {reason}"),
            Self::NotLeading => "this process is not the leader: repeat the call".to_owned(),
        };
        f.write_str(&escape::message(&text))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text of a status is in this error's own text.
            Self::Api { source, .. } if self.status().is_none() => Some(source),
            _ => None,
        }
    }
}

impl From<Error> for csi_core::Error {
    fn from(error: Error) -> Self {
        if error.is_transient() || matches!(error, Error::NotLeading) {
            return Self::Unavailable(csi_core::Reason::from_error(error));
        }
        Self::internal(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forbidden(action: &str, message: &str) -> String {
        let status = kube::core::Status::failure(message, "Forbidden").with_code(403);
        let source = Box::new(kube::Error::Api(Box::new(status)));
        Error::Api { action: action.to_owned(), source }.to_string()
    }

    #[test]
    fn only_a_missing_rule_leads_to_the_rules() {
        let quota = forbidden("create pod a", "pods \"a\" is forbidden: exceeded quota: small");
        assert!(quota.ends_with("exceeded quota: small"), "{quota}");
        let rule = forbidden("list pods", "pods is forbidden: User \"u\" cannot list resource \"pods\"");
        assert!(rule.ends_with("(csi_kube::rules lists the rules that the driver needs)"), "{rule}");
    }

    #[test]
    fn the_api_servers_text_is_one_line() {
        let text = forbidden("read node a\nb", "denied\nERROR forged \u{1b}[2J");
        assert!(!text.contains(char::is_control) && text.starts_with(r"read node a\nb: "), "{text}");
        assert!(text.contains(r"denied\nERROR forged \u{1b}[2J"), "{text}");
    }
}
