//! `csi lifecycle` against real drivers with real mounts, and against the same drivers with a call that
//! fails. In every case nothing is left. Needs root.
#![cfg(feature = "program")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use csi_core::Rpc;
use csi_proto::{ControllerCapability, NodeCapability, v1};
use nix::sys::signal::Signal;
use prost::Message as _;
use support::*;
use tokio::sync::Notify;
use tonic::Status;

#[test]
fn dirs_lives_and_nothing_is_left() {
    with_driver(dirs::plugin, |driver| {
        let text = ok(&driver.lifecycle(&driver.path("csi.sock"), &[]));
        for part in ["NodePublishVolume          target-read-only", "write, read-only", "success: 16 steps"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.trim_end().ends_with("nothing is left"), "{text}");
        driver.assert_clean(&text);
        // In directories that the user gives, which stay, with JSON output.
        let places = driver.path("places");
        let staging = places.join("staging");
        let target = places.join("target");
        std::fs::create_dir(&staging).unwrap();
        std::fs::create_dir(&target).unwrap();
        let mut command = driver.lifecycle_command(&driver.path("csi.sock"), &["--output", "json"]);
        command.arg("--staging").arg(&staging).arg("--target").arg(&target);
        let text = ok(&command.output().unwrap());
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let end = lines.last().unwrap();
        assert_eq!((&end["well"], &end["steps"]), (&true.into(), &16.into()), "{text}");
        let publish = lines.iter().find(|line| line["step"] == "NodePublishVolume").unwrap();
        assert!(
            publish["outcome"] == "ok" && publish["ms"].is_number() && publish["again_ms"].is_number(),
            "{text}"
        );
        std::fs::remove_dir(staging).unwrap();
        std::fs::remove_dir(target).unwrap();
        driver.assert_clean(&text);
    });
}

#[test]
fn block_lives_as_a_filesystem_and_raw() {
    with_driver(block::plugin, |driver| {
        for (capability, size, due) in
            [("rwo,mount,xfs", "320Mi", "xfs on /dev/loop"), ("rwo,block", "16Mi", "as a raw device")]
        {
            let text =
                ok(&driver
                    .lifecycle(&driver.path("csi.sock"), &["--capability", capability, "--size", size]));
            assert!(text.contains(due) && text.contains(", was ") && text.contains("success"), "{text}");
            driver.assert_clean(&text);
        }
    });
}

/// As Kubernetes' hostpath driver does: it stages, and mounts nothing at the staging path.
#[test]
fn a_driver_that_mounts_nothing_to_stage_lives() {
    with_driver(dirs::plugin, |driver| {
        let fake = driver.behind(|client, rpc, bytes| async move {
            match rpc {
                Rpc::NodeGetCapabilities => answer(&node_offers([NodeCapability::StageUnstageVolume])),
                Rpc::NodeStageVolume | Rpc::NodeUnstageVolume => answer(&v1::NodeStageVolumeResponse {}),
                _ => forward(client, rpc, bytes).await,
            }
        });
        let text = ok(&driver.lifecycle(&fake.socket(), &[]));
        assert!(text.contains("NodeStageVolume            staged"), "{text}");
        assert!(text.contains("NodeUnstageVolume          unstaged") && !text.contains("detached"), "{text}");
        driver.assert_clean(&text);
    });
}

