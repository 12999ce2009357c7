//! The process is killed at each command of lvm2 that changes something: before it, while it runs, and after it. A new
//! process then repeats the call, or deletes the volume.
//!
//! The tests need a device mapper and run on a machine of their own: `cargo xtask test --kernels … crash_lvm`, and not with
//! `cargo test` alone.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use csi_mount::lvm::EraseMode;
use csi_mount::lvm::{LvmDeletion, LvmName, LvmOptions, LvmRequest, LvmState, VolumeGroup};
use csi_mount::{Error, ErrorKind};

use crate::devices;
use crate::devices::MIB;
use crate::lvm_support::{Bed, DRIVER, mark, script, setting, thin, volume_has};
use crate::stepper;
use crate::stepper::{Points, Programs, do_job};

/// The job of a process that is killed, and its launcher of lvm.
const JOB: &str = "CSI_LVM_JOB";
const SCRIPT: &str = "CSI_LVM_SCRIPT";
const GROUP: &str = "CSI_LVM_GROUP";

/// When the process is killed.
const MOMENTS: [&str; 3] = ["before", "during", "after"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Thick,
    Thin,
    Copy,
    Snapshot,
    Grow,
    Delete,
    ThinGrow,
    ThinDelete,
}

const JOBS: [(Job, &str); 8] = [
    (Job::Thick, "thick"),
    (Job::Thin, "thin"),
    (Job::Copy, "copy"),
    (Job::Snapshot, "snapshot"),
    (Job::Grow, "grow"),
    (Job::Delete, "delete"),
    (Job::ThinGrow, "thin grow"),
    (Job::ThinDelete, "thin delete"),
];

impl Job {
    /// What the job works on.
    fn name(self) -> LvmName {
        match self {
            Self::Snapshot => LvmName::Snapshot("made".into()),
            Self::Thick | Self::Thin | Self::Copy => LvmName::Volume("made".into()),
            Self::Grow | Self::Delete | Self::ThinGrow | Self::ThinDelete => LvmName::Volume("old".into()),
        }
    }

    fn run(self, group: &VolumeGroup) -> csi_mount::Result<()> {
        let source = LvmName::Volume("source".into());
        match self {
            Self::Thick => group.create(&LvmRequest::new("made", 8 * MIB)).map(drop),
            Self::Thin => group.create(&LvmRequest::new("made", 8 * MIB).layout(thin("pool"))).map(drop),
            Self::Copy => {
                group.create(&LvmRequest::new("made", 8 * MIB).layout(thin("pool")).source(source)).map(drop)
            }
            Self::Snapshot => group.snapshot("made", "source").map(drop),
            Self::Grow | Self::ThinGrow => group.grow("old", 12 * MIB, None).map(drop),
            Self::Delete | Self::ThinDelete => delete(group, &self.name()),
        }
    }

    /// Makes what the job needs, and says how the volume group looks without it.
    fn prepare(self, group: &VolumeGroup) {
        match self {
            Self::Thick | Self::Thin => {}
            Self::Copy | Self::Snapshot => {
                let source = LvmRequest::new("source", 4 * MIB).layout(thin("pool"));
                group.create(&source).unwrap();
                mark(group, "source", "content");
            }
            Self::Grow | Self::Delete => {
                if self == Self::Grow {
                    // The extents by which the volume grows have the data of another one.
                    let stale = LvmRequest::new("stale", 16 * MIB).erase(EraseMode::None);
                    group.create(&stale).unwrap();
                    mark(group, "stale", "tenant");
                    delete(group, &LvmName::Volume("stale".into())).unwrap();
                }
                group.create(&LvmRequest::new("old", 8 * MIB)).unwrap();
                mark(group, "old", "content");
            }
            Self::ThinGrow | Self::ThinDelete => {
                group.create(&LvmRequest::new("old", 8 * MIB).layout(thin("pool"))).unwrap();
                mark(group, "old", "content");
            }
        }
    }

