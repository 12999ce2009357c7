//! What tenants write, and what administrators do, beside the volumes of a group.
//!
//! The tests need a device mapper and run on a machine of their own: `cargo xtask test --kernels … csi-mount/lvm_neighbours`, and
//! not with `cargo test` alone.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use csi_mount::lvm::{EraseMode, LvmDeletion, LvmLayout, LvmName, LvmOptions, LvmRequest, VolumeGroup};
use csi_mount::{ErrorKind, Mount, Target, Verdict, unmount};

use crate::devices::{Image, MIB, run};
use crate::lvm_support::{Bed, DRIVER, has, lvm, mark, thick, thin, volume_has, with_device};

fn volume(name: &str) -> LvmName {
    LvmName::Volume(name.to_owned())
}

fn dmsetup(arguments: &[&str]) {
    run("env", &[&["DM_DISABLE_UDEV=1", "dmsetup"], arguments].concat());
}

/// A mapping of a volume, as LUKS makes one, but for the key.
struct Mapping {
    group: VolumeGroup,
    volume: String,
    name: String,
}

impl Mapping {
    fn new(group: &VolumeGroup, volume: &str) -> Self {
        let device = group.activate(volume).unwrap();
        let name = format!("above-{volume}");
        let sectors = device.size().unwrap() / 512;
        dmsetup(&["create", &name, "--table", &format!("0 {sectors} linear {} 0", device.path().display())]);
        Self { group: group.clone(), volume: volume.to_owned(), name }
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let removed = std::panic::catch_unwind(|| dmsetup(&["remove", &self.name]));
        assert!(removed.is_ok() || std::thread::panicking());
        let _ = self.group.deactivate(&self.volume);
    }
}

/// Runs lvm2 on one disk only, as a tenant does in its own machine.
fn lvm_on(disk: &Path, arguments: &[&str]) {
    let settings = format!(
        "activation{{monitoring=0}} devices{{use_devicesfile=0 filter=[\"a|^{}$|\",\"r|.*|\"]}}",
        disk.display()
    );
    let (command, rest) = arguments.split_first().unwrap();
    run("env", &[&["DM_DISABLE_UDEV=1", "lvm", command, "--config", &settings], rest].concat());
}

/// Puts a group of this name on the tenant's disk: with an own UUID, or with the victim's and a later number.
fn imitate(bed: &Bed, disk: &Path, has_its_uuid: bool) {
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup");
    let backup = backup.to_str().unwrap();
    lvm_on(disk, &["vgcreate", "--yes", "tenant", disk.to_str().unwrap()]);
    lvm_on(disk, &["vgcfgbackup", "-f", backup, "tenant"]);
    let own = lvm(&["vgs", "--noheadings", "-o", "vg_uuid", &bed.name]);
    let mut text = fs::read_to_string(backup).unwrap();
    let id = text.lines().map(str::trim).find(|line| line.starts_with("id = ")).unwrap();
    if has_its_uuid {
        text = text.replacen(id, &format!("id = \"{}\"", own.trim()), 1);
    }
    let text = text.replace("tenant {", &format!("{} {{", bed.name)).replace("seqno = 1\n", "seqno = 1000\n");
    fs::write(backup, text).unwrap();
    lvm_on(disk, &["vgcfgrestore", "--yes", "--force", "-f", backup, &bed.name]);
}

