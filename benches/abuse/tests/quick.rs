//! Every load in its quick form: the well-behaved client has all its answers.

use std::process::Command;

#[test]
fn a_well_behaved_client_has_its_answers_under_every_load() {
    let output = Command::new(env!("CARGO_BIN_EXE_abuse")).arg("--quick").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().count() > 5, "{text}");
}
