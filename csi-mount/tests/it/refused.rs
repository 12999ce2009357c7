//! What can't work is refused with a clear error, and the attempt changes nothing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use csi_mount::internal::{LoopDevice, health, mount_state, stats};
use csi_mount::{
    Bind, BlockDevice, Error, ErrorKind, LoopOptions, Mount, MountHealth, MountOptions, MountState, Outcome,
    Removed, Root, Target, Unmounted, mounts, unmount,
};
use rustix::mount::{UnmountFlags, mount_bind};

use crate::mount_support::{sandbox, target};

/// Returns the mounts, and all files of the sandbox.
fn world(sandbox: &Path) -> (Vec<String>, BTreeSet<PathBuf>) {
    let mut files = BTreeSet::new();
    let mut left = vec![sandbox.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            left.extend(entry.file_type().unwrap().is_dir().then(|| entry.path()));
            files.insert(entry.path());
        }
    }
    (mounts().unwrap().iter().map(|entry| format!("{entry:?}")).collect(), files)
}

/// Runs a call that must be refused with this kind and these words, and that must not change anything.
#[track_caller]
fn refused<T: std::fmt::Debug>(
    sandbox: &Path,
    kind: ErrorKind,
    words: &str,
    run: impl FnOnce() -> Result<T, Error>,
) {
    let before = world(sandbox);
    let error = run().unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error:?} does not say {words:?}");
    assert_eq!(world(sandbox), before, "{error}");
}

#[test]
fn paths_that_can_never_work() {
    sandbox(|sandbox| {
        let directory = target(sandbox, "target");
        let long_path = format!("/{}", "long/".repeat(1000));
        let long_name = sandbox.join("n".repeat(256));
        for (path, words) in [
            (Path::new(""), "the path is empty"),
            (Path::new("relative/target"), "not absolute"),
            (Path::new("./x"), "not absolute"),
            (Path::new("/.."), "\"..\""),
            (Path::new(&long_path), "longer than 4095 bytes"),
            (&long_name, "longer than 255 bytes"),
            (Path::new("/a\0b"), "NUL"),
            (&sandbox.join("target/../target"), "\"..\""),
        ] {
            let refused = |run: &dyn Fn() -> Result<(), Error>| {
                refused(sandbox, ErrorKind::InvalidInput, words, run);
            };
            refused(&|| Target::new(path).map(drop));
            refused(&|| Bind::new(path).at(&directory).map(drop));
            refused(&|| mount_state(path).map(drop));
            refused(&|| stats(path).map(drop));
            refused(&|| health(path).map(drop));
        }
    });
}

#[test]
fn paths_that_are_not_utf8_are_refused_and_listed() {
    sandbox(|sandbox| {
        let name = |bytes: &[u8]| sandbox.join(OsStr::from_bytes(bytes));
        let directory = target(sandbox, "target");
        let place = name(b"so\xffurce");
        let image = name(b"ima\xc3ge");
        fs::create_dir(&place).unwrap();
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let root = Root::open(sandbox).unwrap();
        let refused = |words: &str, run: &dyn Fn() -> Result<(), Error>| {
            refused(sandbox, ErrorKind::InvalidInput, words, run);
        };
        // The error says exactly what is wrong and how to fix it.
        let words = "is not UTF-8; use a name that is";
        refused(words, &|| Target::new(&place).map(drop));
        refused(words, &|| Target::new(place.join("below/./it")).map(drop));
        refused(words, &|| root.target(place.file_name().unwrap()).map(drop));
        refused(words, &|| Root::open(&place).map(drop));
        refused(words, &|| Bind::new(&place).at(&directory).map(drop));
        refused(words, &|| Mount::new("tmpfs", &place).at(&directory).map(drop));
        refused(words, &|| mount_state(&place).map(drop));
        refused(words, &|| stats(&place).map(drop));
        refused(words, &|| health(&place).map(drop));
        refused("ima\\xC3ge", &|| BlockDevice::open(&image).map(drop));
        refused("ima\\xC3ge", &|| LoopDevice::attach(&image, &LoopOptions::new()).map(drop));

        // What other programs mount there is in the table, byte for byte.
        mount_bind(directory.path(), &place).unwrap();
        let seen = mounts().unwrap().into_iter().filter(|entry| entry.mount_point == place).count();
        rustix::mount::unmount(&place, UnmountFlags::empty()).unwrap();
        assert_eq!(seen, 1);
    });
}

#[test]
fn paths_that_are_strange_text_work() {
    sandbox(|sandbox| {
        let source = sandbox.join("so\u{fffd}urce\n");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "data").unwrap();
        let target = Target::new(sandbox.join("\u{e4}( tar\tget\\040")).unwrap();
        target.create_dir().unwrap();
        assert_eq!(Bind::new(&source).at(&target).unwrap(), Outcome::Mounted);
        assert_eq!(Bind::new(&source).at(&target).unwrap(), Outcome::AlreadyMounted);
        assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
        assert_eq!(target.mounted().unwrap().unwrap().mount_point, target.path());
        assert_eq!(fs::read_to_string(target.path().join("file")).unwrap(), "data");
        stats(target.path()).unwrap();
        assert_eq!(health(target.path()).unwrap(), MountHealth::Healthy);
        assert_eq!(unmount(&target).unwrap(), Unmounted::Unmounted { layers: 1 });
        assert_eq!(target.remove().unwrap(), Removed::Removed);
    });
}

#[test]
fn invalid_options_and_filesystems_are_refused() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        for option in ["a\0b", "key=val\0ue", ""] {
            refused(sandbox, ErrorKind::InvalidOption, "option", || MountOptions::parse([option]));
        }
        refused(sandbox, ErrorKind::InvalidInput, "NUL", || Mount::new("tm\0pfs", "volume").at(&target));
        refused(sandbox, ErrorKind::InvalidInput, "NUL", || Mount::new("tmpfs", "vol\0ume").at(&target));
        refused(sandbox, ErrorKind::Unsupported, "the kernel has no filesystem \"nonefs\"", || {
            Mount::new("nonefs", "volume").at(&target)
        });
        let options = MountOptions::parse(["no_such_option=hunter2"]).unwrap();
        refused(sandbox, ErrorKind::InvalidOption, "no_such_option", || {
            Mount::new("tmpfs", "volume").options(&options).at(&target)
        });
        let error = Mount::new("tmpfs", "volume").options(&options).at(&target).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "the value of an option is told");
    });
}
