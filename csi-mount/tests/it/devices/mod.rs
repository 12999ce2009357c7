//! Sparse image files on loop devices. They are removed when they are dropped.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use csi_mount::internal::{DeviceQuestions as _, LoopDevice};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, DeviceNumber, Error, ErrorKind, ExpectedDevice, Host, LoopCache, LoopOptions, Target,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

pub(crate) const MIB: u64 = 1 << 20;
/// How long an event can take on a machine that has other work. A test fails after this time and does not hang.
const PATIENCE: Duration = Duration::from_secs(180);

/// An image file in its own directory, on a loop device.
pub(crate) struct Image {
    directory: tempfile::TempDir,
    device: Option<LoopDevice>,
}

impl Image {
    pub(crate) fn new(mebibytes: u64) -> Self {
        Self::with(mebibytes, &LoopOptions::new())
    }

    pub(crate) fn with(mebibytes: u64, options: &LoopOptions) -> Self {
        Self::of_bytes(mebibytes * MIB, options)
    }

    pub(crate) fn of_bytes(size: u64, options: &LoopOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        File::create(directory.path().join("image")).unwrap().set_len(size).unwrap();
        Self::in_directory(directory, options)
    }

    /// A copy of another image's file.
    pub(crate) fn copy_of(file: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        csi_mount::copy_file(file, directory.path().join("image")).unwrap();
        Self::in_directory(directory, &LoopOptions::new())
    }

    fn in_directory(directory: tempfile::TempDir, options: &LoopOptions) -> Self {
        let device = LoopDevice::attach(directory.path().join("image"), options)
            .expect("these tests need loop devices: run them as root on a machine that has them");
        Self { directory, device: Some(device) }
    }

    /// Uses the device to which the file is attached now.
    pub(crate) fn find_again(&mut self) {
        self.device = LoopDevice::find(self.file()).unwrap().pop();
    }

    /// Records that no device is attached any more. Before Linux 5.15, dropping the old device later can
    /// detach the device of another file if both numbers are the same: the device's and the inode's.
    pub(crate) fn is_detached(&mut self) {
        self.device = None;
    }

    /// Attaches the file to another device, as after a reboot.
    pub(crate) fn attach_again(&mut self) {
        let device = self.device.take().unwrap();
        detach_when_let_go(device, &self.file()).unwrap();
        self.device = Some(LoopDevice::attach(self.file(), &LoopOptions::new()).unwrap());
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A target next to the image file.
    pub(crate) fn target(&self, name: &str) -> Target {
        Target::new(self.directory().join(name)).unwrap()
    }

    pub(crate) fn loop_device(&self) -> &LoopDevice {
        self.device.as_ref().unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        self.loop_device().path()
    }

    pub(crate) fn open(&self) -> BlockDevice {
        BlockDevice::open(self.path()).unwrap()
    }

    /// Waits until nothing uses the device. A child process of another test inherits what is open here, until
    /// it runs its program.
    pub(crate) fn is_let_go(&self, what: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let users = self.open().users().unwrap();
            if users.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{what}: {users:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes through the device, as another program does.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let device = OpenOptions::new().write(true).open(self.path()).unwrap();
        device.write_all_at(bytes, offset).unwrap();
        device.sync_all().unwrap();
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        File::open(self.path()).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    /// Writes what another image has, through both devices. Both have only zeros elsewhere.
    pub(crate) fn copy_from(&self, other: &Self) {
        let from = File::open(other.path()).unwrap();
        let to = OpenOptions::new().write(true).open(self.path());
        let to = to.unwrap();
        let mut block = vec![0; 1 << 20];
        for offset in (0..other.open().size().unwrap()).step_by(block.len()) {
            from.read_exact_at(&mut block, offset).unwrap();
            if !is_zero(&block) {
                to.write_all_at(&block, offset).unwrap();
            }
        }
        to.sync_all().unwrap();
    }

    pub(crate) fn grow_to(&self, mebibytes: u64) {
        OpenOptions::new().write(true).open(self.file()).unwrap().set_len(mebibytes * MIB).unwrap();
        self.loop_device().refresh_size().unwrap();
    }

    /// Returns how many sectors of 512 bytes begin with these bytes.
    pub(crate) fn sectors_that_start_with(&self, bytes: &[u8]) -> usize {
        self.blocks()
            .map(|(_, block)| block.chunks(512).filter(|sector| sector.starts_with(bytes)).count())
            .sum()
    }

    /// Returns the blocks of the image, of 4 KiB each, with their positions. Holes in the file are skipped.
    fn blocks(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        use rustix::fs::{SeekFrom, seek};
        let file = File::open(self.file()).unwrap();
        let mut data = 0..0;
        std::iter::from_fn(move || {
            if data.is_empty() {
                let start = seek(&file, SeekFrom::Data(data.end)).ok()?;
                data = start - start % 4096..seek(&file, SeekFrom::Hole(start)).unwrap();
            }
            let mut block = vec![0; 4096];
            let length = file.read_at(&mut block, data.start).unwrap();
            block.truncate(length);
            let place = data.start;
            data.start = (place + 4096).min(data.end);
            Some((place, block))
        })
    }

    /// Returns a device of this many bytes with a copy of another image's content.
    pub(crate) fn with_content_of(other: &Self, size: u64) -> Self {
        let image = Self::of_bytes(size, &LoopOptions::new());
        image.write_blocks(other.nonzero_blocks());
        image
    }

    /// Writes these blocks through the device.
    pub(crate) fn write_blocks(&self, blocks: impl IntoIterator<Item = (u64, Vec<u8>)>) {
        let device = OpenOptions::new().write(true).open(self.path()).unwrap();
        for (place, block) in blocks {
            device.write_all_at(&block, place).unwrap();
        }
        device.sync_all().unwrap();
    }

    /// Returns the blocks of the image that are not zero, with their positions.
    pub(crate) fn nonzero_blocks(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.blocks().filter(|(_, block)| !is_zero(block))
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.blocks().all(|(_, block)| is_zero(&block))
    }

    /// The first block.
    pub(crate) fn header(&self) -> Content {
        Content(vec![(0, self.read(0, 4096))])
    }

    /// The whole image.
    pub(crate) fn content(&self) -> Content {
        Content(self.nonzero_blocks().collect())
    }
}

/// The blocks of an image that are not zero, with their positions.
#[derive(PartialEq)]
pub(crate) struct Content(Vec<(u64, Vec<u8>)>);

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<u64> = self.0.iter().map(|(place, _)| *place).collect();
        write!(f, "{} blocks at {places:?}", places.len())
    }
}

/// Compares blocks, which is fast in a test program too.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: &[u8] = &[0; 4096];
    bytes.chunks(ZEROS.len()).all(|block| *block == ZEROS[..block.len()])
}

