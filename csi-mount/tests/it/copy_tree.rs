//! Copies of directories, also in a mount that is attached nowhere, and a driver's own files: on real
//! filesystems, and with races.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use csi_mount::flow::shared::{SharedSource, open};
use csi_mount::{Bind, ErrorKind, Mount, MountAttributes, MountOptions, Removed, Root, Target};
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, XattrFlags, inotify, linkat, mkdirat, openat, renameat_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::devices::{EndOfWork, Image, refused, run};
use crate::mount_support::*;

const SPARSE: u64 = 8 << 20;

/// Makes a tree that has one of each thing that a copy can get wrong.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("a/b")).unwrap();
    fs::write(at.join("a/plain"), "plain").unwrap();
    fs::set_permissions(at.join("a/plain"), Permissions::from_mode(0o4711)).unwrap();
    chown(at.join("a/b"), Some(1234), Some(5678)).unwrap();
    fs::set_permissions(at.join("a/b"), Permissions::from_mode(0o2750)).unwrap();
    fs::hard_link(at.join("a/plain"), at.join("a/b/same")).unwrap();
    symlink("/etc/passwd", at.join("a/link")).unwrap();
    lchown(at.join("a/link"), Some(77), Some(88)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at.join("a/pipe"),
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o622),
        0,
    )
    .unwrap();
    fs::set_permissions(at.join("a/pipe"), Permissions::from_mode(0o622)).unwrap();
    let sparse = File::create(at.join("a/sparse")).unwrap();
    sparse.write_all_at(b"middle", SPARSE / 2).unwrap();
    sparse.set_len(SPARSE).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    OpenOptions::new().write(true).open(at.join("a/plain")).unwrap().set_modified(old).unwrap();
}