/// A raw volume shows the node what its tenant writes. lvm2 does not look into logical volumes, but into mappings above them.
#[test]
fn what_a_tenant_writes_is_not_read_as_a_group() {
    for has_its_uuid in [false, true] {
        let bed = Bed::new(&[160]);
        let directory = tempfile::tempdir().unwrap();
        let options = || LvmOptions::new(DRIVER).known_by(directory.path().join("disks"));
        let group = bed.open_with(options());
        thick(&group, "tenant", 32 * MIB);
        thick(&group, "victim", 8 * MIB);
        mark(&group, "victim", "of the victim");
        let mapping = Mapping::new(&group, "tenant");
        imitate(&bed, &mapping.path(), has_its_uuid);
        // Also one that starts now, with what it remembers or without.
        for group in [group, bed.open_with(options()), bed.open_with(LvmOptions::new(DRIVER))] {
            assert_eq!(group.list().unwrap().len(), 2);
            assert!(volume_has(&group, "victim", "of the victim"));
            thick(&group, "new", 8 * MIB);
            mark(&group, "new", "of the new one");
            assert!(has(&bed.images[0].file(), "of the new one"));
            assert_eq!(group.grow("new", 12 * MIB, None).unwrap().bytes, 12 * MIB);
            assert_eq!(group.delete(&volume("new")).unwrap(), LvmDeletion::Erasing);
            group.erase(&volume("new")).unwrap();
            assert!(!has(&bed.images[0].file(), "of the new one"));
            assert_eq!(group.find(&volume("new")).unwrap(), None);
        }
        // The administrator's own lvm sees both, and must not when the group is removed.
        run(
            "dd",
            &["if=/dev/zero", &format!("of={}", mapping.path().display()), "bs=1M", "count=2", "conv=fsync"],
        );
    }
}

/// The group is on these disks. Another one that has all of its metadata is none of them.
#[test]
fn a_copy_of_a_disk_is_not_the_disk() {
    let bed = Bed::new(&[64]);
    let directory = tempfile::tempdir().unwrap();
    let options = || LvmOptions::new(DRIVER).known_by(directory.path().join("disks"));
    let group = bed.open_with(options());
    thick(&group, "a", 8 * MIB);
    let copy = Image::new(68);
    copy.write(0, &bed.images[0].read(0, 4 * MIB as usize));
    for group in [group, bed.open_with(options())] {
        thick(&group, "b", 8 * MIB);
        mark(&group, "b", "of the new one");
        assert!(has(&bed.images[0].file(), "of the new one"));
        assert!(!has(&copy.file(), "of the new one"));
        group.delete(&volume("b")).unwrap();
        group.erase(&volume("b")).unwrap();
    }
    copy.write(0, &vec![0; 4 * MIB as usize]);
    // The administrator adds a disk.
    lvm(&["vgextend", "--yes", &bed.name, copy.path().to_str().unwrap()]);
    let error = bed.open().list().map(drop).and_then(|()| VolumeGroup::open(&bed.name, options()).map(drop));
    let error = error.unwrap_err();
    assert!([ErrorKind::Unreadable, ErrorKind::WrongDevice].contains(&error.kind()), "{error}");
    fs::remove_file(directory.path().join("disks")).unwrap();
    assert_eq!(bed.open_with(options()).capacity(&LvmLayout::Thick).unwrap().available, 120 * MIB);
    lvm(&["vgreduce", "--yes", &bed.name, copy.path().to_str().unwrap()]);
}

/// How much was written to a disk, in bytes.
fn written(disk: &Image) -> u64 {
    let name = disk.path().file_name().unwrap().to_str().unwrap();
    let stat = fs::read_to_string(format!("/sys/class/block/{name}/stat")).unwrap();
    stat.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
}