/// A driver that clones the file of a volume, or forgets it.
fn cloning(driver: &Driver, forgets: bool) -> Fake {
    let volumes = driver.path("volumes");
    driver.behind(move |client, rpc, bytes| {
        let volumes = volumes.clone();
        async move {
            use v1::volume_content_source::Type as Source;
            if rpc == Rpc::ControllerGetCapabilities {
                use ControllerCapability::{CloneVolume, CreateDeleteVolume};
                return answer(&controller_offers([CreateDeleteVolume, CloneVolume]));
            }
            if rpc != Rpc::CreateVolume {
                return forward(client, rpc, bytes).await;
            }
            let mut request = v1::CreateVolumeRequest::decode(&*bytes).unwrap();
            let source = request.volume_content_source.take().and_then(|source| source.r#type);
            let mut done = forward(client, rpc, request.encode_to_vec()).await?;
            let done = done.recv().await.unwrap()?;
            if let Some(Source::Volume(source)) = source
                && !forgets
            {
                let made = v1::CreateVolumeResponse::decode(&*done).unwrap().volume.unwrap().volume_id;
                let file = |id: &str| volumes.join(id).join("hello");
                std::fs::copy(file(&source.volume_id), file(&made)).unwrap();
            }
            one(done)
        }
    })
}

#[test]
fn a_clone_has_the_data_of_its_source_or_the_life_fails() {
    with_driver(dirs::plugin, |driver| {
        let shown = ok(&driver.lifecycle(&cloning(driver, false).socket(), &[]));
        assert!(
            shown.contains("CreateVolume, cloned") && shown.contains("the data of its source"),
            "{shown}"
        );
        driver.assert_clean(&shown);
        let shown = ended(&driver.lifecycle(&cloning(driver, true).socket(), &[]), 1);
        assert!(shown.contains("read failed") && shown.contains("hello"), "{shown}");
        driver.assert_clean(&shown);
    });
}

/// Relative directories are those of the current directory.
#[test]
fn relative_directories_are_resolved() {
    with_driver(dirs::plugin, |driver| {
        let mut command = csi(&driver.path("csi.sock"));
        command.args(["lifecycle", "--staging", "places", "--target", "./places"]);
        let text = ok(&command.current_dir(driver.path("")).output().unwrap());
        driver.assert_clean(&text);
    });
}

/// The calls of a life, in the order in which they first appear.
const CALLS: [Rpc; 12] = [
    Rpc::GetPluginInfo,
    Rpc::NodeGetInfo,
    Rpc::CreateVolume,
    Rpc::ValidateVolumeCapabilities,
    Rpc::NodeStageVolume,
    Rpc::NodePublishVolume,
    Rpc::NodeGetVolumeStats,
    Rpc::ControllerExpandVolume,
    Rpc::NodeExpandVolume,
    Rpc::NodeUnpublishVolume,
    Rpc::NodeUnstageVolume,
    Rpc::DeleteVolume,
];

#[test]
fn whichever_call_fails_once_nothing_is_left() {
    with_driver(block::plugin, |driver| {
        for (failing, at) in CALLS.into_iter().flat_map(|rpc| [(rpc, 0), (rpc, 1)]) {
            let count = Arc::new(AtomicUsize::new(0));
            let fake = driver.refusing(move |rpc| {
                let is_it = rpc == failing && count.fetch_add(1, Ordering::SeqCst) == at;
                is_it.then(|| Status::internal("broken"))
            });
            let output = driver.lifecycle(&fake.socket(), &["--capability", "rwo,block", "--size", "1Mi"]);
            let text = text(&output);
            assert_eq!(output.status.code(), Some(1), "{failing} {at}: {text}");
            assert!(text.contains(&format!("{failing} failed")) && text.contains("broken"), "{text}");
            assert!(text.trim_end().ends_with("nothing is left"), "{failing} {at}: {text}");
            driver.assert_clean(&text);
        }
    });
}

#[test]
fn what_can_not_be_taken_back_is_named_with_the_commands_that_do() {
    with_driver(block::plugin, |driver| {
        let fake = driver.refusing(|rpc| {
            let fails = matches!(rpc, Rpc::NodeUnstageVolume | Rpc::ControllerExpandVolume);
            fails.then(|| Status::internal("it never works"))
        });
        let words = ["--capability", "rwo,block", "--size", "1Mi", "--name", "v"];
        let shown = ended(&driver.lifecycle(&fake.socket(), &words), 1);
        // Everything that does not depend on the failed step is undone: the targets.
        assert!(shown.contains("unpublished") && shown.contains("not undone: NodeUnstageVolume"), "{shown}");
        let commands = undoing(&shown);
        assert!(commands[0].contains("csi node unstage-volume --volume-id"), "{shown}");
        assert!(shown.contains("csi controller delete-volume --volume-id"), "{shown}");
        // The printed commands undo the rest once the driver works again.
        driver.run_all(commands);
        driver.assert_clean(&shown);
    });
}

#[test]
fn ctrl_c_in_the_middle_takes_everything_back() {
    with_driver(block::plugin, |driver| {
        for stuck in
            [Rpc::CreateVolume, Rpc::NodeStageVolume, Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume]
        {
            // The driver does the work, and its answer does not arrive.
            let reached = Arc::new(Notify::new());
            let tell = reached.clone();
            let first = Arc::new(AtomicBool::new(true));
            let fake = driver.behind(move |client, rpc, bytes| {
                let tell = tell.clone();
                let first = first.clone();
                async move {
                    let done = forward(client, rpc, bytes).await;
                    if rpc == stuck && first.swap(false, Ordering::SeqCst) {
                        tell.notify_one();
                        std::future::pending::<()>().await;
                    }
                    done
                }
            });
            let words = ["--capability", "rwo,block", "--size", "1Mi"];
            let running = Running::start(&mut driver.lifecycle_command(&fake.socket(), &words));
            driver.runtime.block_on(reached.notified());
            running.signal(Signal::SIGINT);
            let (status, text, errors) = running.finish();
            assert_eq!(status, Some(130), "{stuck}: {text}{errors}");
            assert!(text.contains("stopped by Ctrl-C") && text.contains("deleted volume"), "{stuck}: {text}");
            assert!(text.trim_end().ends_with("nothing is left"), "{stuck}: {text}");
            driver.assert_clean(&text);
        }
    });
}

/// A driver whose volumes hang: their file is a pipe without a reader.
fn hanging(driver: &Driver) -> Fake {
    let pipe = driver.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    driver.behind(move |client, rpc, bytes| {
        let pipe = pipe.clone();
        async move {
            let target = match rpc {
                Rpc::NodePublishVolume => Some(v1::NodePublishVolumeRequest::decode(&*bytes).unwrap()),
                _ => None,
            };
            let done = forward(client, rpc, bytes).await;
            if let Some(request) = target {
                let _ = std::os::unix::fs::symlink(pipe, Path::new(&request.target_path).join("hello"));
            }
            done
        }
    })
}

#[test]
fn ctrl_c_ends_a_look_at_a_volume_that_hangs() {
    with_driver(dirs::plugin, |driver| {
        let fake = hanging(driver);
        let running = Running::start(&mut driver.lifecycle_command(&fake.socket(), &[]));
        until(|| running.waits_at_a_pipe().then_some(()));
        running.signal(Signal::SIGINT);
        let (status, text, errors) = running.finish();
        assert_eq!(status, Some(130), "{text}{errors}");
        assert!(text.trim_end().ends_with("nothing is left"), "{text}");
        driver.assert_clean(&text);
    });
}

#[test]
fn a_volume_that_hangs_is_a_step_that_failed() {
    with_driver(dirs::plugin, |driver| {
        let fake = hanging(driver);
        let text = ended(&driver.lifecycle(&fake.socket(), &["--timeout", "3s"]), 1);
        assert!(text.contains("the volume does not answer within 3s"), "{text}");
        assert!(text.trim_end().ends_with("nothing is left"), "{text}");
        driver.assert_clean(&text);
    });
}

#[test]
fn a_second_ctrl_c_waits_no_longer_and_names_what_is_left() {
    with_driver(dirs::plugin, |driver| {
        let reached = Arc::new(Notify::new());
        let tell = reached.clone();
        let fake = driver.behind(move |client, rpc, bytes| {
            let tell = tell.clone();
            async move {
                if rpc == Rpc::NodeUnpublishVolume {
                    tell.notify_one();
                    std::future::pending::<()>().await;
                }
                forward(client, rpc, bytes).await
            }
        });
        let running = Running::start(&mut driver.lifecycle_command(&fake.socket(), &["--name", "v"]));
        let once = || driver.runtime.block_on(reached.notified());
        once();
        running.signal(Signal::SIGINT);
        // The undo makes the same call again.
        once();
        running.signal(Signal::SIGINT);
        let (status, text, _) = running.finish();
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains("Ctrl-C again") && text.contains("csi node unpublish-volume"), "{text}");
        drop(fake);
        driver.run_all(undoing(&text));
        driver.assert_clean(&text);
    });
}

