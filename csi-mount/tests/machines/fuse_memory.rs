//! FUSE daemons with a memory limit. Needs the memory controller of cgroup version 2, which machines with version
//! 1 lack: it runs on other kernels only. The processes that stage are this test program, started again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread::spawn;
use std::time::Duration;

use csi_mount::internal::flow::fuse::{
    Mounter, MounterServer, exceeded_memory_limit, is_lost, stage, unstage,
};
use csi_mount::{ErrorKind, Outcome, Target, UNMOUNT_TIME_LIMIT};

use crate::fuse_process::{LIMIT, daemon, in_mounter, in_place, itself, kill, processes, the_process};
use crate::mount_support::eventually;

const ROOT: &str = "/sys/fs/cgroup";

/// The control group of a daemon.
fn group_of(staging: &Target) -> PathBuf {
    let process = the_process(staging);
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    Path::new(ROOT).join(path)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn a_daemon_over_its_limit_is_killed_and_the_reason_is_known() {
    in_place(|staging, _| {
        let served = daemon("greedy", staging).memory_limit(LIMIT);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        let group = group_of(staging);
        assert_eq!(read(group.join("memory.max")), LIMIT.to_string());
        eventually("it is killed", || is_lost(staging.path()).unwrap());
        assert_eq!(exceeded_memory_limit(staging.path()), Some(LIMIT));

        let served = daemon("serve", staging).memory_limit(LIMIT);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        assert_eq!((group_of(staging), exceeded_memory_limit(staging.path())), (group.clone(), None));
        let larger = daemon("serve", staging).memory_limit(2 * LIMIT);
        assert_eq!(stage(staging, &larger).unwrap(), Outcome::AlreadyMounted);
        assert_eq!(read(group.join("memory.max")), (2 * LIMIT).to_string());
        unstage(staging).unwrap();
        assert!(!group.exists());
    });
}

#[test]
fn a_daemon_over_its_limit_at_its_start_is_an_error_that_names_the_limit() {
    in_place(|staging, _| {
        let error = stage(staging, &daemon("greedy at once", staging).memory_limit(LIMIT)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ToolFailed, "{error}");
        let reason = format!("killed: over its memory limit of {LIMIT} bytes");
        assert!(error.to_string().contains(&reason), "{error}");
        assert_eq!(exceeded_memory_limit(staging.path()), None, "its group is removed");
    });
}

/// The mounter sees it, and tells the driver.
#[test]
fn the_reason_is_also_known_of_a_daemon_in_a_mounter() {
    in_place(|staging, _| {
        let directory = staging.path().parent().unwrap();
        let server = MounterServer::bind(directory).unwrap();
        let serving = Arc::clone(&server);
        let serving = spawn(move || serving.serve());
        let mounter = Mounter::at(directory);
        stage(staging, &in_mounter("greedy", staging, &mounter).memory_limit(LIMIT)).unwrap();
        let reason = format!("killed: over its memory limit of {LIMIT} bytes");
        eventually("the driver knows why", || {
            mounter.last_end(staging.path()).is_some_and(|end| end.contains(&reason))
        });
        unstage(staging).unwrap();
        mounter.end(staging.path(), UNMOUNT_TIME_LIMIT).unwrap();
        assert_eq!(mounter.last_end(staging.path()), None);
        server.drain(Duration::ZERO);
        serving.join().unwrap();
    });
}

#[test]
fn a_later_process_removes_the_group_of_a_killed_one() {
    in_place(|staging, _| {
        let mut other = itself("stage idle limited", staging.path()).spawn().unwrap();
        eventually("its daemon runs", || {
            processes(staging).iter().any(|found| found.as_raw() != other.id().cast_signed())
        });
        let daemon = processes(staging).into_iter().find(|found| found.as_raw() != other.id().cast_signed());
        let text = fs::read_to_string(format!("/proc/{}/cgroup", daemon.unwrap())).unwrap();
        let group = Path::new(ROOT).join(text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap());
        assert!(group.join("memory.max").exists(), "{text}");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(group.exists());
        unstage(staging).unwrap();
        assert!(!group.exists());
    });
}

/// A control group of a driver's own, as a container has one.
struct OwnGroup(PathBuf);

impl OwnGroup {
    fn new(name: &str) -> Self {
        fs::write(format!("{ROOT}/cgroup.subtree_control"), "+memory").unwrap();
        let path = Path::new(ROOT).join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Runs a step in a process that starts in this child group, or in the group itself.
    fn run(&self, child: &str, mode: &str, staging: &Target) -> Output {
        let itself = itself(mode, staging.path());
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0"; exec "$@""#]).arg(self.0.join(child).join("cgroup.procs"));
        command.arg(itself.get_program()).args(itself.get_args());
        let variables = itself.get_envs().filter_map(|(key, value)| Some((key, value?)));
        command.envs(variables).output().unwrap()
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        drop(fs::remove_dir(self.0.join("csi-driver")));
        if let Err(error) = fs::remove_dir(&self.0)
            && !std::thread::panicking()
        {
            panic!("{}: {error}", self.0.display());
        }
    }
}

#[test]
fn a_driver_makes_room_in_its_own_group_and_a_later_process_finds_the_groups() {
    let own = OwnGroup::new("test-own");
    in_place(|staging, _| {
        let output = own.run("", "stage limited", staging);
        assert!(output.status.success(), "{output:?}");
        let group = group_of(staging);
        assert_eq!(group.parent(), Some(&*own.0), "beside the driver's");
        assert_eq!(read(own.0.join("cgroup.subtree_control")), "memory");
        let output = own.run("csi-driver", "unstage", staging);
        assert!(output.status.success(), "{output:?}");
        assert!(!group.exists());
    });
}

#[test]
fn the_processes_of_others_are_not_moved() {
    let own = OwnGroup::new("test-shared");
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(own.0.join("cgroup.procs"), other.id().to_string()).unwrap();
    in_place(|staging, _| {
        let output = own.run("", "stage limited", staging);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(&format!("process {}", other.id())), "{output:?}");
        assert_eq!(read(own.0.join("cgroup.procs")), other.id().to_string());
        processes(staging).into_iter().for_each(kill);
    });
    other.kill().unwrap();
    other.wait().unwrap();
    eventually("its group is empty", || read(own.0.join("cgroup.procs")).is_empty());
}
