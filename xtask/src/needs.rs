//! What the tests need of the machine, found and named before they start instead of in the middle.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::Failure;

/// A program that the tests call, and the Debian package that has it. Keep it to what they do call.
const PROGRAMS: &[(&str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("resize2fs", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.vfat", "dosfstools"),
    ("blkid", "util-linux"),
    ("mkswap", "util-linux"),
    ("fsfreeze", "util-linux"),
    ("unshare", "util-linux"),
    ("fusermount3", "fuse3"),
    ("findmnt", "util-linux"),
    ("mountpoint", "util-linux"),
    ("mount", "mount"),
    ("losetup", "mount"),
    ("xfs_growfs", "xfsprogs"),
    ("cryptsetup", "cryptsetup-bin"),
];

/// What `cargo xtask bench` takes besides; the gate counts instructions with the first.
const MEASUREMENT: &[(&str, &str)] = &[("valgrind", "valgrind"), ("strace", "strace")];

/// What the emulated machine of `cargo xtask test --kernels` takes, and nothing else does.
const EMULATION: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("xz", "xz-utils"),
    ("ldd", "libc-bin"),
    ("mkfs.ext2", "e2fsprogs"),
    ("mkfs.ext3", "e2fsprogs"),
    ("dumpe2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("xfs_db", "xfsprogs"),
    ("xfs_io", "xfsprogs"),
    ("btrfs", "btrfs-progs"),
    ("ip", "iproute2"),
    ("dmsetup", "dmsetup"),
    ("blkdiscard", "util-linux"),
    ("grep", "grep"),
    ("cksum", "coreutils"),
];

/// A device that tests open, and how to come by it.
const DEVICES: &[(&str, &str)] = &[
    ("/dev/loop-control", "load the module `loop`; in a container run it with --privileged"),
    ("/dev/fuse", "load the module `fuse`; in a container pass --device /dev/fuse"),
];

/// Where Debian keeps programs for the administrator; not on an ordinary user's PATH.
const ADMIN_PATH: &[&str] = &["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// CAP_SYS_ADMIN's bit in the capability masks of /proc (capabilities(7)).
const CAP_SYS_ADMIN: u32 = 21;

/// What the user who runs this may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Root with CAP_SYS_ADMIN: may mount and attach loop devices.
    Mount,
    /// Root without it, as in an ordinary container.
    RootInName,
    /// An ordinary user.
    Ordinary,
}

impl Privilege {
    pub(crate) fn of_this_process() -> Result<Self, Failure> {
        Self::parse(&fs::read_to_string("/proc/self/status")?)
            .ok_or_else(|| Failure::usage("/proc/self/status does not say who runs this"))
    }

    fn parse(status: &str) -> Option<Self> {
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let effective_uid = value("Uid:")?.split_whitespace().nth(1)?;
        let capabilities = u64::from_str_radix(value("CapEff:")?.trim(), 16).ok()?;
        Some(match (effective_uid, capabilities & (1 << CAP_SYS_ADMIN)) {
            ("0", 0) => Self::RootInName,
            ("0", _) => Self::Mount,
            _ => Self::Ordinary,
        })
    }
}

/// Everything that is missing for the privileged tests, one line a thing.
pub(crate) fn missing() -> Result<Vec<String>, Failure> {
    let mut missing = Vec::new();
    match Privilege::of_this_process()? {
        Privilege::Mount => {}
        Privilege::RootInName => {
            missing
                .push("CAP_SYS_ADMIN: this root may not mount; run the container with --privileged".into());
        }
        Privilege::Ordinary => missing.push("root: run it with sudo, or as root in a virtual machine".into()),
    }
    missing.extend(named(missing_of(PROGRAMS)));
    for (device, remedy) in DEVICES {
        if let Err(e) = File::options().read(true).write(true).open(device) {
            missing.push(format!("{device} ({e}): {remedy}"));
        }
    }
    Ok(missing)
}

/// Prints every need and whether it is met; fails where one is not.
pub(crate) fn report() -> Result<(), Failure> {
    for (program, package) in PROGRAMS.iter().chain(EMULATION).chain(MEASUREMENT) {
        let place = find(program).map_or("missing".to_owned(), |path| path.display().to_string());
        println!("{program:<18} {package:<12} {place}");
    }
    let mut missing = missing()?;
    missing.extend(missing_for_emulation());
    missing.extend(named(missing_of(MEASUREMENT)));
    if missing.is_empty() {
        println!("nothing is missing");
        return Ok(());
    }
    Err(Failure::usage(format!("missing:\n  {}", missing.join("\n  "))))
}

pub(crate) fn print_packages() {
    let all = missing_of(PROGRAMS).chain(missing_of(EMULATION)).chain(missing_of(MEASUREMENT));
    let packages: BTreeSet<&str> = all.map(|(_, package)| package).collect();
    for package in packages {
        println!("{package}");
    }
}

/// What is missing for the tests on other kernels, one line a thing; neither root nor a device is needed.
pub(crate) fn missing_for_emulation() -> Vec<String> {
    named(missing_of(PROGRAMS).chain(missing_of(EMULATION))).collect()
}

/// What is missing to measure, one line a thing: what the privileged tests need, and a little more.
pub(crate) fn missing_to_measure() -> Result<Vec<String>, Failure> {
    let mut missing = missing()?;
    missing.extend(named(missing_of(MEASUREMENT)));
    Ok(missing)
}

/// What is missing to count instructions: the gate does no more of it.
pub(crate) fn missing_to_count() -> Vec<String> {
    named(missing_of(&MEASUREMENT[..1])).collect()
}

fn named(missing: impl Iterator<Item = (&'static str, &'static str)>) -> impl Iterator<Item = String> {
    missing.map(|(program, package)| format!("{program}: apt-get install {package}"))
}

fn missing_of(
    programs: &'static [(&'static str, &'static str)],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    programs.iter().copied().filter(|(program, _)| find(program).is_none())
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
        let status = |uid: &str, caps: &str| format!("Name:\tx\nUid:\t{uid}\t{uid}\t0\t0\nCapEff:\t{caps}\n");
        for (uid, caps, expected) in [
            ("0", "000001ffffffffff", Privilege::Mount),
            ("0", "0000000000200000", Privilege::Mount),
            ("0", "00000000a80425fb", Privilege::RootInName),
            ("1000", "0000000000000000", Privilege::Ordinary),
            ("1000", "000001ffffffffff", Privilege::Ordinary),
        ] {
            assert!(Privilege::parse(&status(uid, caps)) == Some(expected), "{uid} {caps}");
        }
        assert!(Privilege::parse("Name:\tx\n").is_none());
    }

    #[test]
    fn a_program_that_is_nowhere_is_missing() {
        assert_eq!(find("no-such-program-as-this"), None);
        assert!(find("sh").is_some());
    }
}
