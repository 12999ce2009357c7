//! Volumes of LVM: their life, what is refused, and that no tenant sees the data of another.
//!
//! The tests need a device mapper and run on a machine of their own: `cargo xtask test --kernels … csi-mount/lvm`, and not with
//! `cargo test` alone.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use csi_mount::internal::{DeviceQuestions as _, EraseOptions, Probe, erase};
use csi_mount::lvm::{
    EraseMode, LvmDeletion, LvmLayout, LvmName, LvmOptions, LvmRequest, LvmState, LvmWhenFull, VolumeGroup,
};
use csi_mount::{BlockDevice, ErrorKind};

use crate::devices::{Image, MIB, eventually, run};
use crate::lvm_support::{
    Bed, DRIVER, EXTENT, has, lvm, mark, script, setting, thick, thin, volume_has, with_device,
};

#[test]
fn the_life_of_a_thick_volume() {
    let bed = Bed::new(&[64, 64]);
    let group = bed.open();
    let free = |group: &VolumeGroup| group.capacity(&LvmLayout::Thick).unwrap().available;
    let capacity = group.capacity(&LvmLayout::Thick).unwrap();
    assert_eq!((capacity.available, capacity.maximum, capacity.minimum), (128 * MIB, 128 * MIB, EXTENT));
    // Rounded up to whole extents, and found again.
    let volume = thick(&group, "pvc-1", 41 * MIB);
    assert_eq!(
        (volume.bytes, volume.state, &*volume.logical_volume),
        (44 * MIB, LvmState::Ready, "csi-pvc-1")
    );
    assert_eq!(thick(&group, "pvc-1", 44 * MIB), volume);
    assert_eq!(group.list().unwrap(), std::slice::from_ref(&volume));
    let age = volume.created.elapsed().expect("it was made before");
    assert!(age < Duration::from_secs(3600), "{age:?}");
    assert_eq!(free(&group), 84 * MIB);
    for (request, kind) in [
        (LvmRequest::new("pvc-1", 45 * MIB), ErrorKind::AlreadyExists),
        (LvmRequest::new("pvc-1", MIB).limit(40 * MIB), ErrorKind::AlreadyExists),
        (LvmRequest::new("pvc-1", MIB).layout(thin("pool")), ErrorKind::AlreadyExists),
        (LvmRequest::new("pvc-1", MIB).source(LvmName::Volume("x".into())), ErrorKind::AlreadyExists),
        (LvmRequest::new("pvc-2", 85 * MIB), ErrorKind::NoSpace),
        (LvmRequest::new("pvc-2", u64::MAX), ErrorKind::OutOfRange),
        (LvmRequest::new("pvc-2", 41 * MIB).limit(43 * MIB), ErrorKind::OutOfRange),
        (LvmRequest::new("", MIB), ErrorKind::InvalidInput),
        (LvmRequest::new("pvc-2", MIB).layout(thin("pool")), ErrorKind::NoSpace),
        (LvmRequest::new("pvc-2", MIB).source(LvmName::Volume("pvc-1".into())), ErrorKind::Unsupported),
        (LvmRequest::new("pvc-2", MIB).layout(LvmLayout::ThickOn("ssd".to_owned())), ErrorKind::NoSpace),
    ] {
        let error = group.create(&request).unwrap_err();
        assert_eq!(error.kind(), kind, "{request:?}: {error}");
    }
    // Disks of a class.
    lvm(&["pvchange", "--addtag", "ssd", bed.images[1].path().to_str().unwrap()]);
    let on_ssd = LvmLayout::ThickOn("ssd".to_owned());
    assert_eq!(group.capacity(&on_ssd).unwrap().available, 64 * MIB);
    let small = LvmRequest::new("a b/ü", 4 * MIB).layout(on_ssd.clone()).erase(EraseMode::None);
    let small = group.create(&small).unwrap();
    assert_eq!((&small.layout, group.find(&small.name).unwrap().as_ref()), (&on_ssd, Some(&small)));
    assert_eq!(group.grow("a b/ü", 64 * MIB, None).unwrap().bytes, 64 * MIB);
    assert_eq!(group.capacity(&on_ssd).unwrap().available, 0);
    group.delete(&small.name).unwrap();
    // In use while it grows.
    assert!(group.device("pvc-1").unwrap().is_none());
    let device = group.activate("pvc-1").unwrap();
    assert_eq!(group.device("pvc-1").unwrap().map(|device| device.number()), Some(device.number()));
    assert_eq!(group.activate("pvc-1").unwrap().number(), device.number());
    let busy = group.deactivate("pvc-1").unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    assert_eq!(group.grow("pvc-1", 60 * MIB, None).unwrap().bytes, 60 * MIB);
    assert_eq!(device.size().unwrap(), 60 * MIB);
    assert_eq!(group.grow("pvc-1", MIB, None).unwrap().bytes, 60 * MIB);
    let busy = group.delete(&volume.name).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    drop(device);
    group.deactivate("pvc-1").unwrap();
    group.deactivate("pvc-1").unwrap();
    assert_eq!(group.snapshot("s", "pvc-1").unwrap_err().kind(), ErrorKind::Unsupported);
    // Its space is taken until it is erased.
    assert_eq!(group.delete(&volume.name).unwrap(), LvmDeletion::Erasing);
    assert_eq!(group.delete(&volume.name).unwrap(), LvmDeletion::Erasing);
    assert_eq!(free(&group), 68 * MIB);
    for error in [
        group.create(&LvmRequest::new("pvc-1", MIB)).unwrap_err(),
        group.activate("pvc-1").unwrap_err(),
        group.grow("pvc-1", 68 * MIB, None).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Pending, "{error}");
    }
    group.erase(&volume.name).unwrap();
    assert_eq!((free(&group), group.find(&volume.name).unwrap()), (128 * MIB, None));
    assert_eq!(group.delete(&volume.name).unwrap(), LvmDeletion::Removed);
    assert_eq!(group.activate("pvc-1").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        bed.open_with(LvmOptions::new(DRIVER).reserve(5 * MIB))
            .capacity(&LvmLayout::Thick)
            .unwrap()
            .available,
        120 * MIB
    );
}

