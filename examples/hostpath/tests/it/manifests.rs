//! The driver makes its own manifests, without a socket.

use std::process::Command;

#[test]
fn the_command_makes_manifests_and_does_not_serve() {
    let text = manifests(&[]);
    assert!(text.contains("kind: CSIDriver"), "{text}");
}

/// The two versions of the spec have different health monitors.
#[test]
fn the_manifests_are_for_the_version_of_the_spec_that_the_pods_serve() {
    let text = manifests(&["--spec=v1.13"]);
    assert!(text.contains("- --spec=v1.13\n"), "{text}");
    assert!(text.contains("/csi-external-health-monitor-controller:v0.19.0\n"), "{text}");
}

#[cfg(feature = "controllers")]
#[test]
fn the_nodes_pods_have_what_its_events_need() {
    let needs = ["- --node-events\n", "hostPID: true\n", "- events.k8s.io\n"];
    let without = manifests(&[]);
    let with = manifests(&["--node-events"]);
    for need in needs {
        assert!(with.contains(need) && !without.contains(need), "{need}: {with}");
    }
}

fn manifests(flags: &[&str]) -> String {
    let data = tempfile::tempdir().unwrap();
    let socket = data.path().join("csi.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hostpath"));
    command.env_remove("CSI_ENDPOINT").arg("--data").arg(data.path().join("data")).arg("--node-id=n1");
    command.args(flags).arg("--endpoint").arg(&socket);
    command.args(["manifests", "--image=registry.example.org/hostpath:0.1.0", "--single"]);
    // A driver that serves instead would not end.
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if socket.exists() || std::time::Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it serves");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_hostpath"));
}
