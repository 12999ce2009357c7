//! The kernel keeps the contract of hosts. Needs root.

use std::fs;
use std::io;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use csi_mount::flow::fuse::FuseDaemon;
use csi_mount::flow::shared::SharedSource;
use csi_mount::{Host, MountOptions, Target};
use nix::unistd::Pid;

use crate::fuse_support::{answering_daemon, daemon_processes};
use crate::machine_contract;
use crate::machine_contract::{Bench, Held};
use crate::mount_support;
use crate::mount_support::eventually;

const AT: &str = "MACHINE_KERNEL_DAEMON_AT";

/// This is not a test. It is the daemon's code, if this program was started as a daemon.
#[test]
fn serve_as_daemon() {
    let Some(at) = std::env::var_os(AT) else { return };
    answering_daemon(&Target::new(at).unwrap(), None).join().unwrap();
    std::process::exit(0);
}

struct Real<'a>(&'a Path);

impl Real<'_> {
    fn signal(path: &Path, signal: nix::sys::signal::Signal) {
        for process in daemon_processes(path) {
            nix::sys::signal::kill(process, signal).unwrap();
        }
    }
}

/// A signal returns before the threads of its process have stopped.
fn is_stopped(process: Pid) -> bool {
    fs::read_dir(format!("/proc/{process}/task")).unwrap().all(|thread| {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        status.contains("State:\tT")
    })
}

impl Held for fs::File {}

impl Bench for Real<'_> {
    fn host(&self) -> Host {
        Host::kernel()
    }

    fn root(&self) -> &Path {
        self.0
    }

    fn create_dir(&self, path: &Path) {
        fs::create_dir_all(path).unwrap();
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = fs::File::options().write(true).create(true).truncate(false).open(path)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if written.is_err() && file.metadata()?.is_file() {
            fs::remove_file(path)?;
        }
        written
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn hold(&self, path: &Path) -> Box<dyn Held + '_> {
        Box::new(fs::File::open(path).unwrap())
    }

    /// An overlay stands for the share: its upper directory keeps the files.
    fn link(&self, link: &Path, device: &Path) {
        std::os::unix::fs::symlink(device, link).unwrap();
    }

    fn share(&self, name: &str) -> SharedSource {
        let directories =
            ["lowerdir", "upperdir", "workdir"].map(|key| (key, self.path(&format!("{name}-{key}"))));
        let options = directories.iter().fold(MountOptions::new(), |options, (key, directory)| {
            self.create_dir(directory);
            options.with_option(key, directory.to_str().unwrap()).unwrap()
        });
        SharedSource::new("overlay", name).options(options)
    }

    fn daemon(&self, path: &Path) -> FuseDaemon {
        let limit = Duration::from_secs(30);
        let program = FuseDaemon::new(std::env::current_exe().unwrap()).ready_time_limit(limit);
        program.args(["--exact", "machine_kernel::serve_as_daemon", "--nocapture"]).env(AT, path)
    }

    fn kill_daemon(&self, path: &Path) {
        Self::signal(path, nix::sys::signal::SIGKILL);
        eventually("the mount is lost", || Host::kernel().mounts().has_lost_daemon(path).unwrap());
    }

    fn stop_daemon(&self, path: &Path) {
        Self::signal(path, nix::sys::signal::SIGSTOP);
        eventually("each thread is stopped", || daemon_processes(path).into_iter().all(is_stopped));
    }
}

impl Drop for Real<'_> {
    /// A daemon that a failed test left would keep its output open.
    fn drop(&mut self) {
        Self::signal(&self.path("fuse"), nix::sys::signal::SIGKILL);
    }
}

#[test]
fn the_kernel_keeps_the_contract() {
    mount_support::sandbox(|root| machine_contract::keep(&Real(root)));
}
