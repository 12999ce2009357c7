//! The decisions, with images in a directory that stands for sysfs.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::remote::disk::Disk;
use crate::remote::rbd::map::unmap;
use crate::remote::record::{Portal, Record, boot};
use crate::remote::transport::{Attached, Connect as _, Transport as _};
use crate::remote::{RbdPool, RbdTarget, RemoteDisks};

const FSID: &str = "b2f9a0a4-5b1d-4a4b-8a5c-0d7e64ba9c7b";
const IMAGE: [(&str, &str); 8] = [
    ("major", "252"),
    ("minor", "16"),
    ("cluster_fsid", FSID),
    ("pool_id", "3"),
    ("pool", "p"),
    ("name", "i"),
    ("image_id", "10a3"),
    ("current_snap", "-"),
];

struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        for name in ["devices/x", "add_single_major", "remove_single_major"] {
            fake.set(name, "");
        }
        fs::remove_file(fake.bus().join("devices/x")).unwrap();
        fake
    }

    fn sys(&self) -> PathBuf {
        self.0.path().join("sys")
    }

    fn bus(&self) -> PathBuf {
        self.sys().join("bus/rbd")
    }

    fn set(&self, file: &str, content: &str) {
        let file = self.bus().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{content}\n")).unwrap();
    }

    /// Maps an image that has these attributes, and otherwise those of [`IMAGE`].
    fn map(&self, id: u32, different: &[(&str, &str)]) {
        for (name, value) in IMAGE.iter().chain(different) {
            self.set(&format!("devices/{id}/{name}"), value);
        }
    }

    fn disks(&self) -> RemoteDisks {
        RemoteDisks { sys: self.sys(), ..RemoteDisks::new(self.0.path().join("records")) }
    }

    fn unmapped(&self) -> String {
        fs::read_to_string(self.bus().join("remove_single_major")).unwrap().trim().to_owned()
    }
}

fn target() -> RbdTarget {
    RbdTarget::new(RbdPool::new(FSID, "p", 3).unwrap(), "i", "10a3").unwrap()
}

#[test]
fn an_image_is_known_by_its_ids_and_not_by_its_names_or_number() {
    for (different, is) in [
        (&[][..], true),
        (&[("name", "renamed"), ("pool", "renamed"), ("minor", "32")], true),
        (&[("image_id", "10a4")], false),
        (&[("pool_id", "4")], false),
        (&[("cluster_fsid", "00000000-5b1d-4a4b-8a5c-0d7e64ba9c7b")], false),
        (&[("current_snap", "s")], false),
    ] {
        let fake = Fake::new();
        fake.map(7, different);
        assert_eq!(is_mapped(&fake.sys(), &target().disk).unwrap(), is, "{different:?}");
    }
    let fake = Fake::new();
    // It comes or goes.
    fake.map(7, &[("major", "(none)")]);
    assert_eq!(number(&fake.sys(), &target().disk).unwrap(), None);
    fake.map(8, &[]);
    let error = one(&fake.sys(), &target().disk).unwrap_err();
    assert!(error.kind() == ErrorKind::WrongDevice && error.to_string().contains("rbd7 and rbd8"), "{error}");
}

#[test]
fn what_is_missing_is_named_before_anything_is_mapped() {
    let fake = Fake::new();
    let monitor = "192.0.2.1:6789".parse().unwrap();
    assert_eq!(target().validate(&fake.sys()).unwrap_err().kind(), ErrorKind::InvalidInput);
    target().monitor(monitor).validate(&fake.sys()).unwrap();
    let error = target().monitor(monitor).validate(fake.0.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn only_what_an_attachment_mapped_is_unmapped() {
    for is_own in [true, false] {
        let fake = Fake::new();
        fake.map(7, &[]);
        fake.map(8, &[("image_id", "10a4")]);
        let portals = vec![Portal { address: "192.0.2.1:6789".parse().unwrap(), is_own }];
        let record = Record::new(boot().unwrap(), Disk::Rbd(target().disk), portals);
        let disks = fake.disks();
        // The fake disk has no device, as one that the kernel has given up; and nothing uses it.
        let _lock = disks.records.lock("10a3").unwrap();
        disks.records.put("pvc", &record).unwrap();
        assert_eq!(disks.records.get("pvc").unwrap(), Some(record.clone()));
        drop(_lock);
        let detached = disks.detach("pvc").unwrap();
        let (unmapped, names) = if is_own { ("7", &["rbd7"][..]) } else { ("", &[][..]) };
        assert_eq!(fake.unmapped(), unmapped);
        assert_eq!(detached.disconnected, names, "{detached}");
        assert_eq!(detached.kept.is_some(), !is_own, "{detached}");
        assert!(disks.records.get("pvc").unwrap().is_none());
    }
}

#[test]
fn a_number_that_another_image_has_now_is_not_unmapped() {
    let fake = Fake::new();
    fake.map(7, &[]);
    let mapping = one(&fake.sys(), &target().disk).unwrap().unwrap();
    fake.map(7, &[("image_id", "10a4")]);
    unmap(&fake.sys(), &mapping).unwrap();
    assert_eq!(fake.unmapped(), "");
    let portals = [Portal { address: "192.0.2.1:6789".parse().unwrap(), is_own: true }];
    let attached = Attached { sys: &fake.sys(), disk: &target().disk, portals: &portals };
    assert!(attached.connections().unwrap().is_empty());
}