#[test]
fn a_copy_is_what_it_was_copied_from() {
    sandbox(|place| {
        tree(&place.join("from"));
        let acl = place.join("from/a/plain");
        rustix::fs::setxattr(&acl, "security.capability", CAPABILITY, XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(&acl, "trusted.mark", b"value", XattrFlags::empty()).unwrap();
        let from = Target::new(place.join("from")).unwrap();
        let copied = from.copy_tree(&Target::new(place.join("to")).unwrap()).unwrap();
        // Holes are not copied.
        assert_eq!(copied.entries, 7, "{copied:?}");
        assert!(copied.bytes < SPARSE / 2, "{copied:?}");

        let of = |name: &str| fs::symlink_metadata(place.join("to/a").join(name)).unwrap();
        assert_eq!(fs::read(place.join("to/a/plain")).unwrap(), b"plain");
        assert_eq!((of("plain").mode() & 0o7777, of("plain").mtime()), (0o4711, 1_000_000_000));
        assert_eq!((of("b").uid(), of("b").gid(), of("b").mode() & 0o7777), (1234, 5678, 0o2750));
        assert_eq!((of("b/same").ino(), of("plain").nlink()), (of("plain").ino(), 2));
        assert_eq!(fs::read_link(place.join("to/a/link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!((of("link").uid(), of("link").gid()), (77, 88));
        assert_eq!(of("pipe").mode(), 0o010_622);
        assert_eq!(of("sparse").size(), SPARSE);
        assert!(of("sparse").blocks() * 512 < SPARSE / 2, "the holes are holes");
        let mut middle = [0; 8];
        File::open(place.join("to/a/sparse")).unwrap().read_exact_at(&mut middle, SPARSE / 2 - 1).unwrap();
        assert_eq!(&middle, b"\0middle\0");
        let mut value = [0; 64];
        let size = rustix::fs::getxattr(place.join("to/a/plain"), "trusted.mark", &mut value).unwrap();
        assert_eq!(&value[..size], b"value");
        let size = rustix::fs::getxattr(place.join("to/a/plain"), "security.capability", &mut value).unwrap();
        assert_eq!(&value[..size], CAPABILITY);

        let again = from.copy_tree(&Target::new(place.join("to")).unwrap()).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(nix::libc::EEXIST), "{again}");
        let absent = Target::new(place.join("none")).unwrap();
        refused(absent.copy_tree(&Target::new(place.join("to2")).unwrap()), ErrorKind::NotFound);
        assert!(!place.join("to2").exists());
    });
}

/// Only regular files kept their hard links, ACLs and attributes.
#[test]
fn links_and_special_files_keep_hard_links_and_attributes() {
    // Version 2; owner rwx, user 1234 r-x, group r-x, mask rwx, others nothing.
    const ACL: &[u8] =
        b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x05\0\xd2\x04\0\0\x04\0\x05\0\xff\xff\xff\xff\
        \x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    sandbox(|place| {
        tree(&place.join("from"));
        let a = place.join("from/a");
        for name in ["link", "pipe"] {
            // A call that does not follow the link.
            linkat(rustix::fs::CWD, a.join(name), rustix::fs::CWD, a.join("b").join(name), AtFlags::empty())
                .unwrap();
            rustix::fs::lsetxattr(a.join(name), "trusted.mark", b"value", XattrFlags::empty()).unwrap();
        }
        rustix::fs::setxattr(a.join("pipe"), "system.posix_acl_access", ACL, XattrFlags::empty()).unwrap();
        let from = Target::new(place.join("from")).unwrap();
        from.copy_tree(&Target::new(place.join("to")).unwrap()).unwrap();

        let to = place.join("to/a");
        for name in ["link", "pipe"] {
            let of = |path: &Path| fs::symlink_metadata(path).unwrap();
            let copied = of(&to.join(name));
            assert_eq!((copied.ino(), copied.nlink()), (of(&to.join("b").join(name)).ino(), 2), "{name}");
            assert_eq!(
                (copied.mode(), copied.mtime()),
                (of(&a.join(name)).mode(), of(&a.join(name)).mtime())
            );
            let mut value = [0; 8];
            let size = rustix::fs::lgetxattr(to.join(name), "trusted.mark", &mut value).unwrap();
            assert_eq!(&value[..size], b"value", "{name}");
        }
        let mut value = [0; 64];
        let size = rustix::fs::getxattr(to.join("pipe"), "system.posix_acl_access", &mut value).unwrap();
        assert_eq!(&value[..size], ACL);
    });
}

/// CAP_NET_RAW, in the form that setcap(8) writes.
const CAPABILITY: &[u8] = &[0, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn mounts_below_are_not_copied() {
    sandbox(|place| {
        tree(&place.join("from"));
        let other = source(place, "other");
        Bind::new(&other)
            .attributes(MountAttributes::empty())
            .at(&Target::new(place.join("from/a/b")).unwrap())
            .unwrap();
        let from = Target::new(place.join("from")).unwrap();
        let error = refused(from.copy_tree(&Target::new(place.join("to")).unwrap()), ErrorKind::Busy);
        assert!(error.to_string().contains("from/a/b"), "{error}");
    });
}

/// A process that can write to the tree exchanges a directory and a link to a secret. No copy contains it.
#[test]
fn a_link_that_is_swapped_in_is_never_followed() {
    sandbox(|place| {
        let from = place.join("from");
        fs::create_dir_all(from.join("real")).unwrap();
        fs::write(from.join("real/file"), "mine").unwrap();
        fs::create_dir(place.join("secret")).unwrap();
        fs::write(place.join("secret/file"), "secret").unwrap();
        symlink(place.join("secret"), from.join("link")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    let cwd = rustix::fs::CWD;
                    rustix::fs::renameat_with(cwd, from.join("real"), cwd, from.join("link"), flags).unwrap();
                }
            });
            let _end = EndOfWork(&stop);
            for round in 0..200 {
                let to = place.join(format!("to{round}"));
                // The copy is allowed to fail if it notices the exchange. Only what it copied matters.
                let _ = Target::new(&from).unwrap().copy_tree(&Target::new(&to).unwrap());
                for name in ["real", "link"] {
                    let copied = to.join(name);
                    if copied.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                        let content = fs::read(copied.join("file")).unwrap_or_default();
                        assert_ne!(content, b"secret", "round {round}");
                    }
                }
            }
        });
    });
}

/// Entries that others delete from the source tree are skipped. Deletions from the copy are an error: a copy
/// that is reported as complete has the second name of a file even if the first name was removed before it
/// could be linked.
#[test]
fn files_deleted_from_the_copy_are_an_error() {
    sandbox(|place| {
        let from = place.join("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("one"), "data").unwrap();
        for number in 0..40 {
            fs::write(from.join(format!("between-{number}")), "data").unwrap();
        }
        fs::hard_link(from.join("one"), from.join("two")).unwrap();
        let mut failed = 0;
        for round in 0..40 {
            let to = place.join(format!("to{round}"));
            let stop = AtomicBool::new(false);
            let (copied, removed) = std::thread::scope(|scope| {
                let remove = scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let gone =
                            ["one", "two"].into_iter().find(|name| fs::remove_file(to.join(name)).is_ok());
                        if gone.is_some() {
                            return gone;
                        }
                    }
                    None
                });
                let copied = Target::new(&from).unwrap().copy_tree(&Target::new(&to).unwrap());
                stop.store(true, Ordering::Relaxed);
                (copied, remove.join().unwrap())
            });
            match copied {
                Ok(_) => {
                    let left = ["one", "two"].into_iter().filter(|name| Some(*name) != removed);
                    assert!(
                        left.into_iter().all(|name| to.join(name).exists()),
                        "round {round}: {removed:?} gone"
                    );
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    failed += 1;
                }
            }
        }
        println!("{failed} of 40 copies were told that something of them was deleted");
    });
}

