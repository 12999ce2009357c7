//! Only mounts and paths that are known to belong to a volume are unmounted and removed. Each test mounts
//! below its own directory, in its own mount namespace.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use csi_mount::internal::flow::ephemeral::{self, Content, EphemeralPlan};
use csi_mount::internal::flow::shared::{self, SharedSource};
use csi_mount::internal::flow::{block, fuse};
use csi_mount::*;

use crate::mount_support::{layers, sandbox};

const DRIVER: &str = "driver.example.org";

fn owner(volume: &str) -> Owner {
    Owner::new(DRIVER, volume)
}

fn target(path: &Path, volume: &str) -> Target {
    OwnedPath::new(path, owner(volume)).target().unwrap()
}

fn refuse_foreign(path: &Path, volume: &str) -> Result<()> {
    Host::kernel().mounts().refuse_foreign(&OwnedPath::new(path, owner(volume)))
}

fn adopt(path: &Path, volume: &str) -> Result<bool> {
    Host::kernel().mounts().adopt(&OwnedPath::new(path, owner(volume)))
}

fn marked_owner(path: &Path) -> Option<OwnerId> {
    Host::kernel().mounts().marked_owner(path).unwrap()
}

/// Mounts a foreign tmpfs with data in it.
fn mount_foreign(path: &Path) {
    fs::create_dir_all(path).unwrap();
    Mount::new("tmpfs", "foreign").at(&Target::new(path).unwrap()).unwrap();
    fs::write(path.join("data"), "precious").unwrap();
}

/// Mounts a foreign tmpfs over whatever is at the path.
fn cover(path: &Path) {
    rustix::mount::mount("foreign", path, "tmpfs", rustix::mount::MountFlags::empty(), c"").unwrap();
    fs::write(path.join("data"), "precious").unwrap();
}

fn in_directory(test: impl FnOnce(&dyn Fn(&str) -> PathBuf) + Send) {
    sandbox(|sandbox| test(&|name| sandbox.join(name)));
}

type Step = fn(&Target) -> Result<()>;

/// All steps by which a volume leaves a path.
const STEPS: [(&str, Step); 8] = [
    ("unmount", |target| unmount(target).map(drop)),
    ("detach", |target| Unmount::new().detach(Detach::IfBusy).at(target).map(drop)),
    ("block::unpublish", |target| block::unpublish(target).map(drop)),
    ("block::unstage", |target| block::unstage(target, None).map(drop)),
    ("shared::unpublish", |target| shared::unpublish(target).map(drop)),
    ("shared::unstage", |target| shared::unstage(target).map(drop)),
    ("fuse::unstage", |target| fuse::unstage(target).map(drop)),
    ("ephemeral::unpublish", |target| ephemeral::unpublish(target).map(drop)),
];

#[test]
fn every_step_refuses_a_mount_of_others() {
    in_directory(|path| {
        mount_foreign(&path("foreign"));
        fs::create_dir(path("v1")).unwrap();
        let plan = EphemeralPlan::new("v1");
        ephemeral::publish(
            &target(&path("v1"), "v1"),
            &Content::new().file("data", "precious").unwrap(),
            &plan,
        )
        .unwrap();
        mount_foreign(&path("covered"));
        unmount(&Target::new(path("covered")).unwrap()).unwrap();
        ephemeral::publish(
            &target(&path("covered"), "v2"),
            &Content::new().file("data", "precious").unwrap(),
            &EphemeralPlan::new("v2"),
        )
        .unwrap();
        cover(&path("covered"));
        for (place, count) in [("foreign", 1), ("v1", 1), ("covered", 2)] {
            for (name, step) in STEPS {
                let error = step(&target(&path(place), "v2")).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotOwned, "{name} of {place}: {error}");
                assert!(error.to_string().contains("tmpfs from "), "{error}");
                assert_eq!(layers(&path(place)), count, "{name} of {place}");
                assert_eq!(fs::read(path(place).join("data")).unwrap(), b"precious", "{name} of {place}");
            }
        }
        let other_driver =
            OwnedPath::new(path("v1"), Owner::new("other.example.org", "v1")).target().unwrap();
        assert_eq!(unmount(&other_driver).unwrap_err().kind(), ErrorKind::NotOwned);
        assert_eq!(ephemeral::unpublish(&target(&path("v1"), "v1")).unwrap(), Removed::Removed);
        assert!(!path("v1").exists());
    });
}

