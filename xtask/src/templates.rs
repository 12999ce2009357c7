//! `cargo xtask templates`: a crate is generated from each kind of the template, built and tested.
//!
//! The crates are members of a workspace in the target folder that has all our packages too, as symbolic links. So
//! cargo chooses the versions and features that it chose for our own tests, and builds no dependency again. Each
//! kind is generated twice: with all capabilities that the template has, and with none.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::needs::Privilege;
use crate::package::remove_folder;
use crate::step::{Step, output, timed};
use crate::{Failure, sanity, target};

/// The kinds, and the flags that leave out what they have.
const KINDS: [(&str, &[&str]); 6] = [
    ("directory", &["--no-multi-writer", "--no-local"]),
    ("block", &["--no-multi-writer", "--no-expand"]),
    ("attached", &["--no-multi-writer", "--no-expand"]),
    ("shared", &["--no-multi-writer", "--no-stage"]),
    ("fuse", &["--no-multi-writer"]),
    ("ephemeral", &["--no-renew"]),
];
/// The beginnings of the crates' names: with everything, and with the least.
const VARIANTS: [&str; 2] = ["template", "least"];

/// The templates' own tests. No other package has tests of these names.
const TESTS: [&str; 4] = ["--test", "kit", "--test", "life"];

/// Generates, builds and tests. Returns what was not run.
pub(crate) fn run(root: &Path) -> Result<Vec<String>, Failure> {
    let place = target::dir()?.join("templates");
    // With a test, because without one cargo leaves out the features of tests.
    let csi = ["build", "--workspace", "--all-features", "--bin", "csi", "--test", "program"];
    Step::cargo("csi", csi).run(root)?;
    timed("templates: generate", || generate(root, &place))?;
    let shared = target::dir()?.display().to_string();
    let names =
        KINDS.iter().flat_map(|(kind, _)| VARIANTS.map(|variant| format!("--package={variant}-{kind}")));
    let format = ["fmt", "--check"].map(str::to_owned).into_iter().chain(names);
    Step::cargo("templates: format", format).run(&place)?;
    // As `cargo build` makes them, without the feature `manifests`.
    let plain = ["check", "--package", "template-*", "--package", "least-*", "--target-dir", &shared];
    Step::cargo("templates: without features", plain).run(&place)?;
    // With the features of the tests' step, whatever is built.
    let cargo = |name: &str, command: &str, what: &[&str]| {
        let args = [command, "--workspace", "--all-features", "--target-dir", &shared];
        Step::cargo(name, args.iter().chain(what).copied())
    };
    cargo("templates: tests", "test", &TESTS).run(&place)?;
    timed("templates: manifests", manifests)?;
    let mut left_out = Vec::new();
    if Privilege::of_this_process()? == Privilege::Mount {
        // As above.
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

/// Makes the workspace and its members.
fn generate(root: &Path, place: &Path) -> Result<(), Failure> {
    remove_folder(place)?;
    fs::create_dir_all(place)?;
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name();
        let is_own = name.to_str().is_none_or(|name| name.starts_with('.') || name == "target");
        if !is_own && !name.to_str().is_some_and(|name| name.starts_with("Cargo.")) {
            symlink(root.join(&name), place.join(&name))?;
        }
    }
    fs::copy(root.join("Cargo.lock"), place.join("Cargo.lock"))?;
    let members: String = VARIANTS.iter().map(|variant| format!("\"{variant}-*\", ")).collect();
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    fs::write(
        place.join("Cargo.toml"),
        manifest.replacen("members = [", &format!("members = [{members}"), 1),
    )?;
    for (kind, without) in KINDS {
        for (variant, flags) in VARIANTS.into_iter().zip([&[], without]) {
            let name = format!("{variant}-{kind}");
            let mut csi = Command::new(target::dir()?.join("debug/csi"));
            csi.args(["new", &name, "--template", kind, "--toolkit", "."]).args(flags);
            output(csi.current_dir(place))?;
            let mut manifest = File::options().append(true).open(place.join(&name).join("Cargo.toml"))?;
            writeln!(manifest, "\n[lints.rust]\nwarnings = \"deny\"")?;
        }
    }
    Ok(())
}

/// Every driver makes its manifests.
fn manifests() -> Result<(), Failure> {
    for (kind, _) in KINDS {
        for variant in VARIANTS {
            let image = format!("--image=registry.example.org/{kind}:0.1.0");
            let program = target::dir()?.join("debug").join(format!("{variant}-{kind}"));
            let text = output(Command::new(&program).args(["manifests", "--single", &image]))?;
            let text = String::from_utf8_lossy(&text);
            if !text.contains("kind: CSIDriver") {
                return Err(
                    Failure::new(format!("no CSIDriver: {text}")).within(&program.display().to_string())
                );
            }
        }
    }
    Ok(())
}