#[test]
fn a_detached_filesystem_can_be_used_and_is_unmounted() {
    sandbox(|place| {
        let before = csi_mount::mounts().unwrap().len();
        let options = MountOptions::parse(["size=16m"]).unwrap();
        let root = open(&SharedSource::new("tmpfs", "unseen").options(options)).unwrap();
        assert_eq!(csi_mount::mounts().unwrap().len(), before);
        assert_eq!(root.path(), Path::new("unseen"));
        let made = root.create_dirs("a/b/c", 0o700).unwrap();
        assert!(made.is_directory().unwrap());
        let opened = |path: &str, flags| {
            let directory = root.directory_at(path).unwrap().unwrap();
            fs::File::from(rustix::fs::openat(directory, "file", flags, Mode::RUSR | Mode::WUSR).unwrap())
        };
        opened("a/b/c", OFlags::WRONLY | OFlags::CREATE).write_all(b"content").unwrap();
        let copied = root.target("a").unwrap().copy_tree(&root.target("copy").unwrap()).unwrap();
        assert_eq!((copied.entries, copied.bytes), (3, 7));
        assert_eq!(std::io::read_to_string(opened("copy/b/c", OFlags::RDONLY)).unwrap(), "content");
        // The copy also works to another filesystem.
        let here = Root::open(place).unwrap().target("here").unwrap();
        root.target("copy").unwrap().copy_tree(&here).unwrap();
        assert_eq!(fs::read(place.join("here/b/c/file")).unwrap(), b"content");
        assert_eq!(root.target("a").unwrap().remove_tree().unwrap(), Removed::Removed);
        assert_eq!(root.stats_within(Duration::from_secs(10)).unwrap().bytes.total, 16 << 20);
        assert!(root.directory_at("copy/c").unwrap().is_none() && root.directory_at("../x").is_err());
        assert!(root.target("../x").is_err() && root.target("/x").is_err());
    });
}

#[test]
fn directories_of_a_driver_follow_no_links() {
    sandbox(|place| {
        let root = Root::open(place).unwrap();
        fs::write(place.join("secret"), "secret").unwrap();
        symlink("secret", place.join("link")).unwrap();
        symlink(".", place.join("around")).unwrap();
        assert!(root.directory_at("around").is_err() && root.directory_at("link").is_err());

        let one = root.target("one").unwrap();
        let two = root.target("two").unwrap();
        assert!(root.create_dirs("one", 0o1777).unwrap().is_directory().unwrap());
        assert_eq!(fs::metadata(place.join("one")).unwrap().mode() & 0o7777, 0o1777, "whatever the umask");
        fs::write(place.join("one/inside"), "data").unwrap();
        two.create_dir().unwrap();
        assert_eq!(one.rename_to(&two).unwrap_err().kind(), ErrorKind::Busy);
        two.remove().unwrap();
        one.rename_to(&two).unwrap();
        assert_eq!(fs::read(place.join("two/inside")).unwrap(), b"data");
        assert_eq!(one.rename_to(&two).unwrap_err().kind(), ErrorKind::NotFound);
        two.set_directory_mode(0o711).unwrap();
        assert_eq!(fs::metadata(place.join("two")).unwrap().mode() & 0o7777, 0o711);
        symlink("two", place.join("way")).unwrap();
        assert!(root.create_dirs("way/down", 0o755).is_err(), "a link on the way is no directory");
        assert!(!place.join("two/down").exists());
    });
}

#[test]
fn the_deepest_tree_takes_few_descriptors_and_little_stack() {
    const DEPTH: u64 = 2000;
    sandbox(|place| {
        let volume = place.join("volume");
        let copy = place.join("copy");
        fs::create_dir(&volume).unwrap();
        let mut here: OwnedFd = fs::File::open(&volume).unwrap().into();
        for _ in 0..DEPTH {
            for name in ["d", "beside"] {
                mkdirat(&here, name, Mode::RWXU).unwrap();
            }
            here = openat(&here, "d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        let limits = getrlimit(Resource::Nofile);
        // The limit applies to the whole process. The other tests in it have few files open.
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..limits }).unwrap();
        let [from, to] = [&volume, &copy].map(|path| Target::new(path).unwrap());
        let small = std::thread::Builder::new().stack_size(128 << 10);
        let copied = small.spawn(move || from.copy_tree(&to)).unwrap().join().unwrap();
        setrlimit(Resource::Nofile, limits).unwrap();
        assert_eq!(copied.unwrap().entries, 2 * DEPTH);
        for path in [volume, copy] {
            Target::new(path).unwrap().remove_tree().unwrap();
        }
    });
}

