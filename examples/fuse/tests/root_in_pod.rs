//! The driver and its programs in pods of their own, on a node as the kubelet makes it: the program of the driver is
//! also the mounter, as another user and without capabilities. Each of driver, mounter and program is killed while a
//! workload writes and compares. Needs root, and Linux 6.9.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use csi_core::client::{Client, Target, VolumeUse};
use csi_core::mount::{Mount, MountHealth, health, mounts};
use csi_core::proto::v1;
use test_support::driver::{Driver, on_tmpfs};
use test_support::process::{fuse_daemons, kill, until};
use v1::volume_capability::access_mode::Mode;

/// The user of a pod.
const USER: u32 = 65534;
/// The name of the pod, where each volume has its own.
const POD: &str = "fuse-3a29c4f7b01aa727";
const UID: &str = "4cfa1f4c-93a9-4a9c-a60a-25f0ed1aa8a6";

/// The directories of a node, below a tmpfs.
struct Node {
    place: PathBuf,
}

impl Node {
    fn kubelet(&self) -> PathBuf {
        self.place.join("kubelet")
    }

    fn root(&self) -> PathBuf {
        self.place.join("root")
    }

    /// The volume of a pod in which its socket is.
    fn comm(&self) -> PathBuf {
        self.kubelet().join("pods").join(UID).join("volumes/kubernetes.io~empty-dir/mounter")
    }

    fn program(&self) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_fuse"));
        program.arg("--root").arg(self.root());
        program
    }

    async fn driver(&self, pods: &str) -> Driver {
        let socket = self.place.join("csi.sock");
        let mut program = self.program();
        program.args(["--node-id=n", "--log-level=error", "--fuse-pods", pods]);
        program.arg("--endpoint").arg(&socket).arg("--volume-roots").arg(self.kubelet());
        Driver::start(program, socket).await
    }
}

const DAEMON_SET: &str = "flat-fuse/flat";

/// A mounter. It ends with its programs, as a container does.
struct Pod(Child, PathBuf);

impl Pod {
    fn start(node: &Node) -> Self {
        let mut program = node.program();
        program.arg("--fuse-mounter").arg(node.comm()).arg("--grace=600s").env("TMPDIR", node.comm());
        let log = File::options().create(true).append(true).open(node.place.join("log")).unwrap();
        let child =
            program.uid(USER).gid(USER).stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null());
        let pod = Self(child.spawn().unwrap(), node.place.clone());
        // The path has more than the 107 bytes of an address.
        let directory = File::open(node.comm()).unwrap();
        let socket = format!("/proc/self/fd/{}/mounter.sock", directory.as_raw_fd());
        until("the mounter serves", || UnixStream::connect(&socket).is_ok());
        pod
    }

    fn kill(&mut self) {
        // It starts no other program then.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        kill(&fuse_daemons(&self.1));
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        kill(&fuse_daemons(&self.1));
    }
}

/// A workload with one open file: it writes a record, reads it again and compares, without a pause.
struct Workload {
    is_over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<Duration>,
}

