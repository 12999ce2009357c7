//! The programs and devices that the tests need, checked before the tests start.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::{Failure, apt};

/// A Debian package, and the programs of it that the tests call. List only programs that are called.
const PROGRAMS: &[(&str, &str)] = &[
    ("e2fsprogs", "mkfs.ext4 e2fsck resize2fs"),
    ("xfsprogs", "mkfs.xfs xfs_repair xfs_growfs"),
    ("btrfs-progs", "mkfs.btrfs"),
    ("dosfstools", "mkfs.vfat"),
    ("util-linux", "blkid mkswap fsfreeze unshare findmnt mountpoint"),
    ("fuse3", "fusermount3"),
    ("mount", "mount losetup"),
    ("cryptsetup-bin", "cryptsetup"),
];

/// Additional programs for `cargo xtask bench`. The gate uses the first one to count instructions.
const MEASUREMENT: &[(&str, &str)] = &[("valgrind", "valgrind"), ("strace", "strace")];

/// Programs that only the emulated machine of `cargo xtask test --kernels` needs.
const EMULATION: &[(&str, &str)] = &[
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("util-linux", "setpriv blkdiscard"),
    ("apt", "apt-get"),
    ("dpkg", "dpkg-deb"),
    ("xz-utils", "xz"),
    ("libc-bin", "ldd"),
    ("e2fsprogs", "mkfs.ext2 mkfs.ext3 dumpe2fs debugfs"),
    ("xfsprogs", "xfs_db xfs_io"),
    ("btrfs-progs", "btrfs"),
    ("iproute2", "ip rdma"),
    ("keyutils", "keyctl"),
    ("dmsetup", "dmsetup"),
    ("lvm2", "lvm"),
    ("thin-provisioning-tools", "thin_check"),
    ("nvme-cli", "nvme"),
    ("open-iscsi", "iscsiadm iscsid"),
    ("sg3-utils", "sg_persist"),
    ("multipath-tools", "multipath multipathd"),
    ("udev", "udevadm"),
    ("samba", "smbd"),
    ("samba-common-bin", "smbpasswd"),
    ("grep", "grep"),
    ("coreutils", "cksum"),
];

/// FUSE programs, the servers behind them, and what makes their keys, for `cargo xtask test --systems fuse`.
const FUSE_PROGRAMS: &[(&str, &str)] = &[
    ("sshfs", "sshfs"),
    ("openssh-client", "ssh ssh-keygen"),
    ("openssh-server", "sshd"),
    ("rclone", "rclone"),
    ("gocryptfs", "gocryptfs"),
    ("bindfs", "bindfs"),
    ("fuse-overlayfs", "fuse-overlayfs"),
    ("s3fs", "s3fs"),
    ("fuse3", "fusermount3"),
];

/// A Ceph cluster of one node, its commands and its client, for `cargo xtask test --systems ceph`.
const CEPH: &[(&str, &str)] = &[
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-mds", "ceph-mds"),
    ("ceph-fuse", "ceph-fuse"),
    ("ceph-common", "ceph ceph-authtool"),
    ("ceph-base", "monmaptool"),
];

/// Runs the containers of `cargo xtask container`.
const CONTAINERS: &[(&str, &str)] = &[("runc", "runc")];

const FUSE: (&str, &str) = ("/dev/fuse", "load the module `fuse`; in a container pass --device /dev/fuse");

/// A device that tests open, and how to get it.
const DEVICES: &[(&str, &str)] =
    &[("/dev/loop-control", "load the module `loop`; in a container run it with --privileged"), FUSE];

/// Debian's folders for the administrator's programs, which are not on an ordinary user's PATH.
const ADMIN_PATH: &[&str] = &["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The permissions of the current user.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Root with CAP_SYS_ADMIN: can mount and attach loop devices.
    Mount,
    /// Root without CAP_SYS_ADMIN, as in an ordinary container.
    RootInName,
    /// An ordinary user.
    Ordinary,
}

impl Privilege {
    pub(crate) fn of_this_process() -> Result<Self, Failure> {
        let effective = capabilities(None).map_err(io::Error::from)?.effective;
        Ok(Self::new(geteuid().is_root(), effective))
    }

    fn new(is_root: bool, effective: CapabilitySet) -> Self {
        if !is_root {
            Self::Ordinary
        } else if effective.contains(CapabilitySet::SYS_ADMIN) {
            Self::Mount
        } else {
            Self::RootInName
        }
    }
}

/// A kind of work that needs programs which a system can lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The tests on this machine's kernel.
    Tests,
    /// The tests on other kernels, which need neither root nor a device.
    Kernels,
    /// The tests with FUSE programs that others wrote.
    FusePrograms,
    /// The tests with a Ceph cluster.
    Ceph,
    /// The tests of the images.
    Containers,
    /// Counting instructions, as the gate does.
    Counting,
    /// The whole benchmark.
    Measurement,
}

impl Work {
    fn programs(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let (first, second): (&[_], &[_]) = match self {
            Self::Tests => (PROGRAMS, &[]),
            Self::Kernels => (PROGRAMS, EMULATION),
            Self::FusePrograms => (FUSE_PROGRAMS, &[]),
            Self::Ceph => (CEPH, &[]),
            Self::Containers => (CONTAINERS, &[]),
            Self::Counting => (&[], &MEASUREMENT[..1]),
            Self::Measurement => (PROGRAMS, MEASUREMENT),
        };
        each(first).chain(each(second))
    }
}

