//! A FUSE filesystem through the whole plugin. Its daemon is this test program, started again. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use csi_core::client::VolumeUse;
use csi_core::mount::flow::fuse::{FuseDaemon, Mounter, MounterServer, inherited_device};
use csi_core::mount::{Mount, MountAttributes, MountOptions, Target};
use csi_core::types::MountFlags;
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::{Served, eventually, map, mount_with, refused};
use crate::daemons::{NoDaemons, daemons, signal};
use crate::foreign;
use crate::private::on_tmpfs;

const AT: &str = "ROOT_FLOW_FUSE_AT";
/// The variable with the path of a file that the daemon writes when it ends, before it hangs.
const LATE: &str = "ROOT_FLOW_FUSE_LATE";

/// The variable of a daemon that takes more and more memory.
const GREEDY: &str = "ROOT_FLOW_FUSE_GREEDY";

/// Not a test: the daemon. It mounts with the source name from its standard input, and answers FUSE_INIT
/// and the requests that a health check of a mount makes.
#[test]
fn serve_as_daemon() {
    let Some(at) = std::env::var_os(AT).map(PathBuf::from) else { return };
    let mut device = device_of_argument().unwrap_or_else(|| mount_as_daemon(at));
    if std::env::var_os(GREEDY).is_some() {
        std::thread::spawn(|| {
            let mut taken = Vec::new();
            loop {
                taken.push(vec![1_u8; 1 << 20]);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
    let mut request = [0; 8192];
    while device.read(&mut request).is_ok() {
        let (error, body) = match u32::from_ne_bytes(request[4..8].try_into().unwrap()) {
            36 => continue,
            26 => (0, words(64, &[(0, 7), (4, 31), (20, 4096)])),
            3 => (0, words(104, &[(16, 1), (76, 0o040_755), (80, 2)])),
            17 => (0, words(80, &[(40, 4096), (48, 4096)])),
            _ => (-38_i32, Vec::new()),
        };
        let mut answer = (16 + body.len() as u32).to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(&request[8..16]);
        answer.extend(body);
        let _ = device.write_all(&answer);
    }
    // Simulates a daemon that still has data to send after its filesystem is unmounted.
    if let Some(file) = std::env::var_os(LATE) {
        std::thread::sleep(Duration::from_millis(100));
        std::fs::write(file, "sent").unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }
    std::process::exit(0);
}

fn mount_as_daemon(at: PathBuf) -> File {
    let mut name = String::new();
    std::io::stdin().read_to_string(&mut name).unwrap();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = MountOptions::parse(["rootmode=40000", "user_id=0", "group_id=0"]).unwrap();
    let options = options.with_option("fd", &device.as_raw_fd().to_string()).unwrap();
    Mount::new("fuse", &name).options(&options).at(&Target::new(at).unwrap()).unwrap();
    device
}

/// The device that an argument names, in a mounter.
fn device_of_argument() -> Option<File> {
    let argument = std::env::args().find(|argument| argument.starts_with("/dev/fd/"))?;
    Some(inherited_device(Path::new(&argument)).unwrap().into())
}

/// `length` bytes, all zero except these words.
fn words(length: usize, values: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (offset, value) in values {
        bytes[*offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

#[derive(Default)]
struct Buckets {
    asked: AtomicU32,
    late: Option<PathBuf>,
    /// The memory limit in bytes. Then the daemon takes more and more.
    memory_limit: Option<u64>,
    /// Whether no volume becomes ready.
    is_broken: bool,
    mounter: Option<Mounter>,
}

#[async_trait]
impl FuseFilesystems for Buckets {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }

    async fn daemon(&self, volume: &Attachment, flags: &MountFlags, at: &Path) -> Result<FuseDaemon> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!(flags.iter().collect::<Vec<_>>(), ["noexec"]);
        let daemon = FuseDaemon::new(std::env::current_exe()?).env(AT, at);
        let name = format!("{}-by-{}", volume.volume_id, volume.secrets.require("key")?);
        let daemon = daemon.args(["--exact", "root_flow_fuse::serve_as_daemon"]).secret(name);
        let daemon = daemon.arg_credential("--skip=", "key", volume.secrets.require("key")?);
        let daemon = match &self.mounter {
            Some(_) => daemon.arg_device(MountOptions::new()),
            None => daemon,
        };
        let daemon = match self.memory_limit {
            Some(bytes) => daemon.env(GREEDY, "1").memory_limit(bytes),
            None => daemon,
        };
        Ok(self.late.iter().fold(daemon, |daemon, file| daemon.env(LATE, file)))
    }

    async fn ready(&self, _: &Attachment, _: &Path) -> Result<()> {
        if self.is_broken { Err(Error::Unavailable("the bucket is gone".into())) } else { Ok(()) }
    }

    fn mounter(&self) -> Option<Mounter> {
        self.mounter.clone()
    }

    fn unmount_time_limit(&self) -> Duration {
        Duration::from_secs(if self.late.is_some() { 4 } else { 20 })
    }
}

fn volume(id: &str) -> VolumeUse {
    VolumeUse::new(
        id,
        mount_with(5, MountVolume { mount_flags: vec!["noexec".into()], ..Default::default() }),
    )
}

fn stage(volume: &VolumeUse) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest { secrets: map(&[("key", "stage")]), ..volume.node_stage_volume() }
}

fn publish(volume: &VolumeUse, target: &Path, key: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest { secrets: map(&[("key", key)]), ..volume.node_publish_volume(target) }
}

async fn until_lost(place: &Path) {
    eventually("the daemon is lost", || csi_mount::internal::flow::fuse::is_lost(place).unwrap()).await;
}

#[test]
fn a_volume_goes_the_whole_way_and_a_lost_daemon_is_replaced() {
    on_tmpfs(async |place| {
        let buckets = Arc::new(Buckets::default());
        let plugin = Plugin::new("s3.csi.example.org", "1")
            .spec(Spec::V1_13)
            .node(FuseNode::service(Arc::clone(&buckets)));
        let served = Served::start(plugin).await;
        let staging = place.join("staging");
        let pod = place.join("pod");
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let others = volume("w").staged_at(&staging);
        let volume = volume("v").staged_at(&staging);
        let publish_to_pod = publish(&volume, &pod, "publish");
        let source = || Target::new(&pod).unwrap().mounted().unwrap().unwrap().source;

        refused(served.call(publish_to_pod.clone()).await, Code::FailedPrecondition);
        for _ in 0..2 {
            served.call(stage(&volume)).await.unwrap();
            served.call(publish_to_pod.clone()).await.unwrap();
        }
        assert_eq!(source(), "v-by-stage");
        let mounted = Target::new(&pod).unwrap().mounted().unwrap().unwrap().attributes;
        assert!(mounted.contains(MountAttributes::NOSUID | MountAttributes::NODEV), "{mounted:?}");

        refused(served.call(stage(&others)).await, Code::AlreadyExists);
        let other = place.join("other");
        refused(served.call(publish(&others, &other, "publish")).await, Code::FailedPrecondition);
        assert!(!other.exists());
        refused(served.call(others.node_get_volume_stats(&pod)).await, Code::NotFound);
        // It is published.
        refused(served.call(volume.node_unstage_volume()).await, Code::FailedPrecondition);

        // A killed daemon leaves an aborted connection: every call returns ENOTCONN.
        signal("KILL", &daemons(&staging));
        until_lost(&staging).await;
        let told = async || served.health_reasons(&volume, &pod).await.unwrap();
        assert_eq!(told().await, ["FilesystemDead"], "both places, told once");
        served.call(publish_to_pod).await.unwrap();
        assert_eq!(source(), "v-by-publish");
        assert!(told().await.is_empty());
        assert_eq!(buckets.asked.load(Ordering::Relaxed), 6);

        served.call(volume.node_unpublish_volume(&pod)).await.unwrap();
        assert_eq!(told().await, ["NotMounted"]);
        for _ in 0..2 {
            served.call(volume.node_unstage_volume()).await.unwrap();
        }
        assert!(!csi_mount::mounts().unwrap().iter().any(|entry| entry.fs_type == "fuse"));
        assert!(daemons(&staging).is_empty());
    });
}

/// The driver by the version of the spec that has the health of volumes.
fn with_health(buckets: Buckets) -> Plugin {
    let service = FuseNode::service(Arc::new(buckets));
    Plugin::new("s3.csi.example.org", "1").spec(Spec::V1_13).node(service)
}

async fn health_message(served: &Served, staging: &Path) -> String {
    let health = v1::NodeGetVolumeHealthRequest {
        volume_id: "v".into(),
        staging_target_path: staging.display().to_string(),
        ..Default::default()
    };
    let health = served.call(health).await.unwrap().volume_health.unwrap();
    health.health_statuses.into_iter().map(|entry| entry.message).collect()
}

/// What a page of metrics has of FUSE daemons.
fn metrics(address: SocketAddr) -> Vec<String> {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let page = std::io::read_to_string(stream).unwrap();
    page.lines().filter(|line| line.starts_with("csi_fuse_")).map(str::to_owned).collect()
}

/// Only the mounter sees how its daemon ends.
#[test]
fn a_volume_whose_daemon_has_died_in_a_mounter_says_why_in_its_health_and_metrics() {
    on_tmpfs(async |place| {
        let server = MounterServer::bind(place).unwrap();
        let serving = Arc::clone(&server);
        let serving = std::thread::spawn(move || serving.serve());
        let buckets = Buckets { mounter: Some(Mounter::at(place)), ..Default::default() };
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let served = Served::start(with_health(buckets).http(address)).await;
        let metrics = async || tokio::task::spawn_blocking(move || metrics(address)).await.unwrap();
        let due = |running: u32, restarts: u32| {
            [
                format!("csi_fuse_daemons{{state=\"ended\",volume_id=\"v\"}} {}", 1 - running),
                format!("csi_fuse_daemons{{state=\"running\",volume_id=\"v\"}} {running}"),
                format!("csi_fuse_daemon_restarts_total{{volume_id=\"v\"}} {restarts}"),
            ]
        };
        let staging = place.join("staging");
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let volume = volume("v").staged_at(&staging);
        assert_eq!(metrics().await, [""; 0]);
        served.call(stage(&volume)).await.unwrap();
        assert_eq!(metrics().await, due(1, 0));
        signal("KILL", &daemons(&staging));
        until_lost(&staging).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut message = health_message(&served, &staging).await;
        while !message.starts_with("its daemon ended with signal: 9 (SIGKILL)") {
            assert!(Instant::now() < deadline, "{message}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            message = health_message(&served, &staging).await;
        }
        assert_eq!(metrics().await, due(0, 0));
        served.call(stage(&volume)).await.unwrap();
        assert_eq!(health_message(&served, &staging).await, "");
        assert_eq!(metrics().await, due(1, 1));
        served.call(volume.node_unstage_volume()).await.unwrap();
        assert_eq!(metrics().await, [""; 0]);
        let drained = tokio::task::spawn_blocking(move || server.drain(Duration::ZERO));
        drained.await.unwrap();
        serving.join().unwrap();
    });
}

/// The orchestrator does not repeat a stage.
#[test]
fn a_publish_renews_the_credentials_of_a_staged_volume() {
    on_tmpfs(async |place| {
        let served = Served::start(with_health(Buckets::default())).await;
        let staging = place.join("staging");
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let volume = volume("v").staged_at(&staging);
        served.call(stage(&volume)).await.unwrap();
        let daemon = daemons(&staging)[0];
        let arguments = std::fs::read_to_string(format!("/proc/{daemon}/cmdline")).unwrap();
        let file = arguments.split('\0').find_map(|argument| argument.strip_prefix("--skip=")).unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "stage");
        let pod = place.join("pod");
        for key in ["publish", "later"] {
            served.call(publish(&volume, &pod, key)).await.unwrap();
            assert_eq!(std::fs::read_to_string(file).unwrap(), key);
        }
        // Without secrets the volume keeps those that it has.
        served.call(volume.node_publish_volume(&pod)).await.unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "later");
        assert_eq!(daemons(&staging), [daemon], "it is the same daemon");
        served.call(volume.node_unpublish_volume(&pod)).await.unwrap();
        served.call(volume.node_unstage_volume()).await.unwrap();
    });
}

/// The kubelet registers no driver that does not answer this call.
#[test]
fn a_mounter_that_does_not_answer_delays_no_node_info() {
    on_tmpfs(async |place| {
        let listener = UnixListener::bind(place.join("mounter.sock")).unwrap();
        let buckets = Buckets { mounter: Some(Mounter::at(place)), ..Default::default() };
        let served = Served::start(with_health(buckets)).await;
        served.call(v1::NodeGetInfoRequest {}).await.unwrap();
        let (mut connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut request = Vec::new();
        let error = connection.read_to_end(&mut request).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it is still waited for: {request:?}");
    });
}

/// Where the limit is not possible, the volume is not staged. `cargo xtask test --kernels` runs it where it is.
#[test]
fn a_volume_over_its_memory_limit_says_so_in_its_health() {
    on_tmpfs(async |place| {
        let buckets = Buckets { memory_limit: Some(64 << 20), ..Default::default() };
        let served = Served::start(with_health(buckets)).await;
        let staging = place.join("staging");
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let volume = volume("v").staged_at(&staging);
        let staged = served.call(stage(&volume)).await;
        if let Err(refused) = staged {
            println!("{refused}");
            let reason = ["memory controller", "write to its own control group", "no cgroup2"];
            assert!(reason.iter().any(|reason| refused.message().contains(reason)), "{refused}");
            assert!(daemons(&staging).is_empty());
            return;
        }
        until_lost(&staging).await;
        let message = health_message(&served, &staging).await;
        assert!(message.contains("killed: over its memory limit of 67108864 bytes"), "{message}");
        served.call(volume.node_unstage_volume()).await.unwrap();
        assert_eq!(csi_mount::internal::flow::fuse::exceeded_memory_limit(&staging), None);
    });
}

#[test]
fn a_restarted_plugin_knows_which_volume_is_staged() {
    on_tmpfs(async |place| {
        let staging = place.join("staging");
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let started = async || {
            let service = FuseNode::service(Arc::new(Buckets::default()));
            Served::start(Plugin::new("s3.csi.example.org", "1").node(service)).await
        };
        let pod = place.join("pod");
        let others = volume("w").staged_at(&staging);
        let volume = volume("v").staged_at(&staging);
        started().await.call(stage(&volume)).await.unwrap();
        let outcome = started().await.call(others.node_publish_volume(&pod)).await;
        refused(outcome, Code::FailedPrecondition);
        refused(started().await.call(stage(&others)).await, Code::AlreadyExists);
        let later = started().await;
        later.call(volume.node_publish_volume(&pod)).await.unwrap();
        later.call(stage(&volume)).await.unwrap();
        later.call(volume.node_unpublish_volume(&pod)).await.unwrap();
        later.call(volume.node_unstage_volume()).await.unwrap();
    });
}

#[test]
fn a_foreign_mount_at_a_volumes_place_is_refused_and_stays() {
    on_tmpfs(async |place| {
        let staging = place.join("staging");
        let _no_daemons = NoDaemons(&staging);
        let service = FuseNode::service(Arc::new(Buckets::default()));
        let served = Served::start(Plugin::new("s3.csi.example.org", "1").node(service)).await;
        let volume = volume("v").staged_at(&staging);
        let publish = publish(&volume, &place.join("pod"), "publish");
        foreign::mounts_are_refused_and_stay(&served, Some(stage(&volume)), publish).await;
        assert!(daemons(&staging).is_empty());
    });
}

#[test]
fn without_staging_each_target_has_its_own_daemon() {
    on_tmpfs(async |place| {
        let mounts = place.join("mounts");
        std::fs::create_dir(&mounts).unwrap();
        let started = async |buckets: &Arc<Buckets>| {
            let service = FuseNode::unstaged_service(Arc::clone(buckets), &mounts);
            Served::start(Plugin::new("s3.csi.example.org", "1").node(service)).await
        };
        let publish = |pod: &str, key: &str| v1::NodePublishVolumeRequest {
            readonly: pod == "reader",
            ..publish(&volume("v"), &place.join(pod), key)
        };
        let unpublish = |pod: &str| volume("v").node_unpublish_volume(&place.join(pod));
        let places = || {
            let entries = std::fs::read_dir(&mounts).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let mounted = |pod: &str| Target::new(place.join(pod)).unwrap().mounted().unwrap().unwrap();

        let broken = Arc::new(Buckets { is_broken: true, ..Buckets::default() });
        let error = started(&broken).await.call(publish("reader", "0")).await.unwrap_err();
        assert_eq!(error.message(), "the bucket is gone");
        assert_eq!(places(), Vec::<PathBuf>::new(), "its daemon has ended");

        let buckets = Arc::new(Buckets::default());
        let served = started(&buckets).await;
        let offered = served.call(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
        assert!(!format!("{offered:?}").contains("StageUnstageVolume"), "{offered:?}");
        for key in ["1", "2"] {
            served.call(publish("reader", key)).await.unwrap();
        }
        assert_eq!(mounted("reader").source, "v-by-1", "the daemon stays when the call is repeated");
        assert_eq!(buckets.asked.load(Ordering::Relaxed), 2, "and the driver gets the new secrets");
        assert!(mounted("reader").attributes.contains(csi_mount::MountAttributes::RDONLY));
        let [reader] = &places()[..] else { panic!("{:?}", places()) };
        let _no_daemons = NoDaemons(reader);

        served.call(publish("writer", "3")).await.unwrap();
        assert_eq!(mounted("writer").source, "v-by-3");
        assert!(!mounted("writer").attributes.contains(csi_mount::MountAttributes::RDONLY));
        let writer = places().into_iter().find(|place| place != reader).unwrap();
        let _no_daemons_of_writer = NoDaemons(&writer);
        let others = v1::NodePublishVolumeRequest { volume_id: "w".into(), ..publish("writer", "4") };
        refused(served.call(others).await, Code::FailedPrecondition);
        assert_eq!(mounted("writer").source, "v-by-3", "the refused call has ended nothing");

        signal("KILL", &daemons(&writer));
        until_lost(&writer).await;
        served.call(publish("writer", "5")).await.unwrap();
        assert_eq!((mounted("writer").source, mounted("reader").source), ("v-by-5".into(), "v-by-1".into()));

        for _ in 0..2 {
            served.call(unpublish("writer")).await.unwrap();
        }
        assert_eq!(places(), std::slice::from_ref(reader));
        let restarted = started(&buckets).await;
        restarted.call(unpublish("reader")).await.unwrap();
        assert_eq!(places(), Vec::<PathBuf>::new());
        assert!(daemons(reader).is_empty() && daemons(&writer).is_empty());
        assert!(!place.join("reader").exists() && !place.join("writer").exists());
    });
}

/// A daemon with data to send gets the time that its driver allows, and no more.
#[test]
fn a_daemon_has_its_time_to_end() {
    on_tmpfs(async |place| {
        let staging = place.join("staging");
        let sent = place.join("sent");
        let buckets = Buckets { late: Some(sent.clone()), ..Buckets::default() };
        let plugin = Plugin::new("s3.csi.example.org", "1").node(FuseNode::service(Arc::new(buckets)));
        let served = Served::start(plugin).await;
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let volume = volume("v").staged_at(&staging);
        served.call(stage(&volume)).await.unwrap();
        let start = Instant::now();
        served.call(volume.node_unstage_volume()).await.unwrap();
        let took = start.elapsed();
        assert_eq!(std::fs::read_to_string(&sent).unwrap(), "sent");
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(120), "{took:?}");
        assert!(daemons(&staging).is_empty());
    });
}
