//! Devices that are erased: all of them, from where it was interrupted, and only what nobody uses.

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use csi_mount::internal::{EraseOptions, LoopDevice, erase};
use csi_mount::lvm::EraseMode;
use csi_mount::{Error, ErrorKind, LoopOptions};

use crate::devices;
use crate::devices::{Image, MIB, refused};

/// An image that is full of data.
fn full(mebibytes: u64) -> Image {
    let image = Image::new(mebibytes);
    (0..mebibytes).for_each(|at| image.write(at * MIB, &[0xa5; MIB as usize]));
    image
}

fn nothing(_: u64) -> csi_mount::Result<()> {
    Ok(())
}

/// Erases a device, and returns the offsets of the progress.
fn erased(image: &Image, options: EraseOptions) -> Vec<u64> {
    let mut seen = Vec::new();
    let progress = |offset| {
        seen.push(offset);
        Ok(())
    };
    erase(&image.open(), EraseMode::Zero, options, progress).unwrap();
    assert!(image.is_zero());
    seen
}

#[test]
fn everything_is_zero_afterwards() {
    let slowly = EraseOptions::new().bytes_per_second(4 * MIB);
    for (size, options, steps) in [
        (4096, EraseOptions::new(), vec![4096]),
        (2 * MIB + 512, slowly, vec![MIB, 2 * MIB, 2 * MIB + 512]),
        (40 * MIB + 4096, EraseOptions::new(), vec![40 * MIB + 4096]),
    ] {
        let image = Image::of_bytes(size, &LoopOptions::new());
        let blocks = (0..size / 512).map(|sector| (sector * 512, vec![7; 512]));
        image.write_blocks(blocks.step_by(64));
        image.write(size - 512, &[7; 512]);
        assert_eq!(erased(&image, options), steps);
    }
}

#[test]
fn an_interrupted_erase_goes_on_where_it_was() {
    let image = full(40);
    let device = image.open();
    // Steps of 16 MiB.
    let options = EraseOptions::new().bytes_per_second(64 * MIB);
    let mut last = 0;
    let stopped = erase(&device, EraseMode::Zero, options, |offset| {
        last = offset;
        Err(Error::new(ErrorKind::Pending, "test", "stop"))
    });
    refused(stopped, ErrorKind::Pending);
    assert_eq!(last, 16 * MIB);
    assert_eq!(image.read(last - 1, 2), [0, 0xa5]);
    drop(device);
    assert_eq!(erased(&image, options.start_at(last)), [32 * MIB, 40 * MIB]);
}

/// What is not written is read: an erase that begins too late, and one that only discards.
#[test]
fn data_that_is_left_is_an_error() {
    let image = full(64);
    let device = image.open();
    let late = EraseOptions::new().start_at(48 * MIB);
    let error = refused(erase(&device, EraseMode::Zero, late, nothing), ErrorKind::NotBlank);
    assert!(error.to_string().contains("the byte at 0 is not zero after the erase; the disk"), "{error}");
    // Now only the middle is not zero.
    image.write(0, &vec![0; 16 * MIB as usize]);
    refused(erase(&device, EraseMode::Zero, late, nothing), ErrorKind::NotBlank);
    for wrong in [1, 64 * MIB + 512] {
        let options = EraseOptions::new().start_at(wrong);
        refused(erase(&device, EraseMode::Zero, options, nothing), ErrorKind::OutOfRange);
    }
}

#[test]
fn the_other_modes_promise_nothing() {
    let image = full(8);
    let device = image.open();
    let before = image.content();
    erase(&device, EraseMode::None, EraseOptions::new(), |_| panic!("nothing is done")).unwrap();
    assert_eq!(image.content(), before);
    let mut last = 0;
    erase(&device, EraseMode::Discard, EraseOptions::new(), |offset| {
        last = offset;
        Ok(())
    })
    .unwrap();
    assert_eq!(last, 8 * MIB);
}

#[test]
fn a_device_in_use_is_not_written() {
    use std::os::unix::fs::OpenOptionsExt as _;
    let image = full(4);
    let before = image.content();
    let device = image.open();
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let user = OpenOptions::new().read(true).custom_flags(exclusively).open(image.path()).unwrap();
    for mode in [EraseMode::Zero, EraseMode::Discard] {
        refused(erase(&device, mode, EraseOptions::new(), nothing), ErrorKind::Busy);
    }
    assert_eq!(image.content(), before);
    drop(user);
    image.is_let_go("the exclusive open is closed");
    // A loop device over it does not hold it exclusively.
    let over = LoopDevice::attach(image.path(), &LoopOptions::new()).unwrap();
    refused(erase(&device, EraseMode::Zero, EraseOptions::new(), nothing), ErrorKind::Busy);
    assert_eq!(image.content(), before);
    devices::detach_when_let_go(over, image.path()).unwrap();
    erase(&device, EraseMode::Zero, EraseOptions::new(), nothing).unwrap();
}

/// The file is attached to another device, and the first device's number has another file.
#[test]
fn another_disk_at_the_same_node_is_not_written() {
    let image = full(4);
    let other = full(4);
    let device = image.open();
    let node = image.directory().join("node");
    devices::put_node(&node, image.open().number());
    let opened = csi_mount::BlockDevice::open(&node).unwrap();
    std::fs::remove_file(&node).unwrap();
    devices::put_node(&node, other.open().number());
    refused(erase(&opened, EraseMode::Zero, EraseOptions::new(), nothing), ErrorKind::WrongDevice);
    assert!(!image.is_zero() && !other.is_zero());
    drop(opened);
    erase(&device, EraseMode::Zero, EraseOptions::new(), nothing).unwrap();
}

#[test]
fn a_rate_is_kept() {
    let image = full(8);
    let device = image.open();
    let start = Instant::now();
    let options = EraseOptions::new().bytes_per_second(8 * MIB);
    erase(&device, EraseMode::Zero, options, nothing).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(990), "{:?}", start.elapsed());
}
