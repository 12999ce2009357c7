//! An example as a process in a directory of its own, and what it left behind.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::modes::Mode;
use crate::Failure;
use crate::hung::{Killed, wait_within};

/// The time that a driver has to answer on its socket, and to end.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// The directory of one run, with everything that the driver and the suite create.
pub(crate) struct Place(Option<tempfile::TempDir>);

impl Place {
    pub(crate) fn new() -> Result<Self, Failure> {
        let place = Self(Some(tempfile::tempdir()?));
        fs::create_dir(place.of("data"))?;
        Ok(place)
    }

    pub(crate) fn of(&self, name: &str) -> PathBuf {
        self.0.as_ref().map(|directory| directory.path().join(name)).unwrap_or_default()
    }

    /// What is left of the volumes, in words.
    fn left(&self) -> Result<Vec<String>, Failure> {
        let mut left: Vec<String> =
            mounts_below(&self.of(""))?.into_iter().map(|mount| format!("mount {mount}")).collect();
        for (device, file) in loop_devices(&self.of("data"))? {
            left.push(format!("loop device {device} over {}", file.display()));
        }
        for name in ["target", "staging"] {
            left.extend(self.of(name).exists().then(|| format!("directory {name}")));
        }
        Ok(left)
    }
}

impl Drop for Place {
    /// Detaches the loop devices over files of this directory, and keeps the directory if something is
    /// mounted below it.
    fn drop(&mut self) {
        for (device, _) in loop_devices(&self.of("data")).unwrap_or_default() {
            drop(Command::new("losetup").args(["--detach", &device]).status());
        }
        let is_mounted = mounts_below(&self.of("")).is_ok_and(|mounts| !mounts.is_empty());
        if let Some(directory) = self.0.take()
            && is_mounted
        {
            println!("    mounts are left, so {} stays", directory.keep().display());
        }
    }
}

/// A program that serves a socket.
pub(crate) struct Process {
    child: Killed,
    log: PathBuf,
}

impl Process {
    /// Starts the program with its output in this file, and waits until its socket answers.
    pub(crate) fn start(command: &mut Command, socket: &Path, log: PathBuf) -> Result<Self, Failure> {
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        let mut process = Self { child: Killed(command.spawn()?), log };
        let end = Instant::now() + LIMIT;
        while UnixStream::connect(socket).is_err() {
            let ended = process.child.0.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                let how = ended.map_or("does not answer".to_owned(), |status| status.to_string());
                let program = command.get_program().display();
                return Err(Failure::new(format!("{program}: {how}; its log: {}", process.said())));
            }
            sleep(POLL);
        }
        Ok(process)
    }

    /// The end of its log.
    fn said(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n  ")
    }
}

/// A running driver.
pub(crate) struct Driver {
    process: Process,
    /// The files in its directory before the first volume.
    first_files: BTreeSet<PathBuf>,
}

impl Driver {
    /// Starts the driver in the caller's mount namespace and waits until its socket answers.
    pub(crate) fn start(
        program: &Path,
        mode: &Mode,
        spec: &str,
        place: &Place,
        log: PathBuf,
    ) -> Result<Self, Failure> {
        let socket = place.of("csi.sock");
        let mut command = Command::new(program);
        command
            .args(mode.flags)
            .env("CSI_ENDPOINT", &socket)
            .env("NODE_ID", "node-1")
            .env("DRIVER_SPEC", spec)
            .env("VOLUME_ROOTS", place.of(""))
            // The examples' names of the directory of their volumes.
            .envs(["DIRS_ROOT", "BLOCK_POOL", "FLAT_ROOT", "DATA_DIR"].map(|name| (name, place.of("data"))))
            .env("FUSE_PROGRAM", program.with_file_name("flatfs"));
        let process = Process::start(&mut command, &socket, log)?;
        Ok(Self { process, first_files: files_below(&place.of("data"))? })
    }

    /// Stops the driver as an orchestrator does. Returns what is wrong: an exit status other than success,
    /// or what it left behind.
    pub(crate) fn stop(mut self, place: &Place) -> Result<Vec<String>, Failure> {
        let child = &mut self.process.child.0;
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
        let status = wait_within(child, LIMIT)?.ok_or_else(|| Failure::new("the driver ignores SIGTERM"))?;
        let mut problems = Vec::new();
        if !status.success() {
            problems.push(format!("the driver ended with {status}; its log: {}", self.process.said()));
        }
        let mut left = place.left()?;
        let files = files_below(&place.of("data"))?;
        left.extend(files.difference(&self.first_files).map(|file| file.display().to_string()));
        problems.extend(left.into_iter().map(|what| format!("left behind: {what}")));
        Ok(problems)
    }
}

/// Everything below a directory.
fn files_below(directory: &Path) -> Result<BTreeSet<PathBuf>, Failure> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.append(&mut files_below(&entry.path())?);
        }
        found.insert(entry.path());
    }
    Ok(found)
}

/// The mount points at or below a path, in the caller's mount namespace.
fn mounts_below(path: &Path) -> Result<Vec<String>, Failure> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.filter(|point| Path::new(point).starts_with(path)).map(str::to_owned).collect())
}

/// The loop devices over files below a path, with their files.
fn loop_devices(path: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // A device that is not attached has no such file.
        let Ok(text) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let file = PathBuf::from(text.trim_end().trim_end_matches(" (deleted)"));
        if file.starts_with(path) {
            found.push((format!("/dev/{}", entry.file_name().display()), file));
        }
    }
    Ok(found)
}
