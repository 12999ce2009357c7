//! FUSE programs as Debian ships them, through the whole plugin. Needs root, and the programs:
//! `cargo xtask test --systems fuse`. The rows that the tests print are those of docs/fuse-programs.md.
#![cfg(all(feature = "mount", target_os = "linux"))]

#[path = "it/common/mod.rs"]
mod common;
#[path = "it/daemons/mod.rs"]
mod daemons;
mod fuse_programs;
#[path = "it/private/mod.rs"]
mod private;

use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Served, eventually, mount_with};
use csi_conformance::Kit;
use csi_core::client::VolumeUse;
use csi_core::mount::{Mount, MountOptions, Target};
use csi_core::*;
use csi_proto::v1;
use daemons::{NoDaemons, daemons, signal};
use fuse_programs::{MountedBy, Program, Vendor};
use private::on_tmpfs;
use tokio::task::spawn_blocking;
use tonic::{Code, Status};
use v1::volume_capability::MountVolume;

/// A step that takes longer is not bounded for a caller.
const LIMIT: Duration = Duration::from_secs(60);

/// Declares the tests of some programs: a module for each, and a test on a bed of its own for each thing that it has
/// to do.
macro_rules! tests {
    ($mounted_by:ident $tests:tt $($name:ident: $program:ident),+) => {
        $(tests! { @one $mounted_by $tests $name $program })+
    };
    (@one $mounted_by:ident [$($test:ident = $run:ident),+] $name:ident $program:ident) => {
        mod $name {
            use super::*;

            $(#[test]
            fn $test() {
                on_bed(Program::$program, MountedBy::$mounted_by, $run);
            })+
        }
    };
}

tests! {
    Program [
        goes_the_whole_way = whole_way, passes_the_kit = conforms, is_killed = killed, is_stopped = stopped,
        has_twenty_volumes = twenty_volumes, has_a_full_disk = full_disk
    ]
    sshfs: Sshfs,
    rclone_local: RcloneLocal,
    rclone_webdav: RcloneWebdav,
    gocryptfs: Gocryptfs,
    bindfs: Bindfs,
    fuse_overlayfs: FuseOverlayfs,
    s3fs: S3fs
}

// The programs that accept a device in place of a mount point.
tests! {
    Driver [goes_the_whole_way = whole_way, is_killed = killed, is_stopped = stopped]
    sshfs_with_device: Sshfs,
    gocryptfs_with_device: Gocryptfs,
    fuse_overlayfs_with_device: FuseOverlayfs
}

// Without root, a capability and the right to mount.
tests! {
    DriverForMounter [goes_the_whole_way = whole_way, is_killed = killed]
    gocryptfs_in_a_mounter: Gocryptfs
}

/// A driver with its program's server, and a plugin that serves it.
struct Bed<'a> {
    place: &'a Path,
    vendor: Arc<Vendor>,
    served: Served,
    mount_flags: Vec<String>,
}

