//! Messages, details and causes. `xtask/tests/it/error_mapping.rs` compares the codes with the document.

use super::*;

#[test]
fn the_cause_of_a_mount_error_is_for_the_log() {
    #[cfg(all(feature = "mount", target_os = "linux"))]
    {
        let io = csi_mount::Error::os("read", "/dev/sdx", std::io::Error::from_raw_os_error(5));
        let error = Error::from(io);
        assert_eq!(
            error.with_causes(&error.to_string()),
            "read /dev/sdx: Input/output error: Input/output error (os error 5)"
        );
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
    assert_eq!(error.with_causes(&error.to_string()), "disk on fire", "once");
    let error =
        Error::Internal(Reason::because("the pool does not answer", std::io::Error::other("no route")));
    assert_eq!(error.with_causes(&error.to_string()), "the pool does not answer: no route");
    let full = Error::from(std::io::Error::from(std::io::ErrorKind::StorageFull));
    assert_eq!(full.code(Rpc::CreateVolume), Code::ResourceExhausted);
}

/// A request's field can have any text, and so can a path, a message of the kernel or of a program.
#[test]
fn status_and_log_are_one_line_of_limited_length() {
    let hostile = "a\nERROR csi: forged\r\u{1b}[2J\u{202e}\u{9b}";
    let long = "大".repeat(50_000);
    for text in [hostile, &long] {
        let id = || VolumeId::new_checked(text.to_owned());
        for error in [
            Error::invalid(text, "is wrong"),
            Error::invalid("parameters[x]", text),
            Error::VolumeNotFound(id()),
            Error::NodeNotFound(NodeId::new_checked(text.to_owned())),
            Error::Internal(Reason::because(text, std::io::Error::other(text))),
            Error::Unavailable(Reason::because("the pool does not answer", std::io::Error::other(text))),
            Error::from(std::io::Error::other(text)),
        ] {
            let status = error.status(Rpc::CreateVolume);
            for shown in [status.message(), &error.with_causes(&error.to_string()), &error.to_string()] {
                assert_eq!(csi_proto::escape::message(shown), shown);
                assert!(!shown.contains(['\n', '\r', '\u{1b}', '\u{202e}', '\u{9b}']), "{shown}");
            }
            // hyper's clients refuse a header list above 16 KiB, gRPC's C core one above 8 KiB.
            let headers = status.into_http::<()>().into_parts().0.headers;
            let size: usize =
                headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
            assert!(size < 8192, "{size} bytes of headers");
        }
    }
}
