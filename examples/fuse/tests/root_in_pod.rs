//! The driver and its programs in pods of their own, on a node as the kubelet makes it: the program of the driver is
//! also the mounter, as another user and without capabilities. The files are in flat-store. Each of driver, mounter, program
//! and store is killed while a workload writes and compares. Needs root, and Linux 6.9.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
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
use csi_core::mount::{Host, Mount, MountEntry, MountHealth, mounts};
use csi_core::proto::v1;
use serde_json::json;
use test_support::driver::{Driver, on_tmpfs};
use test_support::kube_api::ApiServer;
use test_support::process::{fuse_daemons, kill, until};
use v1::volume_capability::access_mode::Mode;

/// The user of a pod.
const USER: u32 = 65534;
const UID: &str = "4cfa1f4c-93a9-4a9c-a60a-25f0ed1aa8a6";

/// The directories of a node, below a tmpfs, and the store.
struct Node {
    place: PathBuf,
    store: Store,
}

/// The server of the volumes, which ends when it is dropped.
struct Store {
    process: Child,
    address: String,
    root: PathBuf,
}

impl Store {
    fn start(root: PathBuf) -> Self {
        let (process, address) = Self::listen(&root, "127.0.0.1:0");
        Self { process, address, root }
    }

    fn listen(root: &Path, address: &str) -> (Child, String) {
        let mut store = Command::new(env!("CARGO_BIN_EXE_flat-store"));
        store.arg("--root").arg(root).arg("--listen").arg(address).stdout(Stdio::piped());
        let mut process = store.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("it listens").to_owned();
        (process, address)
    }

    fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        (self.process, _) = Self::listen(&self.root, &self.address);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Node {
    fn kubelet(&self) -> PathBuf {
        self.place.join("kubelet")
    }

    /// The volume of a pod in which its socket is.
    fn comm(&self) -> PathBuf {
        self.kubelet().join("pods").join(UID).join("volumes/kubernetes.io~empty-dir/mounter")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.place.join("kubeconfig")
    }

    fn program(&self) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_fuse"));
        program.arg("--store").arg(&self.store.address);
        program
    }

    async fn driver(&self, pods: &str) -> Driver {
        let socket = self.place.join("csi.sock");
        let mut program = self.program();
        program.args(["--node-id=n", "--log-level=error", "--fuse-pods", pods]);
        program.arg("--endpoint").arg(&socket).arg("--volume-roots").arg(self.kubelet());
        if pods == NAMESPACE {
            program.env("KUBECONFIG", self.kubeconfig());
        }
        Driver::start(program, socket).await
    }
}

const DAEMON_SET: &str = "flat-fuse/flat";
/// Each volume has a pod of its own there.
const NAMESPACE: &str = "flat-fuse";

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
    matches!(Host::kernel().mounts().health(place), Ok(MountHealth::Dead(_)))
}

/// As the kubelet does for each pod.
fn make_logs(pod: &str) {
    fs::create_dir_all(format!("/var/log/pods/flat-fuse_{pod}_{UID}")).unwrap();
}

