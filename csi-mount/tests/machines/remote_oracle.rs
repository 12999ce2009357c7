//! The same attach and detach by hand, with `iscsiadm`, `multipath` and `nvme`, and by this crate: the machine is
//! in the same state afterwards. Each difference is in a list here, with its reason. The times of both are printed,
//! and how many programs and processes were started.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and the programs.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use csi_mount::remote::{RemoteDisks, RemoteTarget};

use crate::devices::{eventually, run};
use crate::iscsi_target;
use crate::iscsi_target::{ADDRESSES, Lio, iscsiadm};
use crate::multipath_node::{dmsetup, has_native_multipath, maps, multipathd, shown, udevd};
use crate::nvme_target;
use crate::nvme_target::Nvmet;
use crate::started::{Cost, cost_of};

const ROUNDS: u32 = 3;
/// How long udev and multipathd have until the state no longer changes.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);

/// Every attribute that is compared, by the name of its place.
type State = BTreeMap<String, String>;

/// A difference that is meant: a part of the attribute's name, and the reason.
type Reason = (&'static str, &'static str);

/// An attach and a detach by hand.
struct ByHand<'s> {
    attach: &'s dyn Fn(),
    detach: &'s dyn Fn(),
}

fn read(place: impl AsRef<Path>) -> String {
    fs::read_to_string(place).map_or_else(|error| error.kind().to_string(), |text| text.trim().to_owned())
}

fn names_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Adds these attributes of a directory.
fn add(state: &mut State, what: &str, directory: &Path, attributes: &[&str]) {
    for attribute in attributes {
        state.insert(format!("{what}: {attribute}"), read(directory.join(attribute)));
    }
}

/// What is compared of a disk's queue, of SCSI, NVMe or the device mapper.
const QUEUE: [&str; 10] = [
    "size",
    "ro",
    "removable",
    "queue/scheduler",
    "queue/nr_requests",
    "queue/read_ahead_kb",
    "queue/max_sectors_kb",
    "queue/discard_max_bytes",
    "queue/write_cache",
    "queue/rotational",
];

/// Those that the kernel gives a session or connection by its number, or by the time at which it is made.
const OF_ONE_SESSION: [&str; 8] =
    ["uevent", "creator", "isid", "tsid", "sid", "target_id", "local_port", "exp_statsn"];

/// The sessions of iSCSI with all their attributes, their units, disks, and the node's database.
fn iscsi_state(lio: &Lio, portals: &[SocketAddr]) -> State {
    let mut state = State::new();
    let mut portal_of = BTreeMap::new();
    for connection in names_in("/sys/class/iscsi_connection") {
        let place = Path::new("/sys/class/iscsi_connection").join(&connection);
        let session = connection.replace("connection", "session").replace(":0", "");
        let portal =
            format!("{}:{}", read(place.join("persistent_address")), read(place.join("persistent_port")));
        for (kind, class, name) in
            [("connection", "iscsi_connection", &connection), ("session", "iscsi_session", &session)]
        {
            let directory = format!("/sys/class/{class}/{name}");
            let mut attributes = names_in(&directory);
            attributes.retain(|name| {
                let is_file = Path::new(&directory).join(name).is_file();
                is_file && !OF_ONE_SESSION.contains(&&**name)
            });
            let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
            add(&mut state, &format!("{kind} at {portal}"), Path::new(&directory), &attributes);
        }
        portal_of.insert(session, portal);
    }
    for unit in names_in("/sys/bus/scsi/devices") {
        let place = fs::canonicalize(format!("/sys/bus/scsi/devices/{unit}")).unwrap();
        let Some(lun) = unit.rsplit(':').next().filter(|_| unit.contains(':') && !unit.contains('t')) else {
            continue;
        };
        let mut steps = place.iter().filter_map(|step| portal_of.get(step.to_str()?));
        let what = format!("unit {lun} at {}", steps.next().map_or("?", String::as_str));
        let attributes = ["type", "vendor", "model", "rev", "scsi_level", "state", "timeout", "eh_timeout"];
        add(&mut state, &what, &place, &attributes);
        add(&mut state, &what, &place, &["queue_depth", "queue_type", "wwid", "access_state", "blacklist"]);
        for disk in names_in(place.join("block").to_str().unwrap()) {
            add(&mut state, &format!("{what}: disk"), &place.join("block").join(disk), &QUEUE);
        }
    }
    for record in iscsi_target::node_records() {
        state.insert(format!("database: {}", record.display()), "exists".to_owned());
    }
    for portal in portals {
        let at = portal.to_string();
        let shown = Command::new("iscsiadm").args(["-m", "node", "-T", &lio.iqn, "-p", &at, "-S"]).output();
        let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
        for (key, value) in shown.lines().filter_map(|line| line.split_once('=')) {
            state.insert(format!("record of {at}: {}", key.trim()), value.trim().to_owned());
        }
    }
    state
}

