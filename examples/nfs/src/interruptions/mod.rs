//! Tests: every step is cut off at each system call that changes the share. After that a retry must complete
//! the step, a delete must succeed, and other volumes must be unharmed.
//!
//! `CSI_CRASH_STRIDE` is the number of calls between two tested points; 1 tests all of them. Each kind of cut
//! starts at a different call.

mod tracer;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use csi_core::mount::{Root, allow_blocking};
use csi_core::proto::v1;
use csi_core::types::ContentSource;
use csi_core::{CreateVolumeRequest, Error, Result, VolumeId};
use tracer::{CUTS, Cut, cut, do_job};

use crate::parameters::Wanted;
use crate::records::Part;
use crate::share_workers::OpenShare;
use crate::volumes::{self, Content};
use crate::{VolumeArgs, snapshots};

/// Two volumes that want the same directory, and one volume that is copied.
const KEYS: [&str; 2] = ["pvc-1", "pvc-2"];
const PLACE: &str = "deep/data";
const SOURCE: &str = "source";
const CUT: &str = "cut";

/// A local directory that stands in for the share.
struct Share(PathBuf);

impl Share {
    fn root(&self) -> Root {
        Root::open(&self.0).unwrap()
    }

    fn create(&self, key: &str, sub_dir: &str, policy: &str, is_copy: bool) -> Result<()> {
        let source_id = VolumeId::new(SOURCE)?;
        let request = request(key, sub_dir, policy, is_copy.then_some(SOURCE))?;
        let content = is_copy.then(|| Content {
            root: Arc::new(OpenShare::of(self.root())),
            source: ContentSource::Volume(source_id),
            key: SOURCE.to_owned(),
        });
        let wanted = Wanted::read(&request, &VolumeArgs::default())?;
        let root = self.root();
        let places = Mutex::new(());
        allow_blocking(|| volumes::create(&root, &places, key, &wanted, &request, content.as_ref()).map(drop))
    }

    /// Deletes a volume. A missing volume counts as deleted.
    fn delete(&self, key: &str) -> Result<()> {
        match allow_blocking(|| volumes::delete(&self.root(), &Mutex::new(()), key)) {
            Err(Error::VolumeNotFound(_)) => Ok(()),
            deleted => deleted,
        }
    }

    fn snapshot(&self) -> Result<()> {
        let source = VolumeId::new(SOURCE)?;
        allow_blocking(|| snapshots::create(&self.root(), CUT, CUT, &source, SOURCE).map(drop))
    }

    fn delete_snapshot(&self) -> Result<()> {
        allow_blocking(|| snapshots::delete(&self.root(), CUT))
    }

    fn place(&self) -> PathBuf {
        self.0.join(PLACE)
    }

    fn is_ready(&self, key: &str) -> bool {
        allow_blocking(|| volumes::ready(&self.root(), key)).unwrap().is_some()
    }

    /// Creates the volume that is copied.
    fn fill(&self) {
        self.create(SOURCE, SOURCE, "delete", false).unwrap();
        let at = self.0.join(SOURCE);
        fs::create_dir(at.join("inner")).unwrap();
        fs::write(at.join("inner/file"), "data").unwrap();
        fs::hard_link(at.join("inner/file"), at.join("same")).unwrap();
        symlink("same", at.join("link")).unwrap();
    }

    /// Whether the directory is a complete copy of the source.
    fn is_copy(&self, at: &Path) -> bool {
        let read = |name: &str| fs::read_to_string(at.join(name)).is_ok_and(|text| text == "data");
        read("inner/file") && read("same") && read("link")
    }

    /// Checks that nothing is left except `left` in the directory of the volumes.
    /// Deletes the source first.
    fn assert_tidy(&self, left: &[&str]) {
        self.delete(SOURCE).unwrap();
        let mut own = Vec::new();
        for part in fs::read_dir(self.0.join(".csi-nfs")).unwrap() {
            own.extend(fs::read_dir(part.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()));
        }
        // The reserve of the records stays.
        own.retain(|path: &PathBuf| !path.ends_with(".spare"));
        assert_eq!(own, Vec::<PathBuf>::new());
        let deep = fs::read_dir(self.0.join("deep")).into_iter().flatten();
        let deep: Vec<_> = deep.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(deep, left);
    }
}

fn request(name: &str, sub_dir: &str, policy: &str, source: Option<&str>) -> Result<CreateVolumeRequest> {
    use v1::volume_capability::{AccessMode, AccessType, access_mode::Mode};
    use v1::volume_content_source::{Type, VolumeSource};
    let capability = v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
        access_type: Some(AccessType::Mount(Default::default())),
    };
    let parameters = [
        ("server", "192.0.2.7"),
        ("share", "/export"),
        ("subDir", sub_dir),
        ("onDelete", policy),
        ("mountPermissions", "0770"),
    ];
    let source = source.map(|id| Type::Volume(VolumeSource { volume_id: id.to_owned() }));
    let wire = v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability],
        parameters: parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        volume_content_source: source.map(|source| v1::VolumeContentSource { r#type: Some(source) }),
        ..Default::default()
    };
    wire.try_into()
}

