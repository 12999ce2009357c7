//! Writes that are on their way while another node takes the disk over.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use csi_mount::BlockDevice;
use csi_mount::internal::reservation::{Change, change};
use csi_mount::reservation::WriteRight;

use super::{assert_reserved, number, refused, reserve, right, write};
use crate::devices::{MIB, eventually};
use crate::iscsi_target::{ADDRESSES, set_address};
use crate::two_nodes::{Aligned, IscsiDisk, NvmeDisk, SharedDisk, direct};

fn writes_on_their_way(disk: &Path) -> u64 {
    let name = disk.file_name().unwrap().to_str().unwrap();
    let text = fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What PREEMPT and a takeover of ours (PREEMPT_ABORT) do with a write that the target has and whose own disk does not
/// answer. The first one returns at once, and the write arrives afterwards. The second one returns when the write has
/// ended.
fn what_is_on_its_way(storage: &dyn SharedDisk) {
    let [a, b] = storage.nodes();
    let devices = [&a, &b].map(|disk| BlockDevice::open(disk).unwrap());
    for is_ours in [false, true] {
        let mut arrived = 0;
        for attempt in 0..20 {
            let offset = (1 + attempt) * MIB + if is_ours { 30 * MIB } else { 0 };
            reserve(&a, 1).unwrap();
            if !is_ours {
                assert!(change(&devices[1], Change::Register(number(2))).unwrap());
            }
            storage.suspend();
            let [resumed, returned] = std::thread::scope(|scope| {
                scope.spawn(|| println!("the write: {:?}", write(&a, 7, offset)));
                eventually("a write is on its way", || (writes_on_their_way(&a) > 0).then_some(()));
                // It can be on its way to the target still, which then refuses it: the next attempt is another chance.
                std::thread::sleep(Duration::from_millis(50 * attempt));
                let takeover = scope.spawn(|| {
                    if is_ours {
                        reserve(&b, 2).unwrap();
                    } else {
                        assert!(change(&devices[1], Change::Preempt(number(2), number(1))).unwrap());
                    }
                    Instant::now()
                });
                let end = Instant::now() + Duration::from_secs(if is_ours { 1 } else { 60 });
                while !takeover.is_finished() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let resumed = Instant::now();
                storage.resume();
                [resumed, takeover.join().unwrap()]
            });
            let has_arrived = storage.read(offset, 1)[0] == 7;
            assert_reserved(&b, number(2));
            change(&devices[1], Change::Unregister).unwrap();
            if !has_arrived {
                continue;
            }
            println!(
                "ours: {is_ours}; the takeover returned before the write arrived: {}",
                returned < resumed
            );
            assert_eq!(
                returned < resumed,
                !is_ours,
                "the disk answered {resumed:?}, the takeover {returned:?}"
            );
            arrived += 1;
            if arrived == 2 {
                break;
            }
        }
        assert_eq!(arrived, 2, "no write was at the target");
    }
}

/// The blocks in which one node writes while the other one takes over.
const BLOCKS: u64 = 1024;

/// Writes blocks that no two writes have in common, until the other node has taken over, and tries some more.
fn write_until_taken(disk: &Path, seed: u64, written: &AtomicU64, is_taken: &AtomicBool) {
    let file = direct(disk);
    let mut number = seed << 32;
    let mut write = || {
        number += 1;
        let mut content = [0; 4096];
        content[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all_at(Aligned::with(&content).bytes(), number * 7919 % BLOCKS * 4096)
    };
    while !is_taken.load(Ordering::SeqCst) {
        if write().is_ok() {
            written.fetch_add(1, Ordering::SeqCst);
        }
    }
    for _ in 0..4 {
        write().expect_err("the other node has the disk");
    }
}

/// One node writes, the other one takes the disk over at a random moment: not one of the later writes arrives.
fn no_later_write_arrives(storage: &dyn SharedDisk) {
    let rounds = std::env::var("CSI_TEST_ROUNDS").map_or(100, |rounds| rounds.parse::<u32>().unwrap());
    let nodes = storage.nodes();
    reserve(&nodes[0], 1).unwrap();
    let mut in_all = 0;
    for round in 0..rounds {
        let generation = round + 2;
        let [loser, winner] = [round, round + 1].map(|node| &nodes[node as usize % 2]);
        let written = &AtomicU64::new(0);
        let is_taken = &AtomicBool::new(false);
        let random = RandomState::new().build_hasher().finish();
        let at_takeover = std::thread::scope(|scope| {
            for writer in 0..3 {
                let seed = u64::from(generation) * 3 + writer;
                scope.spawn(move || write_until_taken(loser, seed, written, is_taken));
            }
            let moment = random % 40;
            eventually("the node writes", || (written.load(Ordering::SeqCst) > moment).then_some(()));
            std::thread::sleep(Duration::from_micros(random % 3000));
            let taken = reserve(winner, generation);
            let at_takeover = storage.read(0, BLOCKS as usize);
            is_taken.store(true, Ordering::SeqCst);
            taken.unwrap();
            write(winner, generation as u8, 40 * MIB).unwrap();
            at_takeover
        });
        assert!(
            storage.read(0, BLOCKS as usize) == at_takeover,
            "a write arrived after the takeover {round}"
        );
        assert_eq!(storage.read(40 * MIB, 1)[0], generation as u8);
        assert_reserved(winner, number(generation));
        in_all += written.load(Ordering::SeqCst);
        // The node that lost the disk tries again, and others can read it.
        refused(reserve(loser, generation - 1));
        assert_eq!(right(loser, generation - 1), WriteRight::Lost(generation));
        direct(loser).read_exact_at(Aligned::new(0).bytes_mut(), 0).unwrap();
        assert_reserved(winner, number(generation));
    }
    println!("{rounds} takeovers in {in_all} writes");
}

/// The nodes' networks: one of them is cut, as by a switch.
fn a_node_that_comes_back_writes_nothing(storage: &dyn SharedDisk) {
    let [a, b] = storage.nodes();
    reserve(&a, 1).unwrap();
    for round in 0..2 {
        let generation = 2 * round + 1;
        let offset = (u64::from(generation) * 10) * MIB;
        write(&a, 1, offset).unwrap();
        let at_takeover = std::thread::scope(|scope| {
            set_address(ADDRESSES[0], false);
            let writers = [0; 4].map(|_| scope.spawn(|| write(&a, 2, offset)));
            eventually("writes wait for the network", || (writes_on_their_way(&a) > 0).then_some(()));
            reserve(&b, generation + 1).unwrap();
            write(&b, 3, offset + MIB).unwrap();
            let at_takeover = storage.read(offset, 512);
            set_address(ADDRESSES[0], true);
            for writer in writers {
                writer.join().unwrap().expect_err("the other node has the disk");
            }
            at_takeover
        });
        assert_eq!([at_takeover[0], at_takeover[256 * 4096]], [1, 3]);
        assert!(storage.read(offset, 512) == at_takeover, "a write arrived after the takeover");
        reserve(&a, generation + 2).unwrap();
    }
}

#[test]
fn iscsi_ends_what_is_on_its_way() {
    what_is_on_its_way(&IscsiDisk::new());
}

#[test]
fn nvme_ends_what_is_on_its_way() {
    what_is_on_its_way(&NvmeDisk::new());
}

#[test]
fn no_later_write_arrives_over_iscsi() {
    no_later_write_arrives(&IscsiDisk::new());
}

#[test]
fn no_later_write_arrives_over_nvme() {
    no_later_write_arrives(&NvmeDisk::new());
}

#[test]
fn an_iscsi_node_that_comes_back_writes_nothing() {
    a_node_that_comes_back_writes_nothing(&IscsiDisk::new());
}