impl Workload {
    fn start(directory: &Path) -> Self {
        let path = directory.join("records");
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let ended = Arc::clone(&is_over);
        let done = Arc::clone(&rounds);
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            for round in 0_u64.. {
                if ended.load(Ordering::SeqCst) {
                    break;
                }
                let begun = Instant::now();
                let record = round.to_ne_bytes().repeat(512);
                let at = round % 16 * 4096;
                file.write_all_at(&record, at).expect("no user sees an error");
                let mut found = vec![0; record.len()];
                file.read_exact_at(&mut found, at).expect("no user sees an error");
                assert_eq!(found, record, "round {round}");
                longest = longest.max(begun.elapsed());
                done.store(round, Ordering::SeqCst);
            }
            longest
        });
        Self { is_over, rounds, thread }
    }

    /// Waits until it has done some more rounds.
    fn goes_on(&self, after: &str) {
        let before = self.rounds.load(Ordering::SeqCst);
        until(after, || {
            assert!(!self.thread.is_finished(), "the workload has failed: {after}");
            self.rounds.load(Ordering::SeqCst) > before + 20
        });
    }

    /// Returns how long a round took at most.
    fn end(self) -> Duration {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

fn is_dead(place: &Path) -> bool {
    matches!(health(place), Ok(MountHealth::Dead(_)))
}

/// Makes the node's directories, the driver, a pod, and a volume that is published.
async fn with_volume(
    place: &Path,
    pods: &str,
    test: impl AsyncFnOnce(&Node, &mut Driver, &mut Pod, &mut VolumeUse, &Path),
) {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    let node = Node { place: place.to_owned() };
    fs::create_dir_all(node.comm()).unwrap();
    fs::create_dir_all(node.root()).unwrap();
    chown(node.comm(), Some(USER), Some(USER)).unwrap();
    // What the machine has there is covered, in this namespace.
    Mount::new("tmpfs", "logs").at(&csi_core::mount::Target::new("/var/log").unwrap()).unwrap();
    for name in ["flat-x7k2p", POD] {
        fs::create_dir_all(format!("/var/log/pods/flat-fuse_{name}_{UID}")).unwrap();
    }
    let mut pod = Pod::start(&node);
    let mut driver = node.driver(pods).await;
    let client = driver.client();
    let capability = v1::VolumeCapability::mount(Mode::SingleNodeWriter);
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let volume_id = client.call(create).await.unwrap().volume.unwrap().volume_id;
    chown(node.root().join(&volume_id), Some(USER), Some(USER)).unwrap();
    let staging = node.kubelet().join("staging");
    let target = node.kubelet().join("target");
    fs::create_dir(&staging).unwrap();
    let mut volume = VolumeUse::new(volume_id, capability).staged_at(&staging);
    volume.publish_context = [("fuse-pod".to_owned(), POD.to_owned())].into();
    volume.attach_stage_publish(&client, &[Target::new(&target)]).await.unwrap();
    test(&node, &mut driver, &mut pod, &mut volume, &target).await;
    unpublish(&driver.client(), &mut volume, &target).await;
    assert!(fuse_daemons(place).is_empty(), "a program is left");
    assert!(!mounts().unwrap().iter().any(|entry| entry.fs_type == "fuse"), "a mount is left");
}

async fn unpublish(client: &Client, volume: &mut VolumeUse, target: &Path) {
    volume.unpublish_unstage_detach(client, &[Target::new(target)]).await.unwrap();
}

#[test]
fn a_workload_goes_on_whichever_one_of_driver_mounter_and_program_is_killed() {
    on_tmpfs(async |place| {
        with_volume(place, DAEMON_SET, async |node, driver, pod, _, target| {
            let workload = Workload::start(target);
            let program = fuse_daemons(place);
            assert_eq!(program.len(), 1);
            for _ in 0..20 {
                driver.restart().await;
                workload.goes_on("the driver was restarted");
            }
            assert_eq!(fuse_daemons(place), program, "no driver has started another program");
            kill(&program);
            workload.goes_on("the program was killed");
            pod.kill();
            *pod = Pod::start(node);
            workload.goes_on("the mounter was killed with its program");
            driver.kill();
            kill(&fuse_daemons(place));
            workload.goes_on("the driver and the program were killed");
            driver.start_again().await;
            pod.kill();
            *pod = Pod::start(node);
            workload.goes_on("the mounter was killed after a new driver had started");
            let longest = workload.end();
            println!("the longest round of the workload took {longest:?}");
            assert!(longest < Duration::from_secs(60));
            let log = fs::read_to_string(place.join("log")).unwrap();
            assert!(log.contains("the next one continues") || log.contains("has ended"), "{log}");
        })
        .await;
    });
}

#[test]
fn after_the_end_of_driver_and_mounter_the_next_publish_repairs_the_volume() {
    on_tmpfs(async |place| {
        with_volume(place, DAEMON_SET, async |node, driver, pod, volume, target| {
            fs::write(target.join("kept"), "data").unwrap();
            driver.kill();
            pod.kill();
            until("users get an error", || is_dead(target));
            driver.start_again().await;
            let targets = [Target::new(target)];
            let status = volume.publish(&driver.client(), &targets).await.unwrap_err();
            assert!(status.message().contains("no mounter answers"), "{status}");
            *pod = Pod::start(node);
            volume.publish(&driver.client(), &targets).await.unwrap();
            assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "data");
        })
        .await;
    });
}

/// The controller names the pod when it attaches the volume. The unstage of a later driver has no such context.
#[test]
fn the_next_driver_finds_the_pod_of_a_volume_by_its_mount() {
    on_tmpfs(async |place| {
        with_volume(place, "flat-fuse", async |node, driver, pod, volume, target| {
            fs::write(target.join("kept"), "data").unwrap();
            driver.restart().await;
            pod.kill();
            *pod = Pod::start(node);
            assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "data", "another pod continues it");
            volume.publish_context.clear();
            driver.restart().await;
        })
        .await;
    });
}

/// As `kubectl drain` does to the pod of the programs before that of the workload.
#[test]
fn a_pod_that_is_to_end_waits_for_its_volumes() {
    on_tmpfs(async |place| {
        with_volume(place, DAEMON_SET, async |_, driver, pod, volume, target| {
            let process = rustix::process::Pid::from_child(&pod.0);
            rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
            let log = place.join("log");
            until("it has heard the signal", || {
                fs::read_to_string(&log).unwrap().contains("waiting for their end")
            });
            fs::write(target.join("late"), "data").unwrap();
            assert_eq!(fs::read_to_string(target.join("late")).unwrap(), "data");
            unpublish(&driver.client(), volume, target).await;
            assert!(pod.0.wait().unwrap().success());
            let name = fs::read_dir(place.join("root")).unwrap().next().unwrap().unwrap();
            assert_eq!(fs::read_to_string(name.path().join("late")).unwrap(), "data");
        })
        .await;
    });
}
