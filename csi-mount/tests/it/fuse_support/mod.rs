//! FUSE filesystems whose daemon is the test. The daemon does only as much of its work as the test says.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use csi_mount::{Mount, MountOptions, Target};
use nix::unistd::Pid;

/// A FUSE filesystem whose daemon has not done anything yet.
pub(crate) fn fuse(target: &Target) -> File {
    fuse_of("fuse", "silent", target)
}

/// The same, as this type of filesystem and from this source.
pub(crate) fn fuse_of(fs_type: &str, source: impl AsRef<Path>, target: &Target) -> File {
    let device = File::options().read(true).write(true).open("/dev/fuse").expect("open /dev/fuse as root");
    let options = MountOptions::parse(["rootmode=40000", "user_id=0", "group_id=0"]).unwrap();
    let options = options.with_option("fd", &device.as_raw_fd().to_string()).unwrap();
    Mount::new(fs_type, source.as_ref()).options(&options).at(target).unwrap();
    device
}

pub(crate) fn operation(request: &[u8]) -> u32 {
    u32::from_ne_bytes(request[4..8].try_into().unwrap())
}

/// Answers a request. The process that sent it can be gone.
pub(crate) fn answer(mut device: &File, request: &[u8], (error, body): (i32, Vec<u8>)) {
    let mut answer = (16 + body.len() as u32).to_ne_bytes().to_vec();
    answer.extend((-error).to_ne_bytes());
    answer.extend(&request[8..16]);
    answer.extend(body);
    drop(device.write_all(&answer));
}

/// The answer of an empty filesystem: an error number, and a body.
pub(crate) fn empty_filesystem(operation: u32) -> (i32, Vec<u8>) {
    const GETATTR: u32 = 3;
    const STATFS: u32 = 17;
    match operation {
        GETATTR => {
            let mut attributes = vec![0; 104];
            // Inode 1, a directory with two links.
            attributes[16] = 1;
            attributes[76..80].copy_from_slice(&0o40755_u32.to_ne_bytes());
            attributes[80] = 2;
            (0, attributes)
        }
        STATFS => (0, vec![0; 80]),
        _ => (nix::libc::ENOSYS, vec![]),
    }
}

