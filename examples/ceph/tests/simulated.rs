//! A directory that exists, on a simulated node, by both clients; and requests that can't work. Needs no root and
//! no cluster.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Args as _, Command, FromArgMatches as _};
use csi_core::client::{Client, Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1;
use csi_core::testing::serve;
use csi_core::{DriverArgs, Plugin};
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

fn driver(client: &str) -> Plugin {
    let command = ceph::CephArgs::augment_args(DriverArgs::augment_args(Command::new("ceph")));
    let monitors = "--monitors=192.0.2.1:6789,192.0.2.2:6789";
    let matches = command.get_matches_from(["ceph", "--node-id=node-1", monitors, "--client", client]);
    let (driver, ceph) = (DriverArgs::from_arg_matches(&matches), ceph::CephArgs::from_arg_matches(&matches));
    ceph::plugin(&driver.unwrap(), &ceph.unwrap())
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

async fn stage(client: &Client, volume: &VolumeUse, secrets: &[(&str, &str)]) -> Result<(), tonic::Status> {
    let mut request = volume.node_stage_volume();
    request.secrets = map(secrets);
    client.node().node_stage_volume(request).await.map(drop)
}

#[tokio::test]
async fn a_directory_lives_on_a_simulated_node() {
    for which in ["kernel", "fuse"] {
        let (places, node) = (tempfile::tempdir().unwrap(), SimulatedNode::new());
        let kubelet = Path::new("/var/lib/kubelet/v");
        node.create_dir(kubelet.join("staging"));
        let client = serve(driver(which).machine(node.clone()), places.path()).await;
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
        let publish = volume.node_publish_volume(&target.path);
        client.node().node_publish_volume(publish).await.unwrap();
        node.write(target.path.join("file"), "data").unwrap();
        volume.take_off_node(&client, &[target]).await.unwrap();
        assert!(!node.exists(kubelet.join("target")), "{which}");
    }
}
