//! `csi`: a command-line client for any CSI driver.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(csi_cli::program::run(std::env::args_os()))
}
