//! Several hundred images of what a device can hold. The tests compare the prober's result for each with
//! libblkid's, and show that only zeros are ever formatted.
//!
//! `CSI_CORPUS=all` adds tools that a test machine does not have by default, and fails if one is missing.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::sync::Mutex;

use csi_mount::internal::flow::block::{StagePlan, stage};
use csi_mount::internal::{DeviceQuestions as _, Probe, mount_state};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{ErrorKind, Filesystem, MountState, Target};

use crate::corpus_images;
use crate::corpus_images::{Base, Change};
use crate::devices;
use crate::devices::{Image, MIB};

/// A result of the prober or of libblkid, in common terms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Nothing,
    Named(String),
    Several,
    Unreadable,
}

fn ours(probe: &Probe<'_>) -> Verdict {
    match probe {
        Probe::Blank(_) | Probe::UnknownData { .. } => Verdict::Nothing,
        Probe::Filesystem(found) | Probe::PartitionTable(found) | Probe::Container(found) => {
            Verdict::Named(found.name.to_owned())
        }
        Probe::Ambiguous(_) => Verdict::Several,
        Probe::Unreadable { .. } => Verdict::Unreadable,
        other => panic!("{other}"),
    }
}

fn blkid(image: &Image) -> Verdict {
    let output =
        Command::new("/usr/sbin/blkid").args(["-p", "-o", "export"]).arg(image.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    match (output.status.code(), value("TYPE=").or_else(|| value("PTTYPE="))) {
        (Some(0), Some(name)) => Verdict::Named(name),
        (Some(0 | 2), None) => Verdict::Nothing,
        (Some(8), _) => Verdict::Several,
        other => panic!("{other:?}"),
    }
}

/// How many results were equal, and the images whose results differ.
#[derive(Default)]
struct Tally {
    images: usize,
    agreed: usize,
    others: BTreeMap<(Verdict, Verdict), Vec<String>>,
}

impl Tally {
    fn add(&mut self, name: String, ours: Verdict, oracle: Verdict) {
        self.images += 1;
        if ours == oracle {
            self.agreed += 1;
        } else {
            self.others.entry((ours, oracle)).or_default().push(name);
        }
    }

    fn with(mut self, more: Self) -> Self {
        self.images += more.images;
        self.agreed += more.agreed;
        for (verdicts, names) in more.others {
            self.others.entry(verdicts).or_default().extend(names);
        }
        self
    }

    fn print(&self) {
        println!("{} images, {} of them exactly as blkid -p says, none formatted", self.images, self.agreed);
        for ((ours, oracle), names) in &self.others {
            println!("  {ours:?}, blkid {oracle:?}: {}", names.join(", "));
        }
    }
}

/// Probes one image, and tries to format it.
fn examine(tally: &mut Tally, name: String, image: &Image) {
    let before = image.content();
    let is_blank = image.is_zero();
    let device = image.open();
    let probe = device.probe();
    assert_eq!(matches!(probe, Probe::Blank(_)), is_blank, "{name}: {probe}");
    let verdict = ours(&probe);
    tally.add(name.clone(), verdict, blkid(image));
    if is_blank {
        return;
    }
    let other =
        if probe.filesystem() == Some(Filesystem::Btrfs) { Filesystem::Ext4 } else { Filesystem::Btrfs };
    let staging = Target::new(image.directory().join("staging")).unwrap();
    let error = stage(image.path(), &staging, &StagePlan::new(other)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotBlank, "{name}: {error}");
    assert_eq!(mount_state(staging.path()).unwrap(), MountState::Absent, "{name}");
    assert_eq!(image.content(), before, "{name} was changed");
}

#[test]
fn whatever_a_device_holds_is_kept() {
    let all = std::env::var("CSI_CORPUS").is_ok_and(|which| which == "all");
    // Attaching and detaching mostly wait for the kernel, so several threads work in parallel.
    let bases = Mutex::new(corpus_images::bases(all));
    let next = || bases.lock().unwrap().next();
    let look = || {
        private_mount_namespace(|| {
            let mut tally = Tally::default();
            while let Some(Base { name, bytes }) = next() {
                for change in Change::ALL {
                    let Some(image) = change.apply(&bytes) else { continue };
                    examine(&mut tally, format!("{name} {change:?}"), &image);
                }
            }
            tally
        })
    };
    let mut tally = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(look)).collect();
        let tallies = threads.into_iter().map(|thread| thread.join().unwrap());
        tallies.fold(Tally::default(), Tally::with)
    });
    private_mount_namespace(|| {
        one_byte_anywhere(&mut tally);
        random_data(&mut tally);
        tally.print();
        assert!(tally.images >= 500, "only {} images", tally.images);
        for ((ours, oracle), names) in &tally.others {
            // The prober names everything that libblkid names, and no filesystem is created over it. In the
            // other direction the prober is stricter: it names a signature even if its checksum is wrong.
            let is_careful = match (ours, oracle) {
                (Verdict::Named(_) | Verdict::Several, Verdict::Nothing) => true,
                (Verdict::Named(ours), Verdict::Named(other)) => {
                    ["gpt", "linux_raid_member"].contains(&ours.as_str()) && is_boot_record(other)
                }
                (Verdict::Several, Verdict::Named(other)) => is_boot_record(other),
                _ => false,
            };
            assert!(is_careful, "{ours:?}, blkid {oracle:?}: {names:?}");
            let as_made = names.iter().find(|name| name.ends_with(" None") && !name.contains("by hand"));
            assert_eq!(as_made, None, "as its tool made it: {ours:?}, blkid {oracle:?}");
        }
    });
}

