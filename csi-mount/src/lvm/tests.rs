//! What is read from reports, and what is decided by them.

use serde_json::{Value, json};

use crate::device::sysfs::Sysfs;
use crate::erase::EraseMode;
use crate::error::ErrorKind;
use crate::lvm::create::LvmRequest;
use crate::lvm::disks::{Known, KnownDisk, settings};
use crate::lvm::group::{LvmLayout, LvmOptions, VolumeGroup, judge};
use crate::lvm::report::{Found, Kind, PoolFacts, Report};
use crate::lvm::zeros::Zeros;

/// As lvm2 2.03.16 prints it.
fn printed() -> Value {
    json!({"report": [{
        "vg": [{
            "vg_uuid": "lHfw9V-wRGi-UGNd-xV0l-ZGgG-3r14-dTF00F", "vg_extent_size": "4194304", "vg_free_count": "10",
            "vg_shared": "", "vg_clustered": "", "vg_partial": "", "vg_exported": "", "vg_mda_free": "520192",
            "vg_seqno": "7",
        }],
        "pv": [
            {"pv_uuid": "one", "pv_name": "/dev/sdb", "pv_major": "8", "pv_minor": "16", "pv_free": "20971520", "pv_allocatable": "allocatable", "pv_missing": "", "pv_tags": "fast,ssd"},
            {"pv_uuid": "two", "pv_name": "/dev/sdc", "pv_major": "8", "pv_minor": "32", "pv_free": "16777216", "pv_allocatable": "allocatable", "pv_missing": "", "pv_tags": ""},
            {"pv_uuid": "three", "pv_name": "/dev/unknown", "pv_major": "-1", "pv_minor": "-1", "pv_free": "4194304", "pv_allocatable": "", "pv_missing": "", "pv_tags": "ssd"},
        ],
        "lv": [
            volume("csi-a", "linear", "", "8388608"),
            volume("pool", "thin,pool", "", "41943040"),
            volume("csi-t", "thin,sparse", "pool", "20971520"),
            volume("csisnap-s", "thin,sparse", "pool", "12582912"),
        ],
        "seg": [
            {"lv_uuid": "csi-a", "zero": "unknown", "seg_pe_ranges": "/dev/sdb:0-0", "transaction_id": "", "thin_id": ""},
            {"lv_uuid": "csi-a", "zero": "unknown", "seg_pe_ranges": "/dev/sdc:7-7", "transaction_id": "", "thin_id": ""},
            {"lv_uuid": "pool", "zero": "zero", "seg_pe_ranges": "pool_tdata:0-9", "transaction_id": "3", "thin_id": ""},
            {"lv_uuid": "csi-t", "zero": "", "seg_pe_ranges": "", "transaction_id": "1", "thin_id": "1"},
            {"lv_uuid": "csisnap-s", "zero": "", "seg_pe_ranges": "", "transaction_id": "2", "thin_id": "2"},
        ],
    }]})
}

fn volume(name: &str, layout: &str, pool: &str, bytes: &str) -> Value {
    let tags =
        if pool.is_empty() && name == "pool" { "" } else { "csi.driver=d,csi.volume=a,csi.state=ready" };
    json!({
        "lv_name": name, "lv_uuid": name, "lv_size": bytes, "lv_tags": tags, "lv_layout": layout, "pool_lv": pool,
        "origin": "", "data_percent": "12.50", "metadata_percent": "", "lv_when_full": "queue",
        "lv_check_needed": "", "lv_health_status": "", "lv_active": "active", "lv_device_open": "", "lv_time": "1764189832",
    })
}

fn parse(printed: &Value) -> crate::Result<Report> {
    Report::parse(printed.to_string().as_bytes())
}

#[test]
fn a_report_is_read() {
    let report = parse(&printed()).unwrap();
    assert_eq!((report.extent, report.free_extents, report.flaws.len()), (4 << 20, 10, 0));
    let disks = report.disks.iter().map(|disk| (disk.free >> 20, disk.number.map(|number| number.minor)));
    assert_eq!(disks.collect::<Vec<_>>(), [(20, Some(16)), (16, Some(32)), (0, None)]);
    let kinds: Vec<&Kind> = report.volumes.iter().map(|found| &found.kind).collect();
    let facts = PoolFacts { data_percent: Some(12.5), zeroes: true, transaction: 3, ..PoolFacts::default() };
    let thin = |id| Kind::Thin { pool: "pool".to_owned(), id, transaction: id };
    assert_eq!(kinds, [&Kind::Thick, &Kind::Pool(facts), &thin(1), &thin(2)]);
    assert_eq!(report.volumes[0].tags.len(), 3);
    assert_eq!(report.volumes[0].extents, ["/dev/sdb:0-0", "/dev/sdc:7-7"]);
}

