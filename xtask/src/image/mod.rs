//! `cargo xtask image`: a container image of a driver as an OCI layout, without a container engine.
//!
//! The driver is one static program on an empty base. With `--tools`, a layer below it has the programs of the
//! filesystems. A program of any other workspace is packed by its path. The same input gives the same digest.

mod layout;
mod root;
mod tools;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::kernels::programs_of;
use crate::{Failure, elf, target};
use layout::{Image, Layer};
use root::Root;

const HELP: &str = "\
Usage: cargo xtask image (PACKAGE | PATH…) [--tools] [--dev] [--features LIST] [--output DIR]

  PACKAGE        a package of this workspace; its programs are built, and the one with the package's name is
                 the image's entry point
  PATH           static programs that exist already, with a `/` in each path; the first one is the entry point.
                 Programs for several architectures, each with its entry point first, make an image for each,
                 in one index
  --tools        add mkfs, fsck and the other programs of ext4, xfs, btrfs and LUKS, and nsenter, from the
                 Debian packages of this machine's release; only for programs of this machine's architecture
  --dev          build with the profile `dev`, which takes less time
  --features LIST  build the package with these features
  --output DIR   write the OCI layout there [default: images/NAME in the target folder]
";

/// Its path is of no use: `cargo xtask ci` runs on while `cargo test` builds this program again.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Where the programs are in the image.
const BIN: &str = "usr/bin";

/// Programs with their contents.
type Programs<'a> = Vec<(&'a PathBuf, Vec<u8>)>;

/// What is below the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Empty,
    Tools,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    Release,
    Dev,
}

/// Runs `cargo xtask image` with these options.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), Failure> {
    let mut what = Vec::new();
    let mut base = Base::Empty;
    let mut profile = Profile::Release;
    let mut features = Vec::new();
    let mut output = None;
    let mut options = options.iter().copied();
    while let Some(option) = options.next() {
        match option {
            "--tools" => base = Base::Tools,
            "--dev" => profile = Profile::Dev,
            "--features" => {
                let list = options.next().ok_or_else(|| Failure::usage(HELP))?;
                features = vec!["--features", list];
            }
            "--output" => {
                let folder = options.next().ok_or_else(|| Failure::usage(HELP))?;
                output = Some(PathBuf::from(folder));
            }
            word if word.starts_with('-') => return Err(Failure::usage(HELP)),
            word => what.push(word),
        }
    }
    let (name, programs) = match what.as_slice() {
        [package] if !package.contains('/') => (*package, build(root, package, profile, &features)?),
        [first, ..] if what.iter().all(|path| path.contains('/')) => {
            (file_name(Path::new(first))?, what.iter().map(PathBuf::from).collect())
        }
        _ => return Err(Failure::usage(HELP)),
    };
    let to = match output {
        Some(output) => output,
        None => target::dir()?.join("images").join(name),
    };
    let digest = write(&to, &programs, base)?;
    println!("{} {digest}", to.display());
    Ok(())
}

/// The programs of a package, linked statically; the one with the package's name first.
fn build(root: &Path, package: &str, profile: Profile, features: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    let release: &[&str] = if profile == Profile::Release { &["--release"] } else { &[] };
    let mut programs = programs(root, &[&["--package", package], release, features].concat())?;
    programs.sort_by_key(|program| program.file_name().is_none_or(|name| name != package));
    Ok(programs)
}

/// The programs that `cargo build --bins` with these arguments makes, linked statically.
pub(crate) fn programs(root: &Path, args: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    programs_of(root, &[&["build", "--bins"], args].concat())
}

