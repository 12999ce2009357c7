//! The program: its exit status, its reports, and what it leaves when it is killed. Needs root, for
//! the mounts.
#![cfg(target_os = "linux")]

#[path = "support/memory/mod.rs"]
mod memory;
#[allow(dead_code, reason = "not every test needs each")]
#[path = "support/proxy.rs"]
mod proxy;
mod support;

use std::process::{Output, Stdio};
use std::time::Duration;

use csi_proto::v1;
use prost::Message as _;
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

async fn with_memory<T>(places: &Places, work: impl Future<Output = T>) -> T {
    let plugin = memory::Memory::directories(places.of("volumes")).plugin();
    with_plugin(plugin, &places.endpoint("csi.sock"), work).await
}

#[test]
fn it_reports_and_leaves_nothing() {
    in_private(async || {
        let places = Places::new();
        let work = async {
            let tap = places.of("tap");
            let junit = places.of("junit.xml");
            let output =
                program(&places).arg("--tap").arg(&tap).arg("--junit").arg(&junit).output().await.unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            assert!(text(&output).contains("0 failed"), "{}", text(&output));
            let tap = std::fs::read_to_string(tap).unwrap();
            let junit = std::fs::read_to_string(junit).unwrap();
            assert!(tap.starts_with("TAP version 13\n1..") && !tap.contains("\nnot ok"), "{tap}");
            let first = "ok 1 - identity.name-and-version: The plugin has a name of at most 63 characters";
            assert!(tap.contains(first) && tap.contains("\n  section: \"Identity Service RPC\"\n"), "{tap}");
            let rule = "<property name=\"rule\" value=\"get-plugin-info.name, get-plugin-info.version\"/>";
            assert!(junit.contains(rule), "{junit}");
            assert!(junit.contains("failures=\"0\"") && junit.ends_with("</testsuite>\n"), "{junit}");
        };
        with_memory(&places, work).await;
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn filters_choose_and_nothing_chosen_is_no_success() {
    in_private(async || {
        let places = Places::new();
        let work = async {
            let output = program(&places).args(["--only", "two-names"]).output().await.unwrap();
            assert!(text(&output).contains("1 passed, 0 failed"), "{}", text(&output));
            let output = program(&places).args(["--only", "no such test"]).output().await.unwrap();
            assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        };
        with_memory(&places, work).await;
        let output = program(&places).args(["--deadline", "1"]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "nobody serves: {}", text(&output));
        let output = program(&places).arg("--list").output().await.unwrap();
        assert!(text(&output).lines().count() > 80, "{}", text(&output));
    });
}

#[test]
fn a_fault_is_told_with_what_was_sent_and_due_and_status_1() {
    in_private(async || {
        let places = Places::new();
        // The driver does not know this parameter.
        std::fs::write(places.of("parameters"), "# wrong\n[CreateSnapshot]\nno-such=1\n").unwrap();
        std::fs::write(places.of("mutable"), "iops=1\nno-such=1\n").unwrap();
        std::fs::write(places.of("secrets"), "token=hunter2-hunter2\n").unwrap();
        let work = async {
            let mut program = program(&places);
            program.arg("--mutable-parameters").arg(places.of("mutable"));
            program
                .arg("--parameters")
                .arg(places.of("parameters"))
                .arg("--secrets")
                .arg(places.of("secrets"));
            let output = program.args(["--only", "modify.takes", "--format", "tap"]).output().await.unwrap();
            assert_eq!(output.status.code(), Some(1), "{}", text(&output));
            for word in [
                "not ok 1 - modify.takes",
                "rule: ",
                "sent: ",
                "no-such",
                "actual: ",
                "InvalidArgument",
                "expected: ",
            ] {
                assert!(text(&output).contains(word), "{word}: {}", text(&output));
            }
            assert!(!text(&output).contains("hunter2"), "{}", text(&output));
            // A flag that the driver refuses: its bind mounts have no filesystem that takes options.
            let flags = ["--mount-flag", "password=hunter2", "--only", "sequences.whole-life"];
            let output = self::program(&places).args(flags).output().await.unwrap();
            assert_eq!(output.status.code(), Some(1), "{}", text(&output));
            assert!(!text(&output).contains("hunter2"), "{}", text(&output));
            let output = self::program(&places).args(["--mount-flag", "ro"]).output().await.unwrap();
            assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        };
        with_memory(&places, work).await;
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}

/// A target path that is not absolute is the caller's mistake, so this driver conforms.
#[test]
fn advice_is_shown_and_fails_only_a_strict_run() {
    in_private(async || {
        let places = Places::new();
        let endpoint = places.endpoint("csi.sock");
        let behind = places.endpoint("behind.sock");
        let work = async {
            let run = async |flags: &[&str]| {
                let only =
                    ["--only", "node-publish.relative", "--only", "node-publish.publish-is-idempotent"];
                program(&places).args(only).args(flags).output().await.unwrap()
            };
            let output = run(&[]).await;
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            for words in [
                "ADVICE  node-publish.relative-paths: ",
                "(good practice; ",
                ": 1 passed, 0 failed, 1 not as recommended, ",
                "\n  MUST            1 passed,   0 failed\n",
                "\n  good practice   0 passed,   1 failed\n",
            ] {
                assert!(text(&output).contains(words), "{words}");
            }
            let tap = run(&["--format", "tap"]).await;
            let todo =
                "\nnot ok 2 - node-publish.relative-paths: A path that is not absolute is refused # TODO";
            assert!(text(&tap).contains(todo), "{}", text(&tap));
            assert!(text(&tap).contains("\n  level: \"good practice\"\n"), "{}", text(&tap));
            let junit = run(&["--format", "junit"]).await;
            assert!(text(&junit).contains("failures=\"0\" errors=\"0\" skipped=\"1\""), "{}", text(&junit));

            let output = run(&["--strict"]).await;
            assert_eq!(output.status.code(), Some(3), "{}", text(&output));
            assert!(text(&output).contains(": 1 passed, 1 failed, 0 not as"), "{}", text(&output));
            let tap = run(&["--strict", "--format", "tap"]).await;
            assert!(!text(&tap).contains("TODO"), "{}", text(&tap));
        };
        let fault: proxy::Fault = std::sync::Arc::new(|rpc, bytes, behind| {
            Box::pin(async move {
                let target =
                    |bytes: &[u8]| v1::NodeUnpublishVolumeRequest::decode(bytes).unwrap().target_path;
                let path = match rpc {
                    csi_proto::Rpc::NodePublishVolume => {
                        v1::NodePublishVolumeRequest::decode(&*bytes).unwrap().target_path
                    }
                    csi_proto::Rpc::NodeUnpublishVolume => target(&bytes),
                    _ => "/".to_owned(),
                };
                if path.starts_with('/') { behind.call(rpc, bytes).await } else { Ok(vec![]) }
            })
        });
        let faulty = proxy::with_fault(fault, &endpoint, &behind, work);
        with_plugin(memory::Memory::directories(places.of("volumes")).plugin(), &behind, faulty).await;
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn without_mount_access_it_calls_and_does_not_look() {
    in_private(async || {
        let places = Places::new();
        let work = async {
            let output =
                program(&places).args(["--no-mount-access", "--only", "node-"]).output().await.unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            assert!(text(&output).contains("ok      node-publish.matrix"), "{}", text(&output));
            // If the node's directories are on another machine, nothing is created on this one.
            let nowhere = places.of("nowhere/staging");
            let nowhere = nowhere.to_str().unwrap();
            let flags = ["--no-mount-access", "--only", "node-publish.stage", "--staging", nowhere];
            let mut elsewhere = Command::new(env!("CARGO_BIN_EXE_csi-conformance"));
            elsewhere
                .args(["--endpoint", &places.endpoint("csi.sock").to_string(), "--size", "1"])
                .args(flags);
            elsewhere.arg("--target").arg(places.of("target")).arg("--journal").arg(places.of("journal"));
            elsewhere.output().await.unwrap();
            assert!(!places.of("nowhere").exists());
            let not = "n/a     node-use.read-only: the node's mounts are not visible to the kit";
            assert!(text(&output).contains(not), "{}", text(&output));
        };
        with_memory(&places, work).await;
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn ctrl_c_undoes_what_was_made() {
    use nix::sys::signal::{Signal, kill};
    in_private(async || {
        let places = Places::new();
        let work = async {
            for (signal, only) in [(Signal::SIGINT, "snapshots."), (Signal::SIGTERM, "node-")] {
                let tap = places.of("tap");
                let junit = places.of("junit.xml");
                let mut child = program(&places)
                    .args(["--only", "identity", "--only", only])
                    .arg("--tap")
                    .arg(&tap)
                    .arg("--junit")
                    .arg(&junit)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                while !places.of("journal").exists() {
                    assert!(child.try_wait().unwrap().is_none(), "it ended before it had made anything");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let id = i32::try_from(child.id().unwrap()).unwrap();
                kill(nix::unistd::Pid::from_raw(id), signal).unwrap();
                assert_eq!(child.wait().await.unwrap().code(), Some(2), "{signal}");
                assert_eq!(places.left(), Vec::<std::path::PathBuf>::new(), "after {signal}");
                assert!(!places.of("journal").exists());
                // Before the first test these reports are empty.
                let tap = std::fs::read_to_string(tap).unwrap();
                let junit = std::fs::read_to_string(junit).unwrap();
                if !tap.is_empty() {
                    assert!(tap.ends_with("Bail out! The run was stopped\n"), "{tap}");
                    assert!(junit.ends_with("</testsuite>\n"), "{junit}");
                }
            }
        };
        with_memory(&places, work).await;
        assert_eq!(mounts_below(&places.of("target")), 0);
    });
}

#[test]
fn two_runs_have_no_journal_in_common_and_it_is_for_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    in_private(async || {
        let places = Places::new();
        let state = places.of("state");
        let run = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_csi-conformance"));
            command.args(["--endpoint", &places.endpoint("csi.sock").to_string(), "--size", "1"]);
            command.env("XDG_STATE_HOME", &state).kill_on_drop(true);
            command
        };
        let journal = || -> Option<std::path::PathBuf> {
            let all = std::fs::read_dir(state.join("csi-conformance")).ok()?;
            let mut all = all.map(|entry| entry.unwrap().path());
            all.find(|path| path.extension().is_some_and(|ending| ending == "journal"))
        };
        let work = async {
            let mut first = run().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let journal = loop {
                if let Some(journal) = journal() {
                    break journal;
                }
                assert!(first.try_wait().unwrap().is_none(), "it ended before it had made anything");
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            // The run is stopped in the middle of its work.
            let stop = nix::unistd::Pid::from_raw(first.id().unwrap().try_into().unwrap());
            nix::sys::signal::kill(stop, nix::sys::signal::Signal::SIGSTOP).unwrap();
            let output = run().arg("--clean-up").output().await.unwrap();
            assert_eq!(output.status.code(), Some(2), "{}", text(&output));
            assert!(text(&output).contains("another run uses"), "{}", text(&output));
            if let Ok(found) = journal.metadata() {
                assert_eq!(found.permissions().mode() & 0o777, 0o600);
            }
            let directory = state.join("csi-conformance").metadata().unwrap();
            assert_eq!(directory.permissions().mode() & 0o777, 0o700);
            first.kill().await.unwrap();
            let output = run().arg("--clean-up").output().await.unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            assert_eq!(std::fs::read_dir(state.join("csi-conformance")).unwrap().count(), 0);
        };
        with_memory(&places, work).await;
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn somebody_elses_journal_undoes_nothing() {
    in_private(async || {
        let places = Places::new();
        let request = v1::CreateVolumeRequest { name: "a".into(), ..Default::default() };
        let hex: String = request.encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
        let memory = memory::Memory::directories(places.of("volumes"));
        std::fs::create_dir(places.of("volumes").join("precious")).unwrap();
        let id: String = "precious".bytes().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("CreateVolume {hex} {id} \n");
        let work = async {
            for (text_of, owner, due) in [(&*line, 65_534, "other users"), ("gibberish\n", 0, "line 1")] {
                std::fs::write(places.of("journal"), text_of).unwrap();
                std::os::unix::fs::chown(places.of("journal"), Some(owner), None).unwrap();
                let output = program(&places).arg("--clean-up").output().await.unwrap();
                assert_eq!(output.status.code(), Some(2), "{}", text(&output));
                assert!(text(&output).contains(due), "{}", text(&output));
            }
        };
        with_plugin(memory.plugin(), &places.endpoint("csi.sock"), work).await;
        assert_eq!(places.left(), [places.of("volumes").join("precious")]);
    });
}

/// The file of a volume is a pipe without a reader: a write to it waits forever.
#[test]
fn a_volume_that_hangs_does_not_keep_it_from_its_end() {
    use nix::sys::signal::{Signal, kill};
    in_private(async || {
        let places = Places::new();
        let pipe = places.of("pipe");
        let behind = places.endpoint("behind.sock");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let hangs: proxy::Fault = std::sync::Arc::new(move |rpc, bytes, behind| {
            let pipe = pipe.clone();
            Box::pin(async move {
                let answer = behind.call(rpc, bytes.clone()).await?;
                if rpc == csi_core::Rpc::NodePublishVolume {
                    let target = v1::NodePublishVolumeRequest::decode(&*bytes).unwrap().target_path;
                    std::os::unix::fs::symlink(pipe, format!("{target}/file")).unwrap();
                }
                Ok(answer)
            })
        });
        let work = async {
            let mut child = program(&places)
                .args(["--only", "node-use.data-stays"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let id = child.id().unwrap();
            while !waits_at_a_pipe(id) {
                assert!(child.try_wait().unwrap().is_none(), "it ended and did not write");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            kill(nix::unistd::Pid::from_raw(id.try_into().unwrap()), Signal::SIGINT).unwrap();
            let end = tokio::time::timeout(Duration::from_secs(120), child.wait()).await;
            assert_eq!(end.expect("it ends").unwrap().code(), Some(2));
            assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
        };
        let endpoint = places.endpoint("csi.sock");
        let work = proxy::with_fault(hangs, &endpoint, &behind, work);
        with_plugin(memory::Memory::directories(places.of("volumes")).plugin(), &behind, work).await;
    });
}

fn waits_at_a_pipe(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut waits = tasks.map(|task| std::fs::read_to_string(task.path().join("wchan")).unwrap_or_default());
    waits.any(|place| place == "wait_for_partner")
}

/// The run was killed before it got the refusal of a call that every driver refuses.
#[test]
fn a_call_that_is_always_refused_is_nothing_to_undo() {
    in_private(async || {
        let places = Places::new();
        let request = v1::NodePublishVolumeRequest {
            volume_id: "x".repeat(129),
            target_path: places.of("target/pod").to_str().unwrap().to_owned(),
            ..Default::default()
        };
        let hex: String = request.encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(places.of("journal"), format!("NodePublishVolume {hex}  \n")).unwrap();
        let work = async {
            let output = program(&places).arg("--clean-up").output().await.unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            assert!(!places.of("journal").exists());
        };
        with_memory(&places, work).await;
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
        with_memory(&places, work).await;
        println!("{killed} of 6 runs were killed with something made");
        assert_eq!(mounts_below(&places.of("target")), 0);
    });
}
