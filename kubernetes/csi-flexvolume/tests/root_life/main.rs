//! The executable as a process against real drivers, with the kubelet's own arguments. Needs root.
#![cfg(target_os = "linux")]

mod kubelet;
#[path = "../../../../tools/csi-cli/tests/support/server.rs"]
#[allow(dead_code, reason = "a module of several test programs, which use parts")]
mod server;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser as _;
use csi_core::Rpc;
use csi_mount::testing::private_mount_namespace;
use csi_mount::{Mount, MountOptions, Target, unmount};
use csi_proto::v1;
use kubelet::{Driver, Kubelet, NODE};
use prost::Message as _;
use serde_json::{Value, json};
use server::{Fake, forward};
use tokio::sync::Semaphore;
use tonic::Status;

const MIB: i64 = 1 << 20;
/// Of a volume of XFS, which grows without CAP_SYS_RESOURCE: the smallest size, and the size that replaces the
/// vectors' 128 MiB.
const SIZE: i64 = 320 * MIB;
const GROWN: (&str, &str) = ("134217728", "671088640");

/// A volume's life on a node, twice, each command twice.
fn lives(driver: &Driver, lines: &str, fs_type: &str) {
    let id = driver.create("pv-1", fs_type, SIZE);
    let kubelet = Kubelet::new(&driver.socket(), lines, Kubelet::options(&id, fs_type));
    let attaches = kubelet.succeeds("init")["capabilities"]["attach"] == true;
    let twice = |vector: &str| {
        let answer = kubelet.succeeds(vector);
        assert_eq!(kubelet.succeeds(vector), answer, "{vector} again");
        answer
    };
    for round in ["first", "second"] {
        assert_eq!(kubelet.run("getvolumename")["status"], "Not supported");
        if attaches {
            let device = twice("attach")["device"].as_str().unwrap_or_default().to_owned();
            assert_eq!(twice("isattached")["attached"], true);
            assert_eq!(kubelet.run("waitforattach")["status"], "Not supported");
            let answer = kubelet.run_with("mountdevice", ("DEVICE", &device));
            assert_eq!(answer["status"], "Success", "{answer}");
        }
        twice("mount");
        twice("mount-read-only");
        let file = kubelet.target("mount").join(round);
        let same = kubelet.target("mount-read-only").join(round);
        std::fs::write(&file, round).unwrap();
        assert_eq!(std::fs::read_to_string(&same).unwrap(), round);
        let refused = std::fs::write(&same, "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        for vector in ["expandvolume", "expandfs"] {
            let answer = kubelet.run_with(vector, GROWN);
            assert!(answer["status"] != "Failure", "{vector}: {answer}");
        }
        twice("unmount");
        assert!(!file.exists() && same.exists());
        twice("unmount-read-only");
        assert!(!same.exists());
        twice("unmountdevice");
        if attaches {
            twice("detach");
            assert_eq!(twice("isattached")["attached"], false);
        }
        kubelet.assert_clean();
    }
    driver.delete(&id);
}

#[test]
fn directories_live() {
    private_mount_namespace(|| lives(&Driver::new(dirs::plugin), "", ""));
}

#[test]
fn block_volumes_live_and_grow() {
    private_mount_namespace(|| {
        let driver = Driver::new(block::plugin);
        lives(&driver, "", "xfs");
        // The kubelet expands between `mountdevice` and `mount` too.
        let id = driver.create("pv-2", "xfs", SIZE);
        let kubelet = Kubelet::new(&driver.socket(), "", Kubelet::options(&id, "xfs"));
        let blocks = || {
            let usage = csi_mount::Host::kernel().mounts().stats(kubelet.target("mount").as_ref()).unwrap();
            usage.bytes.total
        };
        kubelet.succeeds("mount");
        let before = blocks();
        kubelet.succeeds("unmount");
        assert_eq!(kubelet.run_with("expandvolume", GROWN)["volumeNewSize"], 640 * MIB);
        assert_eq!(kubelet.run_with("expandfs", GROWN)["status"], "Success");
        kubelet.succeeds("mount");
        assert!(blocks() > before + 300 * MIB as u64, "{before} and {}", blocks());
        kubelet.succeeds("unmount");
        kubelet.assert_clean();
        driver.delete(&id);
    });
}

#[test]
fn the_reference_driver_lives_with_attach() {
    private_mount_namespace(|| {
        let driver = Driver::new(|data| {
            let data = data.to_str().unwrap().to_owned();
            let words = ["hostpath", "--endpoint", "/unused.sock", "--data", &data, "--node-id", NODE];
            hostpath::plugin(&hostpath::Args::parse_from(words)).unwrap()
        });
        lives(&driver, "attach=true", "xfs");
    });
}

/// A driver in front of another one, which stops once at a call: before it, or after it and before the answer.
struct Stopping {
    fake: Fake,
    reached: Arc<Semaphore>,
}

