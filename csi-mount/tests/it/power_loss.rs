//! A loss of power during a format. Every write and flush of a format is recorded. A disk that loses power
//! has everything that was written before the last flush, and any part of what was written after it, in
//! units of 512 bytes. Whichever part this is, the volume is staged: its filesystem is whole, or is made
//! again.
//!
//! A run takes a sample of the states and prints their number. `CSI_CRASH_STRIDE=1` takes all.

use std::collections::{BTreeMap, HashSet};

use csi_mount::internal::flow::block::{
    FilesystemOrigin, StagePlan, publish_device, stage, unpublish, unstage,
};
use csi_mount::internal::{DeviceQuestions as _, Format, Probe};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, DeviceAccess, Error, ErrorKind, LoopOptions, Luks, LuksKey, LuksPbkdf, Result, Target,
};

use crate::devices::{Image, MIB, is_zero};
use crate::stepper::{DiskEvent, Job, Programs, do_job, stride};

const SECTOR: usize = 512;
const BLOCK: usize = 4096;
/// Of how many blocks and random parts of the writes between two flushes states are made, at most.
const MAX_POINTS: usize = 64;
/// The states that a run takes unless the environment says otherwise: every n-th.
const STRIDE: usize = 211;

fn make(device: &BlockDevice, made: &str) -> Result<()> {
    let proof = match device.probe() {
        Probe::Blank(proof) => proof,
        Probe::Interrupted(format) => format.into_proof(),
        other => return Err(Error::new(ErrorKind::NotBlank, "format", other.to_string())),
    };
    match made {
        "luks" => {
            let luks = Luks::new().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1000 });
            csi_mount::internal::encrypt(&luks, proof, &LuksKey::new("key").unwrap())
        }
        filesystem => Format::new(filesystem.parse()?).run(proof),
    }
}

fn job(words: &[&str]) -> Result<()> {
    match words {
        ["publish", device, target] => private_mount_namespace(|| {
            let target = Target::new(target)?;
            publish_device(device, &target, DeviceAccess::ReadWrite)?;
            unpublish(&target).map(drop)
        }),
        [made, device] => make(&BlockDevice::open(device)?, made),
        other => panic!("{other:?}"),
    }
}

/// The blocks of a disk that are not zero.
#[derive(Clone, Default, PartialEq)]
struct Disk(BTreeMap<u64, Vec<u8>>);

impl Disk {
    fn of(image: &Image) -> Self {
        Self(image.nonzero_blocks().collect())
    }

    fn write(&mut self, piece: &Piece) {
        let block = self.0.entry(piece.block).or_insert_with(|| vec![0; BLOCK]);
        block[piece.offset..piece.offset + piece.bytes.len()].copy_from_slice(&piece.bytes);
        if is_zero(block) {
            self.0.remove(&piece.block);
        }
    }

    fn with<'p>(&self, pieces: impl IntoIterator<Item = &'p Piece>) -> Self {
        let mut disk = self.clone();
        pieces.into_iter().for_each(|piece| disk.write(piece));
        disk
    }

    fn image(&self, size: u64) -> Image {
        let image = Image::of_bytes(size, &LoopOptions::new());
        image.write_blocks(self.0.clone());
        image
    }
}

/// What one write puts into one block.
struct Piece {
    block: u64,
    offset: usize,
    bytes: Vec<u8>,
}

impl Piece {
    /// The pieces of a write.
    fn all(place: u64, bytes: &[u8]) -> Vec<Self> {
        let mut pieces: Vec<Self> = Vec::new();
        for (place, sector) in (place..).step_by(SECTOR).zip(bytes.chunks(SECTOR)) {
            let offset = usize::try_from(place).unwrap() % BLOCK;
            match pieces.last_mut() {
                Some(last) if offset > 0 => last.bytes.extend(sector),
                _ => pieces.push(Self { block: place - offset as u64, offset, bytes: sector.to_vec() }),
            }
        }
        pieces
    }

    /// Those of its sectors whose bits are set.
    fn torn(&self, sectors: u64) -> Vec<Self> {
        let all = self.bytes.chunks(SECTOR).enumerate();
        let some = all.filter(|(index, _)| sectors >> index & 1 == 1).map(|(index, bytes)| Self {
            block: self.block,
            offset: self.offset + index * SECTOR,
            bytes: bytes.to_vec(),
        });
        some.collect()
    }
}

