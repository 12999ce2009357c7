//! Devices that are erased: all of them, from where it was interrupted, and only what nobody uses.

mod devices;

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use csi_mount::erase::{EraseMode, EraseOptions, erase};
use csi_mount::{Error, ErrorKind, LoopDevice, LoopOptions};
use devices::{Image, MIB};

/// An image that is full of data.
fn full(mebibytes: u64) -> Image {
    let image = Image::new(mebibytes);
    (0..mebibytes).for_each(|at| image.write(at * MIB, &[0xa5; MIB as usize]));
    image
}

fn nothing(_: u64) -> csi_mount::Result<()> {
    Ok(())
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
        let mut seen = Vec::new();
        let device = image.open();
        erase(&device, EraseMode::Zero, options, |offset| {
            seen.push(offset);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, steps);
        assert!(image.is_zero(), "{size}");
    }
}

/// Each tenant fills the device with its pattern; the next one searches all of it.
#[test]
fn no_tenant_sees_the_pattern_of_the_last() {
    let rounds = std::env::var("CSI_TEST_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    // With a part that is read back only by samples.
    let bytes = 34 * MIB;
    let image = Image::of_bytes(bytes, &LoopOptions::new());
    let device = image.open();
    for round in 0..rounds {
        assert!(image.is_zero(), "round {round}");
        let pattern = format!("secret of tenant {round:08} ").repeat(bytes as usize / 26);
        image.write(0, pattern.as_bytes());
        assert!(!image.is_zero());
        erase(&device, EraseMode::Zero, EraseOptions::new(), nothing).unwrap();
    }
    println!("{rounds} tenants");
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
    assert_eq!((stopped.unwrap_err().kind(), last), (ErrorKind::Pending, 16 * MIB));
    assert_eq!(image.read(last - 1, 2), [0, 0xa5]);
    let mut seen = Vec::new();
    erase(&device, EraseMode::Zero, options.start_at(last), |offset| {
        seen.push(offset / MIB);
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [32, 40]);
    assert!(image.is_zero());
}

/// What is not written is read: an erase that begins too late, and one that only discards.
#[test]
fn data_that_is_left_is_an_error() {
    let image = full(64);
    let device = image.open();
    let late = EraseOptions::new().start_at(48 * MIB);
    let error = erase(&device, EraseMode::Zero, late, nothing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotBlank, "{error}");
    assert!(error.to_string().contains("the byte at 0 is not zero after the erase; the disk"), "{error}");
    // Both ends are zero now: only the samples between them find it.
    image.write(0, &vec![0; 16 * MIB as usize]);
    let error = erase(&device, EraseMode::Zero, late, nothing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotBlank, "{error}");
    for wrong in [1, 64 * MIB + 512] {
        let error =
            erase(&device, EraseMode::Zero, EraseOptions::new().start_at(wrong), nothing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
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
        let error = erase(&device, mode, EraseOptions::new(), nothing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
    assert_eq!(image.content(), before);
    drop(user);
    image.is_let_go("the exclusive open is closed");
    // A loop device over it does not hold it exclusively.
    let over = LoopDevice::attach(image.path(), &LoopOptions::new()).unwrap();
    let error = erase(&device, EraseMode::Zero, EraseOptions::new(), nothing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
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
    let error = erase(&opened, EraseMode::Zero, EraseOptions::new(), nothing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
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
