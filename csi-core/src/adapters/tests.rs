//! Compares the tables of `docs/admission.md` with the code: what each RPC claims, and every pair of RPCs
//! about the same thing and about different things.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use csi_proto::{Rpc, v1};
use v1::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};

use crate::admission::{Admission, Admitted, Claim};
use crate::call::Call;
use crate::controller::{
    ControllerExpandVolumeRequest, ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest,
};
use crate::error::Error;
use crate::group_controller::{CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest};
use crate::node::{
    NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admission.md"));

/// What requests can be about. The test makes two requests that have some of these in common, and nothing
/// else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Thing {
    VolumeName,
    Volume,
    Node,
    SnapshotName,
    Snapshot,
    GroupName,
    Group,
    Target,
    Staging,
}

/// The letter of a cell, and what two requests of that pair have in common for it.
const LETTERS: [(char, &[Thing]); 9] = [
    ('M', &[Thing::VolumeName]),
    ('v', &[Thing::Volume]),
    ('n', &[Thing::Volume, Thing::Node]),
    ('S', &[Thing::SnapshotName]),
    ('s', &[Thing::Snapshot]),
    ('G', &[Thing::GroupName]),
    ('g', &[Thing::Group]),
    ('t', &[Thing::Target]),
    ('p', &[Thing::Staging]),
];

/// The text for a thing in one of two requests.
struct Names<'a> {
    request: &'static str,
    common: &'a [Thing],
}

impl Names<'_> {
    fn of(&self, thing: Thing) -> String {
        let whose = if self.common.contains(&thing) { "both" } else { self.request };
        match thing {
            Thing::Target => format!("/{whose}/target"),
            Thing::Staging => format!("/{whose}//staging/"),
            _ => format!("{whose}-{thing:?}"),
        }
    }

    fn volume(&self) -> String {
        self.of(Thing::Volume)
    }
}

fn capability() -> v1::VolumeCapability {
    use v1::volume_capability::{AccessMode, AccessType, BlockVolume};
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: 1 }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

fn source(source: SourceType) -> Option<v1::VolumeContentSource> {
    Some(v1::VolumeContentSource { r#type: Some(source) })
}

type Row = (&'static str, fn(&Names<'_>) -> Vec<Claim>);

/// Rows: an RPC by its name in the document, and a request whose claims it has. The request is read from its wire form,
/// like that of a call.
macro_rules! rows {
    ($names:ident: $($rpc:literal = $request:ident { $($field:ident: $value:expr),* })*) => {
        [$(($rpc, |$names| {
            #[allow(clippy::needless_update, reason = "some requests have no other fields")]
            let wire = v1::$request { $($field: $value,)* ..Default::default() };
            $request::try_from(wire).expect("a valid request").claims()
        })),*]
    };
}

/// Every RPC that changes something.
const ROWS: [Row; 18] = rows! { names:
    "CreateVolume" = CreateVolumeRequest {
        name: names.of(Thing::VolumeName), volume_capabilities: vec![capability()]
    }
    "CreateVolume from a volume" = CreateVolumeRequest {
        name: names.of(Thing::VolumeName), volume_capabilities: vec![capability()],
        volume_content_source: source(SourceType::Volume(VolumeSource { volume_id: names.volume() }))
    }
    "CreateVolume from a snapshot" = CreateVolumeRequest {
        name: names.of(Thing::VolumeName), volume_capabilities: vec![capability()],
        volume_content_source:
            source(SourceType::Snapshot(SnapshotSource { snapshot_id: names.of(Thing::Snapshot) }))
    }
    "DeleteVolume" = DeleteVolumeRequest { volume_id: names.volume() }
    "ControllerPublishVolume" = ControllerPublishVolumeRequest {
        volume_id: names.volume(), node_id: names.of(Thing::Node), volume_capability: Some(capability())
    }
    "ControllerUnpublishVolume" = ControllerUnpublishVolumeRequest {
        volume_id: names.volume(), node_id: names.of(Thing::Node)
    }
    "ControllerUnpublishVolume of all nodes" = ControllerUnpublishVolumeRequest { volume_id: names.volume() }
    "ControllerExpandVolume" = ControllerExpandVolumeRequest {
        volume_id: names.volume(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 1, limit_bytes: 0 })
    }
    "ControllerModifyVolume" = ControllerModifyVolumeRequest {
        volume_id: names.volume(), mutable_parameters: [("key".to_owned(), "value".to_owned())].into()
    }
    "CreateSnapshot" = CreateSnapshotRequest {
        source_volume_id: names.volume(), name: names.of(Thing::SnapshotName)
    }
    "DeleteSnapshot" = DeleteSnapshotRequest { snapshot_id: names.of(Thing::Snapshot) }
    "CreateVolumeGroupSnapshot" = CreateVolumeGroupSnapshotRequest {
        name: names.of(Thing::GroupName), source_volume_ids: vec![names.volume()]
    }
    "DeleteVolumeGroupSnapshot" = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: names.of(Thing::Group), snapshot_ids: vec![names.of(Thing::Snapshot)]
    }
    "NodeStageVolume" = NodeStageVolumeRequest {
        volume_id: names.volume(), staging_target_path: names.of(Thing::Staging),
        volume_capability: Some(capability())
    }
    "NodeUnstageVolume" = NodeUnstageVolumeRequest {
        volume_id: names.volume(), staging_target_path: names.of(Thing::Staging)
    }
    "NodePublishVolume" = NodePublishVolumeRequest {
        volume_id: names.volume(), target_path: names.of(Thing::Target),
        staging_target_path: names.of(Thing::Staging), volume_capability: Some(capability())
    }
    "NodeUnpublishVolume" = NodeUnpublishVolumeRequest {
        volume_id: names.volume(), target_path: names.of(Thing::Target)
    }
    "NodeExpandVolume" = NodeExpandVolumeRequest {
        volume_id: names.volume(), volume_path: "/volume".to_owned()
    }
};

