//! A FUSE filesystem through the whole plugin. Its daemon is this test program, started again. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;
mod foreign;
mod private;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Served, mount_capability};
use csi_core::mount::flow::fuse::FuseDaemon;
use csi_core::mount::{Mount, MountOptions, Target};
use csi_core::*;
use csi_proto::v1;
use private::on_tmpfs;
use tonic::Code;

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
    let mut name = String::new();
    std::io::stdin().read_to_string(&mut name).unwrap();
    let mut device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = MountOptions::parse(["rootmode=40000", "user_id=0", "group_id=0"]).unwrap();
    let options = options.with_option("fd", &device.as_raw_fd().to_string()).unwrap();
    Mount::new("fuse", &name).options(&options).at(&Target::new(at).unwrap()).unwrap();
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
        std::thread::sleep(Duration::from_millis(300));
        std::fs::write(file, "sent").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
    std::process::exit(0);
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
        let daemon = daemon.args(["--exact", "serve_as_daemon"]).secret(name);
        let daemon = match self.memory_limit {
            Some(bytes) => daemon.env(GREEDY, "1").memory_limit(bytes),
            None => daemon,
        };
        Ok(self.late.iter().fold(daemon, |daemon, file| daemon.env(LATE, file)))
    }

    async fn ready(&self, _: &Attachment, _: &Path) -> Result<()> {
        match self.is_broken {
            true => Err(Error::Unavailable("the bucket is gone".into())),
            false => Ok(()),
        }
    }

    fn unmount_time_limit(&self) -> Duration {
        Duration::from_secs(if self.late.is_some() { 2 } else { 20 })
    }
}

fn capability() -> Option<v1::VolumeCapability> {
    let mut capability = mount_capability(5);
    if let Some(v1::volume_capability::AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = vec!["noexec".into()];
    }
    Some(capability)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_volume_goes_the_whole_way_and_a_lost_daemon_is_replaced() {
    on_tmpfs(async |place| {
        let buckets = Arc::new(Buckets::default());
        let plugin = Plugin::new("s3.csi.example.org", "1")
            .spec(Spec::V1_13)
            .node(FuseNode::service(Arc::clone(&buckets)));
        let served = Served::start(plugin).await;
        let (staging, pod) = (place.join("staging"), place.join("pod"));
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let stage = stage_request(&staging);
        let publish = v1::NodePublishVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: text(&staging),
            target_path: text(&pod),
            volume_capability: capability(),
            secrets: [("key".to_owned(), "publish".to_owned())].into(),
            ..Default::default()
        };
        let unstage =
            v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: text(&staging) };
        let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: text(&pod) };
        let source = || Target::new(&pod).unwrap().mounted().unwrap().unwrap().source;

        let early = served.node().node_publish_volume(publish.clone()).await.unwrap_err();
        assert_eq!(early.code(), Code::FailedPrecondition, "{early}");
        for _ in 0..2 {
            served.node().node_stage_volume(stage.clone()).await.unwrap();
            served.node().node_publish_volume(publish.clone()).await.unwrap();
        }
        assert_eq!(source(), "v-by-stage");

        let others = v1::NodeStageVolumeRequest { volume_id: "w".into(), ..stage.clone() };
        let refused = served.node().node_stage_volume(others).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        let target_path = text(&place.join("other"));
        let others = v1::NodePublishVolumeRequest { volume_id: "w".into(), target_path, ..publish.clone() };
        let refused = served.node().node_publish_volume(others).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(!place.join("other").exists());
        let others = v1::NodeGetVolumeStatsRequest {
            volume_id: "w".into(),
            volume_path: text(&pod),
            ..Default::default()
        };
        let refused = served.node().node_get_volume_stats(others).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        let busy = served.node().node_unstage_volume(unstage.clone()).await.unwrap_err();
        assert_eq!(busy.code(), Code::FailedPrecondition, "{busy}");

        // A killed daemon leaves an aborted connection: every call returns ENOTCONN.
        kill_daemon(&staging);
        let health = v1::NodeGetVolumeHealthRequest {
            volume_id: "v".into(),
            volume_publish_path: text(&pod),
            staging_target_path: text(&staging),
        };
        let told = async || {
            let answer = served.node().node_get_volume_health(health.clone()).await.unwrap().into_inner();
            let entries = answer.volume_health.unwrap().health_statuses;
            entries.into_iter().map(|entry| entry.reason).collect::<Vec<_>>()
        };
        common::eventually("the daemon is lost", || csi_mount::flow::fuse::is_lost(&staging).unwrap()).await;
        assert_eq!(told().await, ["FilesystemDead"], "both places, told once");
        served.node().node_publish_volume(publish).await.unwrap();
        assert_eq!(source(), "v-by-publish");
        assert!(told().await.is_empty());
        assert_eq!(buckets.asked.load(Ordering::Relaxed), 4);

        served.node().node_unpublish_volume(unpublish).await.unwrap();
        assert_eq!(told().await, ["NotMounted"]);
        for _ in 0..2 {
            served.node().node_unstage_volume(unstage.clone()).await.unwrap();
        }
        assert!(!csi_mount::mounts().unwrap().iter().any(|entry| entry.fs_type == "fuse"));
        assert!(daemons(&staging).is_empty());
    });
}