impl Stopping {
    fn new(driver: &Driver, at: Rpc, is_after: bool) -> Self {
        let client = driver.client();
        let reached = Arc::new(Semaphore::new(0));
        let was_there = Arc::new(AtomicBool::new(false));
        let signal = reached.clone();
        let fake = Fake::new(move |rpc, bytes| {
            let client = client.clone();
            let signal = signal.clone();
            let stops = rpc == at && !was_there.swap(rpc == at, Ordering::SeqCst);
            async move {
                let answers = if stops && !is_after { None } else { Some(forward(client, rpc, bytes).await) };
                if stops {
                    signal.add_permits(1);
                    std::future::pending::<()>().await;
                }
                answers.unwrap()
            }
        });
        Self { fake, reached }
    }

    /// Starts the command, and kills it when the driver has stopped.
    fn kill(&self, kubelet: &Kubelet, vector: &str) {
        let mut child = kubelet.start(vector);
        let end = Instant::now() + Duration::from_secs(120);
        while self.reached.try_acquire().map(tokio::sync::SemaphorePermit::forget).is_err() {
            assert!(
                Instant::now() < end && child.try_wait().unwrap().is_none(),
                "{vector} did not get there"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_killed_command_is_repeated_or_undone() {
    private_mount_namespace(|| {
        let driver = Driver::new(block::plugin);
        let id = driver.create("pv-1", "ext4", 64 * MIB);
        for (vector, at) in [
            ("mount", Rpc::NodeGetCapabilities),
            ("mount", Rpc::NodeStageVolume),
            ("mount", Rpc::NodePublishVolume),
            ("unmount", Rpc::NodeUnpublishVolume),
            ("unmount", Rpc::NodeUnstageVolume),
        ] {
            for is_after in [false, true] {
                // After a killed `mount` the pod is there, is gone, or its directory is removed before another pod
                // comes.
                for next in ["mount", "unmount", "mount-read-only"] {
                    let stopping = Stopping::new(&driver, at, is_after);
                    let kubelet = Kubelet::new(&stopping.fake.socket(), "", Kubelet::options(&id, "ext4"));
                    if vector == "unmount" {
                        kubelet.succeeds("mount");
                    } else {
                        std::fs::create_dir_all(kubelet.target("mount")).unwrap();
                    }
                    stopping.kill(&kubelet, vector);
                    let is_empty = !csi_mount::mounts()
                        .unwrap()
                        .iter()
                        .any(|one| one.mount_point == kubelet.target("mount"));
                    if next == "mount-read-only" && is_empty {
                        let _ = std::fs::remove_dir(kubelet.target("mount"));
                    }
                    kubelet.succeeds(next);
                    if next == "mount-read-only" {
                        kubelet.succeeds("unmount-read-only");
                    }
                    if !(next == "mount-read-only" && is_empty) {
                        kubelet.succeeds("unmount");
                    }
                    kubelet.assert_clean();
                }
            }
        }
        driver.delete(&id);
    });
}

/// A pod has filled the disk that also has the records.
#[test]
fn on_a_full_disk_volumes_are_unmounted() {
    private_mount_namespace(|| {
        let driver = Driver::new(dirs::plugin);
        let id = driver.create("pv-1", "", SIZE);
        let kubelet = Kubelet::new(&driver.socket(), "", Kubelet::options(&id, ""));
        let records = kubelet.path("records");
        std::fs::create_dir(&records).unwrap();
        let disk = Target::new(&records).unwrap();
        let options = MountOptions::parse(["size=64k"]).unwrap();
        Mount::new("tmpfs", "disk").options(&options).at(&disk).unwrap();
        kubelet.succeeds("mount");
        kubelet.succeeds("mount-read-only");
        let mut filler = std::fs::File::create(records.join(".filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        drop(filler);
        for vector in ["unmount", "unmount", "unmount-read-only", "unmount-read-only", "unmountdevice"] {
            kubelet.succeeds(vector);
        }
        let left = std::fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| !name.to_str().unwrap().starts_with('.')).collect();
        assert!(left.is_empty(), "{left:?}");
        unmount(&disk).unwrap();
        kubelet.assert_clean();
        driver.delete(&id);
    });
}

/// The kubelet's directory can be a symbolic link, and a later kubelet can have the real path.
#[test]
fn a_directory_is_the_same_by_every_path() {
    private_mount_namespace(|| {
        let driver = Driver::new(block::plugin);
        let id = driver.create("pv-1", "ext4", 64 * MIB);
        let kubelet = Kubelet::new(&driver.socket(), "", Kubelet::options(&id, "ext4"));
        let root = kubelet.path("root").to_str().unwrap().to_owned();
        let link = kubelet.path("link").to_str().unwrap().to_owned();
        std::os::unix::fs::symlink(&root, &link).unwrap();
        let doubled = format!("{root}/");
        for (mounted, unmounted) in [(&link, &root), (&root, &link), (&doubled, &root), (&link, &doubled)] {
            let answer = kubelet.run_with("mount", (&root, mounted));
            assert_eq!(answer["status"], "Success", "{mounted}: {answer}");
            let answer = kubelet.run_with("unmount", (&root, unmounted));
            assert_eq!(answer["status"], "Success", "{unmounted}: {answer}");
            kubelet.assert_clean();
        }
        driver.delete(&id);
    });
}

/// A driver that answers NOT_FOUND also to what undoes a step, as the spec allows.
#[test]
fn a_volume_that_does_not_exist_leaves_nothing() {
    private_mount_namespace(|| {
        let driver = Driver::new(block::plugin);
        let client = driver.client();
        let fake = Fake::new(move |rpc, bytes| {
            let client = client.clone();
            async move {
                match rpc {
                    Rpc::NodeStageVolume | Rpc::NodeUnstageVolume | Rpc::NodeUnpublishVolume => {
                        Err(Status::not_found("no such volume"))
                    }
                    _ => forward(client, rpc, bytes).await,
                }
            }
        });
        let kubelet = Kubelet::new(&fake.socket(), "", Kubelet::options("missing", "ext4"));
        let answer = kubelet.run("mount");
        assert_eq!(answer["message"], "mount: NodeStageVolume: NotFound: no such volume");
        kubelet.assert_clean();
    });
}

/// The driver refuses a call. `mount` undoes what it did, and its message has no secret.
#[test]
fn a_failed_mount_is_undone_and_shows_no_secret() {
    /// What a driver does with a secret before it repeats it.
    fn refusal(secrets: &BTreeMap<String, String>) -> Status {
        let secret = &secrets["password"];
        Status::permission_denied(format!(
            "no login with {secret}, {secret:?}, {}, {}",
            secret.trim(),
            json!(secret)
        ))
    }
    private_mount_namespace(|| {
        let driver = Driver::new(block::plugin);
        let id = driver.create("pv-1", "ext4", 64 * MIB);
        for refused in [Rpc::NodeStageVolume, Rpc::NodePublishVolume] {
            let client = driver.client();
            let fake = Fake::new(move |rpc, bytes| {
                let client = client.clone();
                async move {
                    match rpc {
                        Rpc::NodePublishVolume if rpc == refused => {
                            Err(refusal(&v1::NodePublishVolumeRequest::decode(&*bytes).unwrap().secrets))
                        }
                        Rpc::NodeStageVolume if rpc == refused => {
                            Err(refusal(&v1::NodeStageVolumeRequest::decode(&*bytes).unwrap().secrets))
                        }
                        _ => forward(client, rpc, bytes).await,
                    }
                }
            });
            let mut options = Kubelet::options(&id, "ext4");
            // ` hunter2 "a<b"` and a line feed.
            options["kubernetes.io/secret/password"] = json!("IGh1bnRlcjIgImE8YiIK");
            let kubelet = Kubelet::new(&fake.socket(), "", options);
            let answer = kubelet.run("mount");
            let message = answer["message"].as_str().unwrap();
            assert_eq!(answer["status"], "Failure");
            let due = format!(r#"mount: {refused}: PermissionDenied: no login with ***, "***", ***, "***""#);
            assert!(message.contains(&due), "{message}");
            kubelet.assert_clean();
        }
        driver.delete(&id);
    });
}

#[test]
fn a_driver_that_hangs_is_a_failure_in_bounded_time() {
    private_mount_namespace(|| {
        let driver = Driver::new(block::plugin);
        let id = driver.create("pv-1", "ext4", 64 * MIB);
        let stopping = Stopping::new(&driver, Rpc::NodeStageVolume, false);
        let kubelet = Kubelet::new(&stopping.fake.socket(), "timeout=1", Kubelet::options(&id, "ext4"));
        let start = Instant::now();
        let answer = kubelet.run("mount");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("mount: NodeStageVolume: ") && message.contains("1s"), "{message}");
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
        // A real stage can take longer on a machine that has other work.
        let config = kubelet.path("exec/example.org~disk/disk.conf");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("timeout=1\n", "")).unwrap();
        kubelet.succeeds("mount");
        kubelet.succeeds("unmount");
        kubelet.assert_clean();
        driver.delete(&id);
    });
}

/// Two pods of one volume come and go at the same time.
#[test]
fn commands_at_the_same_time_do_not_unstage_a_used_volume() {
    private_mount_namespace(|| {
        let driver = Driver::new(block::plugin);
        let id = driver.create("pv-1", "ext4", 64 * MIB);
        let kubelet = Kubelet::new(&driver.socket(), "", Kubelet::options(&id, "ext4"));
        for _ in 0..10 {
            for vectors in [["mount", "mount-read-only"], ["unmount", "unmount-read-only"]] {
                for vector in vectors {
                    std::fs::create_dir_all(kubelet.target(vector)).unwrap();
                }
                let children = vectors.map(|vector| kubelet.start(vector));
                for child in children {
                    let output = child.wait_with_output().unwrap();
                    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
                    assert_eq!(answer, json!({ "status": "Success" }));
                }
            }
        }
        kubelet.assert_clean();
        driver.delete(&id);
    });
}