/// An API server for the driver's process, with this node, its scheduler and its kubelet.
async fn serve_api(node: &Node) -> ApiServer {
    let server = ApiServer::new();
    server.put("nodes/n", json!({ "metadata": { "name": "n", "uid": "n1" }, "spec": {} }));
    let container = json!({ "name": "mounter", "image": "flat:1" });
    let template = json!({ "metadata": {}, "spec": { "containers": [container] } });
    server.put(
        "podtemplates/flat-fuse/flat-fuse",
        json!({ "metadata": { "name": "flat-fuse" }, "template": template }),
    );
    server.listen(&node.kubeconfig()).await;
    let cluster = server.clone();
    tokio::spawn(async move {
        loop {
            for mut pod in cluster.objects("pods/flat-fuse/") {
                let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                let path = format!("pods/flat-fuse/{name}");
                if pod["metadata"]["deletionTimestamp"].is_string() {
                    cluster.delete(&path);
                } else if pod["status"].is_null() {
                    make_logs(&name);
                    pod["status"] = json!({ "conditions": [{ "type": "PodScheduled", "status": "True" }] });
                    cluster.put(&path, pod);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    server
}

/// What exists before the external-attacher calls the driver.
fn attach(server: &ApiServer, volume_id: &str) {
    let source = json!({ "driver": "flat.csi.example.org", "volumeHandle": volume_id });
    server.put("persistentvolumes/pv", json!({ "metadata": { "name": "pv" }, "spec": { "csi": source } }));
    let spec = json!({
        "attacher": "flat.csi.example.org", "nodeName": "n", "source": { "persistentVolumeName": "pv" },
    });
    server.put("volumeattachments/va", json!({ "metadata": { "name": "va" }, "spec": spec }));
}

/// Makes the node's directories, the driver, a pod, and a volume that is published. Its users wait for a next pod.
async fn with_volume(
    place: &Path,
    pods: &str,
    test: impl AsyncFnOnce(&mut Node, &mut Driver, &mut Pod, &mut VolumeUse, &Path),
) {
    with_volume_that_waits(place, pods, 600, test).await;
}

async fn with_volume_that_waits(
    place: &Path,
    pods: &str,
    seconds: u32,
    test: impl AsyncFnOnce(&mut Node, &mut Driver, &mut Pod, &mut VolumeUse, &Path),
) {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    let mut node = Node { place: place.to_owned(), store: Store::start(place.join("root")) };
    fs::create_dir_all(node.comm()).unwrap();
    chown(node.comm(), Some(USER), Some(USER)).unwrap();
    // What the machine has there is covered, in this namespace.
    Mount::new("tmpfs", "logs").at(&csi_core::mount::Target::new("/var/log").unwrap()).unwrap();
    make_logs("flat-x7k2p");
    let server = serve_api(&node).await;
    let mut pod = Pod::start(&node);
    let mut driver = node.driver(pods).await;
    let client = driver.client();
    let capability = v1::VolumeCapability::mount(Mode::SingleNodeWriter);
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
        volume_capabilities: vec![capability.clone()],
        parameters: [("waitSeconds".to_owned(), seconds.to_string())].into(),
        ..Default::default()
    };
    let created = client.call(create).await.unwrap().volume.unwrap();
    let volume_id = created.volume_id;
    let staging = node.kubelet().join("staging");
    let target = node.kubelet().join("target");
    fs::create_dir(&staging).unwrap();
    attach(&server, &volume_id);
    let mut volume = VolumeUse::new(volume_id, capability).staged_at(&staging);
    volume.volume_context = created.volume_context;
    volume.node_id = (pods == NAMESPACE).then(|| "n".to_owned());
    volume.attach_stage_publish(&client, &[Target::new(&target)]).await.unwrap();
    test(&mut node, &mut driver, &mut pod, &mut volume, &target).await;
    unpublish(&driver.client(), &mut volume, &target).await;
    assert!(server.objects("pods/").is_empty(), "a pod is left");
    assert!(fuse_daemons(place).is_empty(), "a program is left");
    assert!(!mounts().unwrap().iter().any(|entry| entry.fs_type == "fuse"), "a mount is left");
}

async fn unpublish(client: &Client, volume: &mut VolumeUse, target: &Path) {
    volume.unpublish_unstage_detach(client, &[Target::new(target)]).await.unwrap();
}

/// Waits until the driver has got the filesystem's device from the mounter: from then on the mount outlives the mounter. It
/// is ready before.
fn has_the_device(driver: &Driver) {
    let files = PathBuf::from(format!("/proc/{}/fd", driver.id()));
    until("the driver has the device", || {
        let mut files = fs::read_dir(&files).unwrap().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|place| place == Path::new("/dev/fuse")))
    });
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
            has_the_device(driver);
            pod.kill();
            *pod = Pod::start(node);
            workload.goes_on("the mounter was killed with its program");
            driver.kill();
            kill(&fuse_daemons(place));
            workload.goes_on("the driver and the program were killed");
            driver.start_again().await;
            has_the_device(driver);
            pod.kill();
            *pod = Pod::start(node);
            workload.goes_on("the mounter was killed after a new driver had started");
            node.store.restart();
            workload.goes_on("the store was killed");
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

/// The controller makes the pod and names it when it attaches the volume. The unstage of a later driver has no such
/// context.
#[test]
fn the_next_driver_finds_the_pod_of_a_volume_by_its_mount() {
    on_tmpfs(async |place| {
        with_volume(place, NAMESPACE, async |node, driver, pod, volume, target| {
            fs::write(target.join("kept"), "data").unwrap();
            driver.restart().await;
            has_the_device(driver);
            pod.kill();
            *pod = Pod::start(node);
            assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "data", "another pod continues it");
            volume.publish_context.clear();
            driver.restart().await;
        })
        .await;
    });
}

/// As volumes have it that share a pod: the controller has named the same one.
#[test]
fn a_pod_serves_two_volumes_and_each_ends_by_itself() {
    on_tmpfs(async |place| {
        with_volume(place, NAMESPACE, async |node, driver, _, volume, first| {
            let create = v1::CreateVolumeRequest {
                name: "w".into(),
                volume_capabilities: vec![volume.capability.clone()],
                ..Default::default()
            };
            let id = driver.client().call(create).await.unwrap().volume.unwrap().volume_id;
            let [staging, second] = ["staging-w", "target-w"].map(|name| node.kubelet().join(name));
            fs::create_dir(&staging).unwrap();
            let mut other = VolumeUse::new(id, volume.capability.clone()).staged_at(&staging);
            other.publish_context = volume.publish_context.clone();
            other.attach_stage_publish(&driver.client(), &[Target::new(&second)]).await.unwrap();
            assert_eq!(fuse_daemons(place).len(), 2);
            fs::write(second.join("own"), "data").unwrap();
            assert!(!first.join("own").exists());
            driver.restart().await;
            let workload = Workload::start(first);
            unpublish(&driver.client(), &mut other, &second).await;
            workload.goes_on("the other volume has ended");
            workload.end();
            assert_eq!(fuse_daemons(place).len(), 1);
        })
        .await;
    });
}

/// The driver gives the device to no mounter then, and starts the program again. It still knows the pod.
#[test]
fn a_pod_that_comes_late_serves_its_volume_again() {
    on_tmpfs(async |place| {
        with_volume_that_waits(place, NAMESPACE, 5, async |node, _, pod, _, target| {
            fs::write(target.join("kept"), "data").unwrap();
            pod.kill();
            until("users get an error", || is_dead(target));
            let is_placeholder = |entry: &MountEntry| entry.source == "daemon-is-gone";
            until("an attempt has failed", || mounts().unwrap().iter().any(is_placeholder));
            *pod = Pod::start(node);
            let kept = || fs::read_to_string(target.join("kept"));
            until("the program is started again", || kept().is_ok_and(|text| text == "data"));
        })
        .await;
    });
}

/// As two pods of one node do.
#[test]
fn two_users_share_a_program_which_ends_with_the_second_one() {
    on_tmpfs(async |place| {
        with_volume(place, DAEMON_SET, async |node, driver, _, volume, first| {
            let client = driver.client();
            let second = node.kubelet().join("second");
            volume.publish(&client, &[Target::new(&second)]).await.unwrap();
            let program = fuse_daemons(place);
            assert_eq!(program.len(), 1);
            fs::write(first.join("shared"), "data").unwrap();
            let workload = Workload::start(&second);
            volume.unpublish(&client, &[first]).await.unwrap();
            workload.goes_on("the first user has ended");
            workload.end();
            assert_eq!(fs::read_to_string(second.join("shared")).unwrap(), "data");
            assert_eq!(fuse_daemons(place), program);
            let begun = Instant::now();
            volume.unpublish(&client, &[&second]).await.unwrap();
            volume.unstage(&client).await.unwrap();
            assert!(fuse_daemons(place).is_empty() && begun.elapsed() < Duration::from_secs(30));
        })
        .await;
    });
}

/// It repeats the calls for the volumes that it finds.
#[test]
fn a_kubelet_that_starts_again_changes_nothing() {
    on_tmpfs(async |place| {
        with_volume(place, DAEMON_SET, async |_, driver, _, volume, target| {
            let client = driver.client();
            let workload = Workload::start(target);
            let before = (fuse_daemons(place), mounts().unwrap());
            for _ in 0..20 {
                volume.stage(&client).await.unwrap();
                volume.publish(&client, &[Target::new(target)]).await.unwrap();
                workload.goes_on("the kubelet has started again");
            }
            assert_eq!((fuse_daemons(place), mounts().unwrap()), before);
            workload.end();
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
