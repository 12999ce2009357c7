//! Encrypting a device: what is kept, what is refused, what a killed run leaves, and where the key never
//! appears. No test here needs device mapper.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use csi_mount::internal::flow::block::{StagePlan, stage};
use csi_mount::internal::{DeviceQuestions as _, Probe};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, Error, ErrorKind, Filesystem, LoopOptions, Luks, LuksKey, LuksPbkdf, Mount, Result, Target,
};

use crate::devices::{EndOfWork, Image, MIB, refused, run};
use crate::mount_support::eventually;
use crate::stepper::{End, Job, Points, Programs, do_job};

const KEY: &str = "canary-of-the-key\nwith a second line";

fn key() -> LuksKey {
    LuksKey::new(KEY).unwrap()
}

/// A cheap key derivation, for tests.
fn luks() -> Luks {
    Luks::new().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1000 })
}

/// Encrypts the device if it is blank, or if a format of it was interrupted.
fn encrypt(device: &BlockDevice, luks: &Luks) -> Result<()> {
    match device.probe() {
        Probe::Blank(proof) => csi_mount::internal::encrypt(luks, proof, &key()),
        Probe::Interrupted(format) => csi_mount::internal::encrypt(luks, format.into_proof(), &key()),
        other => panic!("{other}"),
    }
}

/// Whether `cryptsetup` opens the device with this key.
fn opens(device: &Path, key: &str) -> bool {
    use std::io::Write as _;
    let mut child = Command::new("/usr/sbin/cryptsetup")
        .args(["open", "--test-passphrase", "--key-file=-"])
        .arg(device)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(key.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

fn assert_encrypted(image: &Image) {
    assert!(matches!(image.open().probe(), Probe::Container(found) if found.name == "crypto_LUKS"));
    assert!(opens(image.path(), KEY) && !opens(image.path(), "another"));
    assert_eq!(image.sectors_that_start_with(b"\x89csi-mount begun"), 0, "records are left");
}

#[test]
fn a_blank_device_is_encrypted_as_requested() {
    let image = Image::new(64);
    encrypt(&image.open(), &luks().sector_size(4096)).unwrap();
    assert_encrypted(&image);
    let dump = run("cryptsetup", &["luksDump", image.path().to_str().unwrap()]);
    for part in ["Version:       \t2", "sector: 4096", "offset: 16777216", "Iterations: 1000", "512 bits"] {
        assert!(dump.contains(part), "{part}: {dump}");
    }

    let image = Image::new(20);
    let cost = LuksPbkdf::Argon2id { memory: 1 << 20, iterations: 5 };
    encrypt(&image.open(), &Luks::new().pbkdf(cost)).unwrap();
    assert_encrypted(&image);
    let dump = run("cryptsetup", &["luksDump", image.path().to_str().unwrap()]);
    for part in ["argon2id", "Memory:     1024", "Time cost:  5", "Threads:    1"] {
        assert!(dump.contains(part), "{part}: {dump}");
    }
}

#[test]
fn invalid_requests_are_refused_before_anything_is_written() {
    let large = Image::new(20);
    let small = Image::new(16);
    let odd = Image::of_bytes(20 * MIB + 512, &LoopOptions::new());
    for (image, luks, expected) in [
        (&large, luks().sector_size(8192), ErrorKind::InvalidInput),
        (&odd, luks().sector_size(4096), ErrorKind::InvalidInput),
        (&large, luks().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 999 }), ErrorKind::InvalidInput),
        (&large, luks().pbkdf(LuksPbkdf::Argon2id { memory: 1024, iterations: 4 }), ErrorKind::InvalidInput),
        (
            &large,
            luks().pbkdf(LuksPbkdf::Argon2id { memory: 8 << 30, iterations: 4 }),
            ErrorKind::InvalidInput,
        ),
        (&small, luks(), ErrorKind::OutOfRange),
    ] {
        let error = encrypt(&image.open(), &luks).unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
        assert!(image.is_zero(), "{error}");
    }
}

#[test]
fn data_that_came_after_the_proof_is_kept() {
    for (place, data) in [(0, &b"x"[..]), (20 * MIB, b"x"), (1024 + 56, &[0x53, 0xef])] {
        let image = Image::new(64);
        let device = image.open();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        image.write(place, data);
        let before = image.content();
        assert_eq!(
            csi_mount::internal::encrypt(&luks(), proof, &key()).unwrap_err().kind(),
            ErrorKind::NotBlank
        );
        assert_eq!(image.content(), before);
    }
}

