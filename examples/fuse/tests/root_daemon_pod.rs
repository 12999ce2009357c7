//! Programs in a pod of their own: `daemon-pod serve` without the right to mount and with its own mount namespace, and
//! a driver that mounts and sends the open device. Needs root.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use csi_core::mount::internal::flow::fuse::{FuseDaemon, publish, stage, unpublish, unstage};
use csi_core::mount::{MountAttributes, MountHealth, MountOptions, Outcome, Target, health};
use test_support::driver::on_tmpfs;
use test_support::process::{LIMIT, find, kill, until};

const DAEMON_POD: &str = env!("CARGO_BIN_EXE_daemon-pod");

/// The children of a process that run this program.
fn children(parent: u32, program: &str) -> Vec<u32> {
    find(|process| {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        status.contains(&format!("\nPPid:\t{parent}\n")) && status.starts_with(&format!("Name:\t{program}\n"))
    })
}

/// Kills the pod when the test ends, in whatever way.
struct Pod(Child);

impl Pod {
    fn serve(socket: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "setpriv",
            "--bounding-set=-sys_admin",
            "--inh-caps=-sys_admin",
            DAEMON_POD,
        ]);
        let pod = Self(command.arg("serve").arg(socket).stdin(Stdio::null()).spawn().unwrap());
        until("the pod serves", || std::os::unix::net::UnixStream::connect(socket).is_ok());
        pod
    }

    fn programs(&self) -> Vec<u32> {
        children(self.0.id(), "flatfs")
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        kill(&self.programs());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_healthy(place: &Target) -> bool {
    matches!(health(place.path()), Ok(MountHealth::Healthy))
}

#[test]
fn programs_in_another_pod_outlive_what_started_them() {
    on_tmpfs(async |place| {
        let store = place.join("store");
        let socket = place.join("daemons.sock");
        fs::create_dir(&store).unwrap();
        let pod = Pod::serve(&socket);
        let staging = Target::new(place.join("staging")).unwrap();
        let target = Target::new(place.join("target")).unwrap();
        let options = MountOptions::parse(["allow_other", "default_permissions", "nosuid", "nodev"]).unwrap();
        let daemon = FuseDaemon::new(env!("CARGO_BIN_EXE_flatfs"))
            .launcher([Path::new(DAEMON_POD), Path::new("start"), &socket])
            .arg(&store)
            .arg_device(options)
            .ready_time_limit(LIMIT);
        assert_eq!(stage(&staging, &daemon).unwrap(), Outcome::Mounted);
        publish(staging.path(), &target, MountAttributes::empty()).unwrap();
        fs::write(target.path().join("file"), "text").unwrap();
        assert_eq!(fs::read_to_string(store.join("file")).unwrap(), "text");
        let program = pod.programs();
        assert_eq!(program.len(), 1, "it is a child of the pod");

        // The driver's pod ends, and with it what waits for the program.
        let waiting = children(std::process::id(), "daemon-pod");
        let waiting: Vec<u32> = waiting.into_iter().filter(|pid| *pid != pod.0.id()).collect();
        assert_eq!(waiting.len(), 1);
        kill(&waiting);
        until("its end was noticed", || !Path::new(&format!("/proc/{}", waiting[0])).exists());
        assert!(is_healthy(&staging));
        fs::write(target.path().join("later"), "text").unwrap();
        assert_eq!(stage(&staging, &daemon).unwrap(), Outcome::AlreadyMounted, "the next driver uses it");
        assert_eq!(pod.programs(), program);

        // The program is killed: its mount is lost, and is made again.
        kill(&program);
        until("the mount is lost", || matches!(health(staging.path()), Ok(MountHealth::Dead(_))));
        assert_eq!(stage(&staging, &daemon).unwrap(), Outcome::Mounted);
        publish(staging.path(), &target, MountAttributes::empty()).unwrap();
        assert_eq!(fs::read_to_string(target.path().join("later")).unwrap(), "text");

        // The end of a volume is the end of its program.
        unpublish(&target).unwrap();
        unstage(&staging).unwrap();
        until("no program is left", || pod.programs().is_empty());

        // Without its pod nothing is mounted.
        drop(pod);
        let error = stage(&staging, &daemon).unwrap_err().to_string();
        assert!(error.contains("does the pod with `daemon-pod serve` run on this node?"), "{error}");
        assert!(matches!(health(staging.path()), Ok(MountHealth::NotMounted)));
    });
}
