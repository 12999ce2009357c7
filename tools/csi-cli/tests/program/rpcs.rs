//! Every RPC from the command line: what the driver gets, and how its answer is shown.

use std::fs;

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message;
use serde_json::json;
use tonic::Status;
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::support::*;

/// Each RPC with its group and subcommand.
fn places() -> Vec<(Rpc, [String; 2])> {
    let mut found = Vec::new();
    for group in ["identity", "controller", "node", "group", "snapshot-metadata"] {
        let help = ok(&run("/none".as_ref(), &[group, "--help"]));
        let (_, commands) = help.split_once("Commands:\n").unwrap();
        for line in commands.lines().take_while(|line| !line.is_empty()) {
            let name = line.split_whitespace().next().unwrap();
            if name != "help" {
                let help = ok(&run("/none".as_ref(), &[group, name, "--help"]));
                let called = help.lines().find_map(|line| line.strip_prefix("Calls ")).unwrap();
                let called = called.trim_end_matches('.').rsplit('.').next().unwrap();
                let rpc = Rpc::ALL.iter().find(|rpc| rpc.name() == called).unwrap();
                found.push((*rpc, [group.to_owned(), name.to_owned()]));
            }
        }
    }
    found
}

/// Answers with a message that has every field set.
fn filling() -> Fake {
    Fake::new(async |rpc, _| answer(&filled(&method(rpc).output())))
}

fn answering(message: impl Message + Clone + 'static) -> Fake {
    Fake::new(move |_, _| {
        let answers = answer(&message);
        async { answers }
    })
}

#[test]
fn sizes_and_the_volume_path_have_the_names_of_the_spec_too() {
    let fake = filling();
    let words = ["controller", "expand-volume", "--volume-id", "v", "--required-bytes", "5", "--limit-bytes"];
    ok(&csi(&fake.socket()).args(words).arg("6").output().unwrap());
    let expand: Vec<v1::ControllerExpandVolumeRequest> = fake.requests();
    assert_eq!(expand[0].capacity_range, Some(v1::CapacityRange { required_bytes: 5, limit_bytes: 6 }));
    for flag in ["--volume-path", "--volume-publish-path"] {
        ok(&run(&fake.socket(), &["node", "get-volume-health", "--volume-id", "v", flag, "/mnt"]));
        let health: Vec<v1::NodeGetVolumeHealthRequest> = fake.requests();
        assert_eq!(health[0].volume_publish_path, "/mnt", "{flag}");
    }
    // A relative path is that of the current directory, because drivers need absolute paths.
    let mut command = csi(&fake.socket());
    command.args(["node", "get-volume-stats", "--volume-id", "v", "--volume-path", "target"]);
    ok(&command.current_dir("/usr").output().unwrap());
    let stats: Vec<v1::NodeGetVolumeStatsRequest> = fake.requests();
    assert_eq!(stats[0].volume_path, "/usr/target");
}

#[test]
fn every_rpc_has_a_command_and_its_example_says_what_it_seems_to() {
    let fake = filling();
    let due = examples();
    let places = places();
    assert_eq!(places.len(), 36);
    for (rpc, [group, name]) in places {
        let help = ok(&run(&fake.socket(), &[&group, &name, "--help"]));
        let (_, example) = help.split_once("Example:\n").unwrap();
        let mut words = example.split_whitespace();
        assert_eq!(words.next(), Some("csi"));
        ok(&csi(&fake.socket()).args(words).output().unwrap());
        let (_, due) = due.iter().find(|row| row.0 == rpc).unwrap_or_else(|| panic!("{rpc}: no row"));
        let asked = fake.asked();
        assert_eq!(asked.len(), 1, "{rpc}");
        assert_eq!(asked[0].0, rpc);
        let request = method(rpc).input();
        assert!(dynamic(&request, &asked[0].1) == dynamic(&request, due), "{rpc}: {example}");
    }
}

fn mount(fs_type: &str) -> v1::VolumeCapability {
    let access = AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..Default::default() });
    capability(Mode::SingleNodeWriter, access)
}

fn capability(mode: Mode, access: AccessType) -> v1::VolumeCapability {
    v1::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
}