/// Writes the image of these programs as an OCI layout, for each of their architectures, and returns the digest
/// of the manifest, or of the index.
pub(crate) fn write(to: &Path, programs: &[PathBuf], base: Base) -> Result<String, Failure> {
    let mut images: Vec<(&str, Programs<'_>)> = Vec::new();
    for program in programs {
        elf::check_static(program)?;
        let content = fs::read(program)?;
        let architecture = elf::architecture(&content)
            .ok_or_else(|| Failure::usage(format!("{}: unknown architecture", program.display())))?;
        match images.iter_mut().find(|(other, _)| *other == architecture) {
            Some((_, programs)) => programs.push((program, content)),
            None => images.push((architecture, vec![(program, content)])),
        }
    }
    let images = images.into_iter().map(|(architecture, programs)| image(architecture, programs, base));
    layout::write(to, &images.collect::<Result<Vec<_>, _>>()?)
}

/// The image of these programs, which are all for one architecture.
fn image(architecture: &'static str, programs: Programs<'_>, base: Base) -> Result<Image, Failure> {
    let (entry, _) = programs.first().ok_or_else(|| Failure::usage("an image needs a program"))?;
    let config = json!({
        "Entrypoint": [format!("/{BIN}/{}", file_name(entry)?)],
        "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    });
    let mut layers = Vec::new();
    if base == Base::Tools {
        let own = elf::architecture(&fs::read(THIS_PROGRAM)?);
        if own != Some(architecture) {
            return Err(Failure::usage(format!(
                "--tools adds this machine's packages, and a program is for {architecture}"
            )));
        }
        layers.push(Layer::of(&tools::root(&target::dir()?.join("image-packages"))?)?);
    }
    let mut driver = Root::default();
    for (program, content) in programs {
        driver.program(&format!("{BIN}/{}", file_name(program)?), content);
    }
    layers.push(Layer::of(&driver)?);
    Ok(Image { architecture, layers, config })
}

fn file_name(path: &Path) -> Result<&str, Failure> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| Failure::usage(format!("{} is not the path of a program", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The header of a static program.
    fn static_program() -> Vec<u8> {
        let mut elf = vec![0; 0x40];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        elf[0x12] = 62;
        elf[0x36] = 56;
        elf
    }

    #[test]
    fn the_same_programs_give_the_same_image() {
        let place = tempfile::tempdir().expect("a folder");
        let image = |folder: &str, mode: u32, age: u64, content: &[u8]| {
            let folder = place.path().join(folder);
            fs::create_dir(&folder).expect("a folder");
            let program = folder.join("driver");
            fs::write(&program, content).expect("a file");
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("a mode");
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options()
                .write(true)
                .open(&program)
                .and_then(|it| it.set_modified(then))
                .expect("a time");
            write(&folder.join("image"), &[program], Base::Empty).expect("an image")
        };
        let digest = image("one", 0o755, 0, &static_program());
        assert_eq!(image("other", 0o700, 9999, &static_program()), digest);
        let other = [static_program(), vec![1]].concat();
        assert_ne!(image("changed", 0o755, 0, &other), digest);
    }

    #[test]
    fn programs_of_two_architectures_are_two_images() {
        let place = tempfile::tempdir().expect("a folder");
        let program = |folder: &str, machine: u8| {
            let mut content = static_program();
            content[0x12] = machine;
            let path = place.path().join(folder).join("driver");
            fs::create_dir(place.path().join(folder)).expect("a folder");
            fs::write(&path, content).expect("a file");
            path
        };
        let programs = [program("x86_64", 62), program("aarch64", 183)];
        let blobs = |programs: &[PathBuf]| {
            let to = place.path().join("image");
            write(&to, programs, Base::Empty).expect("an image");
            fs::read_dir(to.join("blobs/sha256")).expect("blobs").count()
        };
        assert_eq!([blobs(&programs[..1]), blobs(&programs)], [3, 7]);
        let unknown = program("unknown", 0);
        assert!(write(&place.path().join("other"), &[unknown], Base::Empty).is_err());
    }

    #[test]
    fn a_program_with_a_dynamic_linker_is_refused() {
        let place = tempfile::tempdir().expect("a folder");
        let own = std::env::current_exe().expect("this program");
        let failure = write(&place.path().join("image"), &[own], Base::Empty).expect_err("it is dynamic");
        assert!(failure.to_string().contains("dynamic linker"), "{failure}");
    }
}