#[test]
fn a_report_that_lacks_something_is_no_report() {
    for text in
        ["", "notice\n{}", "{}", r#"{"report":[]}"#, r#"{"report":[{}]}"#, r#"{"report":[{"vg":[]}]}"#]
    {
        let error = Report::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreadable, "{text}: {error}");
    }
    for (part, at, field) in [
        ("vg", 0, "vg_shared"),
        ("vg", 0, "vg_mda_free"),
        ("pv", 1, "pv_missing"),
        ("pv", 1, "pv_uuid"),
        ("lv", 1, "lv_tags"),
        ("seg", 2, "zero"),
        ("seg", 1, "seg_pe_ranges"),
    ] {
        let mut printed = printed();
        printed["report"][0][part][at].as_object_mut().unwrap().remove(field);
        let error = parse(&printed).unwrap_err();
        assert_eq!(error.to_string(), format!("read lvm's report: it has no {field}"));
    }
    let mut wrong = printed();
    wrong["report"][0]["lv"][0]["lv_size"] = "8.00m".into();
    assert_eq!(parse(&wrong).unwrap_err().kind(), ErrorKind::Unreadable);
}

#[test]
fn volume_groups_that_are_refused() {
    let uuid = "lHfw9V-wRGi-UGNd-xV0l-ZGgG-3r14-dTF00F";
    let mut shared = printed();
    shared["report"][0]["vg"][0]["vg_shared"] = "shared".into();
    let mut partial = printed();
    partial["report"][0]["vg"][0]["vg_partial"] = "partial".into();
    let mut clustered = printed();
    clustered["report"][0]["vg"][0]["vg_clustered"] = "clustered".into();
    let ours = || LvmOptions::new("d");
    for (printed, uuid, options, expected) in [
        (printed(), None, ours(), None),
        (printed(), Some(uuid), ours(), None),
        (printed(), Some("another"), ours(), Some((ErrorKind::WrongDevice, "and not another"))),
        (shared, None, ours().allow_others(), Some((ErrorKind::Unreadable, "shared with other nodes"))),
        (partial, None, ours().allow_others(), Some((ErrorKind::Unreadable, "disks are missing"))),
        (clustered, None, ours().allow_others(), Some((ErrorKind::Unreadable, "clustered"))),
        (
            printed(),
            None,
            LvmOptions::new("e"),
            Some((ErrorKind::NotOwned, "3 of its logical volumes are not of e")),
        ),
        (printed(), None, LvmOptions::new("e").allow_others(), None),
    ] {
        let error = judge(&parse(&printed).unwrap(), uuid, &options).err();
        let Some((kind, text)) = expected else {
            assert!(error.is_none(), "{error:?}");
            continue;
        };
        let error = error.expect(text);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn free_space_is_whole_extents_of_usable_disks() {
    let report = parse(&printed()).unwrap();
    let free = |options: LvmOptions, layout: LvmLayout| report.free(&options, &layout) >> 20;
    let ours = || LvmOptions::new("d");
    let on = |tag: &str| LvmLayout::ThickOn(tag.to_owned());
    for (options, layout, expected) in [
        (ours(), LvmLayout::Thick, 36),
        (ours(), on("ssd"), 20),
        (ours(), on("hdd"), 0),
        (ours().reserve(1), LvmLayout::Thick, 36),
        (ours().reserve((4 << 20) + 1), LvmLayout::Thick, 32),
        (ours().reserve(u64::MAX), LvmLayout::Thick, 0),
    ] {
        assert_eq!(free(options.clone(), layout.clone()), expected, "{options:?} {layout:?}");
    }
    for (bytes, rounded) in
        [(0, Some(4)), (1, Some(4)), (4 << 20, Some(4)), ((4 << 20) + 1, Some(8)), (u64::MAX, None)]
    {
        assert_eq!(report.round_up(bytes).map(|bytes| bytes >> 20), rounded);
    }
}

#[test]
fn a_pool_takes_what_its_ratio_allows_while_it_is_well() {
    let room = |percent: u32, change: &dyn Fn(&mut Value)| {
        let mut printed = printed();
        change(&mut printed["report"][0]);
        parse(&printed).unwrap().room_in_pool("d", &LvmOptions::new("d").overcommit(percent), "pool")
    };
    for (percent, mebibytes) in [(100, 8), (200, 48), (110, 12), (0, 0)] {
        assert_eq!(room(percent, &|_| {}).unwrap() >> 20, mebibytes, "{percent} %");
    }
    let set = |field: &'static str, value: &'static str| {
        move |report: &mut Value| report["lv"][1][field] = value.into()
    };
    assert!(room(100, &set("data_percent", "80.00")).is_ok());
    assert!(room(100, &set("data_percent", "")).is_ok(), "it is not active");
    for (change, kind) in [
        (set("data_percent", "80.01"), ErrorKind::NoSpace),
        (set("metadata_percent", "70.01"), ErrorKind::NoSpace),
        (set("lv_check_needed", "check needed"), ErrorKind::NoSpace),
        (set("lv_health_status", "out_of_data"), ErrorKind::NoSpace),
        // Another node can have it: the caller looks there.
        (set("lv_layout", "linear"), ErrorKind::NoSpace),
    ] {
        assert_eq!(room(100, &change).unwrap_err().kind(), kind);
    }
    let huge = |report: &mut Value| {
        for at in [2, 3] {
            report["lv"][at]["lv_size"] = u64::MAX.to_string().into();
        }
    };
    assert_eq!(room(u32::MAX, &huge).unwrap(), 0);
    let skips_zeroing = |report: &mut Value| report["seg"][2]["zero"] = "".into();
    assert_eq!(room(100, &skips_zeroing).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// A delete changes the metadata before it can free any.
#[test]
fn the_last_of_the_metadata_is_for_deletes() {
    let mut printed = printed();
    for (left, takes) in
        [(520_192, true), ((16 << 10) + 4 * 64, true), ((16 << 10) + 4 * 64 - 1, false), (0, false)]
    {
        printed["report"][0]["vg"][0]["vg_mda_free"] = left.to_string().into();
        let error = parse(&printed).unwrap().require_metadata("d").err();
        assert_eq!(error.is_none(), takes, "{left}: {error:?}");
        assert!(error.is_none_or(|error| error.kind() == ErrorKind::NoSpace));
    }
}

/// A disk of the machine of the tests: of `/sys` there are only what its disks are known by.
fn sysfs(root: &std::path::Path, disks: &[(&str, &str, &str)]) -> Sysfs {
    for (name, number, serial) in disks {
        let place = root.join("devices").join(name);
        for link in [root.join("class/block").join(name), root.join("dev/block").join(number)] {
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(&place, link).unwrap();
        }
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("dev"), number).unwrap();
        std::fs::write(place.join("serial"), serial).unwrap();
    }
    Sysfs::below(root)
}

/// Names and numbers of disks change with a reboot.
#[test]
fn lvm_reads_the_known_disks_whatever_their_names_are_and_no_others() {
    let [first, second] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let before = sysfs(first.path(), &[("sda", "8:0", "system"), ("sdb", "8:16", "a"), ("sdc", "8:32", "b")]);
    let after =
        sysfs(second.path(), &[("sda", "8:0", "b"), ("sdb", "8:16", "a"), ("sdc", "8:32", "tenant's")]);
    let names = |disks: Option<&[KnownDisk]>, sysfs: &Sysfs| {
        let settings = settings(disks, sysfs).unwrap();
        let (_, names) = settings.split_once("global_filter=[").unwrap();
        names.trim_end_matches("]}").replace(['"', '^', '$'], "")
    };
    assert_eq!(names(None, &before), "a|/dev/sda|,a|/dev/sdb|,a|/dev/sdc|,r|.*|");
    let mut report = parse(&printed()).unwrap();
    let missing = Known::of(&report, &before).unwrap_err();
    assert!(missing.to_string().contains("its physical volume three is on no device"), "{missing}");
    report.disks.pop();
    let known = Known::of(&report, &before).unwrap();
    let file = first.path().join("group.disks");
    assert_eq!(Known::read(&file).unwrap(), None);
    known.write(&file).unwrap();
    assert_eq!(Known::read(&file).unwrap(), Some(known.clone()));
    assert_eq!(names(Some(&known.disks), &before), "a|/dev/sdb|,a|/dev/sdc|,r|.*|");
    assert_eq!(names(Some(&known.disks), &after), "a|/dev/sdb|,a|/dev/sda|,r|.*|");
    std::fs::remove_file(second.path().join("class/block/sda")).unwrap();
    let gone = settings(Some(&known.disks), &after).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Unreadable);
    assert!(gone.to_string().contains("its disk b (two) is not attached"), "{gone}");
    // Another disk is in the group, or one less.
    super::disks::judge(&report, &known.disks).unwrap();
    report.disks.pop();
    assert_eq!(super::disks::judge(&report, &known.disks).unwrap_err().kind(), ErrorKind::WrongDevice);
    std::fs::write(&file, "something else").unwrap();
    assert_eq!(Known::read(&file).unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn extents_are_zero_until_somebody_else_changes_the_group() {
    let mut report = parse(&printed()).unwrap();
    let volume = |extents: &[&str]| {
        let extents = extents.iter().map(|run| (*run).to_owned()).collect();
        Found { extents, ..parse(&printed()).unwrap().volumes[0].clone() }
    };
    let mut zeros = Zeros::default();
    zeros.follow(&report, 0);
    zeros.add(&report, &volume(&["/dev/sdc:5-5", "/dev/sdb:10-19"]));
    zeros.add(&report, &volume(&["/dev/sdb:0-9"]));
    assert_eq!(zeros.to_lines(), "zeros 7 one 0 19\nzeros 7 two 5 5\n");
    assert!(zeros.take(&report, &volume(&["/dev/sdb:5-9", "/dev/sdb:10-14"])));
    assert_eq!(zeros.to_lines(), "zeros 7 one 0 4\nzeros 7 one 15 19\nzeros 7 two 5 5\n");
    assert!(!zeros.take(&report, &volume(&["/dev/sdb:4-5"])));
    assert!(!zeros.take(&report, &volume(&["/dev/sdb:4-4"])));
    let mut read = Zeros::default();
    for line in zeros.to_lines().lines() {
        read.read_line(line).unwrap();
    }
    assert_eq!(read, zeros);
    for line in ["", "zeros", "zeros 7 one 0", "zeros 7 one 0 x", "disk one 0 1 2"] {
        assert_eq!(read.clone().read_line(line), None, "{line}");
    }
    // This driver changes the group once, and then another does.
    report.seqno = 8;
    read.follow(&report, 1);
    assert_eq!(read.to_lines(), "zeros 8 one 0 3\nzeros 8 one 15 19\nzeros 8 two 5 5\n");
    read.follow(&report, 0);
    report.seqno = 10;
    read.follow(&report, 1);
    assert!(read.is_empty());
    // What is on a disk that is not known says nothing about the others.
    zeros.take(&report, &volume(&["/dev/sdx:0-0"]));
    assert!(zeros.is_empty());
}

/// The volume group of this report, which a program in place of lvm prints.
fn open(directory: &tempfile::TempDir, printed: &Value) -> VolumeGroup {
    let report = directory.path().join("report");
    let mut printed = printed.clone();
    // This machine has no such disks.
    printed["report"][0].as_object_mut().unwrap().remove("pv");
    std::fs::write(&report, printed.to_string()).unwrap();
    let launcher = ["sh", "-c", "cat \"$0\"", report.to_str().unwrap()];
    VolumeGroup::open("group", LvmOptions::new("d").launcher(launcher)).unwrap()
}

/// An error would leave the scheduler with the capacity that it knew before.
#[test]
fn a_pool_that_takes_no_volume_has_no_capacity() {
    let directory = tempfile::tempdir().unwrap();
    let capacity = |change: &dyn Fn(&mut Value)| {
        let mut printed = printed();
        change(&mut printed["report"][0]);
        open(&directory, &printed).capacity(&LvmLayout::Thin("pool".to_owned())).unwrap()
    };
    assert_eq!(capacity(&|_| {}).available, 8 << 20);
    for gone in [
        capacity(&|report| report["lv"][1]["lv_name"] = "another".into()),
        capacity(&|report| report["seg"][2]["zero"] = "".into()),
        capacity(&|report| report["lv"][1]["lv_check_needed"] = "check needed".into()),
    ] {
        assert_eq!((gone.available, gone.maximum, gone.minimum), (0, 0, 4 << 20));
    }
}

#[test]
fn a_volume_of_another_class_is_not_what_a_create_asks_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut printed = printed();
    let volumes = printed["report"][0]["lv"].as_array_mut().unwrap();
    volumes.truncate(1);
    volumes[0]["lv_tags"] = "csi.driver=d,csi.volume=a,csi.state=ready,csi.disks=ssd,csi.erase=none".into();
    let group = open(&directory, &printed);
    let on = |tag: &str| LvmLayout::ThickOn(tag.to_owned());
    for (layout, mode, differs) in [
        (on("ssd"), EraseMode::None, None),
        (on("hdd"), EraseMode::None, Some("with another layout")),
        (LvmLayout::Thick, EraseMode::None, Some("with another layout")),
        (on("ssd"), EraseMode::Zero, Some("with another erase mode (none)")),
    ] {
        let made = group.create(&LvmRequest::new("a", 8 << 20).layout(layout.clone()).erase(mode));
        let Some(differs) = differs else {
            assert_eq!(made.unwrap().layout, layout);
            continue;
        };
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(error.to_string().contains(differs), "{error}");
    }
}