fn job(words: &[&str]) -> Result<()> {
    let [step, share] = words else { panic!("{words:?}") };
    let share = Share(share.into());
    match *step {
        "create" => share.create(KEYS[0], PLACE, "delete", false),
        "copy" => share.create(KEYS[0], PLACE, "delete", true),
        "delete" => share.delete(KEYS[0]),
        "snapshot" => share.snapshot(),
        "delete snapshot" => share.delete_snapshot(),
        other => panic!("{other}"),
    }
}

/// A check that runs on a share whose step was cut off.
type Try<'a> = &'a (dyn Fn(&Share, Cut) + 'a);

/// Cuts the step off at each point, each time on a new share. Then runs each check on a copy of it.
fn at_each_point(test: &str, step: &str, prepare: impl Fn(&Share), tries: &[Try<'_>]) {
    do_job(job);
    let stride = std::env::var("CSI_CRASH_STRIDE").map_or(3, |text| text.parse().expect("a number"));
    for (first, how) in (1..).zip(CUTS) {
        let mut points = 0;
        for call in (first..).step_by(stride) {
            let places = tempfile::tempdir().unwrap();
            let at = places.path().join("share");
            fs::create_dir(&at).unwrap();
            prepare(&Share(at.clone()));
            let test = format!("interruptions::{test}");
            if !cut(&test, &[step, at.to_str().unwrap()], call, how) {
                break;
            }
            points += 1;
            let root = Root::open(places.path()).unwrap();
            for (number, try_it) in tries.iter().enumerate() {
                let name = format!("{how:?} at {call}, {number}");
                let copy = root.target(&name).unwrap();
                allow_blocking(|| root.target("share").unwrap().copy_tree(&copy)).unwrap();
                let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    try_it(&Share(copy.path().to_owned()), how);
                }));
                assert!(tried.is_ok(), "{step} {name}");
            }
        }
        println!("{step}: {how:?} at {points} points");
        assert!(points > 2, "only {points} points");
    }
}

#[test]
fn making_a_volume() {
    let retry: Try<'_> = &|share, _| {
        share.create(KEYS[0], PLACE, "delete", false).unwrap();
        let mode = fs::metadata(share.place()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o770);
        share.delete(KEYS[0]).unwrap();
        share.assert_tidy(&[]);
    };
    let deleted: Try<'_> = &|share, _| {
        share.delete(KEYS[0]).unwrap();
        share.assert_tidy(&[]);
    };
    at_each_point("making_a_volume", "create", Share::fill, &[retry, deleted]);
}

#[test]
fn copying_a_volume() {
    let retry: Try<'_> = &|share, how| {
        assert!(!share.is_ready(KEYS[0]) || share.is_copy(&share.place()));
        // Work for a server that stopped answering is not undone.
        let is_begun = share.0.join("deep").exists();
        assert!(
            how != Cut::Lost
                || !is_begun
                || Part::Volumes.read::<serde_json::Value>(&share.root(), KEYS[0]).unwrap().is_some()
        );
        share.create(KEYS[0], PLACE, "delete", true).unwrap();
        assert!(share.is_copy(&share.place()));
        share.delete(KEYS[0]).unwrap();
        share.assert_tidy(&[]);
    };
    let deleted: Try<'_> = &|share, _| {
        share.delete(KEYS[0]).unwrap();
        share.assert_tidy(&[]);
    };
    let another_comes: Try<'_> = &|share, _| {
        let was_ready = share.is_ready(KEYS[0]);
        let other = share.create(KEYS[1], PLACE, "delete", false);
        let retried = share.create(KEYS[0], PLACE, "delete", true);
        match (&other, &retried) {
            // After OK the copy exists at its place.
            (Ok(()), Ok(())) => assert!(was_ready && share.is_copy(&share.place())),
            (Err(Error::Pending(_)), Ok(())) => assert!(share.is_copy(&share.place())),
            (Ok(()), Err(Error::Incompatible(_))) => assert!(share.place().is_dir()),
            ended => panic!("{ended:?}"),
        }
        share.delete(KEYS[0]).unwrap();
        assert_eq!(share.place().is_dir(), other.is_ok());
        share.delete(KEYS[1]).unwrap();
        share.assert_tidy(&[]);
    };
    let somebody_makes_a_directory: Try<'_> = &|share, _| {
        let is_there = share.place().exists();
        fs::create_dir_all(share.place()).unwrap();
        let retried = share.create(KEYS[0], PLACE, "delete", true);
        assert_eq!(retried.is_ok(), is_there, "{retried:?}");
        share.delete(KEYS[0]).unwrap();
        share.assert_tidy(if is_there { &[] } else { &["data"] });
    };
    let tries = [retry, deleted, another_comes, somebody_makes_a_directory];
    at_each_point("copying_a_volume", "copy", Share::fill, &tries);
}