/// The controllers of NVMe, their subsystems, and their disks.
fn nvme_state() -> State {
    let mut state = State::new();
    let mut portal_of = BTreeMap::new();
    for name in names_in("/sys/class/nvme") {
        let place = Path::new("/sys/class/nvme").join(&name);
        let address = read(place.join("address"));
        let port = address.split("trsvcid=").nth(1).unwrap_or("?").split(',').next().unwrap().to_owned();
        let what = format!("controller at {port}");
        let of_fabrics = ["transport", "subsysnqn", "hostnqn", "hostid", "state", "kato", "queue_count"];
        add(&mut state, &what, &place, &of_fabrics);
        let times = ["ctrl_loss_tmo", "reconnect_delay", "fast_io_fail_tmo", "sqsize", "dhchap_secret"];
        add(&mut state, &what, &place, &times);
        add(
            &mut state,
            &what,
            &place,
            &["model", "serial", "firmware_rev", "cntrltype", "dctype", "tls_key"],
        );
        portal_of.insert(name, port);
    }
    for name in names_in("/sys/class/nvme-subsystem") {
        let place = Path::new("/sys/class/nvme-subsystem").join(name);
        let attributes = ["subsysnqn", "model", "serial", "firmware_rev", "iopolicy", "subsystype"];
        add(&mut state, "subsystem", &place, &attributes);
    }
    for disk in names_in("/sys/block").iter().filter(|name| name.starts_with("nvme")) {
        let place = Path::new("/sys/block").join(disk);
        let real = fs::canonicalize(&place).unwrap();
        // With native multipath the disk belongs to the subsystem, and a hidden one to each controller.
        let mut controllers = real.iter().filter_map(|step| portal_of.get(step.to_str()?));
        let what = format!("disk at {}", controllers.next_back().map_or("the subsystem", String::as_str));
        add(&mut state, &what, &place, &["nguid", "uuid", "wwid", "nsid", "ana_grpid", "ana_state"]);
        add(&mut state, &what, &place, &QUEUE);
    }
    state
}

/// The maps, and what multipathd knows.
fn add_maps(state: &mut State) {
    for (name, uuid) in maps() {
        let words = |text: String| {
            let words = text.split_whitespace().map(|word| if word.contains(':') { "path" } else { word });
            words.collect::<Vec<_>>().join(" ")
        };
        state.insert(format!("map {name}: uuid"), uuid);
        state.insert(format!("map {name}: table"), words(dmsetup(&["table", &name])));
        let columns = "attr,open,segments,subsystem,readonly,suspended";
        state.insert(
            format!("map {name}: facts"),
            dmsetup(&["info", "-c", "--noheadings", "-o", columns, &name]).trim().to_owned(),
        );
        let number = fs::read_dir("/sys/block")
            .unwrap()
            .flatten()
            .find(|disk| read(disk.path().join("dm/name")) == name);
        add(state, &format!("map {name}: disk"), &number.unwrap().path(), &QUEUE);
    }
    let mut paths: Vec<String> =
        shown(&["show", "paths", "raw", "format", "%w %S %t"]).lines().map(str::to_owned).collect();
    paths.sort();
    state.insert("multipathd: paths".to_owned(), paths.join(", "));
    state.insert("multipathd: maps".to_owned(), shown(&["show", "maps", "raw", "format", "%n %w %S %Q %N"]));
    for file in ["wwids", "bindings"] {
        let text = read(Path::new("/etc/multipath").join(file));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        state.insert(format!("multipathd: {file}"), lines.join(" "));
    }
}

/// The attributes that differ without a reason.
fn differences(by_hand: &State, own: &State, reasons: &[Reason]) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = by_hand.keys().chain(own.keys()).collect();
    let differing = names.into_iter().filter(|name| by_hand.get(*name) != own.get(*name));
    let differing = differing.filter(|name| !reasons.iter().any(|(part, _)| name.contains(part)));
    differing
        .map(|name| format!("{name}: by hand {:?}, csi-mount {:?}", by_hand.get(name), own.get(name)))
        .collect()
}