fn is_boot_record(name: &str) -> bool {
    ["dos", "PMBR"].contains(&name)
}

/// Zeros, except for one byte in the first or the last MiB.
fn one_byte_anywhere(tally: &mut Tally) {
    let image = Image::new(32);
    for (index, base) in [0, 31 * MIB].into_iter().enumerate() {
        for step in 0..64u64 {
            // One position in each 16 KiB, and the last byte.
            let place = base + if step == 63 { MIB - 1 } else { step * 16_384 + (step * 7919 + 13) % 16_384 };
            image.write(place, &[0x5a]);
            examine(tally, format!("one byte {index}/{step}"), &image);
            image.write(place, &[0]);
        }
    }
    examine(tally, "zeros".to_owned(), &image);
}

fn random_data(tally: &mut Tally) {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for round in 0..40u64 {
        let image = Image::new(12);
        let noise: Vec<u8> = (0..64 * 1024)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            })
            .collect();
        // Positions from both ends of the device.
        let place =
            if round % 2 == 0 { round * 97_000 } else { 12 * MIB - noise.len() as u64 - round * 97_000 };
        image.write(place / 512 * 512, &noise);
        examine(tally, format!("noise {round}"), &image);
    }
}

/// The end of the device can't be read, because its backing file was truncated.
#[test]
fn what_cannot_be_read_is_kept() {
    private_mount_namespace(|| {
        let mut count = 0;
        for kept in [0, 1, 3, 4, 15, 16, 31] {
            for filled in [false, true] {
                let image = devices::that_can_fail(32);
                if filled {
                    image.write(20 * MIB, b"somebody's");
                }
                OpenOptions::new().write(true).open(image.file()).unwrap().set_len(kept * MIB).unwrap();
                let device = image.open();
                assert!(matches!(device.probe(), Probe::Unreadable { .. }), "{kept} MiB: {}", device.probe());
                let staging = Target::new(image.directory().join("staging")).unwrap();
                let error = stage(image.path(), &staging, &StagePlan::new(Filesystem::Ext4)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
                assert_eq!(File::open(image.file()).unwrap().metadata().unwrap().len(), kept * MIB);
                let mut start = vec![0; (kept * MIB) as usize];
                File::open(image.file()).unwrap().read_exact_at(&mut start, 0).unwrap();
                assert!(start.iter().all(|byte| *byte == 0 || (filled && kept > 20)), "it was written to");
                count += 1;
            }
        }
        println!("{count} devices that cannot be read in full, all refused");
    });
}
