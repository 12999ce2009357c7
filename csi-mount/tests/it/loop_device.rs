//! Loop devices are attached, found by their file, and detached.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use csi_mount::internal::{DeviceQuestions as _, Feature, LoopDevice, PeerNamespace, without_features};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    Bind, BlockDevice, DeviceAccess, DeviceUse, ErrorKind, ExpectedDevice, Host, LoopCache, LoopOptions,
    Target, unmount,
};

use crate::devices;
use crate::devices::{Image, MIB, refused, run};

fn names(found: &[LoopDevice]) -> Vec<String> {
    found.iter().map(|device| device.path().display().to_string()).collect()
}

fn exclusively(device: &Path) -> OwnedFd {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn a_device_is_found_by_its_file_and_not_by_its_name() {
    let image = Image::new(8);
    let path = image.path().display().to_string();
    assert_eq!(names(&LoopDevice::find(image.file()).unwrap()), [path.as_str()]);

    let link = image.directory().join("link");
    fs::hard_link(image.file(), &link).unwrap();
    assert_eq!(names(&LoopDevice::find(&link).unwrap()), [path.as_str()], "another name of the same file");

    let renamed = image.directory().join("renamed");
    fs::rename(image.file(), &renamed).unwrap();
    File::create(image.file()).unwrap().set_len(MIB).unwrap();
    assert!(LoopDevice::find(image.file()).unwrap().is_empty(), "another file of the same name");
    assert_eq!(names(&LoopDevice::find(&renamed).unwrap()), [path.as_str()]);

    fs::remove_file(&link).unwrap();
    fs::remove_file(&renamed).unwrap();
    assert_eq!(names(&LoopDevice::find(&renamed).unwrap()), [path.as_str()], "deleted");
    let other_way = image.directory().join("way");
    std::os::unix::fs::symlink(image.directory(), &other_way).unwrap();
    assert_eq!(names(&LoopDevice::find(other_way.join("renamed")).unwrap()), [path.as_str()], "deleted");
}

/// The kernel adds ` (deleted)` to the path of a deleted file, and a file can have such a name.
#[test]
fn a_file_with_the_text_of_a_deleted_one_is_another_file() {
    let image = Image::new(8);
    let named = |name: &str| image.directory().join(name);
    let like_deleted = named("gone (deleted)");
    fs::rename(image.file(), &like_deleted).unwrap();
    assert!(LoopDevice::find(named("gone")).unwrap().is_empty());
    assert_eq!(LoopDevice::detach_all(named("gone")).unwrap(), 0);
    assert_eq!(LoopDevice::find(&like_deleted).unwrap().len(), 1, "it is still attached");

    // A file that was really deleted has the same text.
    let gone = named("gone");
    File::create(&gone).unwrap().set_len(MIB).unwrap();
    let attached = LoopDevice::attach(&gone, &LoopOptions::new()).unwrap();
    fs::remove_file(&gone).unwrap();
    let found = LoopDevice::find(&gone).unwrap();
    assert_eq!(names(&found), [attached.path().display().to_string()]);
    attached.detach().unwrap();
    assert!(LoopDevice::find(named("no-such-directory/gone")).unwrap().is_empty());
}

/// The kernel still shows the whole path.
#[test]
fn a_file_that_was_deleted_with_its_directories_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let way = directory.path().join("way");
    std::os::unix::fs::symlink(directory.path(), &way).unwrap();
    let above = directory.path().join("pool/volume");
    fs::create_dir_all(&above).unwrap();
    let image = above.join("image");
    File::create(&image).unwrap().set_len(MIB).unwrap();
    let attached = LoopDevice::attach(&image, &LoopOptions::new()).unwrap();
    fs::remove_dir_all(directory.path().join("pool")).unwrap();
    let found = LoopDevice::find(&image);
    let found_otherwise = LoopDevice::find(way.join("pool/volume/image"));
    let of_another = LoopDevice::find(above.join("other"));
    let due = [attached.path().display().to_string()];
    assert_eq!(LoopDevice::detach_all(&image).unwrap(), 1);
    assert_eq!(names(&found.unwrap()), due);
    assert_eq!(names(&found_otherwise.unwrap()), due);
    assert!(of_another.unwrap().is_empty());
}

/// The same path in another mount namespace, on another filesystem. The kernel shows the same text for it.
#[test]
fn a_deleted_file_is_found_only_on_its_own_filesystem() {
    let image = Image::new(8);
    let gone = image.directory().join("gone");
    let peer = PeerNamespace::new();
    let there = gone.clone();
    let attached = peer.run(move || {
        let other = Target::new(there.parent().unwrap()).unwrap();
        csi_mount::Mount::new("tmpfs", "other").at(&other).unwrap();
        File::create(&there).unwrap().set_len(MIB).unwrap();
        let attached = LoopDevice::attach(&there, &LoopOptions::new()).unwrap();
        fs::remove_file(&there).unwrap();
        attached
    });
    let name = attached.path().file_name().unwrap().to_str().unwrap();
    let shown = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap();
    let found = LoopDevice::find(&gone).unwrap();
    attached.detach().unwrap();
    assert_eq!(shown.trim_end(), format!("{} (deleted)", gone.display()));
    assert!(found.is_empty(), "{found:?}");
}