/// A part of the writes between two flushes: of blocks by their index in this order.
#[derive(Debug, Clone, Copy)]
enum Part {
    First(usize),
    Alone(usize),
    AllBut(usize),
    /// About half of the blocks.
    Random,
    /// Some sectors of one block, and nothing else.
    TornAlone(usize),
    /// All other blocks, and some sectors of this one.
    TornLast(usize),
    /// These sectors of the only block.
    Torn(u64),
    /// About half of all sectors.
    Sectors,
}

/// A format, or another step, as a disk saw it.
struct Recording {
    name: String,
    size: u64,
    before: Disk,
    /// The writes between flushes.
    epochs: Vec<Vec<Piece>>,
    after: Disk,
}

impl Recording {
    fn new(test: &str, step: &str, name: String, size: u64, before: Disk) -> Self {
        let image = before.image(size);
        let path = image.path().to_str().unwrap();
        let target = image.directory().join("target");
        let words: &[&str] = match step {
            "publish" => &[step, path, target.to_str().unwrap()],
            made => &[made, path],
        };
        let events = Job { programs: Programs::Followed, test, words }.record(image.path());
        let mut epochs = vec![Vec::new()];
        for event in events {
            match event {
                DiskEvent::Write { place, bytes } => {
                    epochs.last_mut().unwrap().extend(Piece::all(place, &bytes));
                }
                DiskEvent::Flush => epochs.push(Vec::new()),
            }
        }
        let after = before.with(epochs.iter().flatten());
        assert!(after == Disk::of(&image), "{name}: the device has what was not recorded");
        Self { name, size, before, epochs, after }
    }

    /// The disk in the middle of the epoch with the most writes: the image, after the whole record.
    fn interrupted(&self) -> Disk {
        let (index, epoch) = self.epochs.iter().enumerate().max_by_key(|(_, epoch)| epoch.len()).unwrap();
        let part = epoch.iter().step_by(2);
        self.before.with(self.epochs[..index].iter().flatten()).with(part)
    }

    /// What a loss of power can leave: for each epoch the parts of it that the disk has.
    fn parts(&self) -> Vec<(usize, Part)> {
        let mut parts = Vec::new();
        for (number, epoch) in self.epochs.iter().enumerate() {
            for index in (0..epoch.len()).step_by(epoch.len().div_ceil(MAX_POINTS).max(1)) {
                let some = [Part::AllBut, Part::First, Part::Alone, Part::TornAlone, Part::TornLast];
                parts.extend(some.map(|part| (number, part(index))));
                parts.push((number, Part::Random));
            }
            // A single block, as a commit, is torn everywhere.
            if let [only] = &epoch[..] {
                let sectors = only.bytes.len() / SECTOR;
                parts.extend((1..(1 << sectors) - 1).map(|sectors| (number, Part::Torn(sectors))));
            }
            parts.push((number, Part::Sectors));
        }
        parts
    }

    /// The disk with everything before this epoch, and a part of it.
    fn state(&self, number: usize, part: Part, mut random: Random) -> Disk {
        let durable = self.before.with(self.epochs[..number].iter().flatten());
        let epoch = &self.epochs[number];
        let others = |index: usize| epoch[..index].iter().chain(&epoch[index + 1..]);
        match part {
            Part::First(index) => durable.with(&epoch[..index]),
            Part::Alone(index) => durable.with(&epoch[index..=index]),
            Part::AllBut(index) => durable.with(others(index)),
            Part::Random => durable.with(epoch.iter().filter(|_| random.next().is_multiple_of(2))),
            Part::TornAlone(index) => durable.with(&epoch[index].torn(random.next())),
            Part::TornLast(index) => durable.with(others(index)).with(&epoch[index].torn(random.next())),
            Part::Torn(sectors) => durable.with(&epoch[0].torn(sectors)),
            Part::Sectors => {
                let torn: Vec<Piece> = epoch.iter().flat_map(|piece| piece.torn(random.next())).collect();
                durable.with(&torn)
            }
        }
    }