#[test]
fn a_later_process_unmounts_the_volumes_mount() {
    in_directory(|path| {
        fs::create_dir_all(path("source")).unwrap();
        let source = SharedSource::new("tmpfs", "shared");
        for _ in 0..2 {
            shared::stage(&target(&path("staging"), "v"), &source).unwrap();
            shared::publish(path("staging"), &target(&path("bound"), "v"), MountAttributes::RDONLY).unwrap();
            shared::publish_directly(&target(&path("direct"), "v"), &source, MountAttributes::empty())
                .unwrap();
            let bound = target(&path("bind"), "v");
            bound.create_dir().unwrap();
            Bind::new(&path("source")).at(&bound).unwrap();
        }
        let found = marked_owner(&path("staging"));
        assert_eq!(found.map(|owner| owner.to_string()).as_deref(), Some("volume v of driver.example.org"));
        for name in ["bound", "direct", "bind"] {
            assert_eq!(shared::unpublish(&target(&path(name), "v")).unwrap(), Removed::Removed, "{name}");
            assert_eq!(shared::unpublish(&target(&path(name), "v")).unwrap(), Removed::WasAbsent, "{name}");
        }
        assert_eq!(
            shared::unstage(&target(&path("staging"), "v")).unwrap(),
            Unmounted::Unmounted { layers: 1 }
        );
        assert_eq!(marked_owner(&path("staging")), None, "it is anybody's");
    });
}

#[test]
fn a_path_of_one_volume_is_refused_for_another() {
    in_directory(|path| {
        let source = SharedSource::new("tmpfs", "shared");
        shared::stage(&target(&path("staging"), "v1"), &source).unwrap();
        let error = shared::stage(&target(&path("staging"), "v2"), &source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyMounted, "{error}");
        assert!(error.to_string().contains("volume v1"), "{error}");
        assert_eq!(
            shared::unstage(&target(&path("staging"), "v1")).unwrap(),
            Unmounted::Unmounted { layers: 1 }
        );
        shared::stage(&target(&path("staging"), "v2"), &source).unwrap();
    });
}

#[test]
fn layers_are_unmounted_only_if_all_belong_to_the_volume() {
    in_directory(|path| {
        fs::create_dir_all(path("source")).unwrap();
        let bound = target(&path("bound"), "v");
        bound.create_dir().unwrap();
        Bind::new(&path("source")).at(&bound).unwrap();
        rustix::mount::mount_bind(path("source"), path("bound")).unwrap();
        assert_eq!(unmount(&target(&path("bound"), "v")).unwrap(), Unmounted::Unmounted { layers: 2 });

        Mount::new("tmpfs", "foreign").at(&Target::new(path("bound")).unwrap()).unwrap();
        rustix::mount::mount_bind(path("source"), path("bound")).unwrap();
        let error = unmount(&target(&path("bound"), "v")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotOwned, "{error}");
        assert!(error.to_string().contains("tmpfs from foreign"), "{error}");
        assert_eq!(layers(&path("bound")), 2);
    });
}

#[test]
fn only_a_path_of_the_volume_is_removed() {
    in_directory(|path| {
        let removed = |name: &str, owner: Owner| OwnedPath::new(path(name), owner).target().unwrap().remove();
        // Created for the volume by a process that was then killed.
        target(&path("made"), "v").create_dir().unwrap();
        target(&path("made-file"), "v").create_file().unwrap();
        for name in ["made", "made-file"] {
            assert_eq!(removed(name, owner("other")).unwrap(), Removed::Kept, "{name}");
            assert_eq!(removed(name, owner("v")).unwrap(), Removed::Removed, "{name}");
        }
        // Created by an unknown process.
        fs::create_dir(path("bare")).unwrap();
        assert_eq!(removed("bare", owner("v")).unwrap(), Removed::Kept);
        assert_eq!(removed("bare", owner("v").roots([path("no-such"), path("bar")])).unwrap(), Removed::Kept);
        assert_eq!(removed("bare", owner("v").roots([path("")])).unwrap(), Removed::Removed);
        let target = target(&path("failed"), "v");
        target.create_dir().unwrap();
        fs::write(path("failed/file"), "data").unwrap();
        assert_eq!(target.remove().unwrap_err().kind(), ErrorKind::Busy);
    });
}

