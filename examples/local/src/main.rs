//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser as _;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = local::Args::parse();
    local::plugin(&args).run_with(&args.driver).await
}