fn assert_same(what: &str, by_hand: &State, state: &dyn Fn() -> State, reasons: &[Reason]) {
    let end = Instant::now() + SETTLE_LIMIT;
    loop {
        let found = differences(by_hand, &state(), reasons);
        if found.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "{what}:\n{}", found.join("\n"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Attaches and detaches by hand and by csi-mount in turn, compares, and prints a row for each step.
fn compare(
    title: &str,
    target: &RemoteTarget,
    by_hand: &ByHand<'_>,
    state: &dyn Fn() -> State,
    reasons: &[Reason],
) {
    let directory = tempfile::tempdir().unwrap();
    let disks = RemoteDisks::new(directory.path().join("remote"));
    let before = state();
    let mut costs: [[Cost; 2]; 2] = Default::default();
    let mut is_needed = vec![false; reasons.len()];
    for round in 0..ROUNDS {
        costs[0][0].add(cost_of(by_hand.attach).1);
        let attached = state();
        costs[0][1].add(cost_of(by_hand.detach).1);
        let detached = state();

        let (device, cost) = cost_of(|| disks.attach("pvc", target).unwrap());
        costs[1][0].add(cost);
        drop(device);
        assert_same(&format!("{title}: attached, round {round}"), &attached, state, reasons);
        let own = state();
        for (needed, reason) in is_needed.iter_mut().zip(reasons) {
            let names = attached.keys().chain(own.keys()).filter(|name| name.contains(reason.0));
            *needed |= names.into_iter().any(|name| attached.get(name) != own.get(name));
        }
        let (_, cost) = cost_of(|| disks.detach("pvc").unwrap());
        costs[1][1].add(cost);
        assert_same(&format!("{title}: detached, round {round}"), &detached, state, &[]);
        assert_same(
            &format!("{title}: as before, round {round}"),
            &before,
            state,
            &[("multipathd: wwids", "multipath keeps the names of the disks that it has seen")],
        );
    }
    for ((part, reason), is_needed) in reasons.iter().zip(is_needed) {
        println!("differs: {part}: {reason}");
        assert!(is_needed, "{title}: {part} does not differ");
    }
    print(title, &costs);
}

/// Prints rows for docs/remote-disks.md, of one round.
fn print(title: &str, costs: &[[Cost; 2]; 2]) {
    for (step, name) in ["attach", "detach"].iter().enumerate() {
        let [by_hand, own] = [&costs[0][step], &costs[1][step]];
        let text = |cost: &Cost| {
            let of_one_round = |(name, count): (&String, &u32)| match f64::from(*count) / f64::from(ROUNDS) {
                1.0 => name.clone(),
                several => format!("{name} {}", (several * 10.0).round() / 10.0),
            };
            let programs: Vec<String> = cost.programs.iter().map(of_one_round).collect();
            let seconds = cost.time.as_secs_f64() / f64::from(ROUNDS);
            let processes = cost.processes / ROUNDS;
            let programs = if programs.is_empty() { "none".to_owned() } else { programs.join(", ") };
            format!("{seconds:.2} s | {programs} | {processes}")
        };
        let relation = own.time.as_secs_f64() / by_hand.time.as_secs_f64();
        println!("| {title}: {name} | {} | {} | {relation:.1} |", text(by_hand), text(own));
    }
}

/// The name of the only map, and the number of its paths. Read from sysfs: a program would be counted.
fn map() -> Option<(String, usize)> {
    let mut disks = fs::read_dir("/sys/block").unwrap().flatten();
    let map = disks.find(|disk| read(disk.path().join("dm/uuid")).starts_with("mpath-"))?.path();
    Some((read(map.join("dm/name")), fs::read_dir(map.join("slaves")).ok()?.count()))
}

/// The paths that the map has and multipathd uses.
fn paths() -> usize {
    let used = shown(&["show", "maps", "raw", "format", "%N"]);
    map().map_or(0, |(_, paths)| paths).min(used.trim().parse().unwrap_or(0))
}

fn remove_map() {
    let (name, _) = map().expect("a map");
    // udev or multipathd can have it open for a moment.
    eventually("the map is removed", || {
        Command::new("multipath").args(["-f", &name]).output().unwrap().status.success().then_some(())
    });
}

/// What csi-mount writes into its record of open-iscsi's database in another way.
const RECORD: [Reason; 2] = [
    ("node.session.scan", "one LUN is scanned, not all of the target"),
    (
        "node.session.initial_login_retry_max",
        "an orchestrator repeats the attach, so a login is tried less often",
    ),
];

fn iscsi(title: &str, lio: &Lio, portals: &[SocketAddr], with_maps: bool) {
    let node = |portal: &SocketAddr, more: &[&str]| {
        iscsiadm(&[&["-m", "node", "-T", &*lio.iqn, "-p", &*portal.to_string()][..], more].concat());
    };
    let attach = || {
        for portal in portals {
            node(portal, &["-o", "new"]);
            node(portal, &["--login"]);
        }
        eventually("the disk", || {
            let found = if with_maps { paths() } else { iscsi_target::disks().len() };
            (found == portals.len()).then_some(())
        });
    };
    let detach = || {
        if with_maps {
            remove_map();
        }
        for portal in portals {
            node(portal, &["--logout"]);
            node(portal, &["-o", "delete"]);
        }
        eventually("it is gone", || {
            (iscsi_target::disks().is_empty() && iscsi_target::sessions().is_empty()).then_some(())
        });
    };
    let state = || {
        let mut state = iscsi_state(lio, portals);
        if with_maps {
            add_maps(&mut state);
        }
        state
    };
    compare(title, &lio.unit(0).into(), &ByHand { attach: &attach, detach: &detach }, &state, &RECORD);
}

#[test]
fn iscsi_on_one_portal() {
    let lio = Lio::new("oracle", 1, 1);
    iscsi("iSCSI, 1 portal", &lio, &[iscsi_target::address(3260)], false);
}

#[test]
fn iscsi_on_one_portal_with_multipathd() {
    let lio = Lio::new("oracle", 1, 1);
    let _daemons = [udevd(), multipathd("find_multipaths no")];
    iscsi("iSCSI, 1 portal, multipathd", &lio, &[iscsi_target::address(3260)], true);
}

#[test]
fn iscsi_on_two_portals_with_multipathd() {
    let lio = Lio::on_two_addresses("moracle", 1);
    let _daemons = [udevd(), multipathd("find_multipaths no")];
    let portals = ADDRESSES.map(|address| SocketAddr::from((address, 3260)));
    iscsi("iSCSI, 2 portals, multipathd", &lio, &portals, true);
}

fn nvme(title: &str, ports: u16, with_maps: bool) {
    let nvmet = Nvmet::new("oracle", 1, ports);
    let attach = || {
        nvmet.ports.iter().for_each(|port| nvme_target::connect_by_hand(&nvmet.nqn, *port));
        eventually("the disk", || {
            let disks = names_in("/sys/block").into_iter().filter(|name| name.starts_with("nvme"));
            // The disk, and a hidden one for each path.
            let found = if with_maps { paths() + 1 } else { disks.count() };
            (found == nvmet.ports.len() + 1).then_some(())
        });
    };
    let detach = || {
        if with_maps {
            remove_map();
        }
        run("nvme", &["disconnect", "-n", &nvmet.nqn]);
        eventually("it is gone", || nvme_target::disks().is_empty().then_some(()));
    };
    let state = || {
        let mut state = nvme_state();
        if with_maps {
            add_maps(&mut state);
        }
        state
    };
    let target = nvmet.target(0).into();
    compare(title, &target, &ByHand { attach: &attach, detach: &detach }, &state, &[]);
}

#[test]
fn native_nvme_on_one_portal() {
    nvme("NVMe, 1 portal", 1, false);
}

#[test]
fn native_nvme_on_two_portals() {
    nvme("NVMe, 2 portals", 2, false);
}

#[test]
fn nvme_with_maps_on_one_portal() {
    assert!(!has_native_multipath(), "boot with nvme_core.multipath=N");
    let _daemons = [udevd(), multipathd("find_multipaths no")];
    nvme("NVMe, 1 portal, multipathd", 1, true);
}

#[test]
fn nvme_with_maps_on_two_portals() {
    assert!(!has_native_multipath(), "boot with nvme_core.multipath=N");
    let _daemons = [udevd(), multipathd("find_multipaths no")];
    nvme("NVMe, 2 portals, multipathd", 2, true);
}
