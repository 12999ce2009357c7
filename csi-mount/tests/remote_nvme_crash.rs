//! An attach or a detach over NVMe/TCP that is killed before one of its system calls: whatever comes next,
//! the disk is the right one, and nothing is left at the end.
//!
//! The points are a sample: `CSI_CRASH_STRIDE=1` makes it kill before every call. The tests run where
//! `cargo xtask test --kernels` provides the modules.

mod devices;
mod nvme_target;
mod stepper;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use csi_mount::BlockDevice;
use csi_mount::remote::RemoteDisks;
use nvme_target::{Nvmet, controllers, disks, eventually, live};
use stepper::{End, Job, Points, Programs, do_job};

const NAME: &str = "pvc";

/// The target as the job's process knows it: the subsystem belongs to the test's process.
fn target() -> csi_mount::remote::NvmeTarget {
    use csi_mount::remote::{NamespaceId, NvmeTarget};
    let id = NamespaceId::nguid(&nvme_target::nguid(0)).unwrap();
    let target = NvmeTarget::tcp(nvme_target::host(), "nqn.2026-01.org.example:crash", id).unwrap();
    target.portal(nvme_target::address(4420)).portal(nvme_target::address(4421))
}

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let [step, directory] = words else { panic!("{words:?}") };
    let disks = RemoteDisks::new(*directory);
    match *step {
        "attach" => disks.attach(NAME, target()).map(drop),
        "detach" => disks.detach(NAME).map(drop),
        other => panic!("{other}"),
    }
}

fn assert_right(device: &BlockDevice) {
    let mut bytes = [0; 5];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(&bytes, b"right");
}

fn assert_nothing_left(directory: &Path) {
    assert_eq!(controllers(), vec![]);
    eventually("no disk is left", || disks().is_empty().then_some(()));
    let left =
        fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    let left: Vec<_> = left.filter(|name| !name.starts_with(".lock-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Kills a step at its points. Each point is continued by an attach and a detach, or by a detach at once.
fn killed(test: &str, step: &str) {
    do_job(job);
    let nvmet = Nvmet::new("crash", 2, 2);
    nvmet.images[0].write(4096, b"right");
    nvmet.images[1].write(4096, b"wrong");
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("remote");
    let node = RemoteDisks::new(&records);
    let words = [step, records.to_str().unwrap()];
    let job = Job { programs: Programs::Followed, test, words: &words };
    let mut points = Points::with_continuations(200, 2);
    loop {
        if step == "detach" {
            assert_right(&node.attach(NAME, target()).unwrap());
        }
        let end = job.kill_before(points.call());
        if let End::Killed = end
            && points.continuation() == 0
        {
            assert_right(&node.attach(NAME, target()).unwrap());
            assert_eq!(live(), 2);
            assert_right(&node.device(NAME).unwrap().expect("it is attached"));
        }
        if let End::Finished { .. } = end {
            assert_eq!(live(), if step == "attach" { 2 } else { 0 });
        }
        // A connect or disconnect of the killed process can still be running; the detach is repeated then, as
        // an orchestrator does.
        eventually("the detach succeeds", || match node.detach(NAME) {
            Ok(_) => Some(()),
            Err(error) => {
                println!("repeated: {error}");
                None
            }
        });
        assert_nothing_left(&records);
        if let Some(swept) = points.step(end) {
            let count = swept.points();
            println!("{step}: killed at {count} points of {} system calls", swept.calls);
            assert!(count > 10 && swept.killed.iter().all(|count| *count > 0), "{:?}", swept.killed);
            return;
        }
    }
}

#[test]
fn a_killed_attach_leaves_nothing() {
    killed("a_killed_attach_leaves_nothing", "attach");
}

#[test]
fn a_killed_detach_leaves_nothing() {
    killed("a_killed_detach_leaves_nothing", "detach");
}
