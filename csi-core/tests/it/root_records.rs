//! Records on a full disk. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use csi_core::Error;
use csi_core::records::Records;

use crate::private::on_tmpfs;

/// So long that a record is larger than what ext4 and XFS keep in the inode.
const NAME: &str = "a-node-with-a-name-that-is-as-long-as-they-are-in-a-cloud-with-regions-and-zones";

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the test in an empty filesystem. The loop device ends with its mount.
fn on_disk(fs_type: &str, test: impl FnOnce(&Path) + Send) {
    on_tmpfs(async |base| {
        let place = base.join("disk");
        fs::create_dir(&place).unwrap();
        let at = place.to_str().unwrap();
        if fs_type == "tmpfs" {
            run("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", at]);
        } else {
            let image = base.join("image");
            File::create(&image).unwrap().set_len(320 << 20).unwrap();
            let image = image.to_str().unwrap();
            let options: &[&str] = if fs_type == "ext4" { &["-q", "-m", "0"] } else { &["-q"] };
            run(&format!("mkfs.{fs_type}"), &[options, &[image]].concat());
            run("mount", &["-o", "loop", image, at]);
        }
        test(&place);
        run("umount", &[at]);
    });
}

/// Until no file can have another byte, and no other file can be made.
fn fill(disk: &Path, round: &str) {
    for size in [1 << 20, 4096, 1] {
        let is_written = |number: &usize| {
            let path = disk.join(format!("{round}-{size}-{number}"));
            File::create(path)
                .and_then(|mut file| file.write_all(&vec![7; size]).and_then(|()| file.sync_all()))
        };
        (0..).take_while(|number| is_written(number).is_ok()).for_each(drop);
    }
}

#[test]
fn on_a_full_disk_a_record_is_changed_and_removed_and_none_is_made() {
    for fs_type in ["tmpfs", "ext4", "xfs"] {
        on_disk(fs_type, |disk| {
            let directory = disk.join("records");
            let open = || Records::<Vec<String>>::open(&directory).unwrap();
            let records = open();
            let ids: Vec<String> = (0..20).map(|number| format!("pvc-{number}")).collect();
            for id in &ids {
                records.put(id, &vec![NAME.to_owned(); 3]).unwrap();
            }
            fill(disk, "first");
            let error = records.put("new", &vec![NAME.to_owned(); 3]).unwrap_err();
            assert!(matches!(error, Error::NoSpace(_)), "{fs_type}: {error}");
            for id in &ids {
                records.put(id, &vec![NAME.to_owned(); 2]).unwrap();
                fill(disk, id);
                records.put(id, &Vec::new()).unwrap_or_else(|error| panic!("{fs_type} {id}: {error}"));
            }
            drop(records);
            let records = open();
            let list = records.list().unwrap();
            assert!(list.unreadable.is_empty(), "{fs_type}: {:?}", list.unreadable);
            assert_eq!(list.records.len(), ids.len(), "{fs_type}");
            assert!(list.records.values().all(Vec::is_empty), "{fs_type}: {list:?}");
            for id in &ids {
                assert!(records.remove(id).unwrap(), "{fs_type}");
            }
        });
    }
}

#[test]
fn a_record_that_does_not_change_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let records = Records::<Vec<String>>::open(directory.path()).unwrap();
    let inode = || fs::metadata(directory.path().join("pvc-1.json")).unwrap().ino();
    records.put("pvc-1", &vec![NAME.to_owned()]).unwrap();
    let before = inode();
    records.put("pvc-1", &vec![NAME.to_owned()]).unwrap();
    assert_eq!(inode(), before);
    records.put("pvc-1", &Vec::new()).unwrap();
    assert_ne!(inode(), before);
}