fn on_bed(program: Program, mounted_by: MountedBy, test: impl AsyncFnOnce(&mut Bed<'_>) + Send) {
    on_tmpfs(async |place| {
        let _no_daemons = NoDaemons(place);
        let vendor = Arc::new(Vendor::start(program, mounted_by, place));
        let served = Served::start(plugin(&vendor)).await;
        let mut bed = Bed { place, vendor, served, mount_flags: Vec::new() };
        test(&mut bed).await;
        bed.nothing_is_left();
    });
}

fn plugin(vendor: &Arc<Vendor>) -> Plugin {
    Plugin::new("fuse.csi.example.org", "1")
        .spec(Spec::V1_13)
        .controller(ControllerService::new(Arc::clone(vendor)).create_delete_volume())
        .node(FuseNode::service(Arc::clone(vendor)))
}

impl Bed<'_> {
    fn staging(&self, id: &str) -> PathBuf {
        self.place.join(format!("staging-{id}"))
    }

    fn pod(&self, id: &str) -> PathBuf {
        self.place.join(format!("pod-{id}"))
    }

    fn row(&self, what: &str, found: &str) {
        println!("{} | {what} | {found}", self.vendor.name());
    }

    fn volume(&self, id: &str) -> VolumeUse {
        let mount = MountVolume { mount_flags: self.mount_flags.clone(), ..Default::default() };
        VolumeUse::new(id, mount_with(5, mount)).staged_at(self.staging(id))
    }

    async fn stage(&self, id: &str) -> Result<(), Status> {
        let request = v1::NodeStageVolumeRequest {
            secrets: self.vendor.secrets(),
            ..self.volume(id).node_stage_volume()
        };
        self.served.call(request).await.map(drop)
    }

    async fn publish(&self, id: &str, pod: &Path) -> Result<(), Status> {
        let request = v1::NodePublishVolumeRequest {
            secrets: self.vendor.secrets(),
            ..self.volume(id).node_publish_volume(pod)
        };
        self.served.call(request).await.map(drop)
    }

    async fn unpublish(&self, id: &str, pod: &Path) -> Result<(), Status> {
        self.served.call(self.volume(id).node_unpublish_volume(pod)).await.map(drop)
    }

    async fn unstage(&self, id: &str) -> Result<(), Status> {
        self.served.call(self.volume(id).node_unstage_volume()).await.map(drop)
    }

    async fn stats(&self, id: &str) -> Result<(), Status> {
        self.served.call(self.volume(id).node_get_volume_stats(&self.pod(id))).await.map(drop)
    }

    /// The reasons why the volume is not healthy.
    async fn health(&self, id: &str) -> Result<Vec<String>, Status> {
        self.served.health_reasons(&self.volume(id), &self.pod(id)).await
    }

    /// Makes a volume, and brings it to a pod.
    async fn bring(&self, id: &str) {
        self.vendor.create(id);
        fs::create_dir(self.staging(id)).unwrap();
        self.stage(id).await.unwrap();
        self.publish(id, &self.pod(id)).await.unwrap();
    }

    async fn take_away(&self, id: &str) {
        self.unpublish(id, &self.pod(id)).await.unwrap();
        self.unstage(id).await.unwrap();
    }

    /// The processes that serve a volume: the program itself, without what it started.
    fn daemons(&self) -> Vec<u32> {
        let is_program = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == self.vendor.program.command()
        };
        daemons(self.place).into_iter().filter(is_program).collect()
    }

    /// Stops what the program depends on: its server, or the program itself.
    fn server(&self, name: &str) -> &'static str {
        match &self.vendor.server {
            Some(server) => {
                server.signal(name);
                "server"
            }
            None => {
                signal(name, &self.daemons());
                "daemon"
            }
        }
    }

    fn nothing_is_left(&self) {
        assert!(!mount_table().contains(" - fuse"), "{}", mount_table());
        assert_eq!(daemons(self.place), [0_u32; 0], "no process is left");
        let names = fs::read_dir(self.place).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("pod-")).collect();
        assert!(names.is_empty(), "{names:?}");
    }
}

async fn whole_way(bed: &mut Bed<'_>) {
    let pod = bed.pod("v");
    let begun = Instant::now();
    bed.bring("v").await;
    let staged = begun.elapsed();
    let table = mount_table();
    let mounted = table.lines().find(|line| line.contains(&text(&pod))).unwrap();
    assert!(mounted.contains("allow_other"), "a pod that is not root can't use it: {mounted}");
    write(&pod.join("early"), "early").unwrap();
    let mut other = Command::new("cat");
    let read = other.arg(pod.join("early")).uid(65534).gid(65534).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout), "early", "{read:?}");

    let secret = bed.vendor.secrets().remove("key").unwrap();
    for pid in daemons(bed.place) {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&arguments).contains(&secret), "the arguments have the secret");
    }

    // Another process of the plugin goes on with what this one staged.
    let daemons = bed.daemons();
    bed.served = Served::start(plugin(&bed.vendor)).await;
    bed.stage("v").await.unwrap();
    bed.stats("v").await.unwrap();
    assert_eq!(bed.health("v").await.unwrap(), [""; 0]);
    assert_eq!(bed.daemons(), daemons, "the daemon is the same");
    // Not synchronized: the end of the daemon has to do that.
    fs::write(pod.join("late"), "late").unwrap();
    let begun = Instant::now();
    bed.take_away("v").await;
    let ended = begun.elapsed();
    bed.nothing_is_left();
    for file in ["early", "late"] {
        if let Some(stored) = bed.vendor.stored("v", file) {
            assert_eq!(fs::read_to_string(&stored).unwrap_or_default(), file, "{}", stored.display());
        }
    }
    bed.stage("v").await.unwrap();
    bed.publish("v", &pod).await.unwrap();
    assert_eq!(fs::read_to_string(pod.join("late")).unwrap(), "late");
    bed.take_away("v").await;
    bed.row("version", &bed.vendor.program.version());
    bed.row("whole life", &format!("staged and published in {staged:.1?}, ended in {ended:.1?}"));
}

