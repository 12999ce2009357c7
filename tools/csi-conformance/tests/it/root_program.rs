//! The program: its exit status, its reports, and what it leaves when it is killed. Needs root, for
//! the mounts.

use std::time::Duration;

use csi_proto::v1;
use nix::sys::signal::Signal;
use prost::Message as _;
use tokio::process::Command;

use crate::memory;
use crate::program::*;
use crate::proxy::{asked, fault, with_state};
use crate::support::*;

#[test]
fn it_reports_and_leaves_nothing() {
    beside_memory(async |places| {
        let tap = places.of("tap");
        let junit = places.of("junit.xml");
        let mut program = program(places);
        program.arg("--tap").arg(&tap).arg("--junit").arg(&junit);
        let shown = ended(&program.output().await.unwrap(), 0);
        assert!(shown.contains("0 failed"), "{shown}");
        let tap = std::fs::read_to_string(tap).unwrap();
        let junit = std::fs::read_to_string(junit).unwrap();
        assert!(tap.starts_with("TAP version 13\n1..") && !tap.contains("\nnot ok"), "{tap}");
        let first = "ok 1 - identity.name-and-version: The plugin has a name of at most 63 characters";
        assert!(tap.contains(first) && tap.contains("\n  section: \"Identity Service RPC\"\n"), "{tap}");
        let rule = "<property name=\"rule\" value=\"get-plugin-info.name, get-plugin-info.version\"/>";
        assert!(junit.contains(rule), "{junit}");
        assert!(junit.contains("failures=\"0\"") && junit.ends_with("</testsuite>\n"), "{junit}");
    });
}