/// Where the limit is not possible, the volume is not staged. `cargo xtask test --kernels` runs it where it is.
#[test]
fn a_volume_over_its_memory_limit_says_so_in_its_health() {
    on_tmpfs(async |place| {
        let buckets = Buckets { memory_limit: Some(64 << 20), ..Default::default() };
        let service = FuseNode::service(Arc::new(buckets));
        let served =
            Served::start(Plugin::new("s3.csi.example.org", "1").spec(Spec::V1_13).node(service)).await;
        let staging = place.join("staging");
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        let staged = served.node().node_stage_volume(stage_request(&staging)).await;
        if let Err(refused) = staged {
            println!("{refused}");
            let reason = ["memory controller", "write to its own control group", "no cgroup2"];
            assert!(reason.iter().any(|reason| refused.message().contains(reason)), "{refused}");
            assert!(daemons(&staging).is_empty());
            return;
        }
        common::eventually("it is killed", || csi_mount::flow::fuse::is_lost(&staging).unwrap()).await;
        let health = v1::NodeGetVolumeHealthRequest {
            volume_id: "v".into(),
            staging_target_path: text(&staging),
            ..Default::default()
        };
        let answer = served.node().node_get_volume_health(health).await.unwrap().into_inner();
        let message = &answer.volume_health.unwrap().health_statuses[0].message;
        assert!(message.contains("killed: over its memory limit of 67108864 bytes"), "{message}");
        let unstage =
            v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: text(&staging) };
        served.node().node_unstage_volume(unstage).await.unwrap();
        assert_eq!(csi_mount::flow::fuse::exceeded_memory_limit(&staging), None);
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
        let stage = |id: &str| v1::NodeStageVolumeRequest { volume_id: id.into(), ..stage_request(&staging) };
        let publish = |id: &str| v1::NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&staging),
            target_path: text(&place.join("pod")),
            volume_capability: capability(),
            ..Default::default()
        };
        started().await.node().node_stage_volume(stage("v")).await.unwrap();
        let refused = started().await.node().node_publish_volume(publish("w")).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let refused = started().await.node().node_stage_volume(stage("w")).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        let later = started().await;
        later.node().node_publish_volume(publish("v")).await.unwrap();
        later.node().node_stage_volume(stage("v")).await.unwrap();
        let target_path = text(&place.join("pod"));
        let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path };
        later.node().node_unpublish_volume(unpublish).await.unwrap();
        let unstage =
            v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: text(&staging) };
        later.node().node_unstage_volume(unstage).await.unwrap();
    });
}

