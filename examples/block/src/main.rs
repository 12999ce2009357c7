//! The driver as a program. `CSI_ENDPOINT` names its socket, `BLOCK_POOL` the directory of its images.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    block::plugin(std::env::var_os("BLOCK_POOL").unwrap_or("/var/lib/block".into()).into()).run().await
}