/// Whether a request is refused while another, different one runs.
fn excludes(running: Vec<Claim>, coming: Vec<Claim>) -> bool {
    let admission = Arc::new(Admission::default());
    let join = |_: &(dyn Any + Send + Sync)| None::<()>;
    let admit = |claims| admission.admit(Rpc::CreateVolume, claims, Box::new(()), join);
    let _running = admit(running).expect("the first one runs");
    match admit(coming) {
        Ok(Admitted::Run(_)) => false,
        Ok(Admitted::Join(())) => panic!("nothing is to be joined"),
        Err(error) => {
            assert!(matches!(error, Error::Pending(_)), "{error}");
            true
        }
    }
}

/// The rows of the first table below a heading: the cells of each, without the header and its rule.
fn table_below(heading: &str) -> Vec<Vec<String>> {
    DOCUMENT
        .lines()
        .skip_while(|line| line.trim_start_matches('#').trim() != heading)
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

fn same<T: PartialEq + Debug>(due: &T, have: &T, what: &str) {
    assert_eq!(due, have, "docs/admission.md (left) and the code (right) differ: {what}");
}

#[test]
fn claims_are_those_of_the_document() {
    let document: BTreeMap<String, Vec<BTreeSet<String>>> = table_below("What each RPC claims")
        .into_iter()
        .map(|cells| {
            let kinds = |cell: &String| {
                cell.split(',').map(|kind| kind.trim().to_owned()).filter(|kind| !kind.is_empty()).collect()
            };
            (cells[0].clone(), cells[1..].iter().map(kinds).collect())
        })
        .collect();
    same(&document.len(), &ROWS.len(), "number of rows");
    for (name, claims) in ROWS {
        let claims = claims(&Names { request: "one", common: &[] });
        let kinds = |alone: bool| {
            let of_this_kind = claims.iter().filter(|claim| claim.exclusive == alone);
            of_this_kind.map(|claim| claim.key.kind().to_owned()).collect::<BTreeSet<_>>()
        };
        let row = document.get(name).unwrap_or_else(|| panic!("docs/admission.md claims nothing for {name}"));
        same(row, &vec![kinds(true), kinds(false)], name);
    }
}

// spec: concurrency.simultaneous-calls, concurrency.pending-is-aborted
#[test]
fn every_pair_excludes_as_in_the_document() {
    let document = table_below("Who excludes whom");
    same(&document.len(), &ROWS.len(), "number of rows");
    let mut pairs = 0;
    for (row, (name, claims)) in document.iter().zip(ROWS) {
        same(&row[0].split_once(' ').map_or("", |(_, name)| name), &name, "order of rows");
        same(&(row.len() - 1), &ROWS.len(), "number of columns");
        for (cell, (other_name, other_claims)) in row[1..].iter().zip(ROWS) {
            let one = |common| claims(&Names { request: "one", common });
            let other = |common| other_claims(&Names { request: "other", common });
            assert!(!excludes(one(&[]), other(&[])), "{name} and {other_name} have nothing in common");
            let mut have = String::new();
            for (letter, common) in LETTERS {
                let on_volume = have.contains('v') && letter == 'n';
                if excludes(one(common), other(common)) && !on_volume {
                    have.push(letter);
                }
                pairs += 1;
            }
            let have = if have.is_empty() { "·".to_owned() } else { have };
            same(cell, &have, &format!("{name} and {other_name}"));
        }
    }
    println!("{pairs} pairs about the same thing, {} about different ones", ROWS.len() * ROWS.len());
}
