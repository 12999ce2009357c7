//! The program: exit status, reports, and what it leaves when it is killed. Needs root, for the mounts.
#![cfg(target_os = "linux")]

#[path = "support/memory/mod.rs"]
mod memory;
mod support;

use std::process::{Output, Stdio};
use std::time::Duration;

use support::*;
use tokio::process::Command;

fn program(places: &Places) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csi-conformance"));
    command.args(["--endpoint", &places.endpoint("csi.sock").to_string(), "--size", "1", "--deadline", "10"]);
    for (flag, name) in [("--staging", "staging"), ("--target", "target"), ("--journal", "journal")] {
        command.arg(flag).arg(places.of(name));
    }
    command.kill_on_drop(true);
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn it_reports_and_leaves_nothing() {
    in_private(async || {
        let places = Places::new();
        let work = async {
            let (tap, junit) = (places.of("tap"), places.of("junit.xml"));
            let output =
                program(&places).arg("--tap").arg(&tap).arg("--junit").arg(&junit).output().await.unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            assert!(text(&output).contains("0 failed"), "{}", text(&output));
            let (tap, junit) =
                (std::fs::read_to_string(tap).unwrap(), std::fs::read_to_string(junit).unwrap());
            assert!(tap.starts_with("TAP version 13\n1..") && !tap.contains("\nnot ok"), "{tap}");
            assert!(junit.contains("failures=\"0\"") && junit.ends_with("</testsuite>\n"), "{junit}");
        };
        let endpoint = places.endpoint("csi.sock");
        with_plugin(memory::Memory::directories(places.of("volumes")).plugin(), &endpoint, work).await;
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn filters_choose_and_nothing_chosen_is_no_success() {
    in_private(async || {
        let places = Places::new();
        let work = async {
            let output = program(&places).args(["--only", "same-name-same-volume"]).output().await.unwrap();
            assert!(text(&output).contains("2 passed"), "{}", text(&output));
            let output = program(&places).args(["--only", "no such test"]).output().await.unwrap();
            assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        };
        let endpoint = places.endpoint("csi.sock");
        with_plugin(memory::Memory::directories(places.of("volumes")).plugin(), &endpoint, work).await;
        let output = program(&places).args(["--deadline", "1"]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "nobody serves: {}", text(&output));
        let output = program(&places).arg("--list").output().await.unwrap();
        assert!(text(&output).lines().count() > 80, "{}", text(&output));
    });
}

#[test]
fn a_run_that_was_killed_is_finished_by_clean_up() {
    in_private(async || {
        let places = Places::new();
        let mut killed = 0;
        let work = async {
            for millis in [60, 120, 200, 300, 400, 500] {
                let mut child = program(&places).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                tokio::time::sleep(Duration::from_millis(millis)).await;
                child.kill().await.unwrap();
                killed += u32::from(places.of("journal").exists());
                let output = program(&places).arg("--clean-up").output().await.unwrap();
                assert_eq!(output.status.code(), Some(0), "{}", text(&output));
                assert_eq!(places.left(), Vec::<std::path::PathBuf>::new(), "after {millis} ms");
            }
        };
        let endpoint = places.endpoint("csi.sock");
        with_plugin(memory::Memory::directories(places.of("volumes")).plugin(), &endpoint, work).await;
        println!("{killed} of 6 runs were killed with something made");
        assert_eq!(mounts_below(&places.of("target")), 0);
    });
}
