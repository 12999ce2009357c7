//! Which disk is the expected one, on disks that exist only in a directory: nothing here needs root.

use std::time::{Duration, Instant};

use csi_mount::internal::FakeDisks;
use csi_mount::testing::FakeDisk;
use csi_mount::{ErrorKind, ExpectedDevice};

fn with_disks(test: impl FnOnce(&FakeDisks)) {
    let directory = tempfile::tempdir().unwrap();
    test(&FakeDisks::new(directory.path()));
}

fn expected() -> ExpectedDevice {
    ExpectedDevice::new().wait_limit(Duration::from_millis(30))
}

/// The error comes long before the limit.
fn at_once<T>(run: impl FnOnce(ExpectedDevice) -> T) -> T {
    let start = Instant::now();
    let result = run(ExpectedDevice::new().wait_limit(Duration::from_secs(600)));
    assert!(start.elapsed() < Duration::from_secs(60), "it waited");
    result
}

#[test]
fn a_disk_is_found_by_each_of_its_properties() {
    with_disks(|disks| {
        disks.add(FakeDisk::virtio("vda").serial("root").size(8 << 30));
        disks.add(FakeDisk::virtio("vdb").serial("pvc-1").pci("0000:00:06.0"));
        disks.add(FakeDisk::scsi("sda", 0).serial("SCSI0").wwid("naa.5000c500a1b2c3d4").pci("0000:00:04.0"));
        disks.add(FakeDisk::scsi("sdb", 3).serial("SCSI3").wwid("naa.5000c500a1b2c3d5").pci("0000:00:04.0"));
        disks.add(FakeDisk::nvme("nvme0n1").serial("vol0123").wwid("uuid.0f47").pci("0000:00:1f.0"));
        disks.add(
            FakeDisk::nvme("nvme1n2")
                .nguid("00112233-4455-6677-8899-aabbccddeeff")
                .eui64("00 25 38 1b 71 b0 00 01")
                .pci("0000:00:1e.0"),
        );
        disks.add_partition("nvme1n2", 1, 0..1 << 20);
        for (expected, name) in [
            (expected().serial("pvc-1"), "vdb"),
            (expected().wwn("wwn-0x5000c500a1b2c3d5"), "sdb"),
            (expected().lun(3), "sdb"),
            (expected().serial("vol0123"), "nvme0n1"),
            (expected().nguid("eui.00112233445566778899AABBCCDDEEFF"), "nvme1n2"),
            (expected().eui64("0025381b71b00001"), "nvme1n2"),
            (expected().by_path("pci-0000:00:06.0"), "vdb"),
            (expected().by_path("/dev/disk/by-path/virtio-pci-0000:00:05.0"), "vda"),
            (expected().by_path("pci-0000:00:04.0-scsi-0:0:0:3"), "sdb"),
            (expected().by_path("pci-0000:00:1e.0-nvme-2"), "nvme1n2"),
            (expected().lun(0).by_path("pci-0000:00:04.0-scsi-0:0:0:0").serial("SCSI0"), "sda"),
        ] {
            assert_eq!(disks.find(&expected).unwrap().unwrap().name, name, "{expected:?}");
            assert_eq!(disks.wait(&expected).unwrap().name, name, "{expected:?}");
            assert_eq!(disks.wait_at(&expected, format!("/dev/{name}")).unwrap().name, name);
        }
        for absent in [
            expected().serial("pvc-10"),
            expected().lun(1),
            expected().nguid("00112233445566778899aabbccddeefe"),
            expected().eui64("0"),
            expected().by_path("pci-0000:00:06.0-nvme-1"),
            expected().serial("pvc-1").lun(3),
        ] {
            assert_eq!(disks.find(&absent).unwrap(), None, "{absent:?}");
            assert_eq!(disks.wait(&absent).unwrap_err().kind(), ErrorKind::NotFound);
        }
        assert_eq!(disks.wait(&expected()).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn the_same_lun_of_two_controllers_is_refused_without_the_path() {
    with_disks(|disks| {
        disks.add(FakeDisk::scsi("sda", 1).pci("0000:00:04.0"));
        disks.add(FakeDisk::scsi("sdb", 1).pci("0000:00:08.0"));
        let error = disks.wait(&expected().lun(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
        assert!(error.to_string().contains("2 disks have the LUN 1: 8:0, 8:1"), "{error}");
        let one = expected().lun(1).by_path("pci-0000:00:08.0-scsi-0:0:0:1");
        assert_eq!(disks.wait(&one).unwrap().name, "sdb");
    });
}

#[test]
fn another_disk_at_a_node_is_refused_at_once_and_at_a_link_waited_for() {
    with_disks(|disks| {
        disks.add(FakeDisk::virtio("vda").serial("other"));
        let error = at_once(|expected| disks.wait_at(&expected.serial("pvc-1"), "/dev/vda").unwrap_err());
        assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
        assert!(error.to_string().contains("its serial number is other, not pvc-1"), "{error}");

        let link = "/dev/disk/by-id/virtio-pvc-1";
        disks.link(link, "vda");
        let error = disks.wait_at(&expected().serial("pvc-1"), link).unwrap_err();
        assert!(error.to_string().contains("other, not pvc-1: waited"), "{error}");
        let patient = ExpectedDevice::new().serial("pvc-1").wait_limit(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| disks.wait_at(&patient, link).unwrap());
            disks.add(FakeDisk::virtio("vdb").serial("pvc-1"));
            assert_eq!(waiting.join().unwrap().name, "vdb", "also while the link is stale");
        });
        // The kernel does not know it yet.
        disks.add(FakeDisk::virtio("vdc"));
        let error = disks.wait_at(&expected().serial("pvc-2"), "/dev/vdc").unwrap_err();
        assert!(error.to_string().contains("is not known, not pvc-2: waited"), "{error}");
    });
}

#[test]
fn a_disk_without_a_size_or_too_small_is_waited_for() {
    with_disks(|disks| {
        disks.add(FakeDisk::virtio("vda").serial("pvc-1").size(0));
        let error = disks.wait_at(&expected().serial("pvc-1"), "/dev/vda").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        disks.add(FakeDisk::virtio("vdb").serial("pvc-2").size(1 << 20));
        let error = disks.wait(&expected().serial("pvc-2").min_size(2 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
        assert!(error.to_string().contains("1048576 bytes, not 2097152"), "{error}");
    });
}

#[test]
fn the_multipath_device_is_found_and_not_its_paths() {
    with_disks(|disks| {
        let path = |name| FakeDisk::scsi(name, 7).serial("vol-1").wwid("naa.5000c500a1b2c3d4");
        disks.add(path("sda").pci("0000:00:04.0"));
        disks.add(path("sdb").pci("0000:00:08.0"));
        let wanted = expected().wwn("35000c500a1b2c3d4");
        assert_eq!(disks.wait(&wanted).unwrap_err().kind(), ErrorKind::WrongDevice);
        disks.add(FakeDisk::multipath("dm-0", ["sda", "sdb"]).wwid("mpath-35000c500a1b2c3d4"));
        for wanted in [wanted, expected().serial("vol-1"), expected().lun(7)] {
            assert_eq!(disks.wait(&wanted).unwrap().name, "dm-0", "{wanted:?}");
        }
    });
}
