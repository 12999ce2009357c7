//! Copies of files and trees: their blocks shared where the filesystem can, as sparse where not, with all that is known of
//! each file, and nothing from outside the tree. And filesystems that are held still meanwhile.

mod devices;
mod mount_support;

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use csi_mount::{Copied, ErrorKind, Frozen, Mount, copy_file, copy_tree, data_ranges, thaw, unmount};
use devices::{Image, MIB, run};
use mount_support::{sandbox, target};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, getxattr, mknodat, setxattr};

/// A file of 8 MiB that holds data at 1 MiB and at its end, and nothing else.
fn sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.write_all_at(&[7; 4096], MIB).unwrap();
    file.write_all_at(&[9; 4096], 8 * MIB - 4096).unwrap();
}

fn on_xfs(test: impl FnOnce(&Path, &Image) + Send) {
    sandbox(|sandbox| {
        let image = Image::new(320);
        run("mkfs.xfs", &["-q", image.path().to_str().unwrap()]);
        let place = target(sandbox, "xfs");
        Mount::new("xfs", image.path()).at(&place).unwrap();
        test(place.path(), &image);
        unmount(&place).unwrap();
    });
}

#[test]
fn a_copy_is_as_sparse_as_the_file() {
    sandbox(|sandbox| {
        let (from, to) = (sandbox.join("from"), sandbox.join("to"));
        sparse(&from);
        assert_eq!(copy_file(&from, &to).unwrap(), Copied::Data(8192));
        assert_eq!(fs::read(&to).unwrap(), fs::read(&from).unwrap());
        assert!(to.metadata().unwrap().blocks() <= from.metadata().unwrap().blocks());
        assert_eq!(to.metadata().unwrap().mode() & 0o777, 0o600);
        let ranges: Vec<_> = data_ranges(&File::open(&to).unwrap(), 0).map(Result::unwrap).collect();
        assert_eq!(ranges, [MIB..MIB + 4096, 8 * MIB - 4096..8 * MIB]);
        let later: Vec<_> = data_ranges(&File::open(&to).unwrap(), MIB + 10).map(Result::unwrap).collect();
        assert_eq!(later[0], MIB + 10..MIB + 4096);
        assert_eq!(data_ranges(&File::open(&to).unwrap(), 9 * MIB).count(), 0);
    });
}