/// The kernel shows no path of more than a page, and a file name can contain a line feed.
#[test]
fn loop_devices_with_odd_paths_hide_no_other() {
    let image = Image::new(8);
    let odd = image.directory().join("two\nlines\n");
    File::create(&odd).unwrap().set_len(MIB).unwrap();
    let attached = LoopDevice::attach(&odd, &LoopOptions::new()).unwrap();
    assert_eq!(LoopDevice::find(&odd).unwrap().len(), 1);
    fs::remove_file(&odd).unwrap();
    assert_eq!(LoopDevice::find(&odd).unwrap().len(), 1, "deleted");
    attached.detach().unwrap();

    let name = "d".repeat(250);
    let mut directory = File::open(image.directory()).unwrap();
    let below = |directory: &File| format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    for _ in 0..20 {
        fs::create_dir(below(&directory)).unwrap();
        directory = File::open(below(&directory)).unwrap();
    }
    let file = format!("/proc/{}/fd/{}/image", std::process::id(), directory.as_raw_fd());
    File::create(&file).unwrap().set_len(MIB).unwrap();
    let node = run("losetup", &["--find", "--show", &file]);
    let found = LoopDevice::find(image.file()).map(|found| found.len());
    run("losetup", &["--detach", node.trim_end()]);
    assert_eq!(found.unwrap(), 1);
}

/// A loop device that was detached while a program has it open disappears with that program. A caller that
/// got this device would lose it.
#[test]
fn a_detached_device_is_waited_for_unless_it_is_mounted() {
    let mut image = Image::new(8);
    let attach = || LoopDevice::attach_or_find(image.file(), &LoopOptions::new()).unwrap();
    let reader = File::open(image.path()).unwrap();
    run("losetup", &["--detach", image.path().to_str().unwrap()]);
    let number = image.loop_device().number();
    std::thread::scope(|scope| {
        let held = exclusively(image.path());
        assert_eq!(attach().number(), number, "a second device would be a second cache of the file");
        drop(held);
        let attached = scope.spawn(|| (attach(), LoopDevice::find(image.file()).unwrap().len()));
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!attached.is_finished(), "it was not waited for");
        drop(reader);
        assert_eq!(attached.join().unwrap().1, 1, "one device, which stays");
    });
    image.find_again();
}

#[test]
fn detach_leaves_nothing_and_is_refused_while_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    File::create(&file).unwrap().set_len(8 * MIB).unwrap();
    let device = LoopDevice::attach(&file, &LoopOptions::new()).unwrap();
    assert_eq!(BlockDevice::open(device.path()).unwrap().in_use().unwrap(), DeviceUse::Free);

    let holder = exclusively(device.path());
    assert_eq!(BlockDevice::open(device.path()).unwrap().in_use().unwrap(), DeviceUse::InUse);
    assert_eq!(device.detach().unwrap_err().kind(), ErrorKind::Busy);
    let mut found = LoopDevice::find(&file).unwrap();
    drop(holder);
    assert_eq!(LoopDevice::find(&file).unwrap().len(), 1, "a refused detach does nothing, not later either");
    found.pop().unwrap().detach().unwrap();
    assert!(LoopDevice::find(&file).unwrap().is_empty());
}

#[test]
fn many_callers_share_one_device() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    File::create(&file).unwrap().set_len(8 * MIB).unwrap();
    let options = LoopOptions::new();
    let attached: Vec<LoopDevice> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| LoopDevice::attach_or_find(&file, &options).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut paths = names(&attached);
    paths.dedup();
    assert_eq!(paths.len(), 1, "{paths:?}");
    drop(attached);

    let read_only =
        LoopDevice::attach_or_find(&file, &LoopOptions::new().access(DeviceAccess::ReadOnly)).unwrap();
    assert_ne!(read_only.path().display().to_string(), paths[0], "other access, other device");
    read_only.detach().unwrap();
    for device in LoopDevice::find(&file).unwrap() {
        device.detach().unwrap();
    }
}

#[test]
fn many_files_get_one_device_each() {
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let image = Image::new(1);
                    assert_eq!(LoopDevice::find(image.file()).unwrap().len(), 1);
                }
            });
        }
    });
}

/// As in a container that copied the mounts of a published device: its bind stays after the unpublish, and
/// would show it the next volume.
#[test]
fn a_number_whose_node_is_still_bound_is_not_used_again() {
    let directory = tempfile::tempdir().unwrap();
    private_mount_namespace(|| {
        let nodes = (0..16).map(|number| Path::new("/dev").join(format!("loop{number}")));
        let nodes: Vec<_> = nodes.filter(|node| node.exists()).collect();
        assert!(!nodes.is_empty());
        let targets: Vec<_> = nodes
            .iter()
            .map(|node| {
                let target = Target::new(directory.path().join(node.file_name().unwrap())).unwrap();
                target.create_file().unwrap();
                Bind::new(node).at(&target).unwrap();
                target
            })
            .collect();
        let images = [Image::new(1), Image::new(1)];
        for image in &images {
            assert!(!nodes.iter().any(|node| node == image.path()), "{}", image.path().display());
        }
        for target in &targets {
            unmount(target).unwrap();
        }
    });
}

