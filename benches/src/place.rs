//! The environment of subjects: a namespace, a tmpfs, mounts in it, and images on loop devices.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use csi_mount::internal::LoopDevice;
use csi_mount::{BlockDevice, LoopOptions};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const NONE: Option<&str> = None;

/// Gives this process its own mount namespace, which propagates nothing back. Mounts inside are shared, as on
/// a node. Call it before other threads exist: `/proc/self` shows the first thread's namespace.
///
/// # Panics
/// When the process is not permitted to do this.
pub fn enter_namespace() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("make a mount namespace: run it as root");
    for propagation in [MsFlags::MS_SLAVE, MsFlags::MS_SHARED] {
        let flags = propagation | MsFlags::MS_REC;
        mount(NONE, "/", NONE, flags, NONE).expect("stop sending mounts to the host");
    }
}

/// A tmpfs in its own directory.
#[derive(Debug)]
pub struct Place(PathBuf);

impl Place {
    /// Mounts the tmpfs.
    ///
    /// # Panics
    /// When it can't be mounted.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("csi-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let place = Self(std::env::temp_dir().join(name));
        fs::create_dir(&place.0).expect("make a directory");
        mount(Some("bench"), &place.0, Some("tmpfs"), MsFlags::empty(), Some("size=90%"))
            .expect("mount a tmpfs");
        place
    }

    /// A place whose namespace has at least this number of mounts, each of its own filesystem, at paths as
    /// long as a kubelet's.
    ///
    /// # Panics
    /// When they can't be made.
    pub fn with_mounts(count: usize) -> Self {
        let place = Self::new();
        let table = fs::read("/proc/self/mountinfo").expect("read the mount table");
        let present = table.iter().filter(|byte| **byte == b'\n').count();
        for at in present..count {
            let pod =
                format!("pods/0f3c3f0e-6c2c-4c8e-9d0a-{at:012}/volumes/kubernetes.io~csi/pvc-{at}/mount");
            let made = mount(Some("volume"), &place.directory(&pod), Some("tmpfs"), MsFlags::empty(), NONE);
            made.expect("mount a tmpfs");
        }
        place
    }

    /// Creates a directory in it.
    ///
    /// # Panics
    /// When it can't be created.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).expect("make a directory");
        path
    }

    /// A directory to mount on, at a path as long as a kubelet's.
    pub fn target(&self) -> PathBuf {
        self.directory("pods/0f3c3f0e-6c2c-4c8e-9d0a-0123456789ab/volumes/kubernetes.io~csi/pvc/mount")
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Unmounts it with all mounts in it. The directory is removed only if it is empty then.
        let gone = umount2(&self.0, MntFlags::MNT_DETACH).map_err(std::io::Error::from);
        if let Err(error) = gone.and_then(|()| fs::remove_dir(&self.0)) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

/// Bind-mounts without attributes.
pub(crate) fn bind(source: &Path, target: &Path) {
    mount(Some(source), target, NONE, MsFlags::MS_BIND, NONE).expect("bind");
}

/// Unmounts the topmost mount.
pub(crate) fn unmount(target: &Path) {
    umount2(target, MntFlags::UMOUNT_NOFOLLOW).expect("unmount");
}

/// A sparse file on a loop device.
#[derive(Debug)]
pub struct Image {
    file: PathBuf,
    device: LoopDevice,
}

/// A mebibyte.
pub(crate) const MIB: u64 = 1 << 20;

impl Drop for Image {
    fn drop(&mut self) {
        if let Err(error) = LoopDevice::detach_all(&self.file) {
            eprintln!("{} is left: {error}", self.device.path().display());
        }
    }
}

impl Image {
    /// Creates the file and attaches it. The loop device is detached when the image is dropped.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn new(place: &Place, name: &str, mebibytes: u64) -> Self {
        let file = place.path(name);
        File::create(&file).and_then(|image| image.set_len(mebibytes * MIB)).expect("make an image");
        let device = LoopDevice::attach(&file, &LoopOptions::new()).expect("attach a loop device");
        Self { file, device }
    }

    /// Creates an image with a filesystem, made by `program`.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn with_filesystem(place: &Place, program: &str, mebibytes: u64) -> Self {
        let image = Self::new(place, program, mebibytes);
        let quiet = if program == "mkfs.ext4" { ["-q", "-F"] } else { ["-q", "-f"] };
        crate::program(program, quiet.iter().map(AsRef::as_ref).chain([image.path().as_os_str()]));
        image
    }

    /// The path of the device.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// The backing file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Opens the device.
    ///
    /// # Panics
    /// When it can't be opened.
    pub fn open(&self) -> BlockDevice {
        BlockDevice::open(self.path()).expect("open a loop device")
    }

    /// Resizes the backing file. A new part is a hole.
    ///
    /// # Panics
    /// When it can't be resized.
    pub fn resize(&self, mebibytes: u64) {
        let file = File::options().write(true).open(&self.file).expect("open an image");
        file.set_len(mebibytes * MIB).expect("resize an image");
        self.device.refresh_size().expect("tell the loop device");
    }

    /// Fills the device with bytes that match no known signature.
    ///
    /// # Panics
    /// When it can't be written.
    pub fn scramble(&self) {
        let size = self.open().size().expect("read the size");
        let device = File::options().write(true).open(self.path()).expect("open the device");
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut block = vec![0; MIB as usize];
        for at in (0..size).step_by(block.len()) {
            for bytes in block.chunks_exact_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
            }
            device.write_all_at(&block, at).expect("write");
        }
        device.sync_all().expect("flush");
    }
}
