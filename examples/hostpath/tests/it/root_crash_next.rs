//! The driver is killed at random moments of a volume's life. Then it gets every next call that an
//! orchestrator can send. Needs root.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use csi_mount::internal::LoopDevice;
use csi_mount::{Target, mounts, unmount};
use csi_proto::v1;
use tonic::Status;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, rounds, with_driver};

/// What follows after the kill and a restart of the driver.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// The life is repeated from its first step to its end.
    Repeat,
    /// The undo steps, in their order.
    Undo,
    /// The undo steps, the last one first: each is refused or does no harm.
    LowerFirst,
    /// The machine restarts, and then the undo steps follow.
    Reboot,
}

const NEXT: [Next; 4] = [Next::Repeat, Next::Undo, Next::LowerFirst, Next::Reboot];

const KINDS: u32 = 4;

/// The volumes: mounted images, raw images published for reading or for writing, and directories.
fn request(round: u32) -> v1::CreateVolumeRequest {
    let (kind, filesystem, mode) = match round / 4 % KINDS {
        0 => ("image", Some("ext4"), 1),
        1 => ("image", None, 2),
        2 => ("image", None, 1),
        _ => ("directory", Some(""), 1),
    };
    let mut request = wanted(&format!("life-{round}"), filesystem, 16 * MIB);
    request.parameters.insert("kind".to_owned(), kind.to_owned());
    request.volume_capabilities = vec![capability(filesystem, mode)];
    request
}

/// The whole life, and how long it is. It fails when the driver is killed.
async fn live(run: &Run, request: v1::CreateVolumeRequest) -> Result<Duration, Status> {
    let start = Instant::now();
    let mut life = Life::new(run, request).await?;
    life.start().await?;
    life.stop().await?;
    life.delete().await?;
    Ok(start.elapsed())
}

/// Recreates the state after a machine restart: only the driver's disk is mounted, and no loop device
/// is attached.
fn reboot(run: &Run) {
    let places: Vec<PathBuf> = mounts().unwrap().into_iter().map(|entry| entry.mount_point).collect();
    let below = ["staging", "target"].map(|name| run.of(name));
    for place in places.iter().rev().filter(|place| below.iter().any(|root| place.starts_with(root))) {
        unmount(&Target::new(place).unwrap()).unwrap();
    }
    let volumes = std::fs::read_dir(run.of("data").join("volumes")).unwrap();
    for image in volumes.map(|volume| volume.unwrap().path().join("image")).filter(|image| image.exists()) {
        for device in LoopDevice::find(&image).unwrap() {
            LoopDevice::detach_all(device.path()).unwrap();
            device.detach().unwrap();
        }
    }
}

async fn go_on(run: &Run, next: Next, request: v1::CreateVolumeRequest) {
    // A caller that does not know whether the volume was created creates it, and so gets its id.
    let mut life = Life::new(run, request).await.unwrap();
    match next {
        Next::Repeat => {
            life.start().await.unwrap();
        }
        Next::Undo | Next::Reboot => {}
        Next::LowerFirst => {
            let refused = [life.delete().await, life.unstage().await].map(Result::err);
            for refused in refused.into_iter().flatten() {
                assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
            }
        }
    }
    life.end().await;
}

/// `CSI_TEST_ROUNDS` sets the number of rounds; 320 is the full size.
// spec: timeouts.retry-continues
#[test]
fn killed_in_a_volumes_life_it_comes_to_a_good_end_by_every_next_step() {
    with_driver(&[], async |run, mut driver| {
        // The last whole life of each kind: a machine is not as busy all the time.
        let mut whole = Vec::new();
        for kind in 0..KINDS {
            whole.push(live(run, request(kind * 4)).await.unwrap());
        }
        driver.kill();
        let rounds = rounds(32);
        let mut dice = 0x9e37_79b9_u32;
        let mut cut = 0;
        for round in 0..rounds {
            let next = NEXT[round as usize % NEXT.len()];
            driver.start_again().await;
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let whole = &mut whole[(round / 4 % KINDS) as usize];
            let moment = whole.mul_f64(f64::from(dice >> 16) / 65536.0);
            let killed = async {
                tokio::time::sleep(moment).await;
                driver.kill();
            };
            let (lived, ()) = tokio::join!(live(run, request(round)), killed);
            match lived {
                Ok(length) => *whole = length,
                Err(_) => cut += 1,
            }
            if let Next::Reboot = next {
                reboot(run);
            }
            driver.start_again().await;
            let context = format!("round {round}, killed after {moment:?}, then {next:?}");
            let went_on =
                tokio::time::timeout(Duration::from_secs(120), go_on(run, next, request(round))).await;
            assert!(went_on.is_ok(), "{context}: it does not end");
            let left = volumes(&run.client()).await;
            assert!(left.is_empty(), "{context}: {left:?}");
            // The kill came before the orchestrator removed its directory.
            for staging in std::fs::read_dir(run.of("staging")).unwrap() {
                std::fs::remove_dir(staging.unwrap().path()).unwrap();
            }
            run.assert_clean();
            driver.kill();
        }
        println!("{rounds} kills, {cut} in the middle of a life, every one came to a good end");
        assert!(cut > rounds / 4, "only {cut} kills of {rounds} were in time");
    });
}
