//! The driver as a program; `--help` names its flags and the variables that stand in for them.

use clap::Parser;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = hostpath::Args::parse();
    hostpath::run(&args).await
}