/// A command of the administrator leaves a tenant's data in free extents, between the places that a sample reads.
#[test]
fn what_an_administrator_leaves_is_erased_before_the_next_volume() {
    const TEXT: &str = "of the tenant";
    let bed = Bed::new(&[256, 256]);
    let [first, second] = [0, 1].map(|disk: usize| bed.images[disk].path().to_str().unwrap());
    let tenant = bed.volume("csi-tenant");
    let copy = bed.volume("copy");
    let move_to = |from: &str, to: &str| {
        lvm(&["pvmove", "--interval", "0", "--name", "csi-tenant", from, to]);
    };
    let move_away = || move_to(first, second);
    let split = || {
        lvm(&["lvchange", "-ay", "-K", &tenant]);
        lvm(&["lvconvert", "--yes", "--type", "mirror", "-m1", "--mirrorlog", "core", &tenant]);
        lvm(&["lvconvert", "--yes", "--splitmirrors", "1", "--name", "copy", &tenant]);
        lvm(&["lvremove", "--yes", &copy]);
        lvm(&["lvchange", "-an", &tenant]);
    };
    let there_and_back = || {
        move_to(first, second);
        move_to(second, first);
    };
    // What is done, and whether a new process deletes the volume: one that remembers, or one without the file.
    let cases = [
        ("moved", &move_away as &dyn Fn(), None),
        ("moved, then restarted", &move_away, Some(true)),
        ("moved, then forgotten", &move_away, Some(false)),
        ("split", &split, None),
        ("moved there and back, then restarted", &there_and_back, Some(true)),
    ];
    for (what, leave, restart) in cases {
        let directory = tempfile::tempdir().unwrap();
        let options = || LvmOptions::new(DRIVER).allow_others().known_by(directory.path().join("known"));
        let group = bed.open_with(options());
        let all = group.capacity(&LvmLayout::Thick).unwrap().available;
        thick(&group, "all", all);
        erased(&group, "all");
        // All of it is known to be zero now.
        thick(&group, "tenant", 200 * MIB);
        with_device(&group, "tenant", |path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(TEXT.as_bytes(), 100 * MIB + 12 * 1024).unwrap();
            file.sync_all().unwrap();
        });
        leave();
        let group = match restart {
            None => group,
            Some(true) => bed.open_with(options()),
            Some(false) => bed.open(),
        };
        erased(&group, "tenant");
        let found = || bed.images.iter().any(|image| has(&image.file(), TEXT));
        assert!(found(), "{what}: nothing is left by the command");
        thick(&group, "next", all);
        assert!(!found(), "{what}");
        erased(&group, "next");
    }
}

/// Deletes a volume.
fn erased(group: &VolumeGroup, name: &str) {
    group.delete(&volume(name)).unwrap();
    group.erase(&volume(name)).unwrap();
}

