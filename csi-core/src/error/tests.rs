//! Messages, details and causes. `xtask/tests/error_mapping.rs` compares the codes with the document.

use super::*;

#[test]
fn the_cause_of_a_mount_error_is_for_the_log() {
    #[cfg(all(feature = "mount", target_os = "linux"))]
    {
        let io = csi_mount::Error::os("read", "/dev/sdx", std::io::Error::from_raw_os_error(5));
        let error = Error::from(io);
        assert_eq!(error.with_causes(), "read /dev/sdx: Input/output error: Input/output error (os error 5)");
    }
    let error =
        Error::Internal(Reason::because("the pool does not answer", std::io::Error::other("10.0.0.7")));
    assert!(!error.status(Rpc::CreateVolume).message().contains("10.0.0.7"));
}

// spec: errors.message, errors.no-details
#[test]
fn a_status_always_has_a_message_and_never_details() {
    for error in [Error::Internal("".into()), Error::invalid("", " "), Error::InvalidToken] {
        for rpc in Rpc::ALL {
            let status = error.status(*rpc);
            assert!(!status.message().trim().is_empty(), "{error:?}");
            assert!(status.details().is_empty());
        }
    }
}

#[test]
fn the_cause_is_for_the_log() {
    let error = Error::from(std::io::Error::other("disk on fire"));
    assert_eq!(error.code(Rpc::DeleteVolume), Code::Internal);
    assert_eq!(error.to_string(), "disk on fire");
    assert!(std::error::Error::source(&error).is_some());
    assert_eq!(error.with_causes(), "disk on fire", "once");
    let error =
        Error::Internal(Reason::because("the pool does not answer", std::io::Error::other("no route")));
    assert_eq!(error.with_causes(), "the pool does not answer: no route");
    let full = Error::from(std::io::Error::from(std::io::ErrorKind::StorageFull));
    assert_eq!(full.code(Rpc::CreateVolume), Code::ResourceExhausted);
}
