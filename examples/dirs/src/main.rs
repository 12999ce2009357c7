//! The driver as a program: `CSI_ENDPOINT` is its socket, `DIRS_ROOT` where its volumes are.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    dirs::plugin(std::env::var_os("DIRS_ROOT").unwrap_or("/var/lib/dirs".into()).into()).run().await
}