#[test]
fn a_volume_that_is_there_stays_as_it_is() {
    with_driver(dirs::plugin, |driver| {
        let socket = driver.path("csi.sock");
        ok(&run(&socket, &["controller", "create-volume", "--name", "mine", "--capability", "rwo,mount"]));
        let before: Vec<_> = std::fs::read_dir(driver.path("volumes")).unwrap().collect();
        assert_eq!(before.len(), 1);
        let volume = before[0].as_ref().unwrap().path();
        let fake = driver.refusing(|rpc| match rpc {
            Rpc::CreateVolume | Rpc::DeleteVolume => panic!("{rpc}"),
            _ => None,
        });
        let text = ok(&driver.lifecycle(&fake.socket(), &["--volume-id", "mine"]));
        assert!(
            text.contains("mine, an existing volume")
                && text.contains("writing is not allowed for this volume"),
            "{text}"
        );
        assert_eq!(std::fs::read_dir(&volume).unwrap().count(), 0, "{text}");
        ok(&run(&socket, &["controller", "delete-volume", "--volume-id", "mine"]));
        driver.assert_clean(&text);
    });
}

#[test]
fn secrets_of_a_life_are_sent_and_not_told() {
    with_driver(dirs::plugin, |driver| {
        let fake = driver.behind(|client, rpc, bytes| async move {
            let sent = String::from_utf8_lossy(&bytes).into_owned();
            match rpc {
                Rpc::NodePublishVolume => Err(Status::internal(format!("can't log in with {sent}"))),
                _ => forward(client, rpc, bytes).await,
            }
        });
        let mut command = driver.lifecycle_command(&fake.socket(), &["--secrets-env", "key=LOGIN"]);
        let text = text(&command.env("LOGIN", "canary-7f3a").output().unwrap());
        assert!(
            text.contains("can't log in with") && text.contains("***") && !text.contains("canary"),
            "{text}"
        );
        let has_it = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("canary-7f3a");
        let sent: Vec<_> =
            fake.asked().iter().filter(|(_, bytes)| has_it(bytes)).map(|(rpc, _)| *rpc).collect();
        for rpc in [Rpc::CreateVolume, Rpc::NodePublishVolume, Rpc::DeleteVolume] {
            assert!(sent.contains(&rpc), "{rpc}: {sent:?}");
        }
        driver.assert_clean(&text);
    });
}