    fn check(self, group: &VolumeGroup) {
        let Some(volume) = group.find(&self.name()).unwrap() else {
            assert!([Self::Delete, Self::ThinDelete].contains(&self), "{self:?}: nothing is made");
            return;
        };
        assert_eq!(volume.state, LvmState::Ready);
        let bytes = match self {
            Self::Snapshot => 4,
            Self::Thick | Self::Thin | Self::Copy => 8,
            Self::Grow | Self::ThinGrow => 12,
            Self::Delete | Self::ThinDelete => panic!("it still exists"),
        };
        assert_eq!(volume.bytes, bytes * MIB);
        match self {
            Self::Copy => assert!(volume_has(group, "made", "content")),
            Self::Thin => mark(group, "made", "new"),
            Self::Snapshot => {
                let copy = LvmRequest::new("restored", 8 * MIB).layout(thin("pool"));
                group.create(&copy.source(self.name())).unwrap();
                assert!(volume_has(group, "restored", "content"));
                delete(group, &LvmName::Volume("restored".into())).unwrap();
            }
            Self::ThinGrow => assert!(volume_has(group, "old", "content")),
            Self::Grow => {
                assert!(volume_has(group, "old", "content"));
                assert!(!volume_has(group, "old", "tenant"));
            }
            _ => {}
        }
    }
}

fn delete(group: &VolumeGroup, name: &LvmName) -> csi_mount::Result<()> {
    match group.delete(name)? {
        LvmDeletion::Removed => Ok(()),
        _ => group.erase(name),
    }
}

/// The process that is killed: this test program, started again.
#[test]
fn work() {
    let Ok(job) = std::env::var(JOB) else { return };
    let (job, _) = JOBS.into_iter().find(|(_, name)| *name == job).unwrap();
    let launcher = ["/bin/sh".to_owned(), std::env::var(SCRIPT).unwrap()];
    let group = VolumeGroup::open(&std::env::var(GROUP).unwrap(), LvmOptions::new(DRIVER).launcher(launcher))
        .unwrap();
    job.run(&group).unwrap();
}

/// Runs a job in a process of its own, which is killed at its command with this number. Returns how many commands it
/// began.
fn run_killed(bed: &Bed, job: Job, at: usize, moment: &str) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    fs::write(&count, "0\n").unwrap();
    let kill = match moment {
        "before" => "kill -9 $PPID",
        // The process dies, and lvm runs on.
        "during" => "\"$@\" & kill -9 $PPID; wait",
        _ => "\"$@\"; kill -9 $PPID",
    };
    let text = format!(
        "export DM_DISABLE_UDEV=1\n[ $2 = fullreport ] && exec \"$@\"\nread n < {count}\nn=$((n+1))\necho $n > {count}\n\
         [ $n = {at} ] || exec \"$@\"\n{kill}\n",
        count = count.display()
    );
    let launcher = script(&folder.path().join("lvm.sh"), &text);
    let (_, name) = JOBS.into_iter().find(|(of, _)| *of == job).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash_lvm::work", "--nocapture"])
        .envs([(JOB, name), (SCRIPT, &*launcher[1]), (GROUP, &*bed.name)])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    let expected = if at == 0 { None } else { Some(9) };
    assert_eq!(status.signal(), expected, "{job:?} {at} {moment}: {status}");
    fs::read_to_string(&count).unwrap().trim().parse().unwrap()
}

/// lvm itself dies, as with its container: before each of its changes of devices and metadata. The repeated call finishes the
/// work, and nothing waits for a device any more.
#[test]
fn lvm_is_killed() {
    do_job(|words| {
        let (job, _) = JOBS.into_iter().find(|(_, name)| *name == words[0]).unwrap();
        job.run(&VolumeGroup::open(words[1], LvmOptions::new(DRIVER)).unwrap())
    });
    let at_most = setting("CSI_CRASH_POINTS", 1000) as u64;
    let bed = Bed::new(&[96]).with_pool("pool", 48);
    let first = bed.open();
    // Somebody uses the pool all the time.
    first.create(&LvmRequest::new("bystander", 4 * MIB).layout(thin("pool"))).unwrap();
    for (job, name) in JOBS {
        let traced = stepper::Job {
            programs: Programs::Followed,
            test: "crash_lvm::lvm_is_killed",
            words: &[name, &bed.name],
        };
        // Each takes ten seconds and more under emulation.
        let mut points = Points::of(1, Some(at_most), 3);
        loop {
            let device = first.activate("bystander").unwrap();
            job.prepare(&first);
            let continuation = points.continuation();
            let call = points.call();
            let end = traced.kill_before_mapping(call);
            let what = format!("{job:?}: killed before change {call}, then {continuation}");
            let group = bed.open();
            if continuation == 2 {
                drop(device);
                forget_devices(&bed);
            }
            if continuation != 1 {
                settle(&group, &what, |group| job.run(group));
                job.check(&group);
            }
            settle(&group, &what, |group| delete(group, &job.name()));
            if [Job::Copy, Job::Snapshot].contains(&job) {
                settle(&group, &what, |group| delete(group, &LvmName::Volume("source".into())));
            }
            assert_eq!(bed.logical_volumes(), ["csi-bystander", "pool"], "{what}");
            assert!(!devices::run("dmsetup", &["info"]).contains("SUSPENDED"), "{what}");
            let device = group.activate("bystander").unwrap();
            let file = fs::File::options().write(true).open(device.path()).unwrap();
            file.write_all_at(what.as_bytes(), 0).and_then(|()| file.sync_all()).unwrap();
            // A new volume of the pool works.
            group.create(&LvmRequest::new("next", 4 * MIB).layout(thin("pool"))).unwrap();
            mark(&group, "next", "next");
            delete(&group, &LvmName::Volume("next".into())).unwrap();
            if !points.next(&format!("{job:?}"), end) {
                break;
            }
        }
    }
    first.deactivate("bystander").unwrap();
}

