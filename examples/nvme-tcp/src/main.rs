//! The driver as a program. `CSI_ENDPOINT` names its socket, `NVME_POOL` the directory of its images,
//! `NVME_PORTAL` the address at which the target serves them.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let pool = std::env::var_os("NVME_POOL").unwrap_or("/var/lib/nvme-tcp".into());
    let portal = std::env::var("NVME_PORTAL").unwrap_or_else(|_| "127.0.0.1:4420".to_owned());
    let started = portal.parse().map_err(|_| format!("NVME_PORTAL: {portal} is not an address"));
    let host = csi_core::mount::remote::NvmeHost::of_node().map_err(|error| error.to_string());
    let plugin = started
        .and_then(|portal| nvme_tcp::plugin(pool.into(), portal, host?).map_err(|error| error.to_string()));
    match plugin {
        Ok(plugin) => plugin.run().await,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
