//! Block volumes on loop devices, in an image with the tools of the filesystems.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use csi_core::mount::MountAttributes;

use crate::container::{Processes, Spec};
use crate::life::{Kill, live};
use crate::node::{DATA, Node, eventually};
use crate::volume::{Step, Volume};

const STEPS: [Step; 11] = [
    Step::Create,
    Step::Stage,
    Step::PublishWriter,
    Step::PublishReader,
    Step::ControllerExpand,
    Step::NodeExpand,
    Step::Stats,
    Step::UnpublishReader,
    Step::UnpublishWriter,
    Step::Unstage,
    Step::Delete,
];

fn spec(plugin: &'static str) -> Spec {
    Spec {
        image: "block",
        plugin,
        args: Vec::new(),
        env: vec![("BLOCK_POOL", DATA.to_owned())],
        processes: Processes::Own,
        restricted: None,
    }
}

fn node_spec() -> Spec {
    spec("block.csi.example.org")
}

async fn live_with(node: &Node, fs_type: &str, kill: Kill) {
    let writer = Volume::target("writer");
    let reader = Volume::target("reader");
    live(node, &node_spec(), &Volume::mounted(node, fs_type), &STEPS, kill, |step| match step {
        Step::PublishWriter => fs::write(format!("{writer}/file"), "data").unwrap(),
        Step::PublishReader => check_targets(node, fs_type, &writer, &reader),
        Step::Stats => assert_eq!(fs::read_to_string(format!("{reader}/file")).unwrap(), "data"),
        _ => {}
    })
    .await;
}

/// What a pod of the node sees: the device and the attributes of each mount, and its files.
fn check_targets(node: &Node, fs_type: &str, writer: &str, reader: &str) {
    for (target, is_read_only) in [(writer, false), (reader, true)] {
        let mounted = node.mount_at(target).expect("the node sees the mount");
        assert_eq!(mounted.fs_type, fs_type);
        assert!(mounted.source.to_string_lossy().starts_with("/dev/loop"), "{mounted:?}");
        assert_eq!(mounted.attributes.contains(MountAttributes::RDONLY), is_read_only, "{mounted:?}");
    }
    assert_eq!(fs::read_to_string(format!("{reader}/file")).unwrap(), "data");
    assert!(fs::write(format!("{reader}/file"), "").is_err());
}

#[test]
fn volumes_live_in_one_container() {
    for fs_type in ["ext4", "xfs", "btrfs"] {
        Node::run(async |node| live_with(node, fs_type, Kill::Never).await);
    }
}

#[test]
fn volumes_outlive_containers_that_are_killed_between_steps() {
    for fs_type in ["ext4", "xfs", "btrfs"] {
        Node::run(async |node| live_with(node, fs_type, Kill::Between).await);
    }
}

#[test]
fn volumes_outlive_containers_that_are_killed_during_steps() {
    for milliseconds in [1, 5, 20, 80, 200] {
        let kill = Kill::During(Duration::from_millis(milliseconds));
        Node::run(async |node| live_with(node, "ext4", kill).await);
    }
}

#[test]
fn raw_devices_outlive_containers_that_are_killed_between_steps() {
    Node::run(async |node| {
        let writer = Volume::target("writer");
        let steps: Vec<Step> = STEPS.into_iter().filter(|step| *step != Step::PublishReader).collect();
        live(node, &node_spec(), &Volume::raw(node), &steps, Kill::Between, |step| {
            if step == Step::PublishWriter {
                assert!(fs::metadata(&writer).unwrap().file_type().is_block_device());
            }
        })
        .await;
    });
}

/// During an update that runs the new plugin before the old one ends, each has a socket of its own.
#[test]
fn an_old_and_a_new_plugin_at_once() {
    Node::run(async |node| {
        Volume::make_directories();
        let volume = Volume::mounted(node, "ext4");
        let (old, old_client) = spec("block-old").start(node).await;
        let (new, new_client) = spec("block-new").start(node).await;
        for step in STEPS {
            // The kubelet's call to the old plugin is answered late; it repeats it with the new one.
            let (from_old, from_new) =
                tokio::join!(volume.step(&old_client, step), volume.step(&new_client, step));
            println!("{step:?}: {from_old:?} {from_new:?}");
            let mut result = from_new;
            for _ in 0..50 {
                if result.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                result = volume.step(&new_client, step).await;
            }
            let is_without_capability = step == Step::NodeExpand
                && result.as_ref().is_err_and(|status| status.message().contains("CAP_SYS_RESOURCE"));
            assert!(result.is_ok() || is_without_capability, "{step:?}: {result:?}");
            if step == Step::PublishWriter {
                fs::write(format!("{}/file", Volume::target("writer")), "data").unwrap();
            }
            if step == Step::PublishReader {
                check_targets(node, "ext4", &Volume::target("writer"), &Volume::target("reader"));
            }
        }
        assert_eq!(old.stop(), Some(0));
        new.kill();
        Volume::remove_directories();
        node.assert_empty();
    });
}

/// With one socket for both, the new plugin does not start while the old one lives.
#[test]
fn a_new_plugin_does_not_take_the_socket_of_a_living_one() {
    Node::run(async |node| {
        let (old, client) = node_spec().start(node).await;
        let (status, log) = node_spec().start_only(node).wait();
        assert_eq!(status, Some(2), "{log}");
        assert!(log.contains("a live process listens on it"), "{log}");
        client.ready(crate::node::LIMIT).await.unwrap();
        old.kill();
        let (new, _client) = node_spec().start(node).await;
        assert_eq!(new.stop(), Some(0));
        eventually("the socket is removed", || {
            !std::path::Path::new(&format!("{}/plugins/block.csi.example.org/csi.sock", crate::node::KUBELET))
                .exists()
        })
        .await;
    });
}