#[test]
fn the_life_of_thin_volumes() {
    let bed = Bed::new(&[128]).with_pool("pool", 64);
    let group = bed.open_with(LvmOptions::new(DRIVER).overcommit(200));
    let request = |name: &str, mebibytes: u64| LvmRequest::new(name, mebibytes * MIB).layout(thin("pool"));
    let room = || group.capacity(&thin("pool")).unwrap().available / MIB;
    assert_eq!(room(), 128);
    group.create(&request("a", 24)).unwrap();
    let unused = group.snapshot("unused", "a").unwrap();
    group.set_staged("a").unwrap();
    group.set_staged("a").unwrap();
    assert_eq!(group.set_staged("b").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!unused.was_staged && group.find(&LvmName::Volume("a".into())).unwrap().unwrap().was_staged);
    group.delete(&unused.name).unwrap();
    mark(&group, "a", "first");
    let snapshot = group.snapshot("s", "a").unwrap();
    assert_eq!(
        (&snapshot.source, group.snapshot("s", "a").unwrap()),
        (&Some(LvmName::Volume("a".into())), snapshot.clone())
    );
    assert_eq!(room(), 128 - 48);
    mark(&group, "a", "other");
    let restored = group.create(&request("r", 32).source(snapshot.name.clone())).unwrap();
    assert_eq!((restored.bytes, &restored.source), (32 * MIB, &Some(snapshot.name.clone())));
    assert_eq!(group.create(&request("r", 32).source(snapshot.name.clone())).unwrap(), restored);
    let clone = group.create(&request("c", 1).source(LvmName::Volume("a".into()))).unwrap();
    assert_eq!(clone.bytes, 24 * MIB, "not smaller than its source");
    for (volume, text, is_there) in
        [("r", "first", true), ("r", "other", false), ("c", "other", true), ("a", "first", false)]
    {
        assert_eq!(volume_has(&group, volume, text), is_there, "{volume} {text}");
    }
    // Its user does not get the header.
    let headed = |name: &str, mebibytes: u64| request(name, mebibytes).header(4 * MIB);
    let encrypted = group.create(&headed("h", 4)).unwrap();
    assert_eq!((encrypted.bytes, room()), (4 * MIB, 128 - 48 - 32 - 24 - 8));
    assert_eq!(group.create(&headed("h", 4).limit(4 * MIB)).unwrap(), encrypted);
    assert_eq!(group.grow("h", 7 * MIB, None).unwrap().bytes, 8 * MIB);
    // In extents of 4 MiB it would have 12 MiB.
    let refused = group.grow("h", 9 * MIB, Some(11 * MIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfRange, "{refused}");
    assert_eq!(group.find(&LvmName::Volume("h".into())).unwrap().unwrap().bytes, 8 * MIB);
    let copy = group.create(&headed("i", 1).source(LvmName::Volume("h".into()))).unwrap();
    assert_eq!(copy.bytes, 8 * MIB);
    for (request, kind) in [
        (request("h", 8), ErrorKind::AlreadyExists),
        (request("new", 8).source(LvmName::Volume("h".into())), ErrorKind::Unsupported),
        (headed("new", 8).source(LvmName::Volume("r".into())), ErrorKind::Unsupported),
    ] {
        let error = group.create(&request).unwrap_err();
        assert_eq!(error.kind(), kind, "{request:?}: {error}");
        assert!(error.to_string().contains("header"), "{error}");
    }
    for name in ["h", "i"] {
        assert_eq!(group.delete(&LvmName::Volume(name.into())).unwrap(), LvmDeletion::Removed);
    }
    for (request, kind) in [
        (request("r", 32), ErrorKind::AlreadyExists),
        (request("new", 25), ErrorKind::NoSpace),
        (request("new", 1).source(LvmName::Volume("none".into())), ErrorKind::NotFound),
        (request("new", 1).source(LvmName::Volume("a".into())).limit(20 * MIB), ErrorKind::OutOfRange),
        (LvmRequest::new("new", MIB).source(snapshot.name.clone()), ErrorKind::Unsupported),
    ] {
        let error = group.create(&request).unwrap_err();
        assert_eq!(error.kind(), kind, "{request:?}: {error}");
    }
    assert_eq!(group.snapshot("s", "c").unwrap_err().kind(), ErrorKind::AlreadyExists);
    group.snapshot("t", "a").unwrap();
    // The source goes first.
    for name in [
        LvmName::Volume("a".into()),
        snapshot.name,
        LvmName::Volume("c".into()),
        LvmName::Snapshot("t".into()),
    ] {
        assert_eq!(group.delete(&name).unwrap(), LvmDeletion::Removed, "{name}");
    }
    assert!(volume_has(&group, "r", "first"));
    assert_eq!(group.grow("r", 40 * MIB, None).unwrap().bytes, 40 * MIB);
    assert!(volume_has(&group, "r", "first"));
    group.delete(&restored.name).unwrap();
    assert_eq!((room(), bed.logical_volumes()), (128, vec!["pool".to_owned()]));
    let [pool] = &*group.pools().unwrap() else { panic!("one pool") };
    assert_eq!(
        (pool.bytes, pool.promised, &pool.fault, pool.when_full),
        (64 * MIB, 0, &None, LvmWhenFull::Fail)
    );
}

/// Each tenant fills the volume group or the pool with its pattern; the next one searches all its blocks for it.
#[test]
fn an_erase_keeps_tenants_apart() {
    let rounds = setting("CSI_TEST_ROUNDS", 3);
    let bed = Bed::new(&[56]).with_pool("pool", 24);
    let group = bed.open();
    let layouts = [(LvmLayout::Thick, 24 * MIB), (thin("pool"), 24 * MIB)];
    for round in 0..rounds {
        for (at, (layout, bytes)) in layouts.iter().enumerate() {
            let name = format!("tenant-{at}-{round}");
            group.create(&LvmRequest::new(&name, *bytes).layout(layout.clone())).unwrap();
            with_device(&group, &name, |path| {
                assert!(!has(path, "secret of"), "round {round}, {layout:?}: data of another tenant");
                let text = format!("secret of {name} ").repeat(64);
                let mut file = OpenOptions::new().write(true).open(path).unwrap();
                let block: String = text.repeat((MIB as usize).div_ceil(text.len()));
                (0..bytes / MIB).for_each(|_| file.write_all(&block.as_bytes()[..MIB as usize]).unwrap());
                file.sync_all().unwrap();
            });
            let name = LvmName::Volume(name);
            if group.delete(&name).unwrap() == LvmDeletion::Erasing {
                group.erase(&name).unwrap();
            }
        }
    }
    println!("{rounds} rounds of {} tenants", layouts.len());
    // The search finds what is there; and what a delete without an erase left, the next create and growth find.
    group.create(&LvmRequest::new("careless", 24 * MIB).erase(EraseMode::None)).unwrap();
    mark(&group, "careless", "secret of the careless");
    assert!(volume_has(&group, "careless", "secret of"));
    assert_eq!(group.delete(&LvmName::Volume("careless".into())).unwrap(), LvmDeletion::Removed);
    assert!(has(&bed.images[0].file(), "secret of the careless"));
    thick(&group, "next", 4 * MIB);
    assert_eq!(group.grow("next", 24 * MIB, None).unwrap().bytes, 24 * MIB);
    assert!(!volume_has(&group, "next", "secret of"));
    assert!(!has(&bed.images[0].file(), "secret of the careless"));
}

/// The writer gets an error, and the driver sees it and creates nothing more there.
#[test]
fn a_full_pool_loses_nothing_in_silence() {
    let bed = Bed::new(&[64]).with_pool("pool", 16);
    let group = bed.open_with(LvmOptions::new(DRIVER).overcommit(400));
    group.create(&LvmRequest::new("a", 32 * MIB).layout(thin("pool"))).unwrap();
    let device = group.activate("a").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(device.path()).unwrap();
    let block = vec![7; MIB as usize];
    let written =
        (0..32).take_while(|at| file.write_all_at(&block, at * MIB).is_ok() && file.sync_data().is_ok());
    let written = written.count() as u64;
    assert!((12..=16).contains(&written), "{written} MiB were confirmed of 16");
    let [pool] = &*group.pools().unwrap() else { panic!("one pool") };
    assert_eq!(group.last_pools(), std::slice::from_ref(pool));
    assert!(pool.data_percent > Some(95.0) && pool.fault.is_some(), "{pool:?}");
    assert_eq!(group.capacity(&thin("pool")).unwrap().available, 0);
    for result in [
        group.create(&LvmRequest::new("b", EXTENT).layout(thin("pool"))),
        group.snapshot("s", "a"),
        group.grow("a", 36 * MIB, None),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }
    // What was confirmed is there.
    drop((file, device));
    group.deactivate("a").unwrap();
    let whole = with_device(&group, "a", |path| {
        let mut read = vec![0; MIB as usize];
        let file = OpenOptions::new().read(true).open(path).unwrap();
        (0..written).all(|at| file.read_exact_at(&mut read, at * MIB).is_ok() && read == block)
    });
    assert!(whole);
    group.delete(&LvmName::Volume("a".into())).unwrap();
}

#[test]
fn what_is_not_ours_or_not_whole_is_refused() {
    let bed = Bed::new(&[32, 32]);
    let options = || LvmOptions::new(DRIVER);
    let refused = |name: &str, options: LvmOptions, kind: ErrorKind| {
        let error = VolumeGroup::open(name, options).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        println!("{error}");
    };
    refused("none", options(), ErrorKind::Unreadable);
    refused("../data", options(), ErrorKind::InvalidInput);
    refused(&bed.name, options().launcher(["no-such-launcher"]), ErrorKind::MissingTool);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("group");
    fs::write(&file, "group another\n").unwrap();
    // Of a group with other disks, lvm is given none.
    refused(&bed.name, options().known_by(&file), ErrorKind::Unreadable);
    fs::remove_file(&file).unwrap();
    drop(bed.open_with(options().known_by(&file)));
    let known = fs::read_to_string(&file).unwrap();
    let (_, disks) = known.split_once('\n').unwrap();
    fs::write(&file, format!("group another\n{disks}")).unwrap();
    refused(&bed.name, options().known_by(&file), ErrorKind::WrongDevice);
    fs::write(&file, &known).unwrap();
    let group = bed.open_with(options().known_by(&file));
    // Logical volumes of others.
    thick(&group, "mine", 40 * MIB);
    lvm(&["lvcreate", "--yes", "-an", "-Zn", "-Wn", "-L", "4m", "-n", "root", &bed.name]);
    refused(&bed.name, options(), ErrorKind::NotOwned);
    refused(&bed.name, LvmOptions::new("another.example.org"), ErrorKind::NotOwned);
    let error = group.find(&LvmName::Volume("mine".into())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwned, "{error}");
    let tolerant = bed.open_with(options().allow_others());
    assert_eq!(tolerant.list().unwrap().len(), 1);
    assert_eq!(bed.open_with(LvmOptions::new("another.example.org").allow_others()).list().unwrap(), []);
    lvm(&["lvremove", "--yes", &bed.volume("root")]);
    // A pool that shows old data.
    lvm(&[
        "lvcreate",
        "--yes",
        "--type",
        "thin-pool",
        "-Zn",
        "-L",
        "8m",
        "--poolmetadatasize",
        "4m",
        "-n",
        "pool",
        &bed.name,
    ]);
    let error = group.create(&LvmRequest::new("thin", MIB).layout(thin("pool"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(group.capacity(&thin("pool")).unwrap().available, 0);
    assert!(group.pools().unwrap()[0].fault.as_ref().unwrap().contains("old data"));
    lvm(&["lvremove", "--yes", &bed.volume("pool")]);
    // The label of a disk is gone, and so the disk: nothing is said about a volume, and none is made.
    let label = bed.images[1].read(0, MIB as usize);
    bed.images[1].write(0, &vec![0; MIB as usize]);
    for result in [
        group.find(&LvmName::Volume("mine".into())).map(drop),
        group.find(&LvmName::Volume("none".into())).map(drop),
        group.delete(&LvmName::Volume("none".into())).map(drop),
        group.create(&LvmRequest::new("new", MIB)).map(drop),
        group.capacity(&LvmLayout::Thick).map(drop),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
        println!("{error}");
    }
    bed.images[1].write(0, &label);
    assert_eq!(group.list().unwrap().len(), 1);
}

/// lvcreate waits, as if it were stopped: nothing else is started, and its result is found.
#[test]
fn a_command_that_takes_long_is_not_repeated() {
    let bed = Bed::new(&[32]);
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let count = folder.path().join("count");
    let text = format!(
        "export DM_DISABLE_UDEV=1\nif [ $2 = lvcreate ]; then\n  echo once >> {}\n  until [ -e {} ]; do sleep 0.1; done\nfi\nexec \"$@\"\n",
        count.display(),
        go.display()
    );
    let launcher = script(&folder.path().join("lvm.sh"), &text);
    let group = bed.open_with(LvmOptions::new(DRIVER).launcher(launcher).time_limit(Duration::from_secs(3)));
    let request = LvmRequest::new("a", 8 * MIB);
    for _ in 0..2 {
        let error = group.create(&request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Pending, "{error}");
    }
    assert_eq!(group.list().unwrap(), [], "a list does not wait for it");
    fs::write(&go, "").unwrap();
    let volume = eventually("the volume is made", || match group.create(&request) {
        Ok(volume) => Some(volume),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Pending, "{error}");
            None
        }
    });
    assert_eq!((volume.bytes, fs::read_to_string(&count).unwrap()), (8 * MIB, "once\n".to_owned()));
}

/// A process or the machine dies in the middle of an erase; the next one goes on at the place that the tag has.
#[test]
fn an_erase_goes_on_after_a_restart() {
    let mut bed = Bed::new(&[3 << 10]);
    let group = bed.open();
    let volume = thick(&group, "a", 3 << 30);
    with_device(&group, "a", |path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        [0, BEFORE, AFTER, (3 << 30) - 4096].iter().for_each(|at| file.write_all_at(b"secret", *at).unwrap());
        file.sync_all().unwrap();
    });
    group.delete(&volume.name).unwrap();
    // At this rate the rest would take an hour.
    let slow = bed.open_with(LvmOptions::new(DRIVER).erase_rate(MIB));
    let eraser = slow.start_eraser().unwrap();
    let tags = || lvm(&["lvs", "--noheadings", "-o", "lv_tags", &bed.name]);
    assert!(tags().contains("csi.state=erasing"), "{}", tags());
    // An exclusive open of this test would disturb it.
    let open = || lvm(&["lvs", "--noheadings", "-o", "lv_device_open", &bed.name]);
    eventually("it has the device open", || open().contains("open").then_some(()));
    let error = slow.erase(&volume.name).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pending, "{error}");
    let start = Instant::now();
    drop(eraser);
    assert!(start.elapsed() < Duration::from_secs(60), "it ends after its step");
    // As a process that died after the first GiB left it, and the machine with it: nothing is active, and the disk is
    // another loop device.
    let after_one = ["--deltag", "csi.erased=0", "--addtag", "csi.erased=1073741824"];
    lvm(&[&["lvchange", "--yes"], &after_one[..], &[&*bed.volume("csi-a")]].concat());
    drop((group, slow));
    lvm(&["vgchange", "--activate", "n", &bed.name]);
    bed.images[0].attach_again();
    let eraser = bed.open().start_eraser().unwrap();
    eventually("it is erased", || bed.logical_volumes().is_empty().then_some(()));
    drop(eraser);
    // The first extent begins after the first MiB of the disk.
    let file = File::open(bed.images[0].file()).unwrap();
    let left = [0, BEFORE, AFTER, (3 << 30) - 4096].map(|at| {
        let mut read = [0; 6];
        file.read_exact_at(&mut read, MIB + at).unwrap();
        &read == b"secret"
    });
    assert_eq!(left, [false, true, false, false], "what was erased already is not erased again");
}