fn examples() -> Vec<(Rpc, Vec<u8>)> {
    let text = str::to_owned;
    let pvc = || text("pvc-1");
    let staging = text("/mnt/staging");
    let pod = text("/mnt/pod");
    let range = |required_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
    macro_rules! rows {
        ($($rpc:ident $request:ident { $($field:ident: $value:expr),* })*) => {
            vec![$((Rpc::$rpc, v1::$request { $($field: $value,)* ..Default::default() }.encode_to_vec())),*]
        };
    }
    #[allow(clippy::needless_update, reason = "some requests have no more fields than the row names")]
    let rows = rows! {
        GetPluginInfo GetPluginInfoRequest {}
        GetPluginCapabilities GetPluginCapabilitiesRequest {}
        Probe ProbeRequest {}
        CreateVolume CreateVolumeRequest {
            name: pvc(), capacity_range: range(1 << 30), volume_capabilities: vec![mount("ext4")]
        }
        DeleteVolume DeleteVolumeRequest { volume_id: pvc() }
        ControllerPublishVolume ControllerPublishVolumeRequest {
            volume_id: pvc(), node_id: text("node-a"), volume_capability: Some(mount("ext4"))
        }
        ControllerUnpublishVolume ControllerUnpublishVolumeRequest { volume_id: pvc(), node_id: text("node-a") }
        ValidateVolumeCapabilities ValidateVolumeCapabilitiesRequest {
            volume_id: pvc(), volume_capabilities: vec![mount("ext4")]
        }
        ListVolumes ListVolumesRequest { max_entries: 100 }
        ControllerListVolumeHealth ControllerListVolumeHealthRequest { max_entries: 100 }
        ControllerGetVolumeHealth ControllerGetVolumeHealthRequest { volume_id: pvc() }
        GetCapacity GetCapacityRequest { parameters: [(text("pool"), text("fast"))].into() }
        ControllerGetCapabilities ControllerGetCapabilitiesRequest {}
        CreateSnapshot CreateSnapshotRequest { source_volume_id: pvc(), name: text("snap-1") }
        DeleteSnapshot DeleteSnapshotRequest { snapshot_id: text("snap-1") }
        ListSnapshots ListSnapshotsRequest { source_volume_id: pvc() }
        GetSnapshot GetSnapshotRequest { snapshot_id: text("snap-1") }
        ControllerExpandVolume ControllerExpandVolumeRequest { volume_id: pvc(), capacity_range: range(2 << 30) }
        ControllerGetVolume ControllerGetVolumeRequest { volume_id: pvc() }
        ControllerModifyVolume ControllerModifyVolumeRequest {
            volume_id: pvc(), mutable_parameters: [(text("iops"), text("500"))].into()
        }
        GroupControllerGetCapabilities GroupControllerGetCapabilitiesRequest {}
        CreateVolumeGroupSnapshot CreateVolumeGroupSnapshotRequest {
            name: text("group-1"), source_volume_ids: vec![pvc(), text("pvc-2")]
        }
        DeleteVolumeGroupSnapshot DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: text("group-1"), snapshot_ids: vec![text("snap-1")]
        }
        GetVolumeGroupSnapshot GetVolumeGroupSnapshotRequest {
            group_snapshot_id: text("group-1"), snapshot_ids: vec![text("snap-1")]
        }
        GetMetadataAllocated GetMetadataAllocatedRequest { snapshot_id: text("snap-1") }
        GetMetadataDelta GetMetadataDeltaRequest {
            base_snapshot_id: text("snap-1"), target_snapshot_id: text("snap-2")
        }
        NodeStageVolume NodeStageVolumeRequest {
            volume_id: pvc(), staging_target_path: staging.clone(), volume_capability: Some(mount("ext4"))
        }
        NodeUnstageVolume NodeUnstageVolumeRequest { volume_id: pvc(), staging_target_path: staging.clone() }
        NodePublishVolume NodePublishVolumeRequest {
            volume_id: pvc(), staging_target_path: staging.clone(), target_path: pod.clone(),
            volume_capability: Some(mount("ext4"))
        }
        NodeUnpublishVolume NodeUnpublishVolumeRequest { volume_id: pvc(), target_path: pod.clone() }
        NodeGetVolumeStats NodeGetVolumeStatsRequest { volume_id: pvc(), volume_path: pod.clone() }
        NodeGetVolumeHealth NodeGetVolumeHealthRequest { volume_id: pvc() }
        NodeGetStorageHealth NodeGetStorageHealthRequest {}
        NodeExpandVolume NodeExpandVolumeRequest {
            volume_id: pvc(), volume_path: pod.clone(), capacity_range: range(2 << 30)
        }
        NodeGetCapabilities NodeGetCapabilitiesRequest {}
        NodeGetInfo NodeGetInfoRequest {}
    };
    rows
}

