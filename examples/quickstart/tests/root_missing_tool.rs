//! What the quickstart reports about a tool that the machine lacks.
//!
//! A separate test program: a mount namespace without propagation keeps the mounts that other tests have at
//! that moment, and their devices would stay in use.

mod support;

use std::process::Command;

use support::{Place, text};

#[test]
fn a_missing_tool_is_named_with_its_package() {
    let place = Place::of_root();
    let mut command = Command::new("unshare");
    let program = place.command(&[]);
    // In this mount namespace `/dev/null` covers the program, so it cannot be executed.
    let script = "mount --bind /dev/null \"$(command -v mkfs.xfs)\" && exec \"$0\" --fs xfs";
    command.args(["--mount", "sh", "-c", script]).arg(program.get_program()).env("TMPDIR", place.path());
    let output = command.output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("mkfs.xfs") && text.contains("xfsprogs"), "{text}");
    place.assert_clean(&text);
}
