//! The driver as a program; `--help` lists its environment variables.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    csi_core::Plugin::run_on_directory("BLOCK_POOL", "/var/lib/block", block::plugin).await
}
