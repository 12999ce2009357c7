//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = hostpath::Args::parse();
    hostpath::run(&args).await
}