/// A create found another tenant's data, and died in the first part of its erase. What it found first is zero then.
#[test]
fn an_interrupted_create_goes_on_with_its_erase() {
    let bed = Bed::new(&[256]);
    let group = bed.open();
    thick(&group, "a", 256 * MIB);
    with_device(&group, "a", |path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        // Between two of the places that a sample of this device reads.
        file.write_all_at(b"secret", 100 * MIB + 512).unwrap();
        file.sync_all().unwrap();
        let device = BlockDevice::open(path).unwrap();
        assert!(matches!(device.probe(), Probe::Blank(_)), "a sample does not see it");
    });
    let as_it_died =
        ["--deltag", "csi.state=ready", "--addtag", "csi.state=creating", "--addtag", "csi.erased=0"];
    lvm(&[&["lvchange", "--yes"], &as_it_died[..], &[&*bed.volume("csi-a")]].concat());
    thick(&group, "a", 256 * MIB);
    assert!(!volume_has(&group, "a", "secret"));
}

/// Places before and after the one at which the erase goes on.
const BEFORE: u64 = (1 << 30) - 4096;
const AFTER: u64 = (1 << 30) + 4096;

/// The target `flakey` has no command for zeros, and can drop what is written.
#[test]
fn a_device_without_hole_punching_is_erased_and_one_that_lies_is_found() {
    let image = Image::new(48);
    let table = |rest: &str| format!("0 {} flakey {} 0 {rest}", 48 * MIB / 512, image.path().display());
    let create = |name: &str, table: &str| {
        run("env", &["DM_DISABLE_UDEV=1", "dmsetup", "create", name, "--table", table]);
        BlockDevice::open(format!("/dev/mapper/{name}")).unwrap()
    };
    image.write(20 * MIB, b"secret");
    image.write(0, b"secret");
    let device = create("liar", &table("0 600 1 drop_writes"));
    let error = erase(&device, EraseMode::Zero, EraseOptions::new(), |_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotBlank, "{error}");
    drop(device);
    run("env", &["DM_DISABLE_UDEV=1", "dmsetup", "remove", "liar"]);
    assert!(has(image.path(), "secret"));
    let device = create("plain", &table("600 0"));
    let limit =
        fs::read_to_string(format!("/sys/dev/block/{}/queue/write_zeroes_max_bytes", device.number()));
    assert_eq!(limit.unwrap().trim(), "0", "it can't punch holes");
    erase(&device, EraseMode::Zero, EraseOptions::new(), |_| Ok(())).unwrap();
    drop(device);
    run("env", &["DM_DISABLE_UDEV=1", "dmsetup", "remove", "plain"]);
    assert!(image.is_zero());
}
