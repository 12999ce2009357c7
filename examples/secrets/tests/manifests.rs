//! The driver makes its own manifests, without a socket.

use std::process::Command;

fn manifests(flags: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_secrets"));
    let output = command.env_remove("CSI_ENDPOINT").args(flags).output().expect("the driver starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const IMAGE: &str = "--image=registry.example.org/secrets:0.1.0";

#[test]
fn what_the_driver_declares_and_offers_is_in_its_manifests() {
    let (status, text, errors) = manifests(&["--spec=v1.13", "manifests", IMAGE, "--single"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    for due in ["- Ephemeral", "podInfoOnMount: true", "requiresRepublish: true", "fsGroupPolicy: File"] {
        assert!(text.contains(due), "{due}: {text}");
    }
    assert!(!text.contains("kind: Deployment"), "it serves no volumes of claims: {text}");
    assert!(text.contains("- --spec=v1.13"), "the pods offer what the manifests are made from: {text}");
}

#[test]
fn a_wrong_option_is_named_and_a_missing_endpoint_too() {
    let (status, text, errors) = manifests(&["manifests", IMAGE, "--single", "--namespace=A"]);
    assert_eq!((status, text.as_str()), (Some(2), ""));
    assert!(errors.contains("namespace: \"A\""), "{errors}");
    let (status, _, errors) = manifests(&["manifests", IMAGE, "--single", "--fuse-pods=per-node"]);
    assert!(status == Some(2) && errors.contains("fuse-pods: the driver"), "{errors}");
    let (status, _, errors) = manifests(&["manifests", IMAGE]);
    assert!(status == Some(2) && errors.contains("--single"), "{errors}");
    let (status, _, errors) = manifests(&[]);
    assert!(status == Some(2) && errors.contains("CSI_ENDPOINT is not set"), "{errors}");
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_secrets"));
}