    /// Whether a state has all that the whole has. What the step itself makes zero at its end can be left.
    fn is_whole(&self, state: &Disk) -> bool {
        let last = self.epochs.last().unwrap().iter().map(|piece| piece.block);
        let removed: HashSet<u64> = last.filter(|block| !self.after.0.contains_key(block)).collect();
        let kept = state.0.iter().filter(|(place, _)| !removed.contains(place));
        kept.eq(&self.after.0)
    }

    /// Stages a sample of the states, as this kind.
    fn check(&self, made: &str) {
        let mut tried = 0;
        let mut whole = 0;
        let mut refused = Vec::new();
        let parts = self.parts();
        let stride = stride(STRIDE);
        let mut last = usize::MAX;
        // The first part of each epoch is always taken: all but its first block.
        let sample = parts.iter().enumerate().filter(|(index, (epoch, _))| {
            let is_new = *epoch != std::mem::replace(&mut last, *epoch);
            is_new || index % stride == 0
        });
        for (index, (epoch, part)) in sample {
            let state = self.state(*epoch, *part, Random(index as u64));
            let name = format!("{}, after flush {epoch}: {part:?}", self.name);
            let image = state.image(self.size);
            let result = if made == "luks" { encrypt(&image) } else { stage_once(&image, made) };
            tried += 1;
            match result {
                Ok(FilesystemOrigin::Existing) if self.is_whole(&state) => whole += 1,
                Ok(FilesystemOrigin::Existing) => refused.push(format!("{name}: a part is used")),
                Ok(_) => {}
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
        let flushes = self.epochs.len() - 1;
        let all = parts.len();
        println!("{}: {flushes} flushes; {tried} of {all} states, {whole} of them whole", self.name);
        let first = refused[..refused.len().min(20)].join("\n");
        assert!(refused.is_empty(), "{} of {tried} states are refused or not whole:\n{first}", refused.len());
    }
}

fn stage_once(image: &Image, made: &str) -> Result<FilesystemOrigin> {
    let staging = Target::new(image.directory().join("staging")).unwrap();
    let staged = stage(image.path(), &staging, &StagePlan::new(made.parse()?))?;
    unstage(&staging, Some(image.path())).unwrap();
    Ok(staged.origin)
}

fn encrypt(image: &Image) -> Result<FilesystemOrigin> {
    let is_made = || matches!(image.open().probe(), Probe::Container(found) if found.name == "crypto_LUKS");
    if is_made() {
        return Ok(FilesystemOrigin::Existing);
    }
    make(&image.open(), "luks")?;
    assert!(is_made());
    Ok(FilesystemOrigin::Formatted)
}

/// Pseudorandom numbers of 32 bits, the same in each run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
    }
}

/// A first format, a format over an interrupted one, and the removal of an interrupted one.
fn check_formats(test: &str, made: &str, mebibytes: u64) {
    do_job(job);
    private_mount_namespace(|| {
        let size = mebibytes * MIB;
        let record = |step, name, before| Recording::new(test, step, name, size, before);
        let first = record(made, format!("{made} of {mebibytes} MiB"), Disk::default());
        first.check(made);
        let second = record(made, format!("{made} again"), first.interrupted());
        second.check(made);
        let removed = record("publish", format!("{made} removed"), second.interrupted());
        assert!(removed.after == Disk::default(), "{made}: not everything is removed");
        removed.check(made);
    });
}

#[test]
fn ext4_is_whole_or_made_again() {
    check_formats("power_loss::ext4_is_whole_or_made_again", "ext4", 64);
}

/// Its blocks have 4 KiB, and the first one has nothing but the superblock.
#[test]
fn large_ext4_is_whole_or_made_again() {
    const TEST: &str = "power_loss::large_ext4_is_whole_or_made_again";
    do_job(job);
    private_mount_namespace(|| {
        Recording::new(TEST, "ext4", "ext4 of 600 MiB".to_owned(), 600 * MIB, Disk::default()).check("ext4");
    });
}

#[test]
fn xfs_is_whole_or_made_again() {
    check_formats("power_loss::xfs_is_whole_or_made_again", "xfs", 300);
}

#[test]
fn btrfs_is_whole_or_made_again() {
    check_formats("power_loss::btrfs_is_whole_or_made_again", "btrfs", 120);
}

#[test]
fn luks_is_whole_or_made_again() {
    check_formats("power_loss::luks_is_whole_or_made_again", "luks", 40);
}