#[test]
fn a_device_in_use_is_not_encrypted() {
    let image = Image::new(64);
    let device = image.open();
    let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
    let holder = fs::OpenOptions::new();
    let holder = std::os::unix::fs::OpenOptionsExt::custom_flags(&mut holder.clone(), nix::libc::O_EXCL)
        .read(true)
        .open(image.path())
        .unwrap();
    assert_eq!(csi_mount::internal::encrypt(&luks(), proof, &key()).unwrap_err().kind(), ErrorKind::Busy);
    assert!(image.is_zero());
    drop(holder);
}

/// Without device mapper the encrypted device could not be opened, so nothing is begun.
#[test]
fn without_a_device_mapper_nothing_is_done() {
    let image = Image::new(64);
    let error = private_mount_namespace(|| {
        fs::create_dir_all("/dev/mapper").unwrap();
        Mount::new("tmpfs", "test").at(&Target::new("/dev/mapper").unwrap()).unwrap();
        let staging = Target::new(image.directory().join("s")).unwrap();
        let plan = StagePlan::new(Filesystem::Ext4).encrypted(luks(), key());
        stage(image.path(), &staging, &plan).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("dm_crypt"), "{error}");
    assert!(image.is_zero());
}

#[test]
fn memory_and_time_are_bounded_and_the_device_stays_as_it_was() {
    let image = Image::new(64);
    let device = image.open();
    let greedy = Luks::new().pbkdf(LuksPbkdf::Argon2id { memory: 512 << 20, iterations: 4 });
    let error = refused(encrypt(&device, &greedy.clone().memory(48 << 20)), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("Luks::memory"), "{error}");
    assert!(image.is_zero(), "cryptsetup has no device to leave anything on");

    let slow = luks().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1_000_000_000 });
    refused(encrypt(&device, &slow.time_limit(Duration::from_millis(500))), ErrorKind::Unresponsive);
    encrypt(&device, &luks()).unwrap();
    assert_encrypted(&image);
}

/// Every process that runs during the format is checked, including `cryptsetup`.
#[test]
fn the_key_is_in_no_command_line_and_no_environment() {
    let slow = luks().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 300_000 });
    let seen = AtomicUsize::new(0);
    // On a busy machine all of a format can pass between two looks.
    eventually("cryptsetup is seen", || {
        let image = Image::new(64);
        let device = image.open();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    seen.fetch_add(look_for_the_key(), Ordering::Relaxed);
                }
            });
            let _end = EndOfWork(&done);
            encrypt(&device, &slow).unwrap();
        });
        seen.load(Ordering::Relaxed) > 0
    });
    let seen = seen.into_inner();
    println!("cryptsetup's command line was read {seen} times");
}

/// Returns how many `cryptsetup` processes it saw.
fn look_for_the_key() -> usize {
    let canary = b"canary-of-the-key";
    let mut seen = 0;
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let read = |file| fs::read(process.path().join(file)).unwrap_or_default();
        let line = read("cmdline");
        for text in [&line, &read("environ")] {
            let has = text.windows(canary.len()).any(|part| part == canary);
            assert!(!has, "{}", String::from_utf8_lossy(text));
        }
        seen += usize::from(line.windows(10).any(|part| part == b"luksFormat"));
    }
    seen
}

fn job(words: &[&str]) -> Result<()> {
    let [device] = words else { panic!("{words:?}") };
    let device = BlockDevice::open(device)?;
    match device.probe() {
        // It was killed after the last write, so it is complete.
        Probe::Container(_) => Ok(()),
        Probe::Blank(proof) => csi_mount::internal::encrypt(&luks(), proof, &key()),
        Probe::Interrupted(format) => csi_mount::internal::encrypt(&luks(), format.into_proof(), &key()),
        other => Err(Error::new(ErrorKind::NotBlank, "encrypt", other.to_string())),
    }
}

/// It is killed before calls of this crate and of `cryptsetup`.
#[test]
fn an_encryption_that_was_killed_starts_again() {
    const TEST: &str = "luks_format::an_encryption_that_was_killed_starts_again";
    do_job(job);
    let mut points = Points::new(211);
    let mut begun = 0;
    loop {
        let image = Image::new(20);
        let job = Job { programs: Programs::Followed, test: TEST, words: &[image.path().to_str().unwrap()] };
        let end = job.kill_before(points.call());
        let is_killed = matches!(end, End::Killed);
        if is_killed {
            begun += u32::from(matches!(image.open().probe(), Probe::Interrupted(_)));
            job.run();
        }
        let records = image.sectors_that_start_with(b"\x89csi-mount begun");
        // The records of a run that was killed after its last write are removed when the device is staged.
        assert!(records == 0 || is_killed, "killed before call {}: records are left", points.call());
        assert!(opens(image.path(), KEY), "killed before call {}", points.call());
        if !points.next("encrypt", end) {
            break;
        }
    }
    println!("of these {begun} times with a format begun");
}