#[test]
fn a_read_only_device_refuses_writes() {
    let image = Image::with(8, &LoopOptions::new().access(DeviceAccess::ReadOnly));
    assert!(image.open().is_read_only().unwrap());
    assert_eq!(image.loop_device().access().unwrap(), DeviceAccess::ReadOnly);
    let refused =
        OpenOptions::new().write(true).open(image.path()).and_then(|mut device| device.write_all(b"x"));
    assert!(refused.is_err());
}

#[test]
fn size_and_sectors_are_as_requested() {
    let image = Image::with(8, &LoopOptions::new().sector_size(4096));
    assert_eq!(image.open().size().unwrap(), 8 * MIB);
    image.grow_to(16);
    assert_eq!(image.open().size().unwrap(), 16 * MIB);
    let name = image.path().file_name().unwrap().to_str().unwrap();
    let sector = fs::read_to_string(format!("/sys/block/{name}/queue/logical_block_size")).unwrap();
    assert_eq!(sector.trim(), "4096");
}

#[test]
fn older_kernels_attach_in_steps() {
    without_features(&[Feature::LoopConfigure], || {
        let image = Image::with(8, &LoopOptions::new().sector_size(4096).cache(LoopCache::Direct));
        assert_eq!(image.loop_device().access().unwrap(), DeviceAccess::ReadWrite);
        image.write(0, b"written");
        assert_eq!(LoopDevice::detach_all(image.file()).unwrap(), 1);
        assert_eq!(LoopDevice::detach_all(image.file()).unwrap(), 0);

        let image = Image::with(8, &LoopOptions::new().access(DeviceAccess::ReadOnly));
        assert!(image.open().is_read_only().unwrap());
    });
}

/// Before Linux 5.15 a disk has no sequence number, and only its device number identifies it.
#[test]
fn without_a_disk_sequence_a_disk_is_known_by_its_number() {
    without_features(&[Feature::DiskSequence], || {
        let image = Image::new(8);
        let other = Image::new(8);
        let node = image.directory().join("node");
        devices::put_node(&node, image.loop_device().number());
        let device = BlockDevice::open(&node).unwrap();
        device.verify().unwrap();
        fs::remove_file(&node).unwrap();
        devices::put_node(&node, other.loop_device().number());
        assert_eq!(device.verify().unwrap_err().kind(), ErrorKind::WrongDevice);
        drop(device);
        assert_eq!(LoopDevice::detach_all(image.file()).unwrap(), 1);
        assert_eq!(LoopDevice::find(image.file()).unwrap().len(), 0);
    });
}

#[test]
fn without_a_disk_sequence_another_file_is_not_detached() {
    without_features(&[Feature::DiskSequence], || {
        let directory = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| directory.path().join(name));
        for file in [&ours, &theirs] {
            File::create(file).unwrap().set_len(8 * MIB).unwrap();
        }
        // The number is free for a moment only, and other tests also attach devices.
        let is_taken_over = |device: &LoopDevice| {
            LoopDevice::detach_all(&ours).unwrap();
            let attached = std::process::Command::new("losetup").arg(device.path()).arg(&theirs).status();
            attached.unwrap().success()
        };
        let mut attached = (0..64).map(|_| LoopDevice::attach(&ours, &LoopOptions::new()).unwrap());
        let device = attached.find(is_taken_over).expect("the number again");
        device.detach().unwrap();
        assert_eq!(LoopDevice::detach_all(&theirs).unwrap(), 1, "it is still there");
    });
}

#[test]
fn a_source_that_cannot_be_attached_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty");
    File::create(&empty).unwrap();
    let options = LoopOptions::new();
    let kind = |path: &std::path::Path| LoopDevice::attach(path, &options).unwrap_err().kind();
    assert_eq!(kind(&empty), ErrorKind::InvalidInput);
    assert_eq!(kind(directory.path()), ErrorKind::InvalidInput);
    assert_eq!(kind("/dev/null".as_ref()), ErrorKind::InvalidInput);
    assert_eq!(kind(&directory.path().join("absent")), ErrorKind::NotFound);
    File::create(&empty).unwrap().set_len(MIB).unwrap();
    refused(LoopDevice::attach(&empty, &LoopOptions::new().sector_size(1000)), ErrorKind::InvalidInput);
}

#[test]
fn a_node_that_leads_to_another_disk_is_noticed() {
    let first = Image::new(8);
    let device = first.open();
    device.verify().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("by-id");
    std::os::unix::fs::symlink(first.path(), &link).unwrap();
    let by_link = BlockDevice::open(&link).unwrap();
    assert_eq!(
        (by_link.number(), by_link.path()),
        (device.number(), first.path()),
        "links are followed once"
    );
    let by_number = ExpectedDevice::new().number(device.number());
    assert_eq!(Host::kernel().devices().find(&by_number).unwrap().unwrap(), first.path());
}
