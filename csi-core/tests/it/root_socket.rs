//! The directory of a socket is deleted on the node, under the container of the plugin. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use csi_core::mount::{Bind, Target};
use csi_core::server::{Registration, ServeError};
use csi_core::{Endpoint, Plugin};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::common::{PATIENCE, eventually};
use crate::driver;
use crate::private::on_tmpfs;

/// Makes a directory of the node, and shows it in the container.
fn mounted(place: &Path, name: &str) {
    let target = Target::new(place.join(name)).unwrap();
    let on_node = place.join(format!("{name}-on-node"));
    fs::create_dir(&on_node).unwrap();
    let _ = target.create_dir().unwrap();
    Bind::new(&on_node).at(&target).unwrap();
}

async fn served(plugin: Plugin, place: &Path) -> JoinHandle<Result<(), ServeError>> {
    let socket = place.join("plugin/csi.sock");
    let endpoint: Endpoint = socket.to_str().unwrap().parse().unwrap();
    let server = tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    eventually("it serves", || socket.exists()).await;
    server
}

#[test]
fn a_plugin_whose_directory_is_deleted_on_the_node_ends_for_a_new_container() {
    for deleted in ["plugin", "registry"] {
        on_tmpfs(async |place| {
            mounted(place, "plugin");
            mounted(place, "registry");
            let registry = place.join("registry");
            let plugin = driver::plugin(&Arc::default()).register(Registration::new(&registry));
            let server = served(plugin, place).await;
            eventually("it registers", || registry.read_dir().unwrap().next().is_some()).await;

            fs::remove_dir_all(place.join(format!("{deleted}-on-node"))).unwrap();
            let ended = timeout(PATIENCE, server).await.expect("it does not wait for the directory").unwrap();
            let error = ended.unwrap_err();
            assert!(!error.is_start_up(), "{error}");
            let text = error.to_string();
            assert!(text.contains(deleted) && text.contains("its directory was deleted"), "{text}");
        });
    }
}
