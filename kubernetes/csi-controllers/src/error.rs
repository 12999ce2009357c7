//! Why a step of a part did not succeed.

use std::fmt;

use csi_core::internal::code_name;
use tonic::{Code, Status};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// A step that failed is repeated with a growing pause, whatever the error.
#[derive(Debug)]
pub(crate) enum Error {
    /// The API server refused a request or did not answer.
    Api(csi_kube::Error),
    /// The driver's answer.
    Call(Status),
    /// The objects are not, or not yet, as the step needs them; the text is for their user.
    Invalid(String),
}

impl Error {
    /// The code of the driver's answer, if it was the driver that refused.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Call(status) => Some(status.code()),
            Self::Api(_) | Self::Invalid(_) => None,
        }
    }
}

/// As the sidecars write it into events and statuses: Go's text for a status of gRPC.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(error) => error.fmt(f),
            Self::Call(status) => {
                write!(f, "rpc error: code = {} desc = {}", code_name(status.code()), status.message())
            }
            Self::Invalid(text) => f.write_str(text),
        }
    }
}

impl From<csi_kube::Error> for Error {
    fn from(error: csi_kube::Error) -> Self {
        Self::Api(error)
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

/// An [`Error::Invalid`]; the arguments are those of `format!`.
macro_rules! invalid {
    ($($text:tt)*) => { $crate::error::Error::Invalid(format!($($text)*)) };
}
pub(crate) use invalid;

/// Returns an [`Error::Invalid`] unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err($crate::error::invalid!($($text)*).into());
        }
    };
}
pub(crate) use ensure;