/// It can take hours, and so only happens where the driver does not know better.
#[test]
fn what_was_erased_is_not_erased_again() {
    let bed = Bed::new(&[256]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("known");
    let options = || LvmOptions::new(DRIVER).known_by(&file);
    let group = bed.open_with(options());
    let creating = |group: &VolumeGroup, name: &str, bytes| {
        let before = written(&bed.images[0]);
        thick(group, name, bytes);
        written(&bed.images[0]) - before
    };
    assert!(creating(&group, "a", 160 * MIB) >= 160 * MIB);
    erased(&group, "a");
    assert!(creating(&group, "b", 160 * MIB) < 16 * MIB);
    // What was not erased counts.
    assert!(creating(&group, "c", 32 * MIB) >= 32 * MIB);
    erased(&group, "b");
    erased(&group, "c");
    // A volume grows, and its part is in two extents; a new process knows it too.
    let group = bed.open_with(options());
    assert!(creating(&group, "d", 192 * MIB) < 16 * MIB);
    erased(&group, "d");
    assert!(creating(&group, "d", 96 * MIB) < 16 * MIB);
    let before = written(&bed.images[0]);
    group.grow("d", 160 * MIB, None).unwrap();
    assert!(written(&bed.images[0]) - before < 16 * MIB);
    erased(&group, "d");
    // A volume that nobody erased.
    group.create(&LvmRequest::new("e", 96 * MIB).erase(EraseMode::None)).unwrap();
    group.delete(&volume("e")).unwrap();
    assert!(creating(&group, "f", 96 * MIB) >= 96 * MIB);
    erased(&group, "f");
    // Any command of another one.
    assert!(fs::read_to_string(&file).unwrap().contains("zeros"));
    lvm(&["vgchange", "--yes", "--addtag", "seen", &bed.name]);
    assert!(creating(&group, "g", 96 * MIB) >= 96 * MIB);
    assert!(!fs::read_to_string(&file).unwrap().contains("zeros"));
    erased(&group, "g");
}

/// What is set for the administrator's lvm concerns the driver only where it says so.
#[test]
fn lvm_conf_is_checked_and_changes_nothing() {
    let bed = Bed::new(&[64]).with_pool("pool", 24);
    let directory = Path::new("/etc/lvm");
    fs::create_dir_all(directory).unwrap();
    let Settings(file) = &Settings::new(directory.join("lvm.conf"));
    for (settings, is_fine) in [
        ("", false),
        ("devices { global_filter = [ \"a|^/dev/loop.*|\", \"r|.*|\" ] }", true),
        ("devices { use_devicesfile = 1 }", false),
        (
            "report { separator = \"|\" list_item_separator = \";\" prefixes = 1 quoted = 0 aligned = 0 headings = 0 \
             columns_as_rows = 1 binary_values_as_numeric = 1 time_format = \"%F\" mark_hidden_devices = 1 \
             two_word_unknown_device = 1 buffered = 0 }\n\
             global { units = \"k\" si_unit_consistency = 0 suffix = 1 }\n\
             log { verbose = 3 silent = 1 prefix = \"x\" report_command_log = 1 command_names = 1 }",
            false,
        ),
    ] {
        fs::write(file, settings).unwrap();
        let group = bed.open();
        let found = group.preflight();
        assert_eq!(found.verdict == Verdict::Fine, is_fine, "{settings}: {found}");
        for layout in [LvmLayout::Thick, thin("pool")] {
            let made = group.create(&LvmRequest::new("a", 8 * MIB).layout(layout)).unwrap();
            assert_eq!(group.find(&made.name).unwrap().as_ref(), Some(&made), "{settings}");
            mark(&group, "a", "content");
            assert!(volume_has(&group, "a", "content"), "{settings}");
            assert_eq!(group.grow("a", 12 * MIB, None).unwrap().bytes, 12 * MIB, "{settings}");
            if group.delete(&made.name).unwrap() == LvmDeletion::Erasing {
                group.erase(&made.name).unwrap();
            }
            assert_eq!(group.find(&made.name).unwrap(), None, "{settings}");
            fs::remove_file(file).unwrap();
            assert_eq!(bed.logical_volumes(), ["pool"], "{settings}");
            fs::write(file, settings).unwrap();
        }
    }
}

/// Settings of the machine's lvm, which are removed with it.
struct Settings(PathBuf);

impl Settings {
    /// Only where there are none.
    fn new(file: PathBuf) -> Self {
        fs::File::create_new(&file).expect("this machine is not the test's own");
        Self(file)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// lvm would remove it with its volume, and its extents have the data.
#[test]
fn an_administrators_snapshot_is_not_removed() {
    let bed = Bed::new(&[64]);
    let group = bed.open_with(LvmOptions::new(DRIVER).allow_others());
    thick(&group, "a", 8 * MIB);
    lvm(&["lvcreate", "--yes", "-s", "-L", "4m", "-n", "keep", &bed.volume("csi-a")]);
    let error = group.delete(&volume("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("snapshot keep"), "{error}");
    lvm(&["lvremove", "--yes", &bed.volume("keep")]);
    assert_eq!(group.delete(&volume("a")).unwrap(), LvmDeletion::Erasing);
    // It is made while the volume is erased.
    lvm(&["lvchange", "--yes", "-ay", "-K", &bed.volume("csi-a")]);
    lvm(&["lvcreate", "--yes", "-s", "-L", "4m", "-n", "keep", &bed.volume("csi-a")]);
    let error = group.erase(&volume("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(bed.logical_volumes().contains(&"keep".to_owned()));
    lvm(&["lvremove", "--yes", &bed.volume("keep")]);
    group.erase(&volume("a")).unwrap();
    assert!(bed.logical_volumes().is_empty());
}

/// The device mapper freezes what is mounted from the volume itself, and not what is mounted from a mapping of it.
#[test]
fn a_snapshot_has_what_was_written_to_a_mapping() {
    let bed = Bed::new(&[96]).with_pool("pool", 64);
    let group = bed.open_with(LvmOptions::new(DRIVER).overcommit(300));
    let request = |name: &str| LvmRequest::new(name, 32 * MIB).layout(thin("pool"));
    group.create(&request("a")).unwrap();
    let mapping = Mapping::new(&group, "a");
    run("mkfs.ext4", &["-q", mapping.path().to_str().unwrap()]);
    let directory = tempfile::tempdir().unwrap();
    let target = Target::new(directory.path()).unwrap();
    Mount::new("ext4", &mapping.path()).at(&target).unwrap();
    let write = |name: &str| {
        let mut file = fs::File::create(directory.path().join(name)).unwrap();
        file.write_all(&vec![7; MIB as usize]).unwrap();
    };
    write("before");
    let snapshot = group.snapshot("s", "a").unwrap();
    write("before-copy");
    let copy = group.create(&request("c").source(volume("a"))).unwrap();
    group.create(&request("r").source(snapshot.name.clone())).unwrap();
    // A process that makes a snapshot is killed.
    run("fsfreeze", &["--freeze", directory.path().to_str().unwrap()]);
    drop(bed.open());
    write("after");
    unmount(&target).unwrap();
    drop(mapping);
    for (name, files) in [("r", &["before"][..]), ("c", &["before", "before-copy"])] {
        with_device(&group, name, |path| {
            let options = csi_mount::MountOptions::parse(["ro"]).unwrap();
            Mount::new("ext4", path).options(&options).at(&target).unwrap();
            for file in files {
                let content = fs::read(directory.path().join(file)).unwrap_or_default();
                assert!(content == vec![7; MIB as usize], "{name}: {file} has {} bytes", content.len());
            }
            assert!(!directory.path().join("after").exists());
            unmount(&target).unwrap();
        });
    }
    for name in [volume("r"), copy.name, snapshot.name, volume("a")] {
        group.delete(&name).unwrap();
    }
}

/// A delete writes to the metadata before it frees any of it.
#[test]
fn volumes_can_be_deleted_when_the_metadata_is_full() {
    let image = Image::new(512);
    let name = format!("small{}", std::process::id());
    let small = ["--metadatasize", "64k", "--dataalignment", "64k"];
    lvm(&[&["vgcreate", "--yes"], &small[..], &[&name, image.path().to_str().unwrap()]].concat());
    let bed = Bed { images: vec![image], name };
    // An administrator's tags take most of it.
    let free = lvm(&["vgs", "--noheadings", "--units", "b", "--nosuffix", "-o", "vg_mda_free", &bed.name]);
    let tags = (free.trim().parse::<usize>().unwrap() - (20 << 10)) / 1004;
    let tags: Vec<String> = (0..tags).map(|number| format!("{number:0>1000}")).collect();
    let adds: Vec<&str> = tags.iter().flat_map(|tag| ["--addtag", tag]).collect();
    lvm(&[&["vgchange", "--yes"], &adds[..], &[&bed.name]].concat());
    let archived = || fs::read_dir("/etc/lvm/archive").map_or(0, Iterator::count);
    let before = archived();
    let group = bed.open();
    let made = |number: usize| format!("pvc-3f2a0c1e-0f6b-4d0e-9f43-{number:012}");
    let full = (0..32).find_map(|number| {
        let error = group.create(&LvmRequest::new(made(number), MIB)).err()?;
        Some((number, error))
    });
    let (count, error) = full.expect("the metadata becomes full before the disk");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("metadata areas"), "{error}");
    assert_eq!(group.capacity(&LvmLayout::Thick).unwrap().available, 0);
    assert!(count > 1, "{count} volumes");
    for number in 0..count {
        assert_eq!(group.delete(&volume(&made(number))).unwrap(), LvmDeletion::Erasing);
    }
    for number in 0..count {
        group.erase(&volume(&made(number))).unwrap();
    }
    assert!(bed.logical_volumes().is_empty());
    assert_eq!(archived(), before, "lvm keeps a copy of the metadata for each change");
}

/// lvm2 has names of its own for the parts of volumes.
#[test]
fn every_name_can_be_created() {
    let bed = Bed::new(&[256]).with_pool("pool", 64);
    let group = bed.open_with(LvmOptions::new(DRIVER).overcommit(1000));
    for name in [
        "cdata",
        "cmeta",
        "corig",
        "cpool",
        "cvol",
        "extra_imeta",
        "imeta",
        "iorig",
        "mimage",
        "mlog",
        "mlogtmp",
        "pmspare",
        "pvmove",
        "rimage",
        "rmeta",
        "snapshot",
        "tdata",
        "tmeta",
        "vdata",
        "vorigin",
        "wcorig",
        "lvol0",
        "h_0",
        "-",
        ".",
    ] {
        group.create(&LvmRequest::new(name, MIB).layout(thin("pool"))).unwrap();
    }
    for found in group.list().unwrap() {
        assert_eq!(group.delete(&found.name).unwrap(), LvmDeletion::Removed);
    }
    assert_eq!(bed.logical_volumes(), ["pool"]);
}
