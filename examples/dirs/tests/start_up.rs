//! How a driver starts, how it reports why it cannot start, and how it stops.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output};

use test_support::driver::{Driver, Signal};
use test_support::process::until;

fn program(endpoint: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dirs"));
    command.env_remove("CSI_ENDPOINT");
    if let Some(endpoint) = endpoint {
        command.env("CSI_ENDPOINT", endpoint);
    }
    command
}

fn refused(endpoint: Option<&str>) -> String {
    let Output { status, stderr, .. } = program(endpoint).output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("dirs.csi.example.org: "), "{stderr}");
    stderr
}

// spec: endpoint.from-environment
#[test]
fn a_missing_or_foreign_endpoint_is_named_with_how_to_fix_it() {
    for (endpoint, says) in [
        (None, "CSI_ENDPOINT is not set"),
        (Some(""), "CSI_ENDPOINT is not set"),
        (Some("tcp://127.0.0.1:9000"), "tcp is not served"),
        (Some("unix://relative.sock"), "not an absolute path"),
    ] {
        let text = refused(endpoint);
        assert!(text.contains(says) && text.contains("unix:///run/csi/csi.sock"), "{text}");
    }
}

#[test]
fn a_directory_that_is_missing_and_a_file_in_the_way_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("no/csi.sock");
    let text = refused(missing.to_str());
    assert!(text.contains("no does not exist; create or mount it"), "{text}");

    let file = directory.path().join("csi.sock");
    std::fs::write(&file, "precious").unwrap();
    let text = refused(file.to_str());
    assert!(text.contains("is not a socket"), "{text}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[tokio::test]
async fn a_live_socket_is_left_alone_and_a_dead_one_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let live = UnixListener::bind(&socket).unwrap();
    let text = refused(socket.to_str());
    assert!(text.contains("a live process listens on it"), "{text}");
    assert!(socket.exists());

    drop(live);
    // A child process of another test can keep the listener open until it executes its own program.
    until("nobody listens on the socket", || UnixStream::connect(&socket).is_err());
    assert!(socket.exists(), "what a dead process leaves");
    let mut driver = Driver::start(program(socket.to_str()), &socket).await;
    let metadata = socket.symlink_metadata().unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777 & !0o660, 0, "nobody else may command the driver");

    // A second driver is refused while the first one serves, and the first one continues to serve.
    refused(socket.to_str());
    UnixStream::connect(&socket).unwrap();

    driver.signal(Signal::TERM);
    assert_eq!(driver.ended().await.code(), Some(0));
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "the socket is gone and nothing is left");
}

#[tokio::test]
async fn a_killed_driver_starts_again() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let mut driver = Driver::start(program(socket.to_str()), &socket).await;
    driver.restart().await;
    driver.signal(Signal::INT);
    let status = driver.ended().await;
    assert!(status.success(), "{status}");
    assert!(!socket.exists());
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_dirs"));
}