/// The test kit.
async fn conforms(bed: &mut Bed<'_>) {
    let [staging, target] = ["kit-staging", "kit-target"].map(|name| bed.place.join(name));
    for place in [&staging, &target] {
        fs::create_dir(place).unwrap();
    }
    let endpoint = bed.served.endpoint.to_string().parse().unwrap();
    let secrets = bed.vendor.secrets().into_iter().collect();
    let mut kit = Kit::new(endpoint).strict().staging(staging).target(target).secrets(secrets);
    if matches!(bed.vendor.program, Program::RcloneWebdav | Program::S3fs) {
        // They report 0 bytes as used, whatever is stored.
        kit = kit.skip("usage.reported");
    }
    let report = kit.run().await.unwrap();
    println!("{}", report.text());
    report.assert_ok();
    let left = fs::read_dir(bed.vendor.volumes()).unwrap().map(|entry| entry.unwrap().file_name());
    // The S3 server has a hidden directory of its own.
    let left: Vec<_> = left.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
    bed.row("kit", &report.summary());
}

async fn killed(bed: &mut Bed<'_>) {
    let pod = bed.pod("v");
    bed.bring("v").await;
    write(&pod.join("before"), "before").unwrap();
    let mut open = File::create(pod.join("open")).unwrap();
    let daemons = bed.daemons();
    assert_eq!(daemons.len(), 1, "one process has this name");
    signal("KILL", &daemons);
    let staging = bed.staging("v");
    eventually("it is lost", || csi_core::mount::internal::flow::fuse::is_lost(&staging).unwrap()).await;
    let seen = [open.write_all(b"x").and_then(|()| open.sync_all()), write(&pod.join("new"), "x")];
    let health = bed.health("v").await.unwrap();
    assert_eq!(health, ["FilesystemDead"]);

    bed.stage("v").await.unwrap();
    assert_eq!(bed.health("v").await.unwrap(), ["FilesystemDead"], "the target is still the old one");
    bed.publish("v", &pod).await.unwrap();
    assert_eq!(bed.health("v").await.unwrap(), [""; 0]);
    assert_eq!(fs::read_to_string(pod.join("before")).unwrap(), "before");
    write(&pod.join("after"), "after").unwrap();
    let old = open.write_all(b"x").and_then(|()| open.sync_all());
    let seen: Vec<String> = seen.iter().chain([&old]).map(said).collect();
    assert!(seen.iter().all(|seen| seen.contains("107")), "{seen:?}");
    drop(open);
    bed.take_away("v").await;
    bed.row("kill -9", &format!("open file: {}; health: {health:?}; stage and publish repair it", seen[0]));
}

/// With this option of libfuse, `fusermount3` unmounts what a killed daemon leaves: the staging directory,
/// not the targets.
#[test]
fn a_killed_daemon_with_auto_unmount_is_replaced() {
    on_bed(Program::Sshfs, MountedBy::Program, async |bed| {
        bed.mount_flags.push("auto_unmount".to_owned());
        let pod = bed.pod("v");
        bed.bring("v").await;
        write(&pod.join("before"), "before").unwrap();
        signal("KILL", &bed.daemons());
        let staging = text(&bed.staging("v"));
        eventually("it is unmounted", || !mount_table().contains(&staging)).await;
        let health = bed.health("v").await.unwrap();
        let published = bed.publish("v", &pod).await;
        bed.stage("v").await.unwrap();
        bed.publish("v", &pod).await.unwrap();
        assert_eq!(fs::read_to_string(pod.join("before")).unwrap(), "before");
        bed.take_away("v").await;
        let published = published.map_or_else(|status| format!("{:?}", status.code()), |()| "ok".to_owned());
        bed.row("kill -9 with auto_unmount", &format!("health: {health:?}; publish: {published}"));
    });
}

async fn stopped(bed: &mut Bed<'_>) {
    let (pod, second) = (bed.pod("v"), bed.place.join("pod-second"));
    bed.vendor.create("w");
    fs::create_dir(bed.staging("w")).unwrap();
    bed.bring("v").await;
    write(&pod.join("file"), "file").unwrap();
    let what = bed.server("STOP");
    let mut found = Vec::new();
    let new = pod.join("new");
    let workload = spawn_blocking(move || {
        let begun = Instant::now();
        let written = write(&new, "new");
        (written, begun.elapsed())
    });
    let health = async || bed.health("v").await.map(|reasons| reasons.join(" "));
    found.push(bounded("stats", bed.stats("v")).await);
    found.push(bounded("health", health()).await);
    found.push(bounded("publish again", bed.publish("v", &second)).await);
    found.push(bounded("unpublish it", bed.unpublish("v", &second)).await);
    found.push(bounded("stage again", bed.stage("v")).await);
    if bed.vendor.server.is_some() {
        found.push(bounded("stage another", bed.stage("w")).await);
        found.push(bounded("unstage another", bed.unstage("w")).await);
    }
    found.push(bounded("unpublish", bed.unpublish("v", &pod)).await);
    found.push(bounded("unstage", bed.unstage("v")).await);
    bed.row(&format!("{what} stopped"), &found.join("; "));
    bed.server("CONT");
    let (written, took) = tokio::time::timeout(LIMIT, workload).await.expect("the workload ends").unwrap();
    bed.row("its workload", &format!("{} after {took:.1?}", said(&written)));
    // What was refused while the workload used it is done now.
    for id in ["v", "w"] {
        bed.take_away(id).await;
    }
    bed.nothing_is_left();
    bed.stage("v").await.unwrap();
    bed.publish("v", &pod).await.unwrap();
    // A program with a cache acknowledges what it has not stored. After its next start it stores that, and
    // shows it only then.
    let acknowledged = ["file", "new"].into_iter().filter(|file| *file == "file" || written.is_ok());
    for file in acknowledged {
        eventually("it is there", || fs::read_to_string(pod.join(file)).is_ok_and(|text| text == file)).await;
        if let Some(stored) = bed.vendor.stored("v", file) {
            eventually("it is stored", || fs::read_to_string(&stored).is_ok_and(|text| text == file)).await;
        }
    }
    bed.take_away("v").await;
}