#[test]
fn filters_choose_and_nothing_chosen_is_no_success() {
    in_private(async || {
        let places = Places::new();
        let work = async {
            let output = program(&places).args(["--only", "two-names"]).output().await.unwrap();
            assert!(text(&output).contains("1 passed, 0 failed"), "{}", text(&output));
            ended(&program(&places).args(["--only", "no such test"]).output().await.unwrap(), 2);
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
    beside_memory(async |places| {
        // The driver does not know this parameter.
        std::fs::write(places.of("parameters"), "# wrong\n[CreateSnapshot]\nno-such=1\n").unwrap();
        std::fs::write(places.of("mutable"), "iops=1\nno-such=1\n").unwrap();
        std::fs::write(places.of("secrets"), "token=hunter2-hunter2\n").unwrap();
        let mut program = program(places);
        program.arg("--mutable-parameters").arg(places.of("mutable"));
        program.arg("--parameters").arg(places.of("parameters")).arg("--secrets").arg(places.of("secrets"));
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
        let shown = ended(&self::program(places).args(flags).output().await.unwrap(), 1);
        assert!(!shown.contains("hunter2"), "{shown}");
        ended(&self::program(places).args(["--mount-flag", "ro"]).output().await.unwrap(), 2);
    });
}

/// A target path that is not absolute is the caller's mistake, so this driver conforms.
#[test]
fn advice_is_shown_and_fails_only_a_strict_run() {
    let takes_relative_paths = |_: &Places| {
        fault(|rpc, bytes, behind| async move {
            let published = asked(rpc, &bytes).map(|r: v1::NodePublishVolumeRequest| r.target_path);
            let unpublished = asked(rpc, &bytes).map(|r: v1::NodeUnpublishVolumeRequest| r.target_path);
            match published.or(unpublished) {
                Some(path) if !path.starts_with('/') => Ok(vec![]),
                _ => behind.call(rpc, bytes).await,
            }
        })
    };
    beside_faulty(takes_relative_paths, async |places| {
        let run = async |flags: &[&str]| {
            let only = ["--only", "node-publish.relative", "--only", "node-publish.publish-is-idempotent"];
            program(places).args(only).args(flags).output().await.unwrap()
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
        let todo = "\nnot ok 2 - node-publish.relative-paths: A path that is not absolute is refused # TODO";
        assert!(text(&tap).contains(todo), "{}", text(&tap));
        assert!(text(&tap).contains("\n  level: \"good practice\"\n"), "{}", text(&tap));
        let junit = run(&["--format", "junit"]).await;
        assert!(text(&junit).contains("failures=\"0\" errors=\"0\" skipped=\"1\""), "{}", text(&junit));

        let shown = ended(&run(&["--strict"]).await, 3);
        assert!(shown.contains(": 1 passed, 1 failed, 0 not as"), "{shown}");
        let tap = run(&["--strict", "--format", "tap"]).await;
        assert!(!text(&tap).contains("TODO"), "{}", text(&tap));
    });
}

#[test]
fn without_mount_access_it_calls_and_does_not_look() {
    beside_memory(async |places| {
        let output = program(places).args(["--no-mount-access", "--only", "node-"]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(text(&output).contains("ok      node-publish.matrix"), "{}", text(&output));
        // If the node's directories are on another machine, nothing is created on this one.
        let nowhere = places.of("nowhere/staging");
        let nowhere = nowhere.to_str().unwrap();
        let flags = ["--no-mount-access", "--only", "node-publish.stage", "--staging", nowhere];
        bare(places, "10").args(flags).arg("--target").arg(places.of("target")).output().await.unwrap();
        assert!(!places.of("nowhere").exists());
        let not = "n/a     node-use.read-only: the node's mounts are not visible to the kit";
        assert!(text(&output).contains(not), "{}", text(&output));
    });
}

#[test]
fn ctrl_c_undoes_what_was_made() {
    const TRIES: usize = 20;
    beside_memory(async |places| {
        for (signal, only) in
            [(Signal::SIGINT, "snapshots."), (Signal::SIGTERM, "node-"), (Signal::SIGHUP, "snapshots.")]
        {
            let tap = places.of("tap");
            let junit = places.of("junit.xml");
            // A run can end before it is seen to have made anything: then another one is tried.
            let mut status = None;
            for _ in 0..TRIES {
                let mut program = program(places);
                program.arg("--tap").arg(&tap).arg("--junit").arg(&junit);
                let mut child = started(program.args(["--only", "identity", "--only", only]));
                while !places.of("journal").exists() && child.try_wait().unwrap().is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if child.id().is_some() {
                    send(&child, signal);
                }
                status = child.wait().await.unwrap().code();
                if status != Some(0) {
                    break;
                }
            }
            assert_eq!(status, Some(2), "{signal}");
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
        assert_eq!(mounts_below(&places.of("target")), 0);
    });
}

/// `csi-conformance … 2>&1 | tee log`: Ctrl-C ends `tee` too, and with it both outputs.
#[test]
fn without_a_reader_it_undoes_what_was_made() {
    beside_memory(async |places| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut program = program(places);
        program.args(["--only", "snapshots."]).stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(program.status().await.unwrap().code(), Some(2));
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
        assert!(!places.of("journal").exists());
    });
}

#[test]
fn two_runs_have_no_journal_in_common_and_it_is_for_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    beside_memory(async |places| {
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
        let mut first = started(&mut run());
        let journal = loop {
            if let Some(journal) = journal() {
                break journal;
            }
            assert!(first.try_wait().unwrap().is_none(), "it ended before it had made anything");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        // The run is stopped in the middle of its work.
        send(&first, Signal::SIGSTOP);
        let shown = ended(&run().arg("--clean-up").output().await.unwrap(), 2);
        assert!(shown.contains("another run uses"), "{shown}");
        if let Ok(found) = journal.metadata() {
            assert_eq!(found.permissions().mode() & 0o777, 0o600);
        }
        let directory = state.join("csi-conformance").metadata().unwrap();
        assert_eq!(directory.permissions().mode() & 0o777, 0o700);
        first.kill().await.unwrap();
        ended(&run().arg("--clean-up").output().await.unwrap(), 0);
        assert_eq!(std::fs::read_dir(state.join("csi-conformance")).unwrap().count(), 0);
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
                let shown = ended(&program(&places).arg("--clean-up").output().await.unwrap(), 2);
                assert!(shown.contains(due), "{shown}");
            }
        };
        with_plugin(memory.plugin(), &places.endpoint("csi.sock"), work).await;
        assert_eq!(places.left(), [places.of("volumes").join("precious")]);
    });
}

/// The file of a volume is a pipe without a reader: a write to it waits forever.
#[test]
fn a_volume_that_hangs_does_not_keep_it_from_its_end() {
    let hangs = |places: &Places| {
        let pipe = places.of("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        with_state(pipe, |pipe, rpc, bytes, behind| async move {
            let answer = behind.call(rpc, bytes.clone()).await?;
            if let Some(v1::NodePublishVolumeRequest { target_path, .. }) = asked(rpc, &bytes) {
                std::os::unix::fs::symlink(&*pipe, format!("{target_path}/file")).unwrap();
            }
            Ok(answer)
        })
    };
    beside_faulty(hangs, async |places| {
        let mut child = started(program(places).args(["--only", "node-use.data-stays"]));
        let id = child.id().unwrap();
        while !waits_at_a_pipe(id) {
            assert!(child.try_wait().unwrap().is_none(), "it ended and did not write");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        send(&child, Signal::SIGINT);
        let end = tokio::time::timeout(Duration::from_secs(120), child.wait()).await;
        assert_eq!(end.expect("it ends").unwrap().code(), Some(2));
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
    beside_memory(async |places| {
        let hex = |request: Vec<u8>| request.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let refused = v1::NodePublishVolumeRequest {
            volume_id: "x".repeat(129),
            target_path: places.of("target/pod").to_str().unwrap().to_owned(),
            ..Default::default()
        };
        let not_offered = v1::NodeStageVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
        for (rpc, request) in [
            ("NodePublishVolume", hex(refused.encode_to_vec())),
            ("NodeStageVolume", hex(not_offered.encode_to_vec())),
        ] {
            std::fs::write(places.of("journal"), format!("{rpc} {request}  \n")).unwrap();
            let shown = ended(&program(places).arg("--clean-up").output().await.unwrap(), 0);
            assert!(!places.of("journal").exists(), "{shown}");
        }
    });
}

#[test]
fn a_run_that_was_killed_is_finished_by_clean_up() {
    beside_memory(async |places| {
        let mut killed = 0;
        for millis in [60, 120, 200, 300, 400, 500] {
            let mut child = started(&mut program(places));
            tokio::time::sleep(Duration::from_millis(millis)).await;
            child.kill().await.unwrap();
            killed += u32::from(places.of("journal").exists());
            ended(&program(places).arg("--clean-up").output().await.unwrap(), 0);
            assert_eq!(places.left(), Vec::<std::path::PathBuf>::new(), "after {millis} ms");
        }
        println!("{killed} of 6 runs were killed with something made");
        assert_eq!(mounts_below(&places.of("target")), 0);
    });
}

/// The mount table of the kernel has no symbolic links.
#[test]
fn a_link_in_the_path_of_its_directories_changes_nothing() {
    beside_memory(async |places| {
        let link = places.of("link");
        std::os::unix::fs::symlink(places.of("target"), &link).unwrap();
        let flags = ["--only", "foreign.mount-of-nobody", "--only", "node-publish.mount-flags", "--strict"];
        let mut command = bare(places, "10");
        command.args(flags).args(["--mount-flag", "noexec", "--target"]).arg(&link);
        let shown = ended(&command.output().await.unwrap(), 0);
        assert!(shown.contains("2 passed"), "{shown}");
    });
}
