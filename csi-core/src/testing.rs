//! Serves a plugin for the tests of its driver.
//!
//! Only with the feature `testing`. The crate's documentation has an example.

use std::path::Path;
use std::time::Duration;

use csi_proto::Endpoint;

use crate::plugin::Plugin;
use csi_proto::client::Client;

/// How long a plugin can take until it is ready, also on a busy machine.
const READY: Duration = Duration::from_secs(60);

/// Serves a plugin on a socket in this directory until the test's runtime ends, and returns a client of it when
/// it is ready.
///
/// With [`Plugin::host`] the plugin works on a simulated node, and the test needs no root.
///
/// # Panics
/// When the plugin can't be served, or does not become ready; the message says why. Outside of a tokio runtime.
pub async fn serve(plugin: Plugin, directory: impl AsRef<Path>) -> Client {
    let endpoint = format!("unix://{}", directory.as_ref().join("csi.sock").display());
    let endpoint: Endpoint = endpoint.parse().unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    let client = Client::new(&endpoint);
    let served = tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    tokio::select! {
        ready = client.ready(READY) => ready.unwrap_or_else(|error| panic!("{error}")),
        ended = served => panic!("the plugin is not served: {ended:?}"),
    }
    client
}