/// The programs of a list, each with its package.
fn each(list: &'static [(&str, &str)]) -> impl Iterator<Item = (&'static str, &'static str)> {
    list.iter().flat_map(|(package, programs)| programs.split(' ').map(|program| (program, *package)))
}

/// Whether missing packages can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Install {
    /// Install if this user and this system can do it.
    Missing,
    /// The same, and try again for so long while the archive of the packages can't be reached.
    Within(Duration),
    /// Install nothing; print the command that would.
    Nothing,
}

/// Installs the packages that are missing for this work, or prints the command that would.
///
/// A failed installation is printed and is not an error here; [`missing`] finds what is still missing.
pub(crate) fn provide(work: &[Work], install: Install) -> Result<(), Failure> {
    let programs =
        work.iter().flat_map(|work| work.programs()).filter(|(program, _)| find(program).is_none());
    let packages: Vec<&str> =
        programs.map(|(_, package)| package).collect::<BTreeSet<_>>().into_iter().collect();
    if packages.is_empty() {
        return Ok(());
    }
    let is_able = find("apt-get").is_some() && Privilege::of_this_process()? != Privilege::Ordinary;
    println!("==> missing packages");
    if install == Install::Nothing || !is_able {
        println!("    to install them: {}\n", install_command(&packages));
        return Ok(());
    }
    let limit = if let Install::Within(limit) = install { limit } else { Duration::ZERO };
    match apt::install(&packages, limit) {
        Ok(()) => println!("    installed\n"),
        Err(failure) => println!("    {failure}\n"),
    }
    Ok(())
}

/// The command that installs packages, with Debian's names: on another system it is a hint.
fn install_command(packages: &[&str]) -> String {
    format!("apt-get install {}", packages.join(" "))
}

/// What the tests on this machine's kernel lack, one line each.
pub(crate) fn missing() -> Result<Vec<String>, Failure> {
    missing_to_mount(Work::Tests, DEVICES)
}

/// What these tests with other people's programs lack, one line each.
pub(crate) fn missing_with_fuse(work: Work) -> Result<Vec<String>, Failure> {
    missing_to_mount(work, &[FUSE])
}

/// What this work lacks, if it mounts on this machine's kernel.
fn missing_to_mount(work: Work, devices: &[(&str, &str)]) -> Result<Vec<String>, Failure> {
    let mut missing = Vec::new();
    match Privilege::of_this_process()? {
        Privilege::Mount => {}
        Privilege::RootInName => {
            missing.push("CAP_SYS_ADMIN: root can't mount here; run the container with --privileged".into());
        }
        Privilege::Ordinary => missing.push("root: run it with sudo, or as root in a virtual machine".into()),
    }
    missing.extend(missing_programs(work));
    for (device, remedy) in devices {
        if let Err(e) = File::options().read(true).write(true).open(device) {
            missing.push(format!("{device} ({e}): {remedy}"));
        }
    }
    Ok(missing)
}

/// The programs that this work lacks, one line each.
pub(crate) fn missing_programs(work: Work) -> Vec<String> {
    let missing = work.programs().filter(|(program, _)| find(program).is_none());
    missing.map(|(program, package)| format!("{program}: {}", install_command(&[package]))).collect()
}

/// Prints every need and whether it is met. Fails if one is not.
pub(crate) fn report() -> Result<(), Failure> {
    let lists = [PROGRAMS, EMULATION, FUSE_PROGRAMS, CEPH, CONTAINERS, MEASUREMENT];
    for (program, package) in lists.into_iter().flat_map(each) {
        let place = find(program).map_or("missing".to_owned(), |path| path.display().to_string());
        println!("{program:<18} {package:<12} {place}");
    }
    let mut missing = missing()?;
    for work in [Work::Kernels, Work::FusePrograms, Work::Ceph, Work::Containers, Work::Measurement] {
        missing.extend(missing_programs(work));
    }
    refuse(missing)?;
    println!("nothing is missing");
    Ok(())
}

/// Fails if something is missing.
pub(crate) fn refuse(missing: Vec<String>) -> Result<(), Failure> {
    let missing: Vec<String> = BTreeSet::from_iter(missing).into_iter().collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!("missing on this machine:\n  {}", missing.join("\n  "))))
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(ADMIN_PATH.iter().map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|path| Path::is_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privilege_is_root_with_the_capability() {
        let all = CapabilitySet::all();
        let none = CapabilitySet::empty();
        for (is_root, effective, expected) in [
            (true, all, Privilege::Mount),
            (true, CapabilitySet::SYS_ADMIN, Privilege::Mount),
            (true, all.difference(CapabilitySet::SYS_ADMIN), Privilege::RootInName),
            (false, none, Privilege::Ordinary),
            (false, all, Privilege::Ordinary),
        ] {
            assert!(Privilege::new(is_root, effective) == expected, "{is_root} {effective:?}");
        }
    }

    #[test]
    fn a_program_that_is_nowhere_is_missing() {
        assert_eq!(find("no-such-program-as-this"), None);
        assert!(find("sh").is_some());
    }
}