/// As a reboot does it: the kernel has none of the group's devices.
fn forget_devices(bed: &Bed) {
    let dmsetup = |arguments: &[&str]| {
        let output = Command::new("dmsetup").args(arguments).env("DM_DISABLE_UDEV", "1").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    devices::eventually("the devices are gone", || {
        let listed = dmsetup(&["ls"]);
        let mut own = listed.lines().filter(|line| line.starts_with(&bed.name)).peekable();
        own.peek().is_none().then_some(()).or_else(|| {
            for name in own.filter_map(|line| line.split_whitespace().next()) {
                dmsetup(&["resume", name]);
                dmsetup(&["remove", name]);
            }
            None
        })
    });
}

/// Until it succeeds: a command that runs on has lvm's lock, and a new process waits for it.
fn settle(group: &VolumeGroup, what: &str, work: impl Fn(&VolumeGroup) -> csi_mount::Result<()>) {
    let done = devices::eventually(what, || match work(group) {
        Err(error) if is_passing(&error) => {
            println!("{what}: {error}");
            None
        }
        done => Some(done),
    });
    done.unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// What a command that runs on can cause.
fn is_passing(error: &Error) -> bool {
    [ErrorKind::Pending, ErrorKind::Busy].contains(&error.kind())
}

fn sweep(jobs: &[Job]) {
    // Every how many points are tested.
    let stride = setting("CSI_CRASH_STRIDE", 1);
    let bed = Bed::new(&[64]).with_pool("pool", 24);
    let group = bed.open();
    for job in jobs {
        job.prepare(&group);
        let commands = run_killed(&bed, *job, 0, "never");
        job.check(&group);
        clean(&bed, &group, *job, &format!("{job:?}"));
        assert!(commands > 0, "{job:?} runs no command");
        let points = (1..=commands).flat_map(|at| MOMENTS.map(|moment| (at, moment)));
        let points = points.flat_map(|(at, moment)| ["repeated", "deleted"].map(|then| (at, moment, then)));
        let mut tested = 0;
        for (at, moment, then) in points.step_by(stride) {
            let what = format!("{job:?}: killed {moment} command {at} of {commands}, then {then}");
            job.prepare(&group);
            run_killed(&bed, *job, at, moment);
            if then == "repeated" {
                settle(&group, &what, |group| job.run(group));
                job.check(&group);
            }
            clean(&bed, &group, *job, &what);
            tested += 1;
        }
        println!("{job:?}: {commands} commands, {tested} points");
    }
}

/// Deletes what the job made and needed. Nothing is left of it, also no device.
fn clean(bed: &Bed, group: &VolumeGroup, job: Job, what: &str) {
    settle(group, what, |group| delete(group, &job.name()));
    if [Job::Copy, Job::Snapshot].contains(&job) {
        settle(group, what, |group| delete(group, &LvmName::Volume("source".into())));
    }
    assert_eq!(bed.logical_volumes(), ["pool"], "{what}");
    let mapped = devices::run("dmsetup", &["ls"]);
    assert!(!mapped.contains(&format!("{}-csi", bed.name)), "{what}: {mapped}");
}

#[test]
fn a_thick_volume_is_created() {
    sweep(&[Job::Thick]);
}

#[test]
fn thin_volumes_are_created() {
    sweep(&[Job::Thin, Job::Copy, Job::Snapshot]);
}

#[test]
fn a_volume_grows_and_is_deleted() {
    sweep(&[Job::Grow, Job::Delete]);
}
