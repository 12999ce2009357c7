//! A static share's life on a simulated node, with a server that hangs and a reboot. Needs no root and no server.

mod support;

use csi_core::mount::MountHealth;
use csi_core::mount::testing::SimulatedNode;
use csi_core::testing::serve;
use support::*;
use tonic::Code;

#[tokio::test]
async fn a_share_lives_on_a_simulated_node() {
    let places = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    let kubelet = std::path::Path::new("/var/lib/kubelet/v");
    node.create_dir(kubelet.join("staging"));
    let client = serve(driver().host(node.clone()), places.path()).await;
    let context = map(&[("source", "//smb.example.org/share/a/b")]);
    let secrets = map(&[("username", "u"), ("password", "p")]);
    let used = Use::new("static", context, capability(&["vers=3.1.1"], "1000"), kubelet, &secrets);

    used.stage(&client).await.unwrap();
    used.publish(&client).await.unwrap();
    node.write(used.target.join("file"), "data").unwrap();
    node.set_health(used.staging(), MountHealth::Unresponsive);
    assert_eq!(used.publish(&client).await.unwrap_err().code(), Code::Unavailable);
    used.take_off(&client).await.unwrap();
    assert!(!node.exists(&used.target), "whatever state the server is in");

    used.stage(&client).await.unwrap();
    node.reboot();
    used.stage(&client).await.unwrap();
    used.publish(&client).await.unwrap();
    assert_eq!(node.read(used.target.join("file")).unwrap(), b"data");
    used.take_off(&client).await.unwrap();
}
