//! A directory that exists, on a simulated node, by both clients; and requests that can't work. Needs no root and
//! no cluster.

use std::collections::BTreeMap;
use std::path::Path;

use csi_core::Plugin;
use csi_core::client::{Client, Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1;
use csi_core::testing::serve;
use test_support::driver::parse;
use test_support::requests::map;
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

fn driver(client: &str) -> Plugin {
    let ceph = ["--monitors=192.0.2.1:6789,192.0.2.2:6789", "--client", client];
    ceph::plugin(&parse(&["--node-id=node-1"]), &parse(&ceph))
}

async fn stage(client: &Client, volume: &VolumeUse, secrets: &[(&str, &str)]) -> Result<(), tonic::Status> {
    let mut request = volume.node_stage_volume();
    request.secrets = map(secrets);
    client.call(request).await.map(drop)
}

#[tokio::test]
async fn a_directory_lives_on_a_simulated_node() {
    for which in ["kernel", "fuse"] {
        let places = tempfile::tempdir().unwrap();
        let node = SimulatedNode::new();
        let kubelet = Path::new("/var/lib/kubelet/v");
        node.create_dir(kubelet.join("staging"));
        let client = serve(driver(which).host(node.clone()), places.path()).await;
        let capability = v1::VolumeCapability::mount(Mode::MultiNodeMultiWriter);
        let mut volume = VolumeUse::new("static", capability).staged_at(kubelet.join("staging"));
        let target = Target::new(kubelet.join("target"));
        let full = [("userID", "u"), ("userKey", "geheim")];
        for (path, secrets, code, part) in [
            (None, &full[..], Code::NotFound, "static"),
            (Some("/a"), &full[..1], Code::Unauthenticated, "userKey"),
            (Some("/a"), &full[1..], Code::Unauthenticated, "userID"),
        ] {
            volume.volume_context = path.map_or_else(BTreeMap::new, |path| map(&[("path", path)]));
            let error = stage(&client, &volume, secrets).await.unwrap_err();
            assert!(error.code() == code && error.message().contains(part), "{which}, {path:?}: {error}");
        }
        for path in ["a", "/a/../b"] {
            volume.volume_context = map(&[("path", path)]);
            let error = stage(&client, &volume, &full).await.unwrap_err();
            let text = format!("{error:?}");
            assert!(
                error.code() == Code::InvalidArgument && !text.contains("geheim"),
                "{which}, {path}: {text}"
            );
        }
        volume.volume_context = map(&[("path", "/a/b")]);
        stage(&client, &volume, &full).await.unwrap();
        volume.publish(&client, std::slice::from_ref(&target)).await.unwrap();
        node.write(target.path.join("file"), "data").unwrap();
        volume.unpublish_unstage_detach(&client, &[target]).await.unwrap();
        assert!(!node.exists(kubelet.join("target")), "{which}");
    }
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_ceph"));
}
