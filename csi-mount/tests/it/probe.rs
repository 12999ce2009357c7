//! What the prober reports about devices, and that a device with unrecognized content is never formatted.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use csi_mount::internal::{DeviceQuestions as _, Feature, Format, Probe, without_features};
use csi_mount::{BlockDevice, ErrorKind, Filesystem, LoopOptions};

use crate::devices::{Image, MIB, refused, run, that_can_fail};

fn is_blank(device: &BlockDevice) -> bool {
    matches!(device.probe(), Probe::Blank(_))
}

/// Returns the description of the image's content. The probe must not change the image.
fn found(image: &Image) -> String {
    let before = image.content();
    let device = image.open();
    let text = match device.probe() {
        Probe::Blank(_) => panic!("blank"),
        other => other.to_string(),
    };
    assert_eq!(image.content(), before, "the prober changed the device");
    text
}

#[test]
fn zeros_are_blank_at_any_size() {
    for hidden in [&[][..], &[Feature::ManyReads]] {
        without_features(hidden, || {
            for mebibytes in [1, 4, 7, 8, 9, 300] {
                assert!(is_blank(&Image::new(mebibytes).open()), "{mebibytes} MiB");
            }
            let image = Image::with(64, &LoopOptions::new().sector_size(4096));
            assert!(is_blank(&image.open()));
        });
    }
}

#[test]
fn one_byte_anywhere_at_the_ends_is_data() {
    let size = 32 * MIB;
    for offset in [0, 1, 511, 4096, MIB - 1, 4 * MIB - 1, size - 4 * MIB, size - MIB, size - 512, size - 1] {
        let image = Image::new(32);
        image.write(offset, b"x");
        let text = found(&image);
        assert!(
            text.contains("unknown data") && text.contains(&format!("byte {offset}")),
            "{offset}: {text}"
        );
    }
}

#[test]
fn a_small_device_is_read_in_full() {
    for place in [5 * MIB + 77_777, 63 * MIB + 4095, 100 * MIB + 123_456] {
        let image = Image::new(128);
        image.write(place, b"x");
        let text = found(&image);
        assert!(text.contains(&format!("unknown data at byte {place}")), "{place}: {text}");
    }
}

#[test]
fn data_at_spare_superblocks_is_found() {
    let image = Image::new(512);
    run("mkfs.ext4", &["-q", "-F", image.path().to_str().unwrap()]);
    // The start is overwritten, as by a mistaken `dd`. The spare superblock of group 1 is left.
    image.write(0, &vec![0; 8 << 20]);
    let text = found(&image);
    assert!(text.contains("data at byte"), "{text}");

    let image = Image::new(400);
    run("mkfs.xfs", &["-q", image.path().to_str().unwrap()]);
    image.write(0, &vec![0; 8 << 20]);
    assert!(found(&image).contains("looks like a spare superblock of xfs"));
}

#[test]
fn random_data_is_refused_and_unchanged() {
    let image = Image::new(16);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let noise: Vec<u8> = (0..8 << 20)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0] | 1
        })
        .collect();
    image.write(8 * MIB, &noise);
    assert!(found(&image).contains(&format!("unknown data at byte {}", 12 * MIB)), "{}", found(&image));
}

#[test]
fn filesystems_are_named_as_blkid_does() {
    for (name, program, arguments, mebibytes) in [
        ("ext2", "mkfs.ext2", &["-q", "-F"][..], 16),
        ("ext3", "mkfs.ext3", &["-q", "-F"], 16),
        ("ext4", "mkfs.ext4", &["-q", "-F"], 16),
        ("ext4", "mkfs.ext4", &["-q", "-F", "-b", "1024", "-O", "^has_journal"], 16),
        ("xfs", "mkfs.xfs", &["-q"], 300),
        ("btrfs", "mkfs.btrfs", &["-q"], 128),
        ("vfat", "mkfs.vfat", &[], 16),
        ("vfat", "mkfs.vfat", &["-F", "32"], 64),
    ] {
        let image = Image::new(mebibytes);
        let path = image.path().to_str().unwrap();
        run(program, &[arguments, &[path]].concat());
        let device = image.open();
        let Probe::Filesystem(signature) = device.probe() else { panic!("{name}: {}", found(&image)) };
        assert_eq!(signature.name, name);
        let oracle = run("blkid", &["-p", "-o", "export", path]);
        assert!(oracle.contains(&format!("\nTYPE={name}\n")), "{oracle}");
        if let Some(uuid) = &signature.uuid {
            assert!(oracle.contains(&format!("\nUUID={uuid}\n")), "{uuid}: {oracle}");
        }
        let size = signature.size.unwrap_or(mebibytes * MIB);
        assert!(size <= mebibytes * MIB && size > (mebibytes - 1) * MIB, "{name}: {size}");
    }
}

#[test]
fn labels_and_uuids_are_read() {
    let uuid = "0189c8a5-5d3c-4b0e-9f7e-0123456789ab";
    let image = Image::new(16);
    run("mkfs.ext4", &["-q", "-F", "-U", uuid, "-L", "sixteen-letters!", image.path().to_str().unwrap()]);
    let device = image.open();
    let Probe::Filesystem(signature) = device.probe() else { panic!() };
    assert_eq!(signature.uuid.as_deref(), Some(uuid));
    assert_eq!(signature.label.as_deref(), Some("sixteen-letters!"));
    assert_eq!(signature.filesystem(), Some(Filesystem::Ext4));
}

