//! A stand-in for a node: a mount namespace of its own in which `/var/lib/kubelet` is shared, as on a host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use csi_core::mount::testing::{private_mount_namespace, share};
use csi_core::mount::{Mount, MountEntry, Target, mounts};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// The kubelet's directory. In this namespace an empty tmpfs covers the machine's `/var/lib`, so no test can
/// reach what the machine has there.
pub(crate) const KUBELET: &str = "/var/lib/kubelet";
/// The directory of the driver's volumes, on the node.
pub(crate) const DATA: &str = "/var/lib/data";
const COVERED: &str = "/var/lib";

/// Generous: the machine can be busy with other tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Node {
    /// A tmpfs with the images, the containers and the runtime's own files.
    pub(crate) place: PathBuf,
    /// The id of its volume, which no other test has: the machine has one list of loop devices and processes.
    pub(crate) volume: String,
}

impl Node {
    /// Runs the test on a node, which is gone afterwards.
    pub(crate) fn run(test: impl AsyncFnOnce(&Node) + Send) {
        let place = tempfile::tempdir().unwrap().keep();
        private_mount_namespace(|| {
            for at in [&place, Path::new(COVERED)] {
                mount(Some("node"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            }
            for directory in [KUBELET, DATA] {
                fs::create_dir(directory).unwrap();
            }
            // A mount of its own, as a host has it after `mount --make-rshared /`.
            Mount::new("tmpfs", "kubelet").at(&Target::new(KUBELET).unwrap()).unwrap();
            share(Path::new(KUBELET));
            for directory in ["plugins", "plugins_registry", "pods"] {
                fs::create_dir(Path::new(KUBELET).join(directory)).unwrap();
            }
            fs::create_dir(place.join("logs")).unwrap();
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let node = Self { place: place.clone(), volume: format!("vol-{}-{number}", std::process::id()) };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test(&node));
            for at in [Path::new(COVERED), &place] {
                umount2(at, MntFlags::MNT_DETACH).unwrap();
            }
        });
        fs::remove_dir(&place).unwrap();
    }

    /// What is mounted below the kubelet's directory, as the node sees it.
    pub(crate) fn mounts(&self) -> Vec<MountEntry> {
        let all = mounts().unwrap().into_iter();
        all.filter(|entry| entry.mount_point.starts_with(KUBELET) && entry.mount_point != Path::new(KUBELET))
            .collect()
    }

    /// The topmost mount at this path.
    pub(crate) fn mount_at(&self, path: &str) -> Option<MountEntry> {
        self.mounts().into_iter().rev().find(|entry| entry.mount_point == Path::new(path))
    }

    /// Fails if anything of a volume is left: mounts, directories, loop devices, files.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.mounts().iter().map(|entry| &entry.mount_point).collect::<Vec<_>>(), [""; 0]);
        for directory in [DATA, &format!("{KUBELET}/pods")] {
            let left: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        assert_eq!(self.loop_devices(), [""; 0]);
        assert_eq!(self.daemons(), [0; 0]);
    }

    /// The loop devices over files of the volume. A file of a container's mount namespace has another directory
    /// here.
    fn loop_devices(&self) -> Vec<String> {
        let devices = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap());
        let file = |device: &fs::DirEntry| fs::read_to_string(device.path().join("loop/backing_file"));
        let ours = devices.filter(|device| file(device).is_ok_and(|file| file.contains(&self.volume)));
        ours.map(|device| device.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The FUSE daemons of the volume, by their numbers on the node.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        let all = fs::read_dir("/proc").unwrap();
        let numbers = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("flatfs") && line.contains(&self.volume)
        };
        numbers.filter(serves).collect()
    }
}

impl Drop for Node {
    /// A loop device stays without its file: those of a failed test are detached.
    fn drop(&mut self) {
        for device in self.loop_devices() {
            drop(Command::new("losetup").arg("--detach").arg(format!("/dev/{device}")).status());
        }
    }
}

/// Waits until this is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