async fn twenty_volumes(bed: &mut Bed<'_>) {
    let ids: Vec<String> = (0..20).map(|number| format!("v{number}")).collect();
    let begun = Instant::now();
    let mut all: Vec<_> = ids.iter().map(|id| Box::pin(bed.bring(id))).collect();
    together(&mut all).await;
    let brought = begun.elapsed();
    for id in &ids {
        write(&bed.pod(id).join("file"), id).unwrap();
    }
    for id in &ids {
        assert_eq!(fs::read_to_string(bed.pod(id).join("file")).unwrap(), *id);
    }
    let memory: u64 = daemons(bed.place).into_iter().map(own_memory).sum();
    let begun = Instant::now();
    let mut all: Vec<_> = ids.iter().map(|id| Box::pin(bed.take_away(id))).collect();
    together(&mut all).await;
    let taken = begun.elapsed();
    let each = memory / 20;
    bed.row("20 volumes", &format!("brought in {brought:.1?}, ended in {taken:.1?}, {each} KiB each"));
}

async fn full_disk(bed: &mut Bed<'_>) {
    let small = MountOptions::parse(["size=2m"]).unwrap();
    Mount::new("tmpfs", "small").options(&small).at(&Target::new(bed.vendor.volumes()).unwrap()).unwrap();
    bed.bring("v").await;
    let file = bed.pod("v").join("big");
    // It says which call failed: a write, the fsync or the close.
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=64k", "count=64", "conv=fsync", "status=none"]).env("LC_ALL", "C");
    let output = dd.arg(format!("of={}", file.display())).output().unwrap();
    let seen = String::from_utf8_lossy(&output.stderr).replace(&text(&file), "FILE");
    let seen = seen.lines().next().unwrap_or("no error");
    let is_cached = matches!(bed.vendor.program, Program::RcloneLocal | Program::RcloneWebdav);
    assert_eq!(output.status.success(), is_cached, "{seen}");
    let health = bed.health("v").await.unwrap();
    fs::remove_file(&file).unwrap();
    write(&bed.pod("v").join("small"), "small").unwrap();
    assert_eq!(fs::read_to_string(bed.pod("v").join("small")).unwrap(), "small");
    bed.take_away("v").await;
    bed.row("disk full", &format!("dd: {seen}; health: {health:?}"));
}

/// Waits for all of them, which run at the same time.
async fn together<F: Future<Output = ()> + Unpin>(all: &mut Vec<F>) {
    std::future::poll_fn(|context| {
        all.retain_mut(|one| std::pin::Pin::new(one).poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Does a step in bounded time, and says how it ended.
async fn bounded<T: std::fmt::Debug>(name: &str, step: impl Future<Output = Result<T, Status>>) -> String {
    let begun = Instant::now();
    let result = tokio::time::timeout(LIMIT, step).await;
    let result = result.unwrap_or_else(|_| panic!("{name} takes more than {LIMIT:?}"));
    let said = match &result {
        Ok(value) => format!("ok {value:?}").replace(" ()", ""),
        Err(status) if matches!(status.code(), Code::Unknown | Code::Unimplemented) => {
            panic!("{name}: {status}")
        }
        Err(status) => format!("{:?}", status.code()),
    };
    format!("{name} {said} {:.1?}", begun.elapsed())
}

fn said<T>(result: &io::Result<T>) -> String {
    result.as_ref().err().map_or("ok".to_owned(), io::Error::to_string)
}

fn write(path: &Path, content: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn mount_table() -> String {
    fs::read_to_string("/proc/thread-self/mountinfo").unwrap()
}

/// The memory that only this process has, in KiB (proc_pid_smaps(5)).
fn own_memory(process: u32) -> u64 {
    let map = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let own = map.lines().filter(|line| line.starts_with("Private_"));
    own.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
