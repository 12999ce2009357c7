//! The health of a driver as it changes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use csi_core::Rpc;
use csi_proto::{ControllerCapability, NodeCapability, v1};
use nix::sys::signal::Signal;
use serde_json::Value;
use tonic::Status;

use crate::support::*;

#[derive(Default, Clone)]
struct Health {
    unwell: Vec<(&'static str, &'static str, &'static str)>,
    storage: Vec<&'static str>,
    is_broken: bool,
}

type State = Arc<Mutex<Health>>;

fn sick() -> (Fake, State) {
    let state = State::default();
    let told = state.clone();
    let fake = Fake::new(move |rpc, _| {
        let health = told.lock().unwrap().clone();
        async move { tell(rpc, &health) }
    });
    (fake, state)
}

fn volume(volume_id: &str, reason: &str, message: &str) -> v1::VolumeHealth {
    let status = v1::VolumeHealthErrorType::Degraded.into();
    let reason = reason.into();
    let message = message.into();
    let entry = v1::volume_health::VolumeHealthEntry { status, reason, message };
    v1::VolumeHealth { volume_id: volume_id.to_owned(), health_statuses: vec![entry] }
}

fn tell(rpc: Rpc, health: &Health) -> Result<Answers, Status> {
    match rpc {
        Rpc::Probe => answer(&v1::ProbeResponse::default()),
        Rpc::ControllerGetCapabilities => {
            use ControllerCapability::{GetVolumeHealth, ListVolumeHealth};
            answer(&controller_offers([GetVolumeHealth, ListVolumeHealth]))
        }
        Rpc::NodeGetCapabilities => answer(&node_offers([NodeCapability::GetStorageHealth])),
        Rpc::ControllerListVolumeHealth if health.is_broken => Err(Status::unavailable("the array is away")),
        Rpc::ControllerListVolumeHealth => answer(&v1::ControllerListVolumeHealthResponse {
            entries: health.unwell.iter().map(|(id, reason, message)| volume(id, reason, message)).collect(),
            ..Default::default()
        }),
        Rpc::NodeGetStorageHealth => {
            use v1::node_get_storage_health_response::StorageBackendHealth;
            let one = |reason: &&str| StorageBackendHealth {
                status: v1::StorageHealthErrorType::StorageUnreachable.into(),
                reason: (*reason).to_owned(),
                ..Default::default()
            };
            answer(&v1::NodeGetStorageHealthResponse {
                backend_health: health.storage.iter().map(one).collect(),
            })
        }
        other => Err(Status::unimplemented(other.name())),
    }
}

/// The line without its time, with repeated spaces collapsed.
fn short(line: &str) -> String {
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_begins_changes_and_ends_is_a_line_and_ctrl_c_ends_it() {
    let (fake, state) = sick();
    let mut watch = Running::start(csi(&fake.socket()).args(["watch", "--interval", "20ms"]));
    let mut line = |health: Health| {
        *state.lock().unwrap() = health;
        short(&watch.line().unwrap())
    };
    let well = Health::default();
    assert_eq!(line(well.clone()), "= no problems");
    let slow = Health { unwell: vec![("pvc-1", "DiskSlow", "a path is lost")], ..well.clone() };
    assert_eq!(line(slow.clone()), "+ controller pvc-1 DEGRADED DiskSlow: a path is lost");
    let slower = Health { unwell: vec![("pvc-1", "DiskSlow", "two are lost")], ..well.clone() };
    assert_eq!(line(slower.clone()), "~ controller pvc-1 DEGRADED DiskSlow: two are lost");
    // A source that does not answer leaves its earlier problems as they were.
    assert_eq!(
        line(Health { is_broken: true, ..slower.clone() }),
        "+ csi ControllerListVolumeHealth UNAVAILABLE NotAnswered: the array is away"
    );
    assert_eq!(
        line(slower.clone()),
        "- csi ControllerListVolumeHealth UNAVAILABLE NotAnswered: the array is away"
    );
    assert_eq!(
        line(Health { storage: vec!["NoPath"], ..slower.clone() }),
        "+ node storage STORAGE_UNREACHABLE NoPath"
    );
    assert_eq!(line(slower), "- node storage STORAGE_UNREACHABLE NoPath");
    assert_eq!(line(well.clone()), "- controller pvc-1 DEGRADED DiskSlow: two are lost");
    assert_eq!(line(well), "= no problems");
    watch.signal(Signal::SIGINT);
    let (status, rest, errors) = watch.finish();
    assert_eq!((status, rest.as_str()), (Some(130), ""), "{errors}");
    let first = "csi: checking every 20ms: Probe, NodeGetStorageHealth, ControllerListVolumeHealth\n";
    assert_eq!(errors, first);
}

#[test]
fn json_has_a_line_an_event() {
    let (fake, state) = sick();
    state.lock().unwrap().unwell.push(("pvc-1", "DiskSlow", "a path is lost"));
    let words = ["watch", "--interval", "20ms", "--output", "json"];
    let mut watch = Running::start(csi(&fake.socket()).args(words));
    let event: Value = serde_json::from_str(&watch.line().unwrap()).unwrap();
    let of = |name: &str| event[name].as_str().unwrap();
    assert_eq!((of("event"), of("seenBy"), of("subject")), ("begins", "controller", "pvc-1"));
    assert_eq!((of("status"), of("reason"), of("message")), ("DEGRADED", "DiskSlow", "a path is lost"));
    assert!(of("time").starts_with("20") && of("time").ends_with('Z'), "{event}");
    state.lock().unwrap().unwell.clear();
    let event: Value = serde_json::from_str(&watch.line().unwrap()).unwrap();
    assert_eq!(event["event"], "ends");
    let event: Value = serde_json::from_str(&watch.line().unwrap()).unwrap();
    assert_eq!(event["event"], "well");
    watch.signal(Signal::SIGTERM);
    assert_eq!(watch.finish().0, Some(143));
}

#[test]
fn once_says_it_with_its_status() {
    let (fake, state) = sick();
    let well = run(&fake.socket(), &["watch", "--once"]);
    assert_eq!(short(&ok(&well)), "= no problems");
    state.lock().unwrap().storage.push("NoPath");
    let unwell = run(&fake.socket(), &["watch", "--once"]);
    assert_eq!(unwell.status.code(), Some(1));
    assert_eq!(short(&stdout(&unwell)), "+ node storage STORAGE_UNREACHABLE NoPath");
}

#[test]
fn a_driver_that_goes_away_and_comes_back_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let (fake, _) = sick();
    std::os::unix::fs::symlink(fake.socket(), &socket).unwrap();
    let mut watch = Running::start(csi(&socket).args(["watch", "--interval", "20ms"]));
    assert_eq!(short(&watch.line().unwrap()), "= no problems");
    drop(fake);
    // It goes away between any two calls of a round.
    let gone: BTreeSet<String> = (0..3).map(|_| short(&watch.line().unwrap())).collect();
    let due = ["Probe", "NodeGetStorageHealth", "ControllerListVolumeHealth"]
        .map(|rpc| format!("+ csi {rpc} UNAVAILABLE NotReached: no process answers on the socket"));
    assert_eq!(gone, BTreeSet::from(due));
    let (back, _) = sick();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(back.socket(), &link).unwrap();
    std::fs::rename(link, &socket).unwrap();
    let ended = watch.until("= no problems");
    assert_eq!(ended.lines().count(), 4, "{ended}");
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.finish().0, Some(130));
}

