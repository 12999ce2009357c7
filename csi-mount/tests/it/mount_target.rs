//! A target stays what its path named when it was opened, and a root keeps everything below it inside it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use csi_mount::internal::{Feature, mount_state, without_features};
use csi_mount::{Created, ErrorKind, Mount, MountState, Removed, Root, Target, mounts};
use rustix::mount::MountFlags;

use crate::mount_support::{sandbox, target};

/// The running kernel, and an old one.
const KERNELS: [&[Feature]; 2] = [&[], &[Feature::Openat2, Feature::StatxMount, Feature::Statmount]];

#[test]
fn a_path_without_a_parent_directory_is_refused() {
    for path in ["/", "/etc/passwd/target"] {
        assert_eq!(Target::new(path).unwrap_err().kind(), ErrorKind::InvalidInput, "{path:?}");
    }
}

#[test]
fn existing_files_stay_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| Target::new(directory.path().join(name)).unwrap();
    fs::write(directory.path().join("full"), "data").unwrap();
    fs::create_dir(directory.path().join("filled")).unwrap();
    fs::write(directory.path().join("filled/file"), "data").unwrap();
    symlink("filled", directory.path().join("link")).unwrap();

    assert_eq!(at("filled").create_dir().unwrap(), Created::Existed);
    assert_eq!(at("filled").create_file().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(at("full").create_file().unwrap(), Created::Existed);
    assert_eq!(at("full").create_dir().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(at("link").create_dir().unwrap_err().to_string().contains("a symbolic link"));

    assert_eq!(at("full").remove().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(at("filled").remove().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(at("link").remove().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs::read_to_string(directory.path().join("filled/file")).unwrap(), "data");

    assert_eq!(at("file").create_file().unwrap(), Created::Created);
    assert_eq!(at("file").remove().unwrap(), Removed::Removed);
}

#[test]
fn a_trailing_slash_or_dot_does_not_follow_a_link() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        Mount::new("tmpfs", "volume").at(&target).unwrap();
        symlink(target.path(), sandbox.join("link")).unwrap();
        for name in ["link", "link/", "link/."] {
            assert_eq!(mount_state(sandbox.join(name)).unwrap(), MountState::NotMounted, "{name}");
        }
        for name in ["target", "target/", "target/."] {
            assert!(matches!(mount_state(sandbox.join(name)).unwrap(), MountState::Mounted(_)), "{name}");
        }
    });
}

#[test]
fn the_state_agrees_with_mountinfo() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let target = target(sandbox, "target");
            Mount::new("tmpfs", "volume").at(&target).unwrap();
            let entry =
                mounts().unwrap().into_iter().rfind(|entry| entry.mount_point == target.path()).unwrap();
            without_features(kernel, || {
                let state = mount_state(target.path()).unwrap().mount_point().unwrap();
                assert_eq!((state.id, state.device), (entry.id, entry.device), "without {kernel:?}");
                assert_eq!(mount_state(sandbox.join("absent")).unwrap(), MountState::Absent);
                assert_eq!(mount_state(sandbox.join("absent/below")).unwrap(), MountState::Absent);
                assert!(matches!(mount_state("/").unwrap(), MountState::Mounted(_)));
            });
            assert_eq!(target.remove().unwrap_err().kind(), ErrorKind::Busy);
        });
    }
}

#[test]
fn a_renamed_ancestor_does_not_lead_elsewhere() {
    sandbox(|sandbox| {
        fs::create_dir_all(sandbox.join("pod/volumes")).unwrap();
        fs::create_dir_all(sandbox.join("victim/volumes/target")).unwrap();
        let target = target(&sandbox.join("pod/volumes"), "target");
        fs::rename(sandbox.join("pod"), sandbox.join("moved")).unwrap();
        symlink("victim", sandbox.join("pod")).unwrap();
        Mount::new("tmpfs", "volume").at(&target).unwrap();
        let is_mounted = |path: &str| mount_state(sandbox.join(path)).unwrap().mount_point().is_some();
        assert!(is_mounted("moved/volumes/target"));
        assert!(!is_mounted("victim/volumes/target"));
    });
}

#[test]
fn no_path_escapes_a_root() {
    for kernel in KERNELS {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap().join("root");
        fs::create_dir_all(base.join("real/deep")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        symlink("../outside", base.join("up")).unwrap();
        symlink("/etc", base.join("absolute")).unwrap();
        symlink("real", base.join("within")).unwrap();
        symlink("/proc/self/root", base.join("magic")).unwrap();

        without_features(kernel, || {
            let root = Root::open(&base).unwrap();
            for path in [
                "..",
                "../outside",
                "real/../../outside",
                "up/x",
                "absolute/x",
                "within/x",
                "magic/tmp/x",
                "",
                ".",
                "/",
                "/etc/x",
                "a\0b",
            ] {
                let error = root.target(path).expect_err(path);
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?} without {kernel:?}: {error}");
            }
            for path in [PathBuf::from("real/deep/x"), base.join("real/deep/x"), "real//deep/./x".into()] {
                let target = root.target(&path).unwrap();
                assert_eq!(target.path(), base.join("real/deep/x"));
                assert_eq!(target.create_dir().unwrap(), Created::Created);
                assert_eq!(target.remove().unwrap(), Removed::Removed);
            }
            // The last component can be a link. Each operation on it refuses it.
            let link = root.target("within").unwrap();
            assert_eq!(link.create_dir().unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(mount_state(root.target("absent/x").unwrap().path()).unwrap(), MountState::Absent);
        });
    }
}

#[test]
fn the_mount_table_is_read_as_the_kernel_wrote_it() {
    sandbox(|sandbox| {
        let name = OsStr::from_bytes(b"a b\\c\n\xff");
        // The mount points of other programs need not be text.
        let odd = sandbox.join(name);
        fs::create_dir(&odd).unwrap();
        rustix::mount::mount("so urce", &odd, "tmpfs", MountFlags::empty(), c"").unwrap();
        let text = fs::read("/proc/thread-self/mountinfo").unwrap();
        let entries = mounts().unwrap();
        assert_eq!(entries.len(), text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count());
        let entry = entries.iter().find(|entry| entry.mount_point == odd).unwrap();
        assert_eq!(entry.source, "so urce");
        assert_eq!(entry.fs_type, "tmpfs");
        let parent = entries.iter().find(|other| other.id == entry.parent).unwrap();
        assert_eq!(parent.mount_point, sandbox);
        assert!(parent.peer_group.is_some() && entry.peer_group.is_some(), "the sandbox is shared");
        assert!(entries.iter().any(|entry| entry.mount_point == Path::new("/proc")));
    });
}
