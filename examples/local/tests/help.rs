//! The program explains its flags, and makes its manifests on a machine without a volume group.

use std::process::Command;

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_local"));
}

#[test]
fn manifests_need_no_volume_group() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_local"));
    command.args([
        "--node-id=node-1",
        "--group=none",
        "manifests",
        "--image=registry.example.org/local:1",
        "--single",
    ]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["--node-deployment", "hostPID: true", "--host-lvm", "storageCapacity: true"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
