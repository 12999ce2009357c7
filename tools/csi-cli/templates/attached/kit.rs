//! The conformance kit against the whole driver, with a cloud in memory.

mod fake;

use std::path::Path;

use csi_conformance::{Kit, MountAccess};
use csi_core::mount::testing::{SimulatedNode, private_mount_namespace};
use csi_core::testing::serve;
use fake::{FakeCloud, Machine, RealDisks};

async fn run(machine: Machine, directory: &Path, access: MountAccess) {
    let path = |name: &str| directory.join(name);
    ["staging", "target"].iter().for_each(|name| std::fs::create_dir(path(name)).unwrap());
    let cloud = FakeCloud::start(machine, directory);
    serve(cloud.plugin(), directory).await;
    let endpoint = format!("unix://{}", path("csi.sock").display()).parse().unwrap();
    // A mounted ext4 grows only with CAP_SYS_RESOURCE, which a container does not have.
    let kit = Kit::new(endpoint).staging(path("staging")).target(path("target")).fs_type("xfs");
    let report = kit.mount_access(access).journal(path("journal")).run().await.unwrap();
    println!("{}", report.text());
    report.assert_ok();
    assert!(cloud.is_empty(), "every disk is detached and deleted");
}

/// Every RPC, on a node in memory.
#[tokio::test]
async fn the_driver_conforms_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    run(Machine::Simulated(SimulatedNode::new()), directory.path(), MountAccess::Elsewhere).await;
}

/// The same with real mounts of loop devices, which only a private mount namespace sees.
#[test]
#[ignore = "needs root"]
fn the_driver_conforms_on_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let _disks = RealDisks(directory.path());
    private_mount_namespace(|| {
        let machine = Machine::Real(directory.path().to_owned());
        // The threads of the runtime and of the cloud are children of this one and share its mount namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(machine, directory.path(), MountAccess::Here));
    });
}
