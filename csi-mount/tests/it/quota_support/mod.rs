//! Filesystems with project quotas, and what a workload can do in their directories.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use csi_mount::testing::private_mount_namespace;
use csi_mount::{Directories, DirectoryLimit, Error, ErrorKind, Host, Mount, MountOptions, Target, unmount};
use nix::libc;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::devices::{Image, run};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
/// Our project ids.
pub(crate) const OURS: std::ops::Range<u32> = 0x4000_0000..0x8000_0000;

/// A filesystem on a loop device, mounted in a directory in memory.
pub(crate) struct Disk {
    pub(crate) image: Image,
    pub(crate) fs_type: &'static str,
    pub(crate) at: PathBuf,
}

impl Disk {
    /// Formats an image with these arguments.
    pub(crate) fn format(base: &Path, fs_type: &'static str, arguments: &[&str]) -> Self {
        let image = Image::new(if fs_type == "ext4" { 64 } else { 320 });
        let device = image.path().to_str().unwrap();
        run(&format!("mkfs.{fs_type}"), &[arguments, &[device]].concat());
        Self { image, fs_type, at: base.join(fs_type) }
    }

    pub(crate) fn with_quotas(base: &Path, fs_type: &'static str) -> Self {
        let quotas: &[&str] = if fs_type == "ext4" { &["-q", "-O", "quota,project"] } else { &["-q"] };
        let disk = Self::format(base, fs_type, quotas);
        disk.mount(&["prjquota"]);
        disk
    }

    pub(crate) fn mount(&self, options: &[&str]) {
        self.mount_from(self.image.path(), options);
    }

    /// Mounts it by this node of its device.
    pub(crate) fn mount_from(&self, node: &Path, options: &[&str]) {
        let target = Target::new(&self.at).unwrap();
        target.create_dir().unwrap();
        let options = MountOptions::parse(options.iter().copied()).unwrap();
        Mount::new(self.fs_type, node).options(&options).at(&target).unwrap();
    }

    pub(crate) fn unmount(&self) {
        unmount(&Target::new(&self.at).unwrap()).unwrap();
        self.image.is_let_go("after the unmount");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }
}

/// Runs a test on each filesystem with quotas, in its own mount namespace.
pub(crate) fn on_each(test: impl Fn(&Disk) + Sync) {
    for fs_type in ["ext4", "xfs"] {
        in_memory(|base| {
            let disk = Disk::with_quotas(base, fs_type);
            test(&disk);
            disk.unmount();
        });
    }
}

/// Runs a test with a directory in memory, in its own mount namespace.
pub(crate) fn in_memory(test: impl FnOnce(&Path) + Send) {
    let place = tempfile::tempdir().unwrap().keep();
    private_mount_namespace(|| {
        Mount::new("tmpfs", "test").at(&Target::new(&place).unwrap()).unwrap();
        test(&place);
    });
    fs::remove_dir(&place).unwrap();
}

pub(crate) fn directories() -> Directories<'static> {
    static HOST: Host = Host::kernel();
    HOST.directories()
}

pub(crate) fn create(path: &Path, limit: impl Into<DirectoryLimit>) -> csi_mount::Result<DirectoryLimit> {
    directories().create(path, limit.into())
}

/// Runs the closure without the capability by which root ignores the limits of ext4.
pub(crate) fn as_workload<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    without(CapabilitySet::SYS_RESOURCE, work)
}

pub(crate) fn without<T: Send>(capability: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= capability;
            set_capabilities(None, sets).unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Writes a file of a workload, to the disk.
pub(crate) fn write(file: &Path, bytes: u64) -> io::Result<()> {
    as_workload(|| {
        let mut file = File::create(file)?;
        file.write_all(&vec![7; usize::try_from(bytes).unwrap()])?;
        file.sync_all()
    })
}

/// Whether this is how the filesystem says that a limit is reached.
#[track_caller]
pub(crate) fn assert_full<T: std::fmt::Debug>(fs_type: &str, result: io::Result<T>) {
    let number = result.unwrap_err().raw_os_error();
    assert_eq!(number, Some(if fs_type == "xfs" { libc::ENOSPC } else { libc::EDQUOT }));
}

/// The projects of directories, as `lsattr` shows them.
pub(crate) fn projects(directories: &[PathBuf]) -> Vec<u32> {
    let paths = directories.iter().map(|path| path.to_str().unwrap());
    let text = run("lsattr", &["-pd"].into_iter().chain(paths).collect::<Vec<_>>());
    text.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
}

pub(crate) fn project(directory: &Path) -> u32 {
    projects(&[directory.to_owned()])[0]
}

/// Whether new files belong to the project of a directory. Before Linux 5.13 e2fsprogs can't see it on XFS.
pub(crate) fn inherits(directory: &Path) -> bool {
    let text = run("xfs_io", &["-r", "-c", "lsattr", directory.to_str().unwrap()]);
    text.split_whitespace().next().unwrap().contains('P')
}

/// Gives a directory to a project, with the files that will be made in it.
pub(crate) fn set_project(directory: &Path, id: u32) {
    let chproj = format!("chproj {id}");
    run("xfs_io", &["-r", "-c", &chproj, "-c", "chattr +P", directory.to_str().unwrap()]);
    assert!(project(directory) == id && inherits(directory));
}

/// Whether a project has a limit, as a directory shows it that is given to the project.
pub(crate) fn has_limit(disk: &Disk, id: u32) -> bool {
    let probe = disk.path("probe");
    fs::create_dir(&probe).unwrap();
    set_project(&probe, id);
    let limit = directories().limit(&probe).unwrap();
    fs::remove_dir(&probe).unwrap();
    limit.is_some()
}

#[track_caller]
pub(crate) fn assert_refused(at: &Path, says: &[&str]) -> Error {
    let error = create(&at.join("volume"), MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let text = error.to_string();
    assert!(says.iter().all(|part| text.contains(part)), "{text}");
    assert!(!at.join("volume").exists(), "nothing is made");
    let checked = directories().check_limits(at).unwrap_err();
    assert_eq!(checked.kind(), ErrorKind::Unsupported, "{checked}");
    error
}