/// Answers the first request, FUSE_INIT, so that the kernel sends the next ones.
pub(crate) fn answer_init(mut device: &File) {
    let mut request = [0; 8192];
    let length = device.read(&mut request).unwrap();
    assert!(length >= 40 && request[4..8] == 26_u32.to_ne_bytes(), "the first request is FUSE_INIT");
    let mut body = vec![0; 64];
    body[..4].copy_from_slice(&7_u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    answer(device, &request, (0, body));
}

/// Creates the target and mounts a FUSE filesystem there whose daemon is gone.
pub(crate) fn lost_server(target: &Target) {
    target.create_dir().unwrap();
    answer_init(&fuse(target));
}

/// A daemon that takes every request and answers none. A process that waits for it can't even be killed.
pub(crate) struct SilentDaemon {
    thread: JoinHandle<usize>,
}

impl SilentDaemon {
    pub(crate) fn mount(target: &Target) -> Self {
        let mut device = fuse(target);
        answer_init(&device);
        let thread = std::thread::spawn(move || {
            let mut taken = 0;
            // The loop ends with the filesystem: the read returns ENODEV.
            let mut request = [0; 8192];
            while device.read(&mut request).is_ok() {
                // FUSE_INTERRUPT, which says that a waiting process is to be killed, does not count.
                taken += usize::from(request[4..8] != 36_u32.to_ne_bytes());
            }
            taken
        });
        Self { thread }
    }

    /// Returns how many requests the daemon took. It waits until the filesystem is unmounted.
    pub(crate) fn taken(self) -> usize {
        self.thread.join().unwrap()
    }
}

/// FORGET, INTERRUPT and BATCH_FORGET.
const UNANSWERED: [u32; 3] = [2, 36, 42];

/// A daemon that answers each request immediately: as an empty filesystem, or with this error number.
pub(crate) fn answering_daemon(target: &Target, fails_with: Option<i32>) -> JoinHandle<()> {
    let mut device = fuse(target);
    answer_init(&device);
    std::thread::spawn(move || {
        let mut request = [0; 8192];
        while device.read(&mut request).is_ok() {
            let operation = operation(&request);
            if !UNANSWERED.contains(&operation) {
                let failure = fails_with.map(|number| (number, vec![]));
                answer(&device, &request, failure.unwrap_or_else(|| empty_filesystem(operation)));
            }
        }
    })
}

/// How long an event can take on a machine that has other work. A test fails after this time and does not hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The one process that serves this path. Others with its mark are about to end: a parent that went into the
/// background.
pub(crate) fn the_daemon(path: &Path) -> Pid {
    let end = Instant::now() + PATIENCE;
    loop {
        let found = daemon_processes(path);
        if let [daemon] = found[..] {
            return daemon;
        }
        assert!(Instant::now() < end, "one process serves it: {found:?}");
        sleep(Duration::from_millis(5));
    }
}

/// The processes of the daemon that the flow started for this path. They are found by the mark that it gave them.
pub(crate) fn daemon_processes(path: &Path) -> Vec<Pid> {
    let mark = format!("CSI_MOUNT_FUSE_AT={}", path.display());
    let all = std::fs::read_dir("/proc").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_marked = |number: &i32| {
        let environment = std::fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    numbers.filter(is_marked).map(Pid::from_raw).collect()
}

/// A filesystem on a block device whose daemon gets the request to end (like a server that gets the last
/// writes), and answers it only when the test says so.
pub(crate) struct LateEnd {
    let_go: std::sync::mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl LateEnd {
    pub(crate) fn mount(target: &Target, device: &Path) -> Self {
        /// FUSE_DESTROY
        const DESTROY: u32 = 38;
        let mut fuse = fuse_of("fuseblk", device, target);
        answer_init(&fuse);
        let (let_go, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut request = [0; 8192];
            while fuse.read(&mut request).is_ok() {
                let is_end = operation(&request) == DESTROY;
                if is_end {
                    // An error means that the test is over.
                    let _ = told.recv();
                }
                answer(&fuse, &request, (if is_end { 0 } else { nix::libc::ENOSYS }, vec![]));
            }
        });
        Self { let_go, thread }
    }

    pub(crate) fn let_go(self) {
        self.let_go.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// How long processes of this machine have waited for a processor so far. Zero if the kernel does not measure it.
fn processor_shortage() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total = text.split_once("total=").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    Duration::from_micros(total.unwrap_or_default())
}

/// Runs something that must end within the limit. On a machine that has other work it can take longer: by the
/// time in which processes waited for a processor, and at most twenty times the limit.
pub(crate) fn bounded<T>(limit: Duration, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let before = processor_shortage();
    let result = run();
    let took = start.elapsed();
    let shortage = processor_shortage().saturating_sub(before);
    assert!(took < limit + shortage.min(20 * limit), "took {took:?}, {shortage:?} of it without a processor");
    result
}

/// What happens to a [`FileServer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It takes every request and answers none. A process that waits for it can't be killed.
    Stopped,
    /// It takes no request, as a process that was sent SIGSTOP. A process that waits for it can be killed.
    Suspended,
    /// It is gone.
    Killed,
}

/// A daemon with one file of zeros in its root. Every name leads to this file.
pub(crate) struct FileServer {
    fate: std::sync::Arc<std::sync::Mutex<Option<Fate>>>,
    ignored: std::sync::Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl FileServer {
    pub(crate) const SIZE: u64 = 8 << 20;

    pub(crate) fn mount(target: &Target) -> Self {
        let device = fuse(target);
        answer_init(&device);
        let fate = std::sync::Arc::default();
        let told = std::sync::Arc::clone(&fate);
        let ignored = std::sync::Arc::default();
        let count = std::sync::Arc::clone(&ignored);
        let thread = std::thread::spawn(move || serve_file(device, &told, &count));
        Self { fate, ignored, thread: Some(thread) }
    }

    /// Runs something during which this process asks a [stopped](Fate::Stopped) server nothing. Other programs of
    /// the machine can ask it.
    pub(crate) fn is_not_asked_by<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = self.ignored.load(Ordering::SeqCst);
        let result = run();
        assert_eq!(self.ignored.load(Ordering::SeqCst), before, "the silent server was asked again");
        result
    }

    /// Lets it answer again.
    pub(crate) fn continues(&self) {
        *self.fate.lock().unwrap() = None;
    }

    /// Sets the server's fate. If it is killed, it is gone when this returns.
    pub(crate) fn meets(&mut self, fate: Fate) {
        *self.fate.lock().unwrap() = Some(fate);
        if fate == Fate::Killed
            && let Some(thread) = self.thread.take()
        {
            thread.join().unwrap();
        }
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.meets(Fate::Killed);
    }
}

/// Counts the requests of this process's children that it leaves without an answer.
fn serve_file(mut device: File, fate: &std::sync::Mutex<Option<Fate>>, ignored: &AtomicUsize) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd as _;
    const LOOKUP: u32 = 1;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const READ: u32 = 15;
    const STATX: u32 = 52;
    let attributes = |inode: u64| {
        let mut bytes = vec![0_u8; 88];
        let mode: u32 = if inode == 1 { 0o40755 } else { 0o100644 };
        bytes[..8].copy_from_slice(&inode.to_ne_bytes());
        bytes[8..16].copy_from_slice(&FileServer::SIZE.to_ne_bytes());
        bytes[60..64].copy_from_slice(&mode.to_ne_bytes());
        bytes[64..68].copy_from_slice(&1_u32.to_ne_bytes());
        bytes
    };
    let mut request = vec![0; 300_000];
    loop {
        let mut fds = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let is_ready = poll(&mut fds, PollTimeout::from(20_u8)).unwrap() > 0;
        let fate = *fate.lock().unwrap();
        if fate == Some(Fate::Killed) {
            return;
        }
        if !is_ready {
            continue;
        }
        if fate == Some(Fate::Suspended) {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        if device.read(&mut request).is_err() {
            return;
        }
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let operation = number(4);
        if UNANSWERED.contains(&operation) {
            continue;
        }
        if fate == Some(Fate::Stopped) {
            let process = number(32);
            let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let is_child = status.lines().any(|line| line == format!("PPid:\t{}", std::process::id()));
            ignored.fetch_add(usize::from(is_child), Ordering::SeqCst);
            continue;
        }
        let inode = u64::from_ne_bytes(request[16..24].try_into().unwrap());
        let body = match operation {
            // The inode number, its generation, and cache times of zero.
            LOOKUP => [2_u64.to_ne_bytes().to_vec(), vec![0; 32], attributes(2)].concat(),
            GETATTR => [vec![0; 16], attributes(inode)].concat(),
            OPEN => vec![0; 16],
            READ => vec![0; number(56) as usize],
            _ => vec![],
        };
        let error = if operation == STATX { nix::libc::ENOSYS } else { 0 };
        answer(&device, &request, (error, body));
    }
}
