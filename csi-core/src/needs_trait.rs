//! Tests that a capability without its trait does not compile: each method of the services, on a driver
//! that has none of the optional traits. The first entry of each table shows that the rest of the program
//! compiles.
#![cfg(doctest)]

macro_rules! bare_controller {
    () => {
        r#"use csi_core::{Result, prelude::*};
struct Bare;
#[async_trait]
impl Controller for Bare {
    async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> { Ok(None) }
    fn supports(&self, _: &VolumeCapability) -> bool { true }
}
let service = ControllerService::new(std::sync::Arc::new(Bare));
"#
    };
}

/// Declares a program for each method.
macro_rules! controller_needs {
    ($($call:literal, $needs:ident;)+) => { $(
        #[doc = concat!("```compile_fail,E0277\n", bare_controller!(), "service.", $call, "; // no ", stringify!($needs), "\n```")]
        const _: () = ();
    )+ };
}

#[doc = concat!("```\n", bare_controller!(), "let _ = service;\n```")]
const _: () = ();

controller_needs! {
    "create_delete_volume()", CreateDeleteVolume;
    "clone_volume()", CreateDeleteVolume;
    "publish_unpublish_volume()", PublishUnpublishVolume;
    "publish_readonly()", PublishUnpublishVolume;
    "list_volumes()", ListVolumes;
    "list_volumes_published_nodes()", ListVolumes;
    "get_capacity()", GetCapacity;
    "create_delete_snapshot()", CreateDeleteSnapshot;
    "list_snapshots()", ListSnapshots;
    "get_snapshot()", GetSnapshot;
    "expand_volume(Expansion::Online)", ControllerExpandVolume;
    "get_volume()", ControllerGetVolume;
    "modify_volume()", ControllerModifyVolume;
    "get_volume_health()", ControllerGetVolumeHealth;
    "list_volume_health()", ControllerListVolumeHealth;
}

macro_rules! bare_node {
    () => {
        r#"use csi_core::node::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use csi_core::{Result, prelude::*};
struct Bare;
#[async_trait]
impl Node for Bare {
    async fn info(&self) -> Result<NodeInfo> { NodeInfo::new("node-1") }
    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> { Ok(()) }
    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> { Ok(()) }
}
let service = NodeService::new(std::sync::Arc::new(Bare));
"#
    };
}

/// Declares a program for each method.
macro_rules! node_needs {
    ($($call:literal, $needs:ident;)+) => { $(
        #[doc = concat!("```compile_fail,E0277\n", bare_node!(), "service.", $call, "; // no ", stringify!($needs), "\n```")]
        const _: () = ();
    )+ };
}

#[doc = concat!("```\n", bare_node!(), "let _ = service;\n```")]
const _: () = ();

node_needs! {
    "stage_unstage_volume()", StageUnstageVolume;
    "get_volume_stats()", NodeGetVolumeStats;
    "expand_volume()", NodeExpandVolume;
    "get_volume_health()", NodeGetVolumeHealth;
    "get_storage_health()", NodeGetStorageHealth;
}
