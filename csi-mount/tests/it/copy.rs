//! Copies of files share blocks if the filesystem supports this, and are sparse otherwise. A filesystem can
//! be frozen during the copy.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt, symlink};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use csi_mount::{ErrorKind, Frozen, Mount, copy_file, data_ranges, thaw, unmount};

use crate::devices::{Image, MIB, refused, run};
use crate::mount_support::{sandbox, target};

/// Makes a file of 8 MiB that has data only at 1 MiB and at its end.
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
        let from = sandbox.join("from");
        let to = sandbox.join("to");
        sparse(&from);
        let copied = copy_file(&from, &to).unwrap();
        assert_eq!((copied.entries, copied.bytes, copied.shared), (1, 8192, 0));
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
fn a_pipe_in_place_of_the_file_is_refused_and_not_opened() {
    sandbox(|sandbox| {
        let from = sandbox.join("pipe");
        let to = sandbox.join("to");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &from, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        let (sender, answer) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(copy_file(&from, &to)).unwrap());
            let answer = answer.recv_timeout(Duration::from_secs(60));
            // Ends an open that waits for a writer.
            drop(File::options().read(true).write(true).open(&from).unwrap());
            refused(answer.expect("the pipe is not waited for"), ErrorKind::InvalidInput);
        });
        assert!(!to.exists());
    });
}

#[test]
fn an_existing_file_is_reported_and_stays() {
    sandbox(|sandbox| {
        let from = sandbox.join("from");
        let to = sandbox.join("to");
        sparse(&from);
        fs::write(&to, "mine").unwrap();
        assert!(copy_file(&from, &to).is_err());
        assert_eq!(fs::read(&to).unwrap(), b"mine");
        symlink(&from, sandbox.join("link")).unwrap();
        refused(copy_file(sandbox.join("link"), sandbox.join("other")), ErrorKind::InvalidInput);
        assert_eq!(
            copy_file(sandbox.join("none"), sandbox.join("other")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert!(!sandbox.join("other").exists());
    });
}

#[test]
fn blocks_are_shared_if_the_filesystem_supports_it() {
    on_xfs(|place, _| {
        let from = place.join("from");
        let to = place.join("to");
        File::create(&from).unwrap().write_all(&vec![5; 64 << 20]).unwrap();
        let before = csi_mount::internal::stats(place).unwrap().bytes.used;
        let copied = copy_file(&from, &to).unwrap();
        assert_eq!((copied.entries, copied.bytes, copied.shared), (1, 0, 64 << 20));
        let grown = csi_mount::internal::stats(place).unwrap().bytes.used.saturating_sub(before);
        assert!(grown < 8 << 20, "a copy of 64 MiB took {grown} bytes");
        File::options().write(true).open(&from).unwrap().write_all_at(&[6; 4096], 0).unwrap();
        assert_eq!(fs::read(&to).unwrap()[..4096], [5; 4096], "it is that of one moment");
    });
}

#[test]
fn nobody_writes_to_a_frozen_filesystem() {
    on_xfs(|place, image| {
        fs::write(place.join("before"), vec![3; 8192]).unwrap();
        let frozen = Frozen::at(place).unwrap();
        assert_eq!(Frozen::at(place).unwrap_err().kind(), ErrorKind::Busy);
        // All the data is already in the image, and another system could mount it.
        assert!(image.sectors_that_start_with(&[3; 64]) >= 2);
        let (sender, wrote) = channel();
        let file = place.join("after");
        let writer = std::thread::spawn(move || {
            fs::write(file, "x").unwrap();
            sender.send(()).unwrap();
        });
        assert_eq!(wrote.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
        drop(frozen);
        wrote.recv_timeout(Duration::from_secs(120)).unwrap();
        writer.join().unwrap();
        assert!(!thaw(place).unwrap(), "it was not frozen any more");
    });
}

#[test]
fn a_filesystem_that_a_killed_process_left_frozen_is_thawed() {
    on_xfs(|place, _| {
        // A separate process, which ends without thawing the filesystem.
        run("fsfreeze", &["--freeze", place.to_str().unwrap()]);
        assert!(thaw(place).unwrap());
        fs::write(place.join("file"), "x").unwrap();
        assert!(!thaw(place).unwrap());
    });
    assert_eq!(Frozen::at("/proc").unwrap_err().kind(), ErrorKind::Unsupported);
}
