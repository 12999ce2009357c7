//! A loop device over a file whose server is gone does not stop the steps of other volumes.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{StagePlan, publish_device, stage, unpublish, unstage};
use csi_mount::internal::{DeviceQuestions as _, Format, LoopDevice, PeerNamespace, Probe};
use csi_mount::{BlockDevice, DeviceAccess, ErrorKind, Filesystem, Outcome, Removed, Target, Unmounted};

use crate::devices::{Image, losetup_detach, refused, run};
use crate::fuse_support::{Fate, FileServer, bounded};
use crate::mount_support::{sandbox, target};

/// One time limit, and what a busy machine needs.
const LIMIT: Duration = Duration::from_secs(20);
/// Less than the time limit of each of seven calls.
const SEVEN: Duration = Duration::from_secs(13);
const FATES: [Fate; 3] = [Fate::Killed, Fate::Stopped, Fate::Suspended];

/// A loop device of another program, over a file of a server.
struct Foreign {
    node: PathBuf,
    server: FileServer,
}

impl Foreign {
    fn over(mount: &Target, name: &str) -> Self {
        let server = FileServer::mount(mount);
        let file = mount.path().join(name);
        // Another process attaches it, because this process remembers the devices that it attached.
        let node = run("losetup", &["--find", "--show", file.to_str().unwrap()]);
        Self { node: node.trim_end().into(), server }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.server.meets(Fate::Killed);
        losetup_detach(&self.node);
    }
}

/// The answer of a loop device is kept for the whole process, so the tests run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Volumes that are independent of the foreign device. Each is at a step that looks for loop devices.
struct Volumes {
    filesystem: Image,
    raw: Image,
    other: Image,
    staging: Target,
    read_only: Target,
    new: Target,
}

impl Volumes {
    fn new(sandbox: &Path) -> Self {
        let [staging, read_only, new] =
            ["staging", "read-only", "new"].map(|name| Target::new(sandbox.join(name)).unwrap());
        let volumes = Self {
            filesystem: Image::new(64),
            raw: Image::new(8),
            other: Image::new(8),
            staging,
            read_only,
            new,
        };
        stage(volumes.filesystem.path(), &volumes.staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        publish_device(volumes.raw.path(), &volumes.read_only, DeviceAccess::ReadOnly).unwrap();
        volumes
    }

    /// Seven calls that look for loop devices.
    fn go_on(&self) {
        let unstaged = unstage(&self.staging, Some(self.filesystem.path())).unwrap();
        assert_eq!(unstaged, Unmounted::Unmounted { layers: 1 });
        assert_eq!(unpublish(&self.read_only).unwrap(), Removed::Removed);
        assert!(
            LoopDevice::find(self.raw.path()).unwrap().is_empty(),
            "the loop device went with its target"
        );
        let publish = || publish_device(self.other.path(), &self.new, DeviceAccess::ReadOnly).unwrap();
        assert_eq!(publish(), Outcome::Mounted);
        assert_eq!(publish(), Outcome::AlreadyMounted);
        unpublish(&self.new).unwrap();
        let found = LoopDevice::find(self.filesystem.file()).unwrap();
        assert_eq!(found.len(), 1, "a file of a local filesystem");
    }
}

#[test]
fn a_loop_device_on_a_dead_filesystem_delays_no_other_volume() {
    let _alone = alone();
    for fate in FATES {
        sandbox(|sandbox| {
            let volumes = Volumes::new(sandbox);
            let mut foreign = Foreign::over(&target(sandbox, "fuse"), "image");
            foreign.server.meets(fate);
            let found = bounded(LIMIT, || LoopDevice::find(volumes.raw.path())).unwrap();
            assert_eq!(found.len(), 1);
            foreign.server.is_not_asked_by(|| bounded(SEVEN, || volumes.go_on()));
        });
    }
}

/// If nothing shows that the file has a server, a child process queries the loop device once, and is given
/// up.
#[test]
fn a_loop_device_of_another_namespace_delays_no_other_volume() {
    let _alone = alone();
    for fate in FATES {
        sandbox(|sandbox| {
            let volumes = Volumes::new(sandbox);
            let peer = PeerNamespace::new();
            let path = target(sandbox, "fuse").path().to_owned();
            let mut foreign = peer.run(move || Foreign::over(&Target::new(path).unwrap(), "image"));
            foreign.server.meets(fate);
            // This is the only wait, for all steps together.
            let found = bounded(LIMIT, || LoopDevice::find(volumes.raw.path())).unwrap();
            assert_eq!(found.len(), 1);
            foreign.server.is_not_asked_by(|| bounded(SEVEN, || volumes.go_on()));
        });
    }
}

/// Several devices that do not answer cost one time limit together, and also callers at the same time.
#[test]
fn silent_loop_devices_cost_one_time_limit_together() {
    let _alone = alone();
    sandbox(|sandbox| {
        let image = Image::new(8);
        let mut foreign: Vec<Foreign> =
            (0..3).map(|number| Foreign::over(&target(sandbox, &format!("fuse{number}")), "image")).collect();
        foreign.iter_mut().for_each(|foreign| foreign.server.meets(Fate::Suspended));
        let find = || bounded(LIMIT, || LoopDevice::find(image.file())).unwrap().len();
        let found: Vec<usize> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(find)).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        assert_eq!(found, [1; 4]);
        // A call that asks takes at least the 2 s of its time limit, on a busy machine too.
        let times = (0..7).map(|_| {
            let begin = Instant::now();
            assert_eq!(find(), 1);
            begin.elapsed()
        });
        let shortest = times.min().unwrap();
        assert!(shortest < Duration::from_secs(2), "each of seven calls took {shortest:?} or more");
    });
}

