//! What the program answers when something is missing or wrong: the field, and what to do.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const OPTIONS: &str =
    r#"{"kubernetes.io/pvOrVolumeName":"pv-1","kubernetes.io/secret/password":"aHVudGVyMg=="}"#;

/// The program under a name of its own, with this file beside it.
fn run(folder: &Path, config: Option<&str>, arguments: &[&str]) -> Value {
    let executable = folder.join("example.org~disk/disk");
    if !executable.exists() {
        std::fs::create_dir(folder.join("example.org~disk")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_csi-flexvolume"), &executable).unwrap();
    }
    if let Some(config) = config {
        let records = folder.join("records");
        let text = format!("{config}\nrecords={}\ntimeout=2\n", records.display());
        std::fs::write(folder.join("example.org~disk/disk.conf"), text).unwrap();
    }
    let output = Command::new(executable).args(arguments).output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]), "{arguments:?}");
    let answer = serde_json::from_slice(&output.stdout).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
    answer
}

#[test]
fn failures_name_the_field_and_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("socket={}", folder.path().join("csi.sock").display());
    let none = run(folder.path(), None, &["init"]);
    assert_eq!(none["status"], "Failure");
    let message = none["message"].as_str().unwrap();
    assert!(
        message.contains("disk.conf: ") && message.contains("create it with a line socket="),
        "{message}"
    );
    for (arguments, due) in [
        (&[][..], "no command"),
        (&["mount"], "mount: argument 1 is missing: the directory"),
        (&["mount", "x"], "mount: argument 1: \"x\" is not an absolute path"),
        (&["mount", "/x"], "mount: argument 2 is missing: the options as JSON"),
        (&["mount", "/x", "hunter2"], "mount: the options are not a JSON object of texts"),
        (&["mount", "/x", "{}"], "add volumeHandle, the volume's id"),
        (&["mount", "/x", OPTIONS], "csi.sock (`socket` in "),
        (&["mount", "/x", OPTIONS], "; start the driver"),
        (&["attach", OPTIONS], "attach: argument 2 is missing: the node's name"),
        (&["detach", "pv-1"], "detach: argument 2 is missing: the node's name"),
        (&["mountdevice", "/x", "/dev/sda", OPTIONS], "the device /dev/sda is not from `attach`"),
        (
            &["expandvolume", OPTIONS, "", "big", "1"],
            "expandvolume: argument 3: \"big\" is not a size in bytes",
        ),
    ] {
        let answer = run(folder.path(), Some(&socket), arguments);
        let message = answer["message"].as_str().unwrap();
        assert_eq!(answer["status"], "Failure", "{arguments:?}");
        assert!(message.contains(due), "{arguments:?}: {message}");
    }
    let answer = run(folder.path(), Some("socket=/s\nattach=perhaps"), &["init"]);
    assert!(answer["message"].as_str().unwrap().ends_with("disk.conf: line 2: attach: write true or false"));
}

/// The driver can start later than the kubelet.
#[test]
fn init_and_unknown_volumes_need_no_driver() {
    let folder = tempfile::tempdir().unwrap();
    let config = Some("socket=/no/such/csi.sock\nattach=true\nfsGroup=false");
    let due = json!({ "attach": true, "fsGroup": false, "requiresFSResize": true, "selinuxRelabel": true,
        "supportsMetrics": false });
    let unfinished = folder.path().join("records/.new-1-0");
    std::fs::create_dir(folder.path().join("records")).unwrap();
    std::fs::write(&unfinished, "{").unwrap();
    assert_eq!(run(folder.path(), config, &["init"]), json!({ "status": "Success", "capabilities": due }));
    assert!(!unfinished.exists(), "a killed command left it");
    for (command, due) in
        [("unmount", "Success"), ("getvolumename", "Not supported"), ("new", "Not supported")]
    {
        assert_eq!(run(folder.path(), config, &[command, "/x"]), json!({ "status": due }));
    }
}

/// However the path is written: something is mounted at the directory, and no record says what.
#[test]
fn a_mount_that_no_record_names_is_not_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let config = Some("socket=/no/such/csi.sock");
    let root = folder.path().join("root");
    std::os::unix::fs::symlink("/", &root).unwrap();
    std::os::unix::fs::symlink("/proc", folder.path().join("link")).unwrap();
    std::os::unix::fs::symlink("link", folder.path().join("second")).unwrap();
    let below = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for directory in [
        "/proc".to_owned(),
        "/proc/".to_owned(),
        "//proc".to_owned(),
        "/./proc".to_owned(),
        below("root/proc"),
        below("root//proc/"),
        below("link"),
        below("second"),
    ] {
        let answer = run(folder.path(), config, &["unmount", &directory]);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("says which volume is mounted at ") && message.ends_with(": unmount it"),
            "{answer}"
        );
    }
    // A link in a circle is no proof that nothing is mounted.
    std::os::unix::fs::symlink("circle", folder.path().join("circle")).unwrap();
    let answer = run(folder.path(), config, &["unmount", &below("circle")]);
    assert_eq!(answer["status"], "Failure", "{answer}");
    for directory in [below("nothing"), below("root/no-such-directory")] {
        assert_eq!(run(folder.path(), config, &["unmount", &directory]), json!({ "status": "Success" }));
    }
}

/// It can be the one of the volume that is mounted there.
#[test]
fn a_record_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("records/v.json");
    std::fs::create_dir(folder.path().join("records")).unwrap();
    let volume = r#"{"name":"","nodes":[],"publish_context":{},"targets":["/x"],"expand_to":null}"#;
    let foreign = format!(r#"{{"id":"w","record":{volume}}}"#);
    for (damage, named) in [
        ("", "records/v.json: "),
        ("{\"targets\": [", "records/v.json: "),
        ("garbage", "records/v.json: "),
        ("{\"older\": 1}", "records/v.json: "),
        (&foreign, "records/v.json: is not a record of this driver: it is the record of \"w\""),
    ] {
        std::fs::write(&record, damage).unwrap();
        let answer = run(folder.path(), Some("socket=/no/such/csi.sock"), &["unmount", "/no/such/directory"]);
        assert_eq!(answer["status"], "Failure", "{damage}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(named), "{answer}");
        assert_eq!(std::fs::read_to_string(&record).unwrap(), damage, "it is left for its repair");
    }
}

/// The callers log the message.
#[test]
fn a_message_is_one_line_of_limited_length() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!("a\n\u{1b}[2J{}", "x".repeat(5000));
    let answer = run(folder.path(), Some("socket=/no/such/csi.sock"), &["mount", &long]);
    let message = answer["message"].as_str().unwrap();
    assert!(message.starts_with("mount: argument 1: "), "{message}");
    let answer = run(folder.path(), Some("socket=/no/such/csi.sock"), &["mountdevice", "/x", &long, OPTIONS]);
    let device = answer["message"].as_str().unwrap();
    for text in [message, device] {
        assert!(text.len() <= 2048 && !text.contains(['\n', '\u{1b}']), "{text}");
    }
}
