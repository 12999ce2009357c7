//! The driver as a program. `CSI_ENDPOINT` names its socket, `DIRS_ROOT` the directory of its volumes.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    dirs::plugin(std::env::var_os("DIRS_ROOT").unwrap_or("/var/lib/dirs".into()).into()).run().await
}