/// A file with a server is looked for each time, as soon as its server answers.
#[test]
fn a_loop_device_over_the_file_itself_is_found_once_its_server_answers() {
    let _alone = alone();
    sandbox(|sandbox| {
        let image = Image::new(8);
        let mut foreign = Foreign::over(&target(sandbox, "fuse"), "image");
        foreign.server.meets(Fate::Suspended);
        bounded(LIMIT, || LoopDevice::find(image.file())).unwrap();
        foreign.server.continues();
        // Not the path that the kernel shows.
        let other = target(sandbox, "other");
        let paths = [sandbox.join("fuse"), other.path().to_owned()].map(|path| path.display().to_string());
        run("mount", &["--bind", &paths[0], &paths[1]]);
        let found = LoopDevice::find(other.path().join("image")).unwrap();
        assert_eq!(found.iter().map(LoopDevice::path).collect::<Vec<_>>(), [&*foreign.node]);
    });
}

/// A loop device that is ignored must not be one that has to prevent the format.
#[test]
fn a_silent_loop_device_that_can_use_the_device_makes_it_busy() {
    let _alone = alone();
    sandbox(|sandbox| {
        let image = Image::new(64);
        let name = image.path().file_name().unwrap().to_str().unwrap().to_owned();
        let mut foreign = Foreign::over(&target(sandbox, "fuse"), &name);
        let device = BlockDevice::open(image.path()).unwrap();
        let Probe::Blank(proof) = device.probe() else { panic!("it is blank") };
        foreign.server.meets(Fate::Stopped);
        let error = refused(
            bounded(Duration::from_secs(20), || Format::new(Filesystem::Ext4).run(proof)),
            ErrorKind::Unresponsive,
        );
        assert!(error.to_string().contains(foreign.node.to_str().unwrap()), "{error}");
        assert!(image.is_zero());
    });
}

/// Files that are bound inside a filesystem that does not answer. All of them together cost one time limit.
#[test]
fn binds_inside_a_silent_filesystem_take_one_time_limit_together() {
    let _alone = alone();
    sandbox(|sandbox| {
        let volumes = Volumes::new(sandbox);
        let fuse = target(sandbox, "fuse");
        let mut server = FileServer::mount(&fuse);
        std::fs::write(sandbox.join("file"), "").unwrap();
        let binds = ["a", "b", "c", "d", "e", "f"].map(|name| fuse.path().join(name));
        for bind in &binds {
            run("mount", &["--bind", sandbox.join("file").to_str().unwrap(), bind.to_str().unwrap()]);
        }
        server.meets(Fate::Stopped);
        let unstaged =
            bounded(Duration::from_secs(5), || unstage(&volumes.staging, Some(volumes.filesystem.path())));
        assert_eq!(unstaged.unwrap(), Unmounted::Unmounted { layers: 1 });
        server.meets(Fate::Killed);
        unpublish(&volumes.read_only).unwrap();
    });
}
