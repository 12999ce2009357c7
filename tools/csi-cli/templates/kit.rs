//! The conformance kit against the whole driver.

use std::path::Path;

use clap::Parser as _;
use csi_conformance::{Kit, MountAccess{% if kind == "ephemeral" %}, Pairs{% endif %}};
{% if kind == "shared" %}
use csi_core::mount::testing::SimulatedNode;
{% else %}
use csi_core::mount::testing::{SimulatedNode, private_mount_namespace};
{% endif %}
use csi_core::{Plugin, testing::serve};

/// The driver, with its data in this directory.
fn plugin({% if kind == "ephemeral" %}_: &Path{% else %}directory: &Path{% endif %}) -> Plugin {
{% if kind == "ephemeral" %}
    let flags = ["{{name}}", "--node-id=node-1"];
{% else %}
    std::fs::create_dir(directory.join("volumes")).unwrap();
    let root = format!("--root={}", directory.join("volumes").display());
    let flags = ["{{name}}", "--node-id=node-1", &root];
{% endif %}
    {{crate_name}}::plugin(&{{crate_name}}::Args::parse_from(flags))
}

async fn run(plugin: Plugin, directory: &Path, access: MountAccess) {
    let places = ["staging", "target"].map(|name| directory.join(name));
    places.iter().for_each(|place| std::fs::create_dir(place).unwrap());
    serve(plugin, directory).await;
    let endpoint = format!("unix://{}", directory.join("csi.sock").display()).parse().unwrap();
    let [staging, target] = places;
    let kit = Kit::new(endpoint).staging(staging).target(target).mount_access(access);
{% if kind == "ephemeral" %}
    let kit = kit.ephemeral(Pairs::default());
{% elif kind == "block" %}
    let kit = kit.fs_type("xfs").size(320 << 20);
{% endif %}
{% if kind == "directory" %}
    // Add `.enforces_size()` once the driver limits each volume to its size.
{% endif %}
    let report = kit.journal(directory.join("journal")).run().await.unwrap();
    println!("{}", report.text());
    report.assert_ok();
}

/// Every RPC, on a node in memory.
#[tokio::test]
async fn the_driver_conforms_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = plugin(directory.path()).host(SimulatedNode::new());
    run(plugin, directory.path(), MountAccess::Elsewhere).await;
}
{% if kind != "shared" %}

/// The same with real mounts, which only a private mount namespace sees.
#[test]
#[ignore = "needs root{% if kind == "fuse" %}, and the FUSE program in FUSE_PROGRAM{% endif %}"]
fn the_driver_conforms_on_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    private_mount_namespace(|| {
        // The runtime's threads are children of this one and share its mount namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(plugin(directory.path()), directory.path(), MountAccess::Here));
    });
}
{% endif %}
