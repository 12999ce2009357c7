//! The machine's initramfs: tests, tools with their libraries, modules, and the plan for `/init`.
//!
//! The plan is a text with one command per line and tabs between words:
//!
//! | command | words | does |
//! |---|---|---|
//! | `module` | path | loads the module |
//! | `disk` | device, directory | mounts the device's ext4 on the directory |
//! | `env` | `NAME=VALUE` … | sets the environment of what follows, and replaces the previous one |
//! | `tests` | suite, seconds, program, part, names … | runs each test of the program that has `part` in its path, except the named ones |
//! | `told` | as `tests` | the same, and prints the tests' output also on success |
//! | `program` | name, seconds, program, arguments … | runs the program once |

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Newest;
use super::archive::{Kernel, Version};
use super::build::Programs;
use super::cpio::Cpio;
use super::modules::Modules;
use super::suite::{Groups, Suite, names};
use crate::{Failure, needs, sanity};

/// Folders that programs expect.
const DIRECTORIES: &[&str] =
    &["dev", "proc", "sys", "run", "tmp", "root", "mnt", "etc", "var/lib", "var/tmp", "usr/bin", "usr/sbin"];

/// For the disk under `/tmp`. Loop devices need a real filesystem: a tmpfs reads zeros past a file's end. The cloud
/// flavour has ext4 built in.
const DISK_MODULES: Groups = &["virtio_pci virtio_blk crc32c_generic ext4"];

/// The programs that run outside the machine, with the cluster.
const CEPH_PROGRAMS: [&str; 2] = ["usr/bin/ceph", "usr/bin/rbd"];

/// The factor on the time limits for emulation on a busy machine.
const EMULATION_FACTOR: u32 = 3;

/// The settings of a suite that this program's environment replaces: a larger sample of the points at which a step
/// is killed, or more rounds.
const SAMPLE: [&str; 3] = ["CSI_CRASH_POINTS", "CSI_CRASH_STRIDE", "CSI_TEST_ROUNDS"];

/// The factor on all time limits for a larger sample.
pub(crate) const SAMPLE_FACTOR: u32 = 8;

/// The settings of the sample in this program's environment.
pub(crate) fn sample() -> Vec<(&'static str, String)> {
    SAMPLE.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?))).collect()
}

type Archive = Cpio<BufWriter<File>>;

pub(crate) fn pack(
    to: &Path,
    kernel: &Kernel,
    suites: &[&Suite],
    programs: &Programs,
    newest: &Newest,
) -> Result<(), Failure> {
    let mut cpio = Cpio::new(BufWriter::new(File::create(to)?));
    let mut plan = String::new();
    for directory in DIRECTORIES {
        cpio.directory(directory)?;
    }
    cpio.device("dev/console", (5, 1))?;
    cpio.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")?;
    cpio.file("init", &fs::read(&programs.init)?)?;
    for program in &programs.called {
        copy(&mut cpio, program)?;
    }
    let modules = Modules::below(&kernel.root)?;
    let mut loaded = Vec::new();
    let mut load = |groups: Groups, cpio: &mut Archive, plan: &mut String| -> Result<(), Failure> {
        for name in names(groups) {
            for (name, image) in modules.load(name, &mut loaded)? {
                let path = format!("/modules/{name}.ko");
                cpio.file(&path, &image)?;
                plan.push_str(&format!("module\t{path}\n"));
            }
        }
        Ok(())
    };
    if let Some(program) = programs.ceph.as_ref().filter(|_| suites.iter().any(|suite| suite.has_ceph)) {
        let content = fs::read(program)?;
        CEPH_PROGRAMS.iter().try_for_each(|path| cpio.file(path, &content))?;
    }
    load(DISK_MODULES, &mut cpio, &mut plan)?;
    plan.push_str("disk\t/dev/vda\t/tmp\n");
    for suite in suites {
        load(suite.modules, &mut cpio, &mut plan)?;
        for file in names(suite.files) {
            copy_named(&mut cpio, file)?;
        }
        if let Some(root) = newest.get(suite.newest) {
            copy_newest(&mut cpio, root)?;
        }
        let path = format!("/tests/{}/{}", suite.package, suite.program());
        if !cpio.has(&path) {
            cpio.file(&path, &fs::read(programs.of(suite)?)?)?;
        }
        plan.push_str(&orders(suite, &path, kernel.version, &sample()));
    }
    cpio.file("plan", plan.as_bytes())?;
    Ok(cpio.finish()?)
}

/// The time limit of a test in emulation, in seconds.
pub(crate) fn seconds(suite: &Suite, sample: &[(&str, String)]) -> u32 {
    suite.seconds * EMULATION_FACTOR * if sample.is_empty() { 1 } else { SAMPLE_FACTOR }
}

