//! Mount errors as conditions of the spec.

use csi_mount::ErrorKind;

use super::Error;

/// Maps each kind to the condition with the same meaning; docs/error-mapping.md has the table.
impl From<csi_mount::Error> for Error {
    fn from(error: csi_mount::Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Protected | ErrorKind::Unsupported => {
                Self::Unsupported(text)
            }
            ErrorKind::AlreadyMounted => Self::Incompatible(text),
            ErrorKind::Busy => Self::InUse(text),
            ErrorKind::NotBlank | ErrorKind::ReadOnly | ErrorKind::Damaged | ErrorKind::NotOwned => {
                Self::NotPossible(text)
            }
            ErrorKind::OutOfRange => Self::OutOfRange(text),
            ErrorKind::NoSpace => Self::LimitReached(text),
            // Devices and servers can come back, so a retry can help.
            ErrorKind::NotFound
            | ErrorKind::Unresponsive
            | ErrorKind::WrongDevice
            | ErrorKind::OutOfMemory => Self::Unavailable(text),
            ErrorKind::WrongKey => Self::Unauthenticated(text),
            ErrorKind::MissingTool => Self::Unhealthy(text),
            // Not PERMISSION_DENIED, which concerns the caller's credentials.
            _ => Self::internal(error),
        }
    }
}
