//! Mount errors as conditions of the spec.

use csi_mount::ErrorKind;

use super::{Error, Reason};

/// Maps each kind to the condition with the same meaning; docs/error-mapping.md has the table.
impl From<csi_mount::Error> for Error {
    fn from(error: csi_mount::Error) -> Self {
        let kind = error.kind();
        let reason = Reason::from_error(error);
        match kind {
            ErrorKind::InvalidOption => {
                Self::InvalidArgument { field: "volume_capability.mount.mount_flags".to_owned(), reason }
            }
            ErrorKind::InvalidInput | ErrorKind::Protected | ErrorKind::Unsupported => {
                Self::Unsupported(reason)
            }
            ErrorKind::AlreadyMounted | ErrorKind::AlreadyExists => Self::Incompatible(reason),
            ErrorKind::Busy => Self::InUse(reason),
            ErrorKind::Pending => Self::Pending(reason),
            ErrorKind::NotBlank
            | ErrorKind::ReadOnly
            | ErrorKind::Damaged
            | ErrorKind::NotOwned
            | ErrorKind::Reserved => Self::NotPossible(reason),
            ErrorKind::OutOfRange => Self::OutOfRange(reason),
            ErrorKind::NoSpace => Self::NoSpace(reason),
            // Devices and servers can come back, so a retry can help.
            ErrorKind::NotFound
            | ErrorKind::Unresponsive
            | ErrorKind::WrongDevice
            | ErrorKind::OutOfMemory => Self::Unavailable(reason),
            ErrorKind::WrongKey => Self::Unauthenticated(reason),
            ErrorKind::MissingTool => Self::Unhealthy(reason),
            // Not PERMISSION_DENIED, which concerns the caller's credentials.
            _ => Self::Internal(reason),
        }
    }
}