#[test]
fn a_foreign_mount_at_a_volumes_place_is_refused_and_stays() {
    on_tmpfs(async |place| {
        let staging = place.join("staging");
        let _no_daemons = NoDaemons(&staging);
        let service = FuseNode::service(Arc::new(Buckets::default()));
        let served = Served::start(Plugin::new("s3.csi.example.org", "1").node(service)).await;
        let publish = v1::NodePublishVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: text(&staging),
            target_path: text(&place.join("pod")),
            volume_capability: capability(),
            secrets: [("key".to_owned(), "publish".to_owned())].into(),
            ..Default::default()
        };
        foreign::mounts_are_refused_and_stay(&served, Some(stage_request(&staging)), publish).await;
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
            volume_id: "v".into(),
            target_path: text(&place.join(pod)),
            volume_capability: capability(),
            readonly: pod == "reader",
            secrets: [("key".to_owned(), key.to_owned())].into(),
            ..Default::default()
        };
        let unpublish = |pod: &str| v1::NodeUnpublishVolumeRequest {
            volume_id: "v".into(),
            target_path: text(&place.join(pod)),
        };
        let places = || {
            let entries = std::fs::read_dir(&mounts).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let mounted = |pod: &str| Target::new(place.join(pod)).unwrap().mounted().unwrap().unwrap();

        let broken = Arc::new(Buckets { is_broken: true, ..Buckets::default() });
        let refused = started(&broken).await.node().node_publish_volume(publish("reader", "0")).await;
        assert_eq!(refused.unwrap_err().message(), "the bucket is gone");
        assert_eq!(places(), Vec::<PathBuf>::new(), "its daemon has ended");

        let buckets = Arc::new(Buckets::default());
        let served = started(&buckets).await;
        let offered = served.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
        assert!(!format!("{offered:?}").contains("StageUnstageVolume"), "{offered:?}");
        for key in ["1", "2"] {
            served.node().node_publish_volume(publish("reader", key)).await.unwrap();
        }
        assert_eq!(mounted("reader").source, "v-by-1", "the daemon stays when the call is repeated");
        assert_eq!(buckets.asked.load(Ordering::Relaxed), 2, "and the driver gets the new secrets");
        assert!(mounted("reader").attributes.contains(csi_mount::MountAttributes::RDONLY));
        let [reader] = &places()[..] else { panic!("{:?}", places()) };
        let _no_daemons = NoDaemons(reader);

        served.node().node_publish_volume(publish("writer", "3")).await.unwrap();
        assert_eq!(mounted("writer").source, "v-by-3");
        assert!(!mounted("writer").attributes.contains(csi_mount::MountAttributes::RDONLY));
        let writer = places().into_iter().find(|place| place != reader).unwrap();
        let _no_daemons_of_writer = NoDaemons(&writer);
        let others = v1::NodePublishVolumeRequest { volume_id: "w".into(), ..publish("writer", "4") };
        let refused = served.node().node_publish_volume(others).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert_eq!(mounted("writer").source, "v-by-3", "the refused call has ended nothing");

        kill_daemon(&writer);
        common::eventually("the daemon is lost", || csi_mount::flow::fuse::is_lost(&writer).unwrap()).await;
        served.node().node_publish_volume(publish("writer", "5")).await.unwrap();
        assert_eq!((mounted("writer").source, mounted("reader").source), ("v-by-5".into(), "v-by-1".into()));

        for _ in 0..2 {
            served.node().node_unpublish_volume(unpublish("writer")).await.unwrap();
        }
        assert_eq!(places(), std::slice::from_ref(reader));
        let restarted = started(&buckets).await;
        restarted.node().node_unpublish_volume(unpublish("reader")).await.unwrap();
        assert_eq!(places(), Vec::<PathBuf>::new());
        assert!(daemons(reader).is_empty() && daemons(&writer).is_empty());
        assert!(!place.join("reader").exists() && !place.join("writer").exists());
    });
}

/// A daemon with data to send gets the time that its driver allows, and no more.
#[test]
fn a_daemon_has_its_time_to_end() {
    on_tmpfs(async |place| {
        let (staging, sent) = (place.join("staging"), place.join("sent"));
        let buckets = Buckets { late: Some(sent.clone()), ..Buckets::default() };
        let plugin = Plugin::new("s3.csi.example.org", "1").node(FuseNode::service(Arc::new(buckets)));
        let served = Served::start(plugin).await;
        std::fs::create_dir(&staging).unwrap();
        let _no_daemons = NoDaemons(&staging);
        served.node().node_stage_volume(stage_request(&staging)).await.unwrap();
        let unstage =
            v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: text(&staging) };
        let start = Instant::now();
        served.node().node_unstage_volume(unstage).await.unwrap();
        let took = start.elapsed();
        assert_eq!(std::fs::read_to_string(&sent).unwrap(), "sent");
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(15), "{took:?}");
        assert!(daemons(&staging).is_empty());
    });
}

fn stage_request(staging: &Path) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(staging),
        volume_capability: capability(),
        secrets: [("key".to_owned(), "stage".to_owned())].into(),
        ..Default::default()
    }
}

fn daemons(staging: &Path) -> Vec<String> {
    let mark = format!("CSI_MOUNT_FUSE_AT={}", staging.display());
    let all = std::fs::read_dir("/proc").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_marked = |pid: &String| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    numbers.filter(is_marked).collect()
}

fn kill_daemon(staging: &Path) {
    for pid in daemons(staging) {
        assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }
}

/// Kills the daemons of a failed test, which would otherwise keep its output open.
struct NoDaemons<'a>(&'a Path);

impl Drop for NoDaemons<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill_daemon(self.0);
        }
    }
}
