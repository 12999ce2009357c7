//! `/init` of the emulated machine: loads modules, runs each test in its own process, reports each result.
//!
//! Its orders are in `/plan`, which `xtask` writes (its module `kernels::image` has the format). The report goes
//! to the second serial port, because the kernel writes to the first. This process never returns: the machine
//! is powered off at the end, and a panic here is a panic of the kernel.

mod report;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

use report::Report;

/// An error is only printed, so its type does not matter.
type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// The kernel's filesystems: type, directory, options.
const FILESYSTEMS: &[(&str, &str, &str)] = &[
    ("devtmpfs", "/dev", ""),
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("tmpfs", "/run", "mode=0755"),
    ("cgroup2", "/sys/fs/cgroup", ""),
];

/// Links that udev or systemd create on other systems.
const LINKS: &[(&str, &str)] =
    &[("/proc/self/fd", "/dev/fd"), ("fd/0", "/dev/stdin"), ("fd/1", "/dev/stdout"), ("fd/2", "/dev/stderr")];

/// How long to wait for a disk.
const DISK: Duration = Duration::from_secs(20);

fn main() {
    let ended = prepare().and_then(|()| {
        let report = Report::open()?;
        follow_plan(&report)?;
        report.end()
    });
    if let Err(error) = ended {
        // `xtask` shows the end of the console if the machine does not finish.
        eprintln!("init: {error}");
    }
    // It returns only if it fails.
    panic!("power off: {:?}", reboot(RebootMode::RB_POWER_OFF));
}

fn prepare() -> Result<()> {
    for (kind, directory, options) in FILESYSTEMS {
        fs::create_dir_all(directory)?;
        let result = mount(
            Some(*kind),
            *directory,
            Some(*kind),
            MsFlags::MS_NOSUID,
            Some(*options).filter(|o| !o.is_empty()),
        );
        result.map_err(|error| format!("mount {kind} at {directory}: {error}"))?;
    }
    for (target, link) in LINKS {
        symlink(target, link)?;
    }
    // As on a system with systemd.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

fn follow_plan(report: &Report) -> Result<()> {
    let plan = fs::read_to_string("/plan")?;
    let mut environment: Vec<(&str, &str)> = Vec::new();
    for line in plan.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        match words.as_slice() {
            ["module", path] => load(report, path)?,
            ["disk", device, directory] => mount_disk(device, directory)?,
            ["env", settings @ ..] => {
                environment = settings.iter().filter_map(|setting| setting.split_once('=')).collect();
            }
            [order @ ("tests" | "told"), suite, seconds, program, module, part, skipped @ ..] => {
                let output =
                    if *order == "told" { report::Output::Always } else { report::Output::OfFailures };
                let mut tests = tests(program, module)?;
                tests.retain(|test| test.contains(part) && !skipped.contains(&test.as_str()));
                if tests.is_empty() {
                    report.no_tests(suite)?;
                }
                for test in &tests {
                    // Each test has its own process, so a test that hangs or leaves processes running
                    // does not affect the next one. Mounts and devices of a failed test stay: look at the
                    // first failure.
                    let mut command = Command::new(program);
                    command.args(["--exact", &format!("{module}{test}"), "--test-threads=1", "--nocapture"]);
                    command.envs(environment.iter().copied());
                    report.run(suite, test, command, limit(seconds)?, output)?;
                }
            }
            ["program", name, seconds, program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).envs(environment.iter().copied());
                report.run(name, "run", command, limit(seconds)?, report::Output::Always)?;
            }
            _ => return Err(format!("the plan says {line:?}").into()),
        }
    }
    Ok(())
}

fn limit(seconds: &str) -> Result<Duration> {
    Ok(Duration::from_secs(seconds.parse()?))
}

/// Loads a module with its options on the kernel's command line (`module.option=value`), as `modprobe` does.
fn load(report: &Report, path: &str) -> Result<()> {
    let name = Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let line = fs::read_to_string("/proc/cmdline")?;
    let options = line.split_whitespace().filter_map(|word| word.strip_prefix(&*name)?.strip_prefix('.'));
    let options = CString::new(options.collect::<Vec<_>>().join(" "))?;
    match finit_module(File::open(path)?, &options, ModuleInitFlags::empty()) {
        // The module is built in, or loaded by an earlier line.
        Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
        Err(error) => report.module_failed(Path::new(path), error),
    }
}

/// Disks appear some time after their driver is loaded.
fn mount_disk(device: &str, directory: &str) -> Result<()> {
    let end = Instant::now() + DISK;
    while !Path::new(device).exists() {
        if Instant::now() >= end {
            return Err(format!("{device} does not exist after {} s", DISK.as_secs()).into());
        }
        sleep(Duration::from_millis(10));
    }
    let packed = set_aside(directory)?;
    mount(Some(device), directory, Some("ext4"), MsFlags::empty(), None::<&str>)?;
    for aside in packed {
        let place = Path::new(directory).join(aside.file_name().unwrap_or_default());
        fs::create_dir(&place)?;
        mount(Some(&aside), &place, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    Ok(())
}

/// Saves files in a directory that is about to be covered by a mount: programs that tests call, if cargo
/// builds in `/tmp`.
fn set_aside(directory: &str) -> Result<Vec<PathBuf>> {
    let mut aside = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let place = Path::new("/mnt").join(entry.file_name());
        fs::rename(entry.path(), &place)?;
        aside.push(place);
    }
    Ok(aside)
}

/// The names of a test program's tests in a module (`name::`, or empty for all), without it.
fn tests(program: &str, module: &str) -> Result<Vec<String>> {
    let listed = Command::new(program).args(["--list", "--format=terse"]).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.filter_map(|name| name.strip_prefix(module)).map(Into::into).collect())
}