#[test]
fn what_is_in_the_way_is_told_and_stays() {
    sandbox(|sandbox| {
        let (from, to) = (sandbox.join("from"), sandbox.join("to"));
        sparse(&from);
        fs::write(&to, "mine").unwrap();
        assert!(copy_file(&from, &to).is_err());
        assert_eq!(fs::read(&to).unwrap(), b"mine");
        symlink(&from, sandbox.join("link")).unwrap();
        let followed = copy_file(sandbox.join("link"), sandbox.join("other")).unwrap_err();
        assert_eq!(followed.kind(), ErrorKind::InvalidInput, "{followed}");
        assert_eq!(
            copy_file(sandbox.join("none"), sandbox.join("other")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert!(!sandbox.join("other").exists());
    });
}

#[test]
fn blocks_are_shared_where_the_filesystem_can() {
    on_xfs(|place, _| {
        let (from, to) = (place.join("from"), place.join("to"));
        File::create(&from).unwrap().write_all(&vec![5; 64 << 20]).unwrap();
        let before = csi_mount::stats(place).unwrap().bytes.used;
        assert_eq!(copy_file(&from, &to).unwrap(), Copied::Shared);
        let grown = csi_mount::stats(place).unwrap().bytes.used.saturating_sub(before);
        assert!(grown < 8 << 20, "a copy of 64 MiB took {grown} bytes");
        File::options().write(true).open(&from).unwrap().write_all_at(&[6; 4096], 0).unwrap();
        assert_eq!(fs::read(&to).unwrap()[..4096], [5; 4096], "it is that of one moment");
    });
}

fn described(path: &Path) -> (u32, u32, u32, SystemTime) {
    let found = path.symlink_metadata().unwrap();
    (found.uid(), found.gid(), found.mode(), found.modified().unwrap())
}

#[test]
fn all_that_is_known_of_a_file_is_copied() {
    sandbox(|sandbox| {
        let (from, to) = (sandbox.join("from"), sandbox.join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/file"), "words").unwrap();
        fs::hard_link(from.join("a/file"), from.join("a/b/again")).unwrap();
        sparse(&from.join("sparse"));
        symlink("/etc/passwd", from.join("a/link")).unwrap();
        mknodat(CWD, from.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        chown(from.join("a/file"), Some(1000), Some(2000)).unwrap();
        fs::set_permissions(from.join("a/file"), Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(from.join("a"), Permissions::from_mode(0o2500)).unwrap();
        setxattr(from.join("a/file"), "trusted.mark", b"value", XattrFlags::empty()).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for path in ["a/file", "a/b", "a"] {
            File::open(from.join(path)).unwrap().set_modified(long_ago).unwrap();
        }
        copy_tree(&from, &to).unwrap();
        for path in ["", "a", "a/b", "a/file", "a/b/again", "a/link", "sparse", "pipe"] {
            assert_eq!(described(&to.join(path)), described(&from.join(path)), "{path:?}");
        }
        assert_eq!(fs::read(to.join("a/b/again")).unwrap(), b"words");
        let number = |path: &str| to.join(path).metadata().unwrap().ino();
        assert_eq!(number("a/file"), number("a/b/again"), "one file of two names");
        assert_eq!(fs::read_link(to.join("a/link")).unwrap(), Path::new("/etc/passwd"));
        assert!(to.join("sparse").metadata().unwrap().blocks() * 512 < MIB);
        let mut mark = [0; 16];
        let length = getxattr(to.join("a/file"), "trusted.mark", &mut mark).unwrap();
        assert_eq!(&mark[..length], b"value");
    });
}

#[test]
fn another_mount_is_not_entered() {
    sandbox(|sandbox| {
        let (from, to) = (sandbox.join("from"), sandbox.join("to"));
        fs::create_dir(&from).unwrap();
        let below = target(&from, "mounted");
        Mount::new("tmpfs", "another's").at(&below).unwrap();
        fs::write(below.path().join("secret"), "x").unwrap();
        copy_tree(&from, &to).unwrap();
        assert!(to.join("mounted").is_dir() && !to.join("mounted/secret").exists());
        assert!(copy_tree(&from, &to).is_err(), "a copy does not go into what is there");
        assert_eq!(
            copy_tree(sandbox.join("none"), sandbox.join("x")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    });
}

#[test]
fn nobody_writes_to_a_frozen_filesystem() {
    on_xfs(|place, image| {
        fs::write(place.join("before"), vec![3; 8192]).unwrap();
        let frozen = Frozen::at(place).unwrap();
        assert_eq!(Frozen::at(place).unwrap_err().kind(), ErrorKind::Busy);
        // All of it is in the image by now, which another system could mount.
        assert!(image.blocks_that_start_with(&[3; 64]) >= 2);
        let (sender, wrote) = channel();
        let file = place.join("after");
        let writer = std::thread::spawn(move || {
            fs::write(file, "x").unwrap();
            sender.send(()).unwrap();
        });
        assert_eq!(wrote.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
        drop(frozen);
        wrote.recv_timeout(Duration::from_secs(20)).unwrap();
        writer.join().unwrap();
        assert!(!thaw(place).unwrap(), "it was not frozen any more");
    });
}

#[test]
fn what_a_killed_process_left_frozen_is_thawed() {
    on_xfs(|place, _| {
        // A process of its own, that ends without thawing it.
        run("fsfreeze", &["--freeze", place.to_str().unwrap()]);
        assert!(thaw(place).unwrap());
        fs::write(place.join("file"), "x").unwrap();
        assert!(!thaw(place).unwrap());
    });
    assert_eq!(Frozen::at("/proc").unwrap_err().kind(), ErrorKind::Unsupported);
}