#[test]
fn a_path_with_a_mount_in_another_namespace_stays() {
    in_directory(|path| {
        target(&path("place"), "v").create_dir().unwrap();
        let script = "mount -t tmpfs theirs \"$1\" && echo mounted && read -r _";
        let mut other = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
            .arg(path("place"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        let error = target(&path("place"), "v").remove().unwrap_err();
        drop(other.stdin.take());
        other.wait().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("tmpfs from theirs"), "{error}");
        assert_eq!(target(&path("place"), "v").remove().unwrap(), Removed::Removed);
    });
}

/// A workload gets only a mount that is not known to be foreign.
#[test]
fn a_foreign_mount_is_refused_before_it_is_used() {
    in_directory(|path| {
        fs::create_dir(path("source")).unwrap();
        let place = target(&path("place"), "v");
        place.create_dir().unwrap();
        refuse_foreign(place.path(), "v").unwrap();
        mount_foreign(&path("place"));
        let refused = refuse_foreign(place.path(), "v").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotOwned, "{refused}");
        unmount(&Target::new(path("place")).unwrap()).unwrap();
        Bind::new(&path("source")).at(&place).unwrap();
        refuse_foreign(place.path(), "v").unwrap();
        assert_eq!(refuse_foreign(&path("place"), "w").unwrap_err().kind(), ErrorKind::NotOwned);
        cover(&path("place"));
        assert_eq!(refuse_foreign(place.path(), "v").unwrap_err().kind(), ErrorKind::NotOwned);
        // If no mark can be kept, nothing is known.
        fs::create_dir(path("plain")).unwrap();
        Mount::new("ramfs", "plain").at(&Target::new(path("plain")).unwrap()).unwrap();
        mount_foreign(&path("plain/place"));
        refuse_foreign(&path("plain/place"), "v").unwrap();
    });
}

/// On a filesystem without extended attributes (ramfs).
#[test]
fn without_marks_a_mount_is_recognized_by_evidence() {
    in_directory(|path| {
        fs::create_dir(path("plain")).unwrap();
        Mount::new("ramfs", "plain").at(&Target::new(path("plain")).unwrap()).unwrap();
        fs::create_dir(path("source")).unwrap();
        let place = path("plain/target");
        let bound = target(&place, "v");
        bound.create_dir().unwrap();
        Bind::new(&path("source")).at(&bound).unwrap();
        assert_eq!(marked_owner(bound.path()), None);
        let known = |evidence| OwnedPath::new(&place, owner("v").evidence(evidence)).target().unwrap();
        let source = |source: &str| Evidence::Source { fs_type: "ramfs".into(), source: source.into() };
        for unknown in
            [Evidence::Directory(path("plain")), Evidence::Directory(path("gone")), source("plain")]
        {
            assert_eq!(unmount(&known(unknown)).unwrap_err().kind(), ErrorKind::NotOwned);
        }
        assert_eq!(unmount(&target(&place, "v")).unwrap_err().kind(), ErrorKind::NotOwned);
        let own = known(Evidence::Directory(path("source")));
        assert_eq!(unmount(&own).unwrap(), Unmounted::Unmounted { layers: 1 });
        assert_eq!(own.remove().unwrap(), Removed::Removed);
    });
}

#[test]
fn a_mount_of_an_earlier_driver_is_adopted_if_nothing_else_is_there() {
    in_directory(|path| {
        let left = path("left");
        mount_foreign(&left);
        assert!(adopt(&left, "v").unwrap());
        assert!(!adopt(&left, "v").unwrap(), "it is known already");
        let error = adopt(&left, "w").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyMounted, "{error}");
        assert_eq!(unmount(&target(&left, "v")).unwrap(), Unmounted::Unmounted { layers: 1 });
        assert!(!adopt(&left, "v").unwrap(), "nothing is mounted");

        fs::create_dir(path("other")).unwrap();
        Bind::new(&path("other")).at(&Target::new(&left).unwrap()).unwrap();
        assert!(adopt(&left, "v").unwrap(), "the mark is of an earlier mount of the volume");
        cover(&left);
        let error = adopt(&left, "v").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotOwned, "{error}");

        fs::create_dir(path("plain")).unwrap();
        Mount::new("ramfs", "plain").at(&Target::new(path("plain")).unwrap()).unwrap();
        mount_foreign(&path("plain/left"));
        let error = adopt(&path("plain/left"), "v").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    });
}