/// The most memory that the process had, in KiB, since the last call.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A clone kept the whole path of each file with several names: 16 MiB of a tenant's volume took 1.1 GB.
#[test]
fn hard_links_take_no_memory_and_can_be_deep() {
    const FILES: usize = 10_000;
    sandbox(|place| {
        let from = place.join("from");
        let to = place.join("to");
        fs::create_dir(&from).unwrap();
        // The names are below a path that no system call takes.
        let (mut here, mut copy): (OwnedFd, _) = (File::open(&from).unwrap().into(), to.clone());
        let name = "n".repeat(250);
        for _ in 0..24 {
            mkdirat(&here, &name, Mode::RWXU).unwrap();
            here = openat(&here, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            copy.push(&name);
        }
        for file in 0..FILES {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(&here, format!("a{file}"), flags, Mode::RUSR).unwrap());
            linkat(&here, format!("a{file}"), &here, format!("b{file}"), AtFlags::empty()).unwrap();
        }
        let before = peak_memory();
        let copied = Target::new(&from).unwrap().copy_tree(&Target::new(&to).unwrap());
        let grown = peak_memory().saturating_sub(before);
        assert_eq!(copied.unwrap().entries, 24 + 2 * FILES as u64);
        println!("{FILES} files with two names each: {grown} KiB more");
        assert!(grown < 32 << 10, "{grown} KiB");

        assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "nothing else is in the copy");
        let mut there: OwnedFd = File::open(&to).unwrap().into();
        for _ in 0..24 {
            there = openat(&there, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        let of = |name: String| rustix::fs::statat(&there, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        for file in [0, FILES / 2, FILES - 1] {
            let first = of(format!("a{file}"));
            let second = of(format!("b{file}"));
            assert_eq!((first.st_ino, first.st_nlink, second.st_nlink), (second.st_ino, 2, 2));
        }
        for path in [from, to] {
            Target::new(path).unwrap().remove_tree().unwrap();
        }
    });
}

/// A process that can write to the tree exchanges a file and a pipe. An open of the pipe is an event; one of
/// a device could have an effect.
#[test]
fn a_pipe_that_is_swapped_in_is_not_opened() {
    sandbox(|place| {
        let from = place.join("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("file"), "mine").unwrap();
        let cwd = rustix::fs::CWD;
        rustix::fs::mknodat(cwd, from.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let events = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&events, from.join("pipe"), inotify::WatchFlags::OPEN).unwrap();
        let stop = AtomicBool::new(false);
        let copies = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let exchange = RenameFlags::EXCHANGE;
                    renameat_with(cwd, from.join("file"), cwd, from.join("pipe"), exchange).unwrap();
                }
            });
            let copies = (0..2000).filter(|round| {
                let to = place.join(format!("to{round}"));
                Target::new(&from).unwrap().copy_tree(&Target::new(&to).unwrap()).is_ok()
            });
            let copies = copies.count();
            stop.store(true, Ordering::Relaxed);
            copies
        });
        let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
        let opened = inotify::Reader::new(&events, &mut buffer).next().is_ok();
        assert!(!opened, "the pipe was opened");
        assert!(copies > 0);
    });
}

/// One file of a volume did not say which one it was, and hid all others.
#[test]
fn the_first_file_that_cannot_be_copied_is_named_with_their_number() {
    sandbox(|place| {
        let image = Image::new(64);
        run("mkfs.ext4", &["-q", image.path().to_str().unwrap()]);
        let disk = target(place, "disk");
        Mount::new("ext4", image.path()).at(&disk).unwrap();
        let from = place.join("from");
        fs::create_dir_all(from.join("below")).unwrap();
        fs::write(from.join("below/small"), "data").unwrap();
        // ext4 has no files of more than 16 TiB.
        for name in ["huge", "below/huge", "below/other"] {
            File::create(from.join(name)).unwrap().set_len(20 << 40).unwrap();
        }
        let to = Target::new(disk.path().join("to")).unwrap();
        let error = refused(Target::new(&from).unwrap().copy_tree(&to), ErrorKind::OutOfRange);
        let text = error.to_string();
        assert!(text.contains("from/") && text.contains("huge") || text.contains("other"), "{text}");
        assert!(text.contains("the first of 3 files that failed"), "{text}");
        assert_eq!(fs::read(to.path().join("below/small")).unwrap(), b"data", "the others are copied");
        to.remove_tree().unwrap();
        // It holds its parent directory open.
        drop(to);
        unmount_watched(&disk);
    });
}
