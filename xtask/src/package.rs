//! `cargo xtask package`: the archives of the published crates, each built and tested outside of the workspace.
//!
//! The archives are unpacked into a workspace of their own in the target folder. Every file of theirs comes
//! from an archive. They find each other there, because none of them is in a registry yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{self, Step, timed};
use crate::{Failure, target};

/// The folders of the published crates. The last part of each is the crate's name.
const FOLDERS: [&str; 10] = [
    "csi-proto",
    "csi-core",
    "csi-core/uds-authority",
    "csi-mount",
    "tools/csi-cli",
    "tools/csi-conformance",
    "kubernetes/csi-controllers",
    "kubernetes/csi-deploy",
    "kubernetes/csi-flexvolume",
    "kubernetes/csi-kube",
];

/// The version of all packages of the workspace, this one too.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn name(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap_or(folder)
}

/// The names of the published crates.
fn names() -> [&'static str; 10] {
    FOLDERS.map(name)
}

/// What is done with the unpacked archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Everything is built and tested.
    Test,
    /// Everything is checked by the compiler, and no test runs.
    Check,
}

/// The unpacked archives.
struct Archives {
    /// The folder for everything of this command.
    folder: PathBuf,
    /// The workspace of the archives.
    unpacked: PathBuf,
    /// The target folder of the repository's workspace, which has most dependencies built.
    target: String,
}

/// The step of the gate: the compiler checks all archives together. The gate checks each crate alone in the
/// repository.
pub(crate) fn check_together(root: &Path) -> Result<(), Failure> {
    let archives = prepare(root)?;
    let args = ["check", "--workspace", "--all-features", "--all-targets", "--target-dir", &archives.target];
    Step::cargo("the archives checked", args).run(&archives.unpacked)
}

/// Packages all published crates, and builds and tests each one from its archive alone, with all features.
/// Then the compiler checks them with the oldest versions of their dependencies that their manifests allow,
/// and with the oldest Rust that they declare.
///
/// Returns a sentence for each step that this machine can't do.
pub(crate) fn run(root: &Path, depth: Depth) -> Result<Vec<String>, Failure> {
    let Archives { folder, unpacked, target } = prepare(root)?;
    for name in names() {
        let (step, what): (_, &[&str]) = match depth {
            Depth::Test => ("built and tested alone", &["test", "--no-fail-fast"]),
            Depth::Check => ("checked alone", &["check", "--all-targets"]),
        };
        let args = ["--package", name, "--all-features", "--target-dir", &target];
        Step::cargo(format!("{name}: its archive {step}"), what.iter().chain(&args).copied())
            .run(&unpacked)?;
    }
    let mut of_workspace = Vec::new();
    let mut newer = Vec::new();
    for folder in FOLDERS {
        let list = if has_own_rust_version(root, folder) { &mut newer } else { &mut of_workspace };
        list.push(name(folder));
    }
    oldest_dependencies(&folder, &unpacked, &workspace(&of_workspace))?;
    oldest_rust(root, &unpacked, &target, &newer)
}

/// Makes the archives, and unpacks them.
fn prepare(root: &Path) -> Result<Archives, Failure> {
    let folder = target::dir()?.join("archives");
    let unpacked = folder.join("unpacked");
    archive(root, &folder)?;
    unpack(&folder, &unpacked)?;
    fs::write(unpacked.join("Cargo.toml"), workspace(&names()))?;
    fs::copy(root.join("Cargo.lock"), unpacked.join("Cargo.lock"))?;
    Ok(Archives { folder, unpacked, target: target::dir()?.display().to_string() })
}

/// Writes the archives into `FOLDER/package`.
fn archive(root: &Path, folder: &Path) -> Result<(), Failure> {
    // Archives of other versions.
    remove_folder(&folder.join("package"))?;
    let folder = folder.display().to_string();
    let options = ["package", "--no-verify", "--allow-dirty", "--target-dir", &folder];
    let packages = names().into_iter().flat_map(|name| ["--package", name]);
    Step::cargo("archives", options.into_iter().chain(packages)).run(root)
}

