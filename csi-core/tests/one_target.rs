//! Two publishes of one volume at the same time, to two targets: they run together where the mode allows
//! two targets, and one after the other where it allows one.

mod common;

use std::sync::Arc;

use common::*;
use csi_core::{NodeService, Plugin};
use csi_proto::v1;
use tonic::Code;

fn publish_in(mode: i32, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest { volume_capability: Some(mount_capability(mode)), ..publish("v", target) }
}

#[tokio::test]
async fn the_second_waits_its_turn_where_one_target_is_allowed() {
    for (mode, together) in [(1, false), (2, false), (3, true), (4, true), (5, true), (6, false), (7, true)] {
        let memory = Memory::gated();
        let node = NodeService::new(Arc::clone(&memory)).single_node_multi_writer();
        let served = Served::start(Plugin::new("memory.csi.example.org", "1").node(node)).await;
        let mut client = served.node();
        let first = tokio::spawn(async move { client.node_publish_volume(publish_in(mode, "/one")).await });
        memory.until_begun(1).await;
        if together {
            memory.gate.as_ref().unwrap().add_permits(2);
            served.node().node_publish_volume(publish_in(mode, "/two")).await.unwrap();
            first.await.unwrap().unwrap();
            continue;
        }
        let status = served.node().node_publish_volume(publish_in(mode, "/two")).await.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "mode {mode}: {status}");
        memory.gate.as_ref().unwrap().add_permits(2);
        first.await.unwrap().unwrap();
        // This driver does not report where its volumes are published, so the second publish only waits for
        // the first to end.
        served.node().node_publish_volume(publish_in(mode, "/two")).await.unwrap();
    }
}