#[test]
fn a_whole_request_and_a_whole_answer_go_through_as_json() {
    let fake = filling();
    let file = fake.folder().join("request.json");
    for (rpc, [group, name]) in places() {
        let request = filled(&method(rpc).input());
        fs::write(&file, serde_json::to_string(&request).unwrap()).unwrap();
        let words = [&*group, &*name, "--request", file.to_str().unwrap(), "--output", "json"];
        let output = ok(&run(&fake.socket(), &words));
        let asked = fake.asked();
        assert!(dynamic(&method(rpc).input(), &asked[0].1) == request, "{rpc}");
        let printed: serde_json::Value = serde_json::from_str(&output).unwrap();
        let answer = prost_reflect::DynamicMessage::deserialize(method(rpc).output(), printed);
        assert!(answer.unwrap() == filled(&method(rpc).output()), "{rpc}");
        // The table, too, shows something of every answer.
        let table = ok(&run(&fake.socket(), &words[..4]));
        fake.asked();
        assert!(
            !table.is_empty() && (table == "done\n") == (method(rpc).output().fields().len() == 0),
            "{rpc}"
        );
    }
}

#[test]
fn every_flag_goes_to_its_field() {
    let fake = filling();
    let asked = |words: &[&str]| {
        ok(&run(&fake.socket(), words));
        fake.asked().remove(0).1
    };
    let request = asked(&[
        "controller",
        "create-volume",
        "--name=-n",
        "--size",
        "1Gi",
        "--limit",
        "2Gi",
        "--capability",
        "rwop,mount,xfs,noatime,context=\"a,b\",group=17",
        "--capability",
        "rwx,block",
        "--parameters",
        "a=b=c",
        "--parameters",
        "d=",
        "--mutable-parameters",
        "iops=5",
        "--from-volume",
        "pvc-0",
        "--requisite",
        "zone=a,rack=7",
        "--requisite",
        "zone=b",
        "--preferred",
        "zone=b",
    ]);
    let topology = |pairs: &[(&str, &str)]| v1::Topology {
        segments: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    let mounted = MountVolume {
        fs_type: "xfs".into(),
        mount_flags: vec!["noatime".into(), "context=\"a,b\"".into()],
        volume_mount_group: "17".into(),
    };
    let source = v1::volume_content_source::VolumeSource { volume_id: "pvc-0".into() };
    let due = v1::CreateVolumeRequest {
        name: "-n".into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 1 << 30, limit_bytes: 2 << 30 }),
        volume_capabilities: vec![
            capability(Mode::SingleNodeSingleWriter, AccessType::Mount(mounted)),
            capability(Mode::MultiNodeMultiWriter, AccessType::Block(BlockVolume {})),
        ],
        parameters: [("a".into(), "b=c".into()), ("d".into(), String::new())].into(),
        mutable_parameters: [("iops".into(), "5".into())].into(),
        volume_content_source: Some(v1::VolumeContentSource {
            r#type: Some(v1::volume_content_source::Type::Volume(source)),
        }),
        accessibility_requirements: Some(v1::TopologyRequirement {
            requisite: vec![topology(&[("zone", "a"), ("rack", "7")]), topology(&[("zone", "b")])],
            preferred: vec![topology(&[("zone", "b")])],
        }),
        ..Default::default()
    };
    assert_eq!(v1::CreateVolumeRequest::decode(&*request).unwrap(), due);

    let request = asked(&[
        "node",
        "publish-volume",
        "--volume-id",
        "v",
        "--publish-context",
        "lun=3",
        "--volume-context",
        "a=b",
        "--staging-target-path",
        "/s",
        "--target-path",
        "/t",
        "--capability",
        "rox,mount",
        "--readonly",
    ]);
    let due = v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        publish_context: [("lun".into(), "3".into())].into(),
        volume_context: [("a".into(), "b".into())].into(),
        staging_target_path: "/s".into(),
        target_path: "/t".into(),
        volume_capability: Some(capability(
            Mode::MultiNodeReaderOnly,
            AccessType::Mount(MountVolume::default()),
        )),
        readonly: true,
        ..Default::default()
    };
    assert_eq!(v1::NodePublishVolumeRequest::decode(&*request).unwrap(), due);

    let request = asked(&[
        "snapshot-metadata",
        "delta",
        "--base-snapshot-id",
        "a",
        "--target-snapshot-id",
        "b",
        "--starting-offset",
        "4Mi",
        "--max-results",
        "7",
    ]);
    let due = v1::GetMetadataDeltaRequest {
        base_snapshot_id: "a".into(),
        target_snapshot_id: "b".into(),
        starting_offset: 4 << 20,
        max_results: 7,
        ..Default::default()
    };
    assert_eq!(v1::GetMetadataDeltaRequest::decode(&*request).unwrap(), due);

    let request = asked(&["controller", "get-capacity", "--accessible-topology", "zone=a"]);
    let due = v1::GetCapacityRequest {
        accessible_topology: Some(topology(&[("zone", "a")])),
        ..Default::default()
    };
    assert_eq!(v1::GetCapacityRequest::decode(&*request).unwrap(), due);
}