fn orders(suite: &Suite, program: &str, on: Version, sample: &[(&str, String)]) -> String {
    // The last one of a name counts.
    let settings = suite.env.iter().map(|(name, value)| (*name, *value));
    let settings = settings.chain(sample.iter().map(|(name, value)| (*name, value.as_str())));
    let settings: String = settings.map(|(name, value)| format!("\t{name}={value}")).collect();
    let skipped: String = suite.skipped(on).map(|skip| format!("\t{}", skip.test)).collect();
    let package = suite.package;
    let test = suite.test;
    let seconds = seconds(suite, sample);
    let module = suite.module();
    let only = suite.only;
    let order = if suite.prints_output { "told" } else { "tests" };
    format!("env{settings}\n{order}\t{package}/{test}\t{seconds}\t{program}\t{module}\t{only}{skipped}\n")
}

/// Copies a program, by its name, or any file, by its full path.
fn copy_named(cpio: &mut Archive, name: &str) -> Result<(), Failure> {
    // Its libraries are among those of lvm.
    if name == "csi-sanity" {
        return Ok(cpio.file("/usr/bin/csi-sanity", &fs::read(sanity::newest()?)?)?);
    }
    let path = if name.starts_with('/') { Some(PathBuf::from(name)) } else { needs::find(name) };
    let path = path.ok_or_else(|| Failure::usage(format!("{name} is missing; see `cargo xtask needs`")))?;
    copy(cpio, &path)
}

/// Where programs and libraries are in a package.
const NEWEST: [&str; 3] = ["usr/sbin", "usr/lib64", "usr/lib/x86_64-linux-gnu"];

/// Copies the programs and libraries of unpacked packages below `/newest`.
fn copy_newest(cpio: &mut Archive, root: &Path) -> Result<(), Failure> {
    for directory in NEWEST.iter().filter(|directory| root.join(directory).is_dir()) {
        for entry in fs::read_dir(root.join(directory))? {
            let entry = entry?;
            let path = format!("/newest/{directory}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_file() && !cpio.has(&path) {
                cpio.file(&path, &fs::read(entry.path())?)?;
            }
        }
    }
    Ok(())
}

/// Copies a file to the same path, with the shared libraries that it needs.
fn copy(cpio: &mut Archive, path: &Path) -> Result<(), Failure> {
    let name = path.to_str().ok_or_else(|| Failure::new(format!("{} is not text", path.display())))?;
    if cpio.has(name) {
        return Ok(());
    }
    let content = fs::read(path).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    cpio.file(name, &content)?;
    if !content.starts_with(b"\x7fELF") {
        return Ok(());
    }
    // ldd fails for static programs, which need no libraries.
    let listed = Command::new("ldd").arg(path).output()?;
    for library in libraries(&String::from_utf8_lossy(&listed.stdout)) {
        if !cpio.has(library) {
            cpio.file(library, &fs::read(library)?)?;
        }
    }
    Ok(())
}

/// The paths in the output of ldd: `libc.so.6 => /lib/libc.so.6 (0x1)`, or `/lib64/ld.so.2 (0x1)`.
fn libraries(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|line| {
        let (before, _) = line.rsplit_once(" (0x")?;
        before.split_whitespace().last().filter(|path| path.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::suite::Skip;
    use super::super::suites::SUITE;
    use super::*;

    #[test]
    fn libraries_as_ldd_lists_them() {
        let listed =
            "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert_eq!(libraries(listed).collect::<Vec<_>>(), ["/lib/x/libc.so.6", "/lib64/ld.so.2"]);
    }

    #[test]
    fn a_suite_as_the_plan_orders_it() {
        const SLOW: Skip = Skip::between((6, 1), (6, 2), "slow", "");
        let suite = Suite { package: "p", test: "t", env: &[("A", "1")], skip: &[SLOW], ..SUITE };
        let on = |minor| orders(&suite, "/x", Version::new(6, minor), &[]);
        assert_eq!(on(1), "env\tA=1\ntests\tp/t\t180\t/x\t\t\tslow\n");
        assert_eq!(on(2), "env\tA=1\ntests\tp/t\t180\t/x\t\t\n");
        let larger = orders(&suite, "/x", Version::new(6, 2), &[("A", "9".to_owned())]);
        assert_eq!(larger, "env\tA=1\tA=9\ntests\tp/t\t1440\t/x\t\t\n");
        let module = Suite { of_program: "all", only: "part", ..suite };
        assert_eq!(module.program(), "all");
        let order = orders(&module, "/x", Version::new(6, 2), &[]);
        assert_eq!(order, "env\tA=1\ntests\tp/t\t180\t/x\tt::\tpart\n");
    }
}
