//! What is made from the workspace's own source. `cargo xtask` builds and runs it for the commands `codegen` and
//! `public-api`: a package of its own, because the libraries that read source take longer to build than all else there.

mod codegen;
mod public_api;
mod rust_source;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::ExitCode;

/// Why a command failed, as text for the user.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package is in the workspace")
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["codegen"] => codegen::write(root()),
        ["codegen", "--check"] => codegen::check(root()),
        ["public-api"] => public_api::write(root()),
        _ => {
            eprintln!("usage: cargo xtask codegen [--check] | cargo xtask public-api");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