/// Runs a test with an image of this size and a staging target, in a mount namespace that ends with the test.
pub(crate) fn with_image(mebibytes: u64, test: impl FnOnce(&Image, &Target) + Send) {
    private_mount_namespace(|| {
        let image = Image::new(mebibytes);
        test(&image, &image.target("staging"));
    });
}

impl Drop for Image {
    fn drop(&mut self) {
        let Some(device) = self.device.take() else { return };
        let path = device.path().to_owned();
        if std::thread::panicking() {
            // A mount of the failed test can have it. The kernel detaches it when this is gone.
            let _ = Command::new("losetup").arg("--detach").arg(path).status();
        } else if let Err(error) = detach_when_let_go(device, &self.file()) {
            panic!("{} is left behind: {error}", path.display());
        }
    }
}

/// Detaches the devices of this file or device when nothing uses them. A child process of another test inherits
/// what is open here, until it runs its program.
pub(crate) fn detach_when_let_go(device: LoopDevice, backing: &Path) -> csi_mount::Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut result = device.detach();
    while result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
        result = LoopDevice::detach_all(backing).map(drop);
    }
    result
}

/// Returns an image that can't be read beyond the point where its file is truncated. Before Linux 6.16, a
/// loop device that goes through the page cache reads zeros there, so this one uses direct I/O.
pub(crate) fn that_can_fail(mebibytes: u64) -> Image {
    Image::with(mebibytes, &LoopOptions::new().cache(LoopCache::Direct))
}

/// Waits for an event.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The error of a call that fails in this way.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: csi_mount::Result<T>, kind: ErrorKind) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    error
}

pub(crate) fn put_node(at: &Path, number: DeviceNumber) {
    mknodat(
        CWD,
        at,
        FileType::BlockDevice,
        Mode::RUSR | Mode::WUSR,
        rustix::fs::makedev(number.major, number.minor),
    )
    .unwrap();
}

/// Starts a daemon as the child of a thread that stays: a tracer waits for all children of its own thread.
pub(crate) fn start_daemon(mut command: std::process::Command) -> std::process::Child {
    let (sender, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        sender.send(child).unwrap();
        loop {
            std::thread::park();
        }
    });
    started.recv().unwrap()
}

/// Sets its flag when it is dropped: another thread of the scope ends also if the test fails, and is not waited for
/// without an end.
pub(crate) struct EndOfWork<'d>(pub(crate) &'d AtomicBool);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes to a device while something happens, and fails the test if a write fails.
pub(crate) fn under_load(device: &BlockDevice, work: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    let file = OpenOptions::new().write(true).open(device.path()).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0_u64;
            while !is_done.load(Ordering::Relaxed) {
                file.write_all_at(&[7; 4096], rounds % 1000 * 4096).unwrap();
                file.sync_all().unwrap();
                rounds += 1;
            }
            rounds
        });
        let end = EndOfWork(&is_done);
        work();
        drop(end);
        println!("{} writes", writer.join().unwrap());
    });
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    try_run(program, arguments).unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}"))
}

/// Runs a program that fails while a device is open, until it succeeds. A child process of another test
/// inherits what is open here, until it runs its program.
pub(crate) fn run_when_let_go(program: &str, arguments: &[&str]) {
    let end = Instant::now() + PATIENCE;
    while let Err(error) = try_run(program, arguments) {
        assert!(Instant::now() < end, "{program} {arguments:?}: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn try_run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = std::process::Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed here: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Detaches a loop device, and waits until it is detached: a program that has it open, such as another test's search for
/// the users of a disk, keeps it.
pub(crate) fn losetup_detach(node: &Path) {
    let attached = Path::new("/sys/block").join(node.file_name().unwrap()).join("loop/backing_file");
    let file = std::fs::read_to_string(&attached).unwrap();
    run("losetup", &["--detach", node.to_str().unwrap()]);
    let end = Instant::now() + PATIENCE;
    while std::fs::read_to_string(&attached).is_ok_and(|now| now == file) {
        assert!(Instant::now() < end, "{} is left behind", node.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the disk, and opens it.
pub(crate) fn wait(expected: &ExpectedDevice) -> csi_mount::Result<BlockDevice> {
    BlockDevice::open(Host::kernel().devices().wait(expected)?)
}
