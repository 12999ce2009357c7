//! The driver as a program. `CSI_ENDPOINT` names its socket, `ISCSI_POOL` the directory of its images,
//! `ISCSI_PORTAL` the address at which the target serves them.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let pool = std::env::var_os("ISCSI_POOL").unwrap_or("/var/lib/iscsi-csi".into());
    let portal = std::env::var("ISCSI_PORTAL").unwrap_or_else(|_| "127.0.0.1:3260".to_owned());
    let portal = portal.parse().map_err(|_| format!("ISCSI_PORTAL: {portal} is not an address"));
    let plugin =
        portal.and_then(|portal| iscsi::plugin(pool.into(), portal).map_err(|error| error.to_string()));
    match plugin {
        Ok(plugin) => plugin.run().await,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