fn unpack(folder: &Path, unpacked: &Path) -> Result<(), Failure> {
    remove_folder(unpacked)?;
    fs::create_dir_all(unpacked)?;
    for name in names() {
        let archive = folder.join(format!("package/{name}-{VERSION}.crate"));
        // Without the archive's times, which are all equal: cargo takes a file with an old time for unchanged.
        step::output(Command::new("tar").arg("-xzmf").arg(&archive).arg("-C").arg(unpacked))?;
    }
    Ok(())
}

/// Whether a crate declares a newer Rust than the workspace does. Its dependencies are as new, so it is left out
/// where the oldest versions are checked: it would raise them for all crates.
fn has_own_rust_version(root: &Path, folder: &str) -> bool {
    let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap_or_default();
    manifest.lines().any(|line| line.starts_with("rust-version = "))
}

/// The manifest of the workspace that has the unpacked archives of these crates as members.
fn workspace(crates: &[&str]) -> String {
    let members: Vec<String> = crates.iter().map(|name| format!("{name}-{VERSION}")).collect();
    let patches: Vec<String> =
        crates.iter().map(|name| format!("{name} = {{ path = \"{name}-{VERSION}\" }}\n")).collect();
    format!(
        "[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[profile.dev]\ndebug = false\n\n\
         [profile.test]\ndebug = false\n\n[patch.crates-io]\n{}",
        patches.concat()
    )
}

/// The oldest versions that the manifests allow for direct dependencies. Cargo offers this as an unstable
/// option, which stable cargo accepts with this variable. Only the choice of versions is unstable.
fn oldest_dependencies(folder: &Path, unpacked: &Path, workspace: &str) -> Result<(), Failure> {
    let place = folder.join("oldest");
    remove_folder(&place)?;
    step::output(Command::new("cp").arg("--recursive").arg(unpacked).arg(&place))?;
    fs::remove_file(place.join("Cargo.lock"))?;
    fs::write(place.join("Cargo.toml"), workspace)?;
    let choose = ["generate-lockfile", "-Z", "direct-minimal-versions"];
    Step::cargo("oldest dependencies", choose).env("RUSTC_BOOTSTRAP", "1").run(&place)?;
    let target = folder.join("oldest-target").display().to_string();
    let args = ["check", "--workspace", "--all-features", "--target-dir", &target];
    Step::cargo("archives with the oldest dependencies", args).run(&place)
}

/// Checks the archives with the oldest Rust that the workspace declares, if rustup has that toolchain here. The
/// crates that declare a newer one are left out.
fn oldest_rust(root: &Path, unpacked: &Path, target: &str, newer: &[&str]) -> Result<Vec<String>, Failure> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap_or_default();
    let version = version.trim_matches('"');
    let list = Command::new("rustup").args(["toolchain", "list"]).output();
    let list = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let Some(toolchain) = toolchain(&list, version) else {
        return Ok(vec![format!(
            "NOT RUN: the archives with Rust {version}, because rustup has no such toolchain here. To install \
             it: rustup toolchain install {version}"
        )]);
    };
    let name = format!("archives with Rust {version}");
    let mut args =
        vec!["run", toolchain, "cargo", "check", "--workspace", "--all-features", "--target-dir", target];
    args.extend(newer.iter().flat_map(|name| ["--exclude", name]));
    timed(&name, || {
        let status = Command::new("rustup").args(&args).current_dir(unpacked).status()?;
        let failed = || Failure::new(format!("{status}; repeat it with:\n  rustup {}", args.join(" ")));
        status.success().then_some(()).ok_or_else(failed)
    })?;
    Ok(Vec::new())
}

/// The installed toolchain of this version, among the lines of `rustup toolchain list`.
fn toolchain<'a>(list: &'a str, version: &str) -> Option<&'a str> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    names.into_iter().find(|name| {
        let rest = name.strip_prefix(version);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    })
}

/// Removes a folder that this program made in the target folder.
pub(crate) fn remove_folder(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_is_found_by_its_version() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\n1.88.0-x86_64-unknown-linux-gnu\n";
        assert_eq!(toolchain(list, "1.88"), Some("1.88.0-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain(list, "1.8"), None);
        assert_eq!(toolchain("", "1.88"), None);
    }

    #[test]
    fn the_workspace_patches_every_crate() {
        let text = workspace(&names());
        for name in names() {
            assert!(text.contains(&format!("\n{name} = {{ path = \"{name}-{VERSION}\" }}\n")), "{text}");
        }
    }
}