#[test]
fn swap_and_tables_and_containers_are_named() {
    let image = Image::new(16);
    run("mkswap", &[image.path().to_str().unwrap()]);
    assert!(found(&image).starts_with("swap at byte"), "{}", found(&image));

    for (magic, offset, text) in [
        (&b"LUKS\xba\xbe\0\x02"[..], 0, "crypto_LUKS at byte 0"),
        (b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001", 512, "LVM2_member"),
        (b"\xfc\x4e\x2b\xa9\x01\0\0\0", 4096, "linux_raid_member at byte 4096"),
        (b"\xfc\x4e\x2b\xa9\x01\0\0\0", 16 * MIB - 8192, "linux_raid_member"),
        (b"EFI PART", 512, "the partition table gpt at byte 512"),
        (b"EFI PART", 16 * MIB - 512, "the partition table gpt"),
        (b"\x55\xaa", 510, "the partition table dos"),
        (b"CD001", 32_769, "the filesystem iso9660"),
        // One uberblock in the ring of the first label, of the second, of the third and of the last.
        (b"\x0c\xb1\xba\0\0\0\0\0", 131 << 10, "zfs_member at byte 134144"),
        (b"\x0c\xb1\xba\0\0\0\0\0", 400 << 10, "zfs_member at byte 409600"),
        (b"\x0c\xb1\xba\0\0\0\0\0", 16 * MIB - (300 << 10), "zfs_member"),
        (b"\x0c\xb1\xba\0\0\0\0\0", 16 * MIB - (3 << 10), "zfs_member"),
    ] {
        let image = Image::new(16);
        image.write(offset, magic);
        assert!(found(&image).contains(text), "{text}: {}", found(&image));
    }
}

#[test]
fn two_signatures_are_ambiguous() {
    let image = Image::new(128);
    run("mkfs.btrfs", &["-q", image.path().to_str().unwrap()]);
    image.write(0, b"LUKS\xba\xbe\0\x02");
    let text = found(&image);
    assert!(
        text.contains("btrfs") && text.contains("crypto_LUKS") && text.contains("more than one"),
        "{text}"
    );
}

#[test]
fn a_device_that_cannot_be_read_is_not_blank() {
    // How much can be read, and the first place in the rest that the prober reads.
    for (kept, failing) in [(0, 0), (2, 2 * MIB), (31, 32 * MIB - 128 * 1024)] {
        let image = that_can_fail(32);
        let device = image.open();
        OpenOptions::new().write(true).open(image.file()).unwrap().set_len(kept * MIB).unwrap();
        let Probe::Unreadable { offset, .. } = device.probe() else {
            panic!("{kept} MiB left: {}", found(&image))
        };
        assert_eq!(offset, failing);
    }
}

/// The content of the page cache can differ from what is on the device.
#[test]
fn the_page_cache_is_not_trusted() {
    for hidden in [&[][..], &[Feature::DirectRead]] {
        without_features(hidden, || {
            let image = Image::new(32);
            // The device's page cache lasts as long as the device is open.
            let mut open = File::open(image.path()).unwrap();
            let mut cached = vec![1; 4 << 20];
            open.read_exact(&mut cached).unwrap();
            assert!(cached.iter().all(|byte| *byte == 0), "now it is in the cache, as zeros");
            // Written beneath the device, where the device's page cache does not notice it.
            let beneath = OpenOptions::new().write(true).open(image.file()).unwrap();
            beneath.write_all_at(b"x", 1000).unwrap();
            let text = found(&image);
            assert!(text.contains("unknown data at byte 1000"), "{hidden:?}: {text}");

            drop(open);

            let image = Image::new(32);
            assert!(is_blank(&image.open()), "{hidden:?}");
        });
    }
}

/// The device is blank at the probe, and another program then writes to it. The second probe refuses.
#[test]
fn data_that_appears_after_the_proof_is_kept() {
    for filesystem in Filesystem::ALL {
        let image = Image::new(400);
        let device = image.open();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        image.write(300 * MIB, &[7; 4096]);
        image.write(100, b"somebody's");
        let before = image.content();
        let error = refused(Format::new(filesystem).run(proof), ErrorKind::NotBlank);
        let text = error.to_string();
        assert!(text.contains("unknown data at byte 100") && text.contains("not changed"), "{text}");
        assert!(text.contains(image.path().to_str().unwrap()), "{text}");
        assert_eq!(image.content(), before);
    }
}

#[test]
fn a_device_that_became_unreadable_is_not_formatted() {
    let image = that_can_fail(32);
    let device = image.open();
    let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
    OpenOptions::new().write(true).open(image.file()).unwrap().set_len(16 * MIB).unwrap();
    let error = refused(Format::new(Filesystem::Ext4).run(proof), ErrorKind::Unreadable);
    assert!(error.to_string().contains("at byte"), "{error}");
}
