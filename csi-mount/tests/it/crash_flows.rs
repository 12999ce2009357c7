//! A step of the directory, shared and ephemeral flows that is killed before any of its system calls ends in
//! the right state, whatever comes next: see [`matrix`].
//!
//! Each test kills at the number of points that [`Points`](crate::stepper::Points) gives (in CI a few seconds), and
//! prints this number. `CSI_CRASH_STRIDE=1` makes it kill at every point. An ext4 on a loop device stands for
//! the share of a server. A FUSE filesystem without its daemon stands for a server that is gone. So the tests
//! need no NFS client.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use csi_mount::internal::DeviceQuestions as _;
use csi_mount::internal::flow::ephemeral::{self, Content, EphemeralPlan};
use csi_mount::internal::flow::shared::{self, SharedSource};
use csi_mount::{Bind, DeviceUse, MountAttributes, Target, unmount};

use crate::devices::{Image, put_node, run};
use crate::fuse_support::lost_server;
use crate::matrix::sweep::{STEP_DIES, assert_points, kill_steps};
use crate::matrix::{Level, Place, Step, Volume};
use crate::mount_support::{eventually, layers, sandbox};
use crate::stepper::do_job;

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let [flow, step, source, staging, target] = words else { panic!("{words:?}") };
    let staging = Target::new(staging)?;
    let target = Target::new(target)?;
    let shared = SharedSource::new("ext4", *source);
    let read_only = MountAttributes::RDONLY;
    match (*flow, *step) {
        ("shared", "stage") => shared::stage(&staging, &shared).map(drop),
        ("shared", "publish") => shared::publish(staging.path(), &target, read_only).map(drop),
        ("shared", "unstage") => shared::unstage(&staging).map(drop),
        ("shared directly", "publish") => shared::publish_directly(&target, &shared, read_only).map(drop),
        ("shared" | "shared directly", "unpublish") => shared::unpublish(&target).map(drop),
        ("ephemeral", "publish") => ephemeral::publish(&target, &content("first"), &plan()).map(drop),
        ("ephemeral", "change") => ephemeral::publish(&target, &content("second"), &plan()).map(drop),
        ("ephemeral", "unpublish") => ephemeral::unpublish(&target).map(drop),
        ("directory", "publish") => {
            target.create_dir()?;
            Bind::new(source).attributes(read_only).at(&target).map(drop)
        }
        ("directory", "unpublish") => unmount(&target).and_then(|_| target.remove()).map(drop),
        // These flows need no stage.
        ("shared directly" | "ephemeral" | "directory", "stage" | "unstage") => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn plan() -> EphemeralPlan {
    EphemeralPlan::new("volume").attributes(MountAttributes::RDONLY)
}

/// Both files contain the version.
fn content(version: &str) -> Content {
    Content::new().file("a", version).unwrap().file("below/b", version).unwrap()
}

/// Stands for the share of a server: an ext4 with a file on it.
struct Shared {
    image: Image,
    node: PathBuf,
    place: Place,
    /// It is mounted at the target and not staged.
    is_direct: bool,
    /// A step finds a mount whose server is gone.
    lost_server: bool,
}

impl Shared {
    fn new(base: &Path) -> Self {
        let image = Image::new(8);
        let node = base.join("disk");
        run("mkfs.ext4", &["-q", image.path().to_str().unwrap()]);
        put_node(&node, image.loop_device().number());
        let place = Place::new(&base.join("volume"));
        shared::stage(&place.staging, &SharedSource::new("ext4", node.to_str().unwrap())).unwrap();
        fs::write(place.staging.path().join("file"), "shared").unwrap();
        shared::unstage(&place.staging).unwrap();
        Self { image, node, place, is_direct: false, lost_server: false }
    }
}

impl Volume for Shared {
    fn flow(&self) -> String {
        if self.is_direct { "shared directly".to_owned() } else { "shared".to_owned() }
    }

    fn source(&self) -> String {
        self.node.to_str().unwrap().to_owned()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn layers(&self, level: Level) -> (usize, usize) {
        (usize::from(level > Level::Free && !self.is_direct), usize::from(level == Level::Published))
    }

    fn prepare(&mut self, _step: Step) -> bool {
        if self.lost_server {
            lost_server(&self.place.staging);
        }
        self.lost_server
    }

    fn assert_content(&self, level: Level, _after: Step) {
        if level > Level::Free && !self.is_direct {
            assert_eq!(self.place.file(&self.place.staging), "shared");
        }
        if level == Level::Published {
            assert_eq!(self.place.file(&self.place.target), "shared");
            assert!(fs::write(self.place.target.path().join("file"), "x").is_err(), "it is writable");
        }
    }

    fn lose(&mut self) {
        fs::remove_file(&self.node).unwrap();
    }

    fn find(&mut self) {
        put_node(&self.node, self.image.loop_device().number());
    }

    fn assert_free(&self) {
        eventually("the device is free", || self.image.open().in_use().unwrap() == DeviceUse::Free);
    }
}

/// A directory that is bound to the target.
struct Directory {
    source: PathBuf,
    place: Place,
}

impl Directory {
    fn new(base: &Path) -> Self {
        let mut directory = Self { source: base.join("source"), place: Place::new(&base.join("volume")) };
        directory.find();
        directory
    }
}

impl Volume for Directory {
    fn flow(&self) -> String {
        "directory".to_owned()
    }

    fn source(&self) -> String {
        self.source.to_str().unwrap().to_owned()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn layers(&self, level: Level) -> (usize, usize) {
        (0, usize::from(level == Level::Published))
    }

    fn assert_content(&self, level: Level, _after: Step) {
        assert_eq!(fs::read_to_string(self.source.join("file")).unwrap(), "kept");
        if level == Level::Published {
            assert_eq!(self.place.file(&self.place.target), "kept");
            assert!(fs::write(self.place.target.path().join("file"), "x").is_err(), "it is writable");
        }
    }

    fn lose(&mut self) {
        fs::remove_file(self.source.join("file")).unwrap();
        fs::remove_dir(&self.source).unwrap();
    }

    fn find(&mut self) {
        fs::create_dir(&self.source).unwrap();
        fs::write(self.source.join("file"), "kept").unwrap();
    }
}

/// Files in memory.
struct Ephemeral {
    place: Place,
    /// Whether the killed step changes a published volume. If so, the second version is also valid.
    had_first: Cell<bool>,
}

impl Ephemeral {
    fn new(base: &Path) -> Self {
        Self { place: Place::new(&base.join("volume")), had_first: Cell::new(false) }
    }

    /// Returns the version, which is the same in all files.
    fn version(&self) -> String {
        // All files are read through one version directory, like the kubelet's own volumes.
        let target = self.place.target.path();
        let data = target.join(fs::read_link(target.join("..data")).unwrap());
        let read = |name| fs::read_to_string(data.join(name)).unwrap();
        assert_eq!(read("a"), read("below/b"), "two versions at once");
        read("a")
    }
}

impl Volume for Ephemeral {
    fn flow(&self) -> String {
        "ephemeral".to_owned()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn layers(&self, level: Level) -> (usize, usize) {
        (0, usize::from(level == Level::Published))
    }

    fn before(&mut self, step: Step) {
        self.had_first.set(step == Step::Change);
    }

    /// The volume is never visible before it has its content, and never with two versions of it.
    fn killed(&mut self, _step: Step) {
        if layers(self.place.target.path()) > 0 {
            let version = self.version();
            assert!(version == "first" || self.had_first.get() && version == "second", "it has {version}");
        }
    }

    fn assert_content(&self, level: Level, after: Step) {
        if level == Level::Published {
            assert_eq!(self.version(), if after == Step::Change { "second" } else { "first" });
        }
    }
}

#[test]
fn a_directory() {
    let test = "crash_flows::a_directory";
    do_job(job);
    sandbox(|base| {
        let steps = [(Step::Publish, 24, 20), (Step::Unpublish, 24, 8)];
        assert_points(test, kill_steps((test, job), &mut Directory::new(base), STEP_DIES, &steps), 30);
    });
}

#[test]
fn a_shared_filesystem() {
    let test = "crash_flows::a_shared_filesystem";
    do_job(job);
    sandbox(|base| {
        let mut volume = Shared::new(base);
        let steps = [
            (Step::Stage, 24, 30),
            (Step::Publish, 24, 20),
            (Step::Unpublish, 24, 8),
            (Step::Unstage, 24, 8),
        ];
        let mut points = kill_steps((test, job), &mut volume, STEP_DIES, &steps);
        volume.lost_server = true;
        let steps = [(Step::Stage, 24, 30), (Step::Unstage, 24, 8)];
        points += kill_steps((test, job), &mut volume, STEP_DIES, &steps);
        (volume.lost_server, volume.is_direct) = (false, true);
        let steps = [(Step::Publish, 24, 30), (Step::Unpublish, 24, 8)];
        points += kill_steps((test, job), &mut volume, STEP_DIES, &steps);
        assert_points(test, points, 100);
    });
}

#[test]
fn an_ephemeral_volume() {
    let test = "crash_flows::an_ephemeral_volume";
    do_job(job);
    sandbox(|base| {
        let steps = [(Step::Publish, 24, 40), (Step::Change, 24, 40), (Step::Unpublish, 24, 8)];
        assert_points(test, kill_steps((test, job), &mut Ephemeral::new(base), STEP_DIES, &steps), 60);
    });
}