#[test]
fn volumes_that_are_named_are_asked_for_in_the_form_that_the_driver_has() {
    let (fake, _) = sick();
    // This driver offers the health of single volumes and does not implement it.
    let output = run(&fake.socket(), &["watch", "--once", "--volume-id", "pvc-1"]);
    let said = short(&stdout(&output));
    assert_eq!(
        said,
        "+ csi ControllerGetVolumeHealth pvc-1 UNIMPLEMENTED NotAnswered: ControllerGetVolumeHealth"
    );
    let older = Fake::new(async |rpc, _| older(rpc));
    let output = run(&older.socket(), &["watch", "--once"]);
    let mut lines = stdout(&output);
    lines.retain(|letter| letter != '\n');
    assert_eq!(short(&lines), "+ controller pvc-9 ABNORMAL VolumeCondition: it is torn");
    let nothing = Fake::new(async |rpc, _| match rpc {
        Rpc::Probe => answer(&v1::ProbeResponse::default()),
        _ => Err(Status::unimplemented("no")),
    });
    let shown = errors(&run(&nothing.socket(), &["watch", "--volume-id", "pvc-1"]), 2);
    assert!(shown.contains("does not report the health of volumes"), "{shown}");
}

/// A driver for spec 1.12.
#[allow(deprecated, reason = "it speaks 1.12")]
fn older(rpc: Rpc) -> Result<Answers, Status> {
    match rpc {
        Rpc::Probe => answer(&v1::ProbeResponse::default()),
        Rpc::ControllerGetCapabilities => {
            use ControllerCapability::{ListVolumes, VolumeCondition};
            answer(&controller_offers([ListVolumes, VolumeCondition]))
        }
        Rpc::ListVolumes => {
            let entry = |id: &str, abnormal| v1::list_volumes_response::Entry {
                volume: Some(v1::Volume { volume_id: id.to_owned(), ..Default::default() }),
                status: Some(v1::list_volumes_response::VolumeStatus {
                    volume_condition: Some(v1::VolumeCondition { abnormal, message: "it is torn".into() }),
                    ..Default::default()
                }),
            };
            answer(&v1::ListVolumesResponse {
                entries: vec![entry("pvc-8", false), entry("pvc-9", true)],
                ..Default::default()
            })
        }
        other => Err(Status::unimplemented(other.name())),
    }
}
