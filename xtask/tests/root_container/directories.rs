//! Directories, in an image without any other program.

use std::fs;

use csi_core::mount::MountAttributes;

use crate::container::{Processes, Spec};
use crate::life::{Kill, live};
use crate::node::{DATA, Node};
use crate::volume::{Step, Volume};

const STEPS: [Step; 7] = [
    Step::Create,
    Step::PublishWriter,
    Step::PublishReader,
    Step::Stats,
    Step::UnpublishReader,
    Step::UnpublishWriter,
    Step::Delete,
];

fn spec() -> Spec {
    Spec {
        image: "dirs",
        plugin: "dirs.csi.example.org",
        args: Vec::new(),
        env: vec![("DIRS_ROOT", DATA.to_owned())],
        processes: Processes::Own,
        restricted: None,
    }
}

async fn live_with(node: &Node, kill: Kill) {
    let writer = Volume::target("writer");
    let reader = Volume::target("reader");
    let volume = Volume::mounted(node, "").unstaged();
    live(node, &spec(), &volume, &STEPS, kill, |step| match step {
        Step::PublishWriter => fs::write(format!("{writer}/file"), "data").unwrap(),
        Step::PublishReader => {
            let mounted = node.mount_at(&reader).expect("the node sees the mount");
            assert!(mounted.attributes.contains(MountAttributes::RDONLY), "{mounted:?}");
            let writable = node.mount_at(&writer).expect("the node sees the mount");
            assert!(!writable.attributes.contains(MountAttributes::RDONLY), "{writable:?}");
            assert_eq!(fs::read_to_string(format!("{reader}/file")).unwrap(), "data");
            assert!(fs::write(format!("{reader}/file"), "").is_err());
        }
        _ => {}
    })
    .await;
}

#[test]
fn directories_live_in_one_container() {
    Node::run(async |node| live_with(node, Kill::Never).await);
}

#[test]
fn directories_outlive_containers_that_are_killed_between_steps() {
    Node::run(async |node| live_with(node, Kill::Between).await);
}
