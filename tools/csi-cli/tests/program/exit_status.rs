//! The exit statuses that the help documents.

use csi_proto::v1;
use prost::Message as _;
use tonic::{Code, Status};

use crate::support::*;

#[test]
fn every_code_of_the_driver_has_its_own() {
    let fake = Fake::new(async |_, bytes| {
        let request = v1::DeleteVolumeRequest::decode(&*bytes).unwrap();
        Err(Status::new(Code::from(request.volume_id.parse::<i32>().unwrap()), "no"))
    });
    for code in 1..=16 {
        let output = run(&fake.socket(), &["controller", "delete-volume", "--volume-id", &code.to_string()]);
        assert_eq!(output.status.code(), Some(64 + code), "{}", stderr(&output));
        assert!(stderr(&output).starts_with("csi: DeleteVolume: ") && output.stdout.is_empty());
    }
}

#[test]
fn what_can_not_begin_says_why_and_what_mends_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let file = folder.path().join("file");
    std::fs::write(&file, "{}").unwrap();
    let dead = folder.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let file = file.to_str().unwrap();
    // One connection waits, and no more can.
    let full = folder.path().join("full.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _entered = runtime.enter();
    let listener = tokio::net::UnixSocket::new_stream().unwrap();
    listener.bind(&full).unwrap();
    let _listener = listener.listen(0).unwrap();
    let _waits = std::os::unix::net::UnixStream::connect(&full).unwrap();
    let long = format!("unix:///{}", "x".repeat(107));
    let probe = ["identity", "probe"];
    for (endpoint, words, status, says) in [
        (socket.to_str().unwrap(), &probe[..], 3, "is the driver running"),
        (dead.to_str().unwrap(), &probe, 3, "has ended; start it"),
        (file, &probe, 3, "has ended; start it"),
        (full.to_str().unwrap(), &probe, 3, "does not accept connections"),
        (&long, &probe, 2, "has a path of 108 bytes"),
        ("", &probe, 2, "set CSI_ENDPOINT"),
        ("tcp://localhost:9", &probe, 2, "unix:///run/csi/csi.sock"),
        ("relative.sock", &probe, 2, "absolute path"),
        (
            "/x",
            &["controller", "create-volume", "--capability", "rwo,disk"],
            2,
            "the known types are mount, block",
        ),
        ("/x", &["controller", "create-volume", "--size", "1Gb"], 2, "write 1Gi"),
        ("/x", &["controller", "create-volume", "--nam", "x"], 2, "--name"),
        ("/x", &["controller", "creat-volume"], 2, "create-volume"),
        ("/x", &["controller", "create-volume", "--request", "/absent"], 2, "No such file"),
        (
            "/x",
            &["controller", "delete-volume", "--request", "-", "--secrets-file", "-"],
            2,
            "can't both be standard input",
        ),
        (
            "/x",
            &["controller", "create-volume", "--name", "--size", "1Gi"],
            2,
            "a value is required for '--name",
        ),
        ("/x", &["node", "get-info", "--timeout", "0"], 2, "write 10s"),
        ("/x", &["lifecycle", "--size", "2Gi", "--grown", "1Gi"], 2, "can't become smaller"),
        ("/x", &["lifecycle", "--name", "../x"], 2, "can't contain /"),
        ("/x", &[], 2, "Usage: csi"),
    ] {
        let output = csi("/x".as_ref()).env("CSI_ENDPOINT", endpoint).args(words).output().unwrap();
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{endpoint} {words:?}: {errors}");
        assert!(errors.contains(says) && output.stdout.is_empty(), "{endpoint} {words:?}: {errors}");
    }
}

#[test]
fn a_driver_that_hangs_or_dies_is_told_from_one_that_refuses() {
    let fake = Fake::new(async |_, _| std::future::pending().await);
    let shown = errors(&run(&fake.socket(), &["identity", "probe", "--timeout", "100ms"]), 68);
    assert!(shown.contains("DEADLINE_EXCEEDED") && shown.contains("joins or repeats it"), "{shown}");
    let socket = fake.folder().join("deaf.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    // A driver that closes every connection at once, until the test ends.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let shown = errors(&run(&socket, &["identity", "probe"]), 78);
    assert!(shown.contains("the connection broke") && shown.contains("its log"), "{shown}");
}

#[test]
fn what_can_not_be_written_is_a_failure() {
    let fake = Fake::new(async |_, _| answer(&v1::ProbeResponse::default()));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let shown = errors(&csi(&fake.socket()).args(["identity", "probe"]).stdout(full).output().unwrap(), 1);
    assert!(shown.contains("can't be written"), "{shown}");
}

#[test]
fn help_and_version_are_no_errors() {
    for words in [&["--help"][..], &["help", "node"], &["--version"], &["lifecycle", "-h"]] {
        let output = run("/x".as_ref(), words);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{words:?}");
    }
    let help = ok(&run("/x".as_ref(), &["--help"]));
    for part in ["Exit status:", "64+n", "CSI_ENDPOINT", "csi lifecycle", "--secrets-env", "completion"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn a_place_that_is_not_there_is_named_before_anything_is_called() {
    let fake = Fake::new(async |_, _| answer(&v1::ProbeResponse::default()));
    let output = run(&fake.socket(), &["lifecycle", "--staging", "/absent"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--staging /absent: No such file"), "{}", stderr(&output));
    assert!(fake.asked().is_empty() && output.stdout.is_empty());
}
