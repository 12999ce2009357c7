//! `cargo xtask templates`: a crate is generated from each kind of the template, built and tested.
//!
//! The crates are members of a workspace in the target folder that has all our packages too, as symbolic links. So
//! cargo chooses the versions and features that it chose for our own tests, and builds no dependency again. Each
//! kind is generated twice: with all capabilities that the template asks for, and with none.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::needs::Privilege;
use crate::package::remove_folder;
use crate::step::{Step, timed};
use crate::{Failure, sanity, target};

/// The version of cargo-generate. Older ones bring a TLS library in C.
const VERSION: &str = "0.25.0";

/// A package around cargo-generate's library, without its support of git. `cargo install` would choose versions of
/// its dependencies that need a newer Rust than this one; for a package cargo chooses versions that fit.
const MANIFEST: &str = r#"[workspace]

[package]
name = "generate"
edition = "2024"

[dependencies]
cargo-generate = { version = "=VERSION", default-features = false }
clap = "4"

[profile.dev]
debug = false
"#;
const MAIN: &str = r#"use clap::Parser as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cargo_generate::Cli::Generate(args) = cargo_generate::Cli::parse();
    cargo_generate::generate(args)?;
    Ok(())
}
"#;

/// The kinds, and the capabilities that the template asks for.
const KINDS: [(&str, &[&str]); 5] = [
    ("directory", &["multi_writer", "local"]),
    ("block", &["multi_writer", "expand"]),
    ("shared", &["multi_writer", "stage"]),
    ("fuse", &["multi_writer"]),
    ("ephemeral", &["renew"]),
];
const VARIANTS: [(&str, &str); 2] = [("template", "true"), ("least", "false")];

/// The template's own tests. No other package has tests of these names.
const TESTS: [&str; 4] = ["--test", "kit", "--test", "life"];

/// Generates, builds and tests. Returns what was not run.
pub(crate) fn run(root: &Path) -> Result<Vec<String>, Failure> {
    let generator = install()?;
    let place = target::dir()?.join("templates");
    timed("templates: generate", || generate(root, &generator, &place))?;
    let shared = target::dir()?.display().to_string();
    // With the features of the tests' step, whatever is built.
    let cargo = |name: &str, command: &str, what: &[&str]| {
        let args = [command, "--workspace", "--all-features", "--target-dir", &shared];
        Step::cargo(name, args.iter().chain(what).copied())
    };
    cargo("templates: tests", "test", &TESTS).run(&place)?;
    timed("templates: manifests", manifests)?;
    let mut left_out = Vec::new();
    if Privilege::of_this_process()? == Privilege::Mount {
        // With a test, because without one cargo leaves out the features of tests.
        cargo("the FUSE program", "build", &["--bin", "flatfs", "--test", "life"]).run(&place)?;
        let flatfs = target::dir()?.join("debug/flatfs").display().to_string();
        let mounted = ["--exclude", "least-*", "--test", "kit", "--", "--ignored"];
        cargo("templates: the kit on real mounts", "test", &mounted)
            .env("FUSE_PROGRAM", flatfs)
            .run(&place)?;
    } else {
        left_out
            .push("NOT RUN: the kit on the templates' real mounts. It needs root with CAP_SYS_ADMIN".into());
    }
    left_out.extend(sanity::run_on_templates()?);
    Ok(left_out)
}

/// Builds cargo-generate unless it is in the target folder.
fn install() -> Result<PathBuf, Failure> {
    let folder = target::dir()?.join(format!("cargo-generate-{VERSION}"));
    let program = folder.join("target/debug/generate");
    if !program.is_file() {
        fs::create_dir_all(folder.join("src"))?;
        fs::write(folder.join("Cargo.toml"), MANIFEST.replace("VERSION", VERSION))?;
        fs::write(folder.join("src/main.rs"), MAIN)?;
        let own = folder.join("target").display().to_string();
        Step::cargo("cargo-generate", ["build", "--target-dir", &own]).run(&folder)?;
    }
    Ok(program)
}

/// The name of a generated crate.
fn name(variant: &str, kind: &str) -> String {
    format!("{variant}-{kind}")
}

fn generate(root: &Path, generator: &Path, place: &Path) -> Result<(), Failure> {
    remove_folder(place)?;
    fs::create_dir_all(place)?;
    for (kind, capabilities) in KINDS {
        for (variant, value) in VARIANTS {
            let name = name(variant, kind);
            let mut command = Command::new(generator);
            command
                .args(["generate", "--silent", "--no-workspace", "--vcs", "none", "--name", &name])
                .args(["--define", &format!("kind={kind}"), "--define", "organisation=example.org", "--path"])
                .arg(root.join("templates"))
                .arg("--destination")
                .arg(place)
                // It asks for the author's name, although no file uses it.
                .env("CARGO_NAME", "vendor");
            for capability in capabilities {
                command.args(["--define", &format!("{capability}={value}")]);
            }
            let output = command.stdin(Stdio::null()).output()?;
            if !output.status.success() {
                let text = [output.stdout, output.stderr].concat();
                return Err(Failure::new(String::from_utf8_lossy(&text)).within(&format!("{command:?}")));
            }
            make_member(&place.join(&name).join("Cargo.toml"))?;
        }
    }
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name();
        let is_own = name.to_str().is_none_or(|name| name.starts_with('.') || name == "target");
        if !is_own && !name.to_str().is_some_and(|name| name.starts_with("Cargo.")) {
            symlink(root.join(&name), place.join(&name))?;
        }
    }
    fs::copy(root.join("Cargo.lock"), place.join("Cargo.lock"))?;
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    Ok(fs::write(place.join("Cargo.toml"), workspace(&manifest)?)?)
}

/// Turns a generated crate into a member: its warnings fail, and the profile is the workspace's.
fn make_member(path: &Path) -> Result<(), Failure> {
    let manifest = fs::read_to_string(path)?;
    let Some((manifest, _)) = manifest.split_once("\n# Small programs.") else {
        return Err(Failure::new(format!("{} has no release profile", path.display())));
    };
    Ok(fs::write(path, format!("{manifest}\n[lints.rust]\nwarnings = \"deny\"\n"))?)
}

/// Our manifest with the generated members, which find the unpublished crates in it.
fn workspace(manifest: &str) -> Result<String, Failure> {
    let (head, members) = manifest
        .split_once("members = [")
        .ok_or_else(|| Failure::new("Cargo.toml of the workspace has no members"))?;
    let own: String = VARIANTS.iter().map(|(variant, _)| format!("\"{variant}-*\", ")).collect();
    let patch = |name: &str| format!("{name} = {{ path = \"{name}\" }}\n");
    let patches = [patch("csi-core"), patch("csi-conformance")].concat();
    Ok(format!("{head}members = [{own}{members}\n[patch.crates-io]\n{patches}"))
}

/// Every driver makes its manifests.
fn manifests() -> Result<(), Failure> {
    for (kind, _) in KINDS {
        for (variant, _) in VARIANTS {
            let program = target::dir()?.join("debug").join(name(variant, kind));
            let image = format!("--image=registry.example.org/{kind}:0.1.0");
            let output = Command::new(&program).args(["manifests", "--single", &image]).output()?;
            let (text, error) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            if !output.status.success() || !text.contains("kind: CSIDriver") {
                return Err(Failure::new(format!("{}: {}: {error}", program.display(), output.status)));
            }
        }
    }
    Ok(())
}
