//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser as _;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = {{crate_name}}::Args::parse();
    {{crate_name}}::plugin(&args).run_with(&args.driver).await
}
