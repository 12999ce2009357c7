//! `cargo xtask container`: the images of the examples, run by `runc` as a kubelet runs a node plugin.

use std::path::{Path, PathBuf};

use crate::image::{self, Base};
use crate::needs::{Privilege, Work};
use crate::step::{Step, timed};
use crate::{Failure, needs, target};

const TEST: &str = "root_container";

/// The images of the test: name, programs with the entry point first, and what is below them.
const IMAGES: [(&str, &[&str], Base); 4] = [
    ("block", &["block"], Base::Tools),
    ("dirs", &["dirs"], Base::Empty),
    ("fuse", &["fuse", "flatfs"], Base::Empty),
    ("fuse-tools", &["fuse", "flatfs"], Base::Tools),
];
/// The image that is built twice: the smallest program, and no other one in the image.
const REBUILT: &str = "dirs";
const PACKAGES: [&str; 3] = ["block", "dirs", "fuse"];

/// Builds the images and runs the test. Returns why it was not run.
pub(crate) fn run(root: &Path) -> Result<Vec<String>, Failure> {
    let not_run = |why: String| Ok(vec![format!("NOT RUN: the container test ({TEST}). It needs {why}")]);
    if Privilege::of_this_process()? != Privilege::Mount {
        return not_run("root with CAP_SYS_ADMIN".to_owned());
    }
    if let Some(missing) = needs::missing_programs(Work::Containers).pop() {
        return not_run(missing);
    }
    let images = target::dir()?.join("container-images");
    timed("images", || build(root, &images))?;
    Step::cargo(TEST, ["test", "--package", "xtask", "--test", TEST])
        .env("CSI_IMAGES", images.display().to_string())
        .run(root)?;
    Ok(Vec::new())
}

fn build(root: &Path, images: &Path) -> Result<(), Failure> {
    let built = programs(root)?;
    let mut first = String::new();
    for (name, programs, base) in IMAGES {
        let digest = write(&images.join(name), &built, programs, base)?;
        println!("    {name} {digest}");
        if name == REBUILT {
            first = digest;
        }
    }
    let again = rebuilt(root, &images.join("again"))?;
    if again != first {
        return Err(Failure::new(format!("two builds of {REBUILT} give two images: {first} and {again}")));
    }
    Ok(())
}

/// Builds all programs, with the features that they have together.
fn programs(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    image::programs(root, &packages.collect::<Vec<_>>())
}

/// Writes an image with some of these programs, and returns its digest.
fn write(to: &Path, built: &[PathBuf], programs: &[&str], base: Base) -> Result<String, Failure> {
    let path = |program: &&str| {
        let found = built.iter().find(|path| path.file_name().is_some_and(|name| name == *program));
        found.cloned().ok_or_else(|| Failure::new(format!("cargo built no program {program}")))
    };
    image::write(to, &programs.iter().map(path).collect::<Result<Vec<_>, _>>()?, base)
}

/// Compiles and links a program a second time, and returns the digest of its image.
fn rebuilt(root: &Path, to: &Path) -> Result<String, Failure> {
    let triple = target::host_triple()?;
    let folder = target::static_dir()?.display().to_string();
    let clean =
        ["clean", "--release", "--package", REBUILT, "--target", &triple, "--target-dir", &folder, "--quiet"];
    Step::cargo("clean", clean).run(root)?;
    write(to, &programs(root)?, &[REBUILT], Base::Empty)
}