#[test]
fn flags_change_a_whole_request_and_a_dry_run_sends_nothing() {
    let fake = filling();
    let file = fake.folder().join("request.json");
    fs::write(&file, r#"{"name": "a", "capacityRange": {"limitBytes": "9"}, "secrets": {"key": "canary"}}"#)
        .unwrap();
    let file = file.to_str().unwrap();
    let words = ["controller", "create-volume", "--request", file, "--name", "b", "--size", "5", "--dry-run"];
    let printed: serde_json::Value = serde_json::from_str(&ok(&run(&fake.socket(), &words))).unwrap();
    assert_eq!(printed["name"], "b");
    assert_eq!(printed["capacityRange"], json!({ "requiredBytes": "5", "limitBytes": "9" }));
    assert_eq!(printed["secrets"], json!({ "key": "***" }));
    assert!(fake.asked().is_empty());
    ok(&run(&fake.socket(), &words[..8]));
    let asked: Vec<v1::CreateVolumeRequest> = fake.requests();
    assert_eq!(asked[0].secrets["key"], "canary");
}

fn volumes() -> v1::ListVolumesResponse {
    let entry = |id: &str, capacity_bytes, nodes: &[&str]| v1::list_volumes_response::Entry {
        volume: Some(v1::Volume {
            volume_id: id.to_owned(),
            capacity_bytes,
            volume_context: [("pool".to_owned(), "fast".to_owned())].into(),
            ..Default::default()
        }),
        status: Some(v1::list_volumes_response::VolumeStatus {
            published_node_ids: nodes.iter().map(|node| (*node).to_owned()).collect(),
            ..Default::default()
        }),
    };
    v1::ListVolumesResponse {
        entries: vec![
            entry("pvc-1", 1 << 30, &["node-a", "node-b"]),
            entry("pvc-a-longer-name", 3 << 29, &[]),
        ],
        next_token: "page-2".to_owned(),
    }
}

#[test]
fn answers_are_tables_and_json() {
    let fake = answering(volumes());
    let table = ok(&run(&fake.socket(), &["controller", "list-volumes"]));
    // One row per volume, columns aligned with their headings, sizes rounded and exact, fields outside the
    // rows below.
    assert_eq!(
        table,
        "\
CAPACITY_BYTES        VOLUME_ID          VOLUME_CONTEXT  PUBLISHED_NODE_IDS
1 GiB (1073741824)    pvc-1              pool=fast       node-a; node-b
1.5 GiB (1610612736)  pvc-a-longer-name  pool=fast
next_token  page-2
"
    );
    let printed: serde_json::Value =
        serde_json::from_str(&ok(&run(&fake.socket(), &["controller", "list-volumes", "-o", "json"])))
            .unwrap();
    assert_eq!(printed["nextToken"], "page-2");
    assert_eq!(
        printed["entries"][0],
        json!({
            "volume": {
                "volumeId": "pvc-1",
                "capacityBytes": "1073741824",
                "volumeContext": { "pool": "fast" },
                "accessibleTopology": [],
            },
            "status": { "publishedNodeIds": ["node-a", "node-b"] },
        })
    );
    let confirmed = v1::validate_volume_capabilities_response::Confirmed {
        volume_capabilities: vec![mount("ext4")],
        ..Default::default()
    };
    let fake = answering(v1::ValidateVolumeCapabilitiesResponse {
        confirmed: Some(confirmed),
        ..Default::default()
    });
    let table = ok(&run(&fake.socket(), &["controller", "validate-volume-capabilities"]));
    assert_eq!(table, "confirmed.volume_capabilities  SINGLE_NODE_WRITER,mount,ext4\n");
    let fake = answering(v1::ListVolumesResponse::default());
    assert_eq!(ok(&run(&fake.socket(), &["controller", "list-volumes"])), "none\n");
    assert_eq!(ok(&run(&fake.socket(), &["controller", "delete-volume"])), "done\n");
}

#[test]
fn all_pages_are_asked_for_and_one_that_would_never_end_is_broken_off() {
    let fake = Fake::new(async |_, bytes| {
        let request = v1::ListVolumesRequest::decode(&*bytes).unwrap();
        let mut page = volumes();
        page.next_token = match request.starting_token.as_str() {
            "" => "2".to_owned(),
            "2" => "3".to_owned(),
            "again" => "again".to_owned(),
            _ => String::new(),
        };
        page.entries.truncate(1);
        answer(&page)
    });
    let words = ["controller", "list-volumes", "--all", "--max-entries", "1"];
    let table = ok(&run(&fake.socket(), &words));
    let first = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    assert_eq!(table.lines().map(first).collect::<Vec<_>>(), ["CAPACITY_BYTES", "1", "1", "1"]);
    let tokens: Vec<v1::ListVolumesRequest> = fake.requests();
    assert_eq!(tokens.iter().map(|request| &*request.starting_token).collect::<Vec<_>>(), ["", "2", "3"]);
    assert!(tokens.iter().all(|request| request.max_entries == 1));
    let lines = ok(&run(&fake.socket(), &["controller", "list-volumes", "--all", "-o", "json"]));
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    assert_eq!(lines.lines().count(), 3);
    let words = ["controller", "list-volumes", "--all", "--starting-token", "again"];
    let shown = errors(&run(&fake.socket(), &words), 1);
    assert!(shown.contains("repeated a next_token"), "{shown}");
}

#[test]
fn pages_that_alternate_and_have_no_entries_are_broken_off() {
    let fake = Fake::new(async |_, bytes| {
        let request = v1::ListVolumesRequest::decode(&*bytes).unwrap();
        let next_token = if request.starting_token == "there" { "back" } else { "there" }.to_owned();
        answer(&v1::ListVolumesResponse { next_token, ..Default::default() })
    });
    let shown = errors(&run(&fake.socket(), &["controller", "list-volumes", "--all"]), 1);
    assert!(shown.contains("repeated a next_token"), "{shown}");
    assert_eq!(fake.asked().len(), 3);
}

#[test]
fn an_answer_that_is_too_large_is_not_taken() {
    let fake = Fake::new(async |_, _| {
        answer(&v1::GetPluginInfoResponse { name: "x".repeat(5 << 20), ..Default::default() })
    });
    let words = ["identity", "get-plugin-info"];
    let refused = run(&fake.socket(), &words);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{}", stderr(&refused));
    let shown = stderr(&refused);
    assert!(
        shown.contains("too large") && shown.contains("4194304") && shown.contains("--max-answer"),
        "{shown}"
    );
    let taken = ok(&run(&fake.socket(), &[&words[..], &["--max-answer", "8Mi"]].concat()));
    assert!(taken.len() > 5 << 20);
}

#[test]
fn a_refusal_is_one_line_with_its_code_and_what_to_do() {
    let fake = Fake::new(async |rpc, _| match rpc {
        Rpc::DeleteVolume => Err(Status::aborted("pvc-1 is being\ncreated\x1b[2J")),
        _ => Err(Status::unimplemented("no")),
    });
    let refused = run(&fake.socket(), &["controller", "delete-volume", "--volume-id", "pvc-1"]);
    let lines = stderr(&refused);
    let mut lines = lines.lines();
    assert_eq!(lines.next(), Some("csi: DeleteVolume: ABORTED: pvc-1 is being\\ncreated\\u{1b}[2J"));
    assert!(lines.next().unwrap().contains("try again"));
    assert_eq!(refused.status.code(), Some(74));
    let refused = run(&fake.socket(), &["node", "get-info"]);
    assert!(
        stderr(&refused).contains("UNIMPLEMENTED: no\n") && stderr(&refused).contains("`csi capabilities`")
    );
    assert!(refused.stdout.is_empty());
}