fn deleting(test: &str, policy: &str, left: &[&str]) {
    let prepare = |share: &Share| {
        share.fill();
        share.create(KEYS[0], PLACE, policy, false).unwrap();
        fs::write(share.place().join("file"), "data").unwrap();
    };
    let retry: Try<'_> = &|share, _| {
        share.delete(KEYS[0]).unwrap();
        share.assert_tidy(left);
    };
    let made_anew: Try<'_> = &|share, _| {
        let was_ready = share.is_ready(KEYS[0]);
        share.create(KEYS[0], PLACE, policy, false).unwrap();
        assert!(share.place().is_dir());
        assert_eq!(share.place().join("file").exists(), was_ready || policy == "retain");
        share.delete(KEYS[0]).unwrap();
    };
    let another_comes: Try<'_> = &|share, _| {
        share.create(KEYS[1], PLACE, "retain", false).unwrap();
        fs::write(share.place().join("other"), "data").unwrap();
        share.delete(KEYS[0]).unwrap();
        assert!(share.place().join("other").exists());
        share.delete(KEYS[1]).unwrap();
        assert!(share.place().join("other").exists());
    };
    at_each_point(test, "delete", prepare, &[retry, made_anew, another_comes]);
}

#[test]
fn deleting_a_volume() {
    deleting("deleting_a_volume", "delete", &[]);
}

#[test]
fn archiving_a_volume() {
    deleting("archiving_a_volume", "archive", &["archived-data"]);
}

#[test]
fn retaining_a_volume() {
    deleting("retaining_a_volume", "retain", &["data"]);
}

fn is_whole_if_there(share: &Share) -> bool {
    let content = allow_blocking(|| snapshots::content(&share.root(), CUT)).unwrap();
    content.is_none_or(|content| share.is_copy(&share.0.join(content)))
}

#[test]
fn making_a_snapshot() {
    let retry: Try<'_> = &|share, _| {
        assert!(is_whole_if_there(share));
        share.snapshot().unwrap();
        assert!(share.is_copy(&share.0.join(Part::Contents.path(CUT))));
        share.delete_snapshot().unwrap();
        share.assert_tidy(&[]);
    };
    let deleted: Try<'_> = &|share, _| {
        share.delete_snapshot().unwrap();
        share.assert_tidy(&[]);
    };
    at_each_point("making_a_snapshot", "snapshot", Share::fill, &[retry, deleted]);
}

#[test]
fn deleting_a_snapshot() {
    let prepare = |share: &Share| {
        share.fill();
        share.snapshot().unwrap();
    };
    let retry: Try<'_> = &|share, _| {
        assert!(is_whole_if_there(share));
        share.delete_snapshot().unwrap();
        share.assert_tidy(&[]);
    };
    let made_anew: Try<'_> = &|share, _| {
        share.snapshot().unwrap();
        assert!(share.is_copy(&share.0.join(Part::Contents.path(CUT))));
    };
    at_each_point("deleting_a_snapshot", "delete snapshot", prepare, &[retry, made_anew]);
}

/// No record that can't be read counts as none: each step is refused, and nothing that exists is touched.
#[test]
fn damaged_records_are_refused_by_each_step() {
    let directory = tempfile::tempdir().unwrap();
    let share = Share(directory.path().to_owned());
    share.fill();
    share.create("other", "other", "delete", false).unwrap();
    share.snapshot().unwrap();
    let own = |part: &str, name: &str| share.0.join(".csi-nfs").join(part).join(format!("{name}.json"));
    let other_snapshot = fs::read_to_string(own("snapshots", CUT)).unwrap().replace(CUT, "another");
    let cases = [
        (own("volumes", SOURCE), fs::read_to_string(own("volumes", "other")).unwrap()),
        (own("places", SOURCE), fs::read_to_string(own("places", "other")).unwrap()),
        (own("snapshots", CUT), other_snapshot),
    ];
    for (file, wrong_owner) in cases {
        let whole = fs::read_to_string(&file).unwrap();
        for damage in ["", &whole[..whole.len() / 2], "garbage", "{\"version\": 0}", &wrong_owner] {
            fs::write(&file, damage).unwrap();
            let refused = if file.parent().unwrap().ends_with("snapshots") {
                [share.delete_snapshot(), share.snapshot()]
            } else {
                [share.delete(SOURCE), share.create(SOURCE, SOURCE, "delete", false)]
            };
            for refused in refused {
                let error = refused.expect_err(damage).to_string();
                assert!(error.contains(file.to_str().unwrap()), "{error}");
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), damage, "it is left for its repair");
            assert!(share.0.join(SOURCE).join("inner/file").exists(), "{}: {damage}", file.display());
        }
        fs::write(&file, whole).unwrap();
    }
    share.delete_snapshot().unwrap();
    share.delete(SOURCE).unwrap();
}
