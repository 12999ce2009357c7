//! `nfs --try`: an NFS server in this process, and a volume's life on it.

mod life;
mod memory;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use csi_core::client::Client;
use csi_core::mount::testing::private_mount_namespace;
use csi_core::{DriverArgs, Endpoint};

use crate::VolumeArgs;

pub use life::{Class, live};
pub use server::Server;

/// Starts a server and the driver, runs a volume's life on them, and prints each step.
///
/// It uses its own mount namespace, and memory only: nothing is left. It needs root and an NFS client.
pub fn try_out() -> ExitCode {
    let result = private_mount_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(on_own_server())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("nfs: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn on_own_server() -> Result<(), String> {
    let server = Server::start().map_err(|error| format!("the NFS server does not start: {error}"))?;
    println!("an NFS server at {} serves / from memory", server.address());
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let endpoint = format!("unix://{}", place.path().join("csi.sock").display());
    let endpoint: Endpoint = endpoint.parse().map_err(|error| format!("{endpoint}: {error}"))?;
    let plugin = crate::plugin(&driver_args(&endpoint), &VolumeArgs::default());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = endpoint.clone();
    let serving =
        tokio::spawn(async move { plugin.serve_until(&served, async { drop(stopped.await) }).await });
    let client = Client::new(&endpoint);
    client.ready(Duration::from_secs(10)).await.map_err(|error| error.to_string())?;
    let lived = live(&client, &server.class(), place.path(), |step| println!("{step}")).await;
    drop(stop);
    serving.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    // The directory is removed only if nothing is mounted below it any more.
    if lived.is_err() {
        let _ = place.keep();
    }
    lived
}

/// The flags of a driver that listens on this endpoint.
pub fn driver_args(endpoint: &Endpoint) -> DriverArgs {
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        driver: DriverArgs,
    }
    <Flags as clap::Parser>::parse_from(["nfs".to_owned(), format!("--endpoint={endpoint}")]).driver
}
