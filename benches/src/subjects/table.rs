//! Checking whether something is mounted, and listing all mounts.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use csi_mount::internal::mount_state;
use csi_mount::{MountState, Target, mounts};
use procfs::process::Process;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::place::{self, Place};
use crate::{Bench, Contestant, looped, mount_utils, program};

/// A place with this number of mounts, and the path that is looked up: the last one in the table, as the
/// newest mount is.
fn mounted(mounts: usize) -> (Place, PathBuf) {
    let place = Place::with_mounts(mounts);
    let target = place.target();
    place::bind(&place.directory("volume"), &target);
    (place, target)
}

fn bare_state(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, path, flags, StatxFlags::MNT_ID).expect("statx");
    found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}

fn bare_table() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 * 1024);
    let mut table = File::open("/proc/self/mountinfo").expect("open");
    table.read_to_end(&mut bytes).expect("read");
    bytes
}

fn by_procfs() -> procfs::process::MountInfos {
    Process::myself().and_then(|process| process.mountinfo()).expect("procfs")
}

pub(super) fn state(bench: &mut Bench<'_>, mounts: usize) {
    let (_place, path) = mounted(mounts);
    let others = [
        Contestant::bare("statx(2)", looped(|| assert!(bare_state(&path)))),
        Contestant::ours(
            "mount_state",
            looped(|| assert!(matches!(mount_state(&path), Ok(MountState::Mounted(_))))),
        ),
        Contestant::program("mountpoint(1)", looped(|| program("mountpoint", [Path::new("-q"), &path]))),
        Contestant::other(
            "procfs",
            looped(|| assert!(by_procfs().into_iter().any(|mount| mount.mount_point == path))),
        ),
    ];
    let by_mount_utils = mount_utils::looped("IsMountPoint", "is mount point", vec![&path]);
    bench.compare(others.into_iter().chain(by_mount_utils));
}

pub(super) fn all(bench: &mut Bench<'_>, count: usize) {
    let (_place, _) = mounted(count);
    let others = [
        Contestant::bare("read mountinfo", looped(bare_table)),
        Contestant::ours("mounts", looped(|| mounts().expect("mounts"))),
        Contestant::program("findmnt(8)", looped(|| program("findmnt", ["--kernel", "--list"]))),
        Contestant::other("procfs", looped(by_procfs)),
        Contestant::other("proc-mounts", looped(|| proc_mounts::MountList::new().expect("proc-mounts"))),
        Contestant::other("mountinfo", looped(|| mountinfo::MountInfo::new().expect("mountinfo"))),
    ];
    let by_mount_utils = mount_utils::looped("List", "list", Vec::new());
    bench.compare(others.into_iter().chain(by_mount_utils));
}

pub(super) fn one(bench: &mut Bench<'_>, count: usize) {
    let (_place, path) = mounted(count);
    let ours = || {
        let found = Target::new(&path).and_then(|target| target.mounted()).expect("look");
        assert_eq!(found.expect("it is mounted").mount_point, path);
    };
    let field = format!(" {} ", path.display());
    let bare = || {
        let table = bare_table();
        assert!(table.split(|byte| *byte == b'\n').any(|line| contains(line, field.as_bytes())));
    };
    bench.compare([
        Contestant::bare("read mountinfo, search it", looped(bare)),
        Contestant::ours("Target::mounted", looped(ours)),
        Contestant::program("findmnt(8)", looped(|| program("findmnt", [Path::new("--kernel"), &path]))),
        Contestant::other(
            "procfs",
            looped(|| by_procfs().into_iter().find(|mount| mount.mount_point == path).expect("it is there")),
        ),
    ]);
}

fn contains(line: &[u8], field: &[u8]) -> bool {
    line.windows(field.len()).any(|part| part == field)
}
