//! The daemon of `flow_fuse.rs` and `fuse_memory.rs`: this test program, started again. And its processes, as the tests see them.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use csi_mount::flow::fuse::inherited_device;
use csi_mount::internal::flow::fuse::{FuseDaemon, Mounter, MounterServer, resume, stage, unstage};
use csi_mount::{MountOptions, Target, UNMOUNT_TIME_LIMIT};
use nix::unistd::Pid;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::fuse_support::{
    PATIENCE, answer, answer_init, daemon_processes, empty_filesystem, fuse_of, operation, the_daemon,
};
use crate::mount_support::{eventually, mount_count, sandbox};

pub(crate) const MODE: &str = "FLOW_FUSE_TEST_MODE";
/// The name of the test that is the daemon.
const SERVE: &str = "fuse_process::serve_as_daemon";
pub(crate) const AT: &str = "FLOW_FUSE_TEST_AT";
/// The directory of the mounter, in the mode that stages in one.
pub(crate) const MOUNTER: &str = "FLOW_FUSE_TEST_MOUNTER";
/// The memory limit of the modes that have one, in bytes.
pub(crate) const LIMIT: u64 = 64 << 20;

/// This is not a test. It is the daemon's code, if this program was started as a daemon.
#[test]
fn serve_as_daemon() {
    let Ok(mode) = std::env::var(MODE) else { return };
    let at = PathBuf::from(std::env::var_os(AT).unwrap());
    match mode.as_str() {
        "fail" => {
            let mut secret = String::new();
            std::io::stdin().read_to_string(&mut secret).unwrap();
            eprintln!("no bucket\ncan't log in as {secret}");
            std::process::exit(3)
        }
        "leave" => std::process::exit(0),
        "idle" => std::thread::sleep(Duration::from_secs(600)),
        "background" => {
            let child = itself("serve", &at).spawn().unwrap();
            // The daemon serves before its parent ends, as on a machine that has other work.
            std::thread::sleep(Duration::from_millis(200));
            // The child must outlive this process, which ends here.
            std::mem::forget(child);
        }
        "nameless" => {
            let marks = std::env::vars_os()
                .map(|(key, _)| key)
                .filter(|key| key.to_str().is_some_and(|key| key.starts_with("CSI_MOUNT_FUSE")));
            let mut other = itself("stubborn", &at);
            for mark in marks {
                other.env_remove(mark);
            }
            panic!("{}", other.exec());
        }
        "late" => {
            std::thread::sleep(Duration::from_millis(500));
            serve("serve", &at);
        }
        "told" => {
            eventually("it is told to mount", || at.with_file_name("mount now").exists());
            serve("serve", &at);
        }
        "stage late" | "stage told" | "stage idle" | "stage chatty" => {
            let staging = Target::new(&at).unwrap();
            stage(&staging, &daemon(mode.strip_prefix("stage ").unwrap(), &staging)).unwrap();
        }
        "mounter" => serve_as_mounter(&at),
        "ask" => {
            let error = resume(&Mounter::at(&at), UNMOUNT_TIME_LIMIT).unwrap_err();
            println!("{error}");
        }
        "stage in mounter" => {
            let staging = Target::new(&at).unwrap();
            let mounter = Mounter::at(std::env::var_os(MOUNTER).unwrap());
            let served = in_mounter("serve", &staging, &mounter).continue_when_lost();
            stage(&staging, &served).unwrap();
        }
        "stage and stay" => {
            let staging = Target::new(&at).unwrap();
            stage(&staging, &daemon("serve", &staging).restart_when_lost()).unwrap();
            println!("staged");
            std::io::stdin().read_to_string(&mut String::new()).unwrap();
        }
        "stage limited" | "stage idle limited" => {
            let staging = Target::new(&at).unwrap();
            let program = if mode == "stage limited" { "serve" } else { "idle" };
            if let Err(error) = stage(&staging, &daemon(program, &staging).memory_limit(LIMIT)) {
                eprintln!("{error}");
                std::process::exit(1);
            }
        }
        "fails" => {
            // Each start is a line.
            let mut starts =
                File::options().create(true).append(true).open(at.with_file_name("starts")).unwrap();
            writeln!(starts).unwrap();
            std::process::exit(3)
        }
        "unstage" => drop(unstage(&Target::new(&at).unwrap()).unwrap()),
        "greedy at once" => take_memory(),
        "once" => {
            // Each start is a line, and only the first one serves.
            let path = at.with_file_name("starts");
            let is_first = !path.exists();
            let mut starts = File::options().create(true).append(true).open(path).unwrap();
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            writeln!(starts, "{}", time.as_millis()).unwrap();
            if is_first {
                serve("serve", &at);
            }
        }
        mode => serve(mode, &at),
    }
    std::process::exit(0);
}

pub(crate) fn itself(mode: &str, at: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", SERVE, "--nocapture"]).env(MODE, mode).env(AT, at);
    command
}

/// The daemon of a stage that was killed when its daemon ran: the process, and its number.
pub(crate) fn left_by_killed_stage(mode: &str, staging: &Target) -> Pid {
    let mut stager = itself(mode, staging.path()).stdin(Stdio::null()).spawn().unwrap();
    eventually("its daemon runs", || !processes(staging).is_empty());
    stager.kill().unwrap();
    stager.wait().unwrap();
    processes(staging)[0]
}

/// The device that an argument names.
fn device_of_argument() -> Option<File> {
    let argument = std::env::args().find(|argument| argument.starts_with("/dev/fd/"))?;
    Some(inherited_device(Path::new(&argument)).unwrap().into())
}

/// Is a mounter until its standard input ends. It drains then, for as many seconds as it has read.
fn serve_as_mounter(directory: &Path) {
    let server = MounterServer::bind(directory).unwrap();
    let draining = Arc::clone(&server);
    std::thread::spawn(move || {
        let mut limit = String::new();
        std::io::stdin().read_to_string(&mut limit).unwrap();
        draining.drain(Duration::from_secs(limit.trim().parse().unwrap_or(0)));
    });
    server.serve();
}

/// A daemon with a device, in this mounter.
pub(crate) fn in_mounter(mode: &str, staging: &Target, mounter: &Mounter) -> FuseDaemon {
    let options = ["allow_other", "default_permissions", "nosuid", "nodev", "noexec"];
    let options = MountOptions::parse(options).unwrap();
    daemon(mode, staging).arg_device(options).mounter(mounter.clone())
}

/// Takes more and more memory, up to eight times the limit.
fn take_memory() {
    let mut taken = Vec::new();
    while taken.len() < 512 {
        taken.push(vec![1_u8; 1 << 20]);
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_secs(600));
}

/// Mounts with the source name that standard input contains, and answers the requests of a health check.
fn serve(mode: &str, at: &Path) {
    let mut name = String::new();
    std::io::stdin().read_to_string(&mut name).unwrap();
    let name = if name.is_empty() { "no-secret".to_owned() } else { name };
    let mut device = device_of_argument().unwrap_or_else(|| fuse_of("fuse", name, &Target::new(at).unwrap()));
    if mode == "held" {
        // A process without a mark, which keeps the connection open for a moment longer.
        let other = device.try_clone().unwrap();
        let mut holder = Command::new("sleep");
        drop(holder.arg("3").env_clear().stdin(other).stdout(Stdio::null()).stderr(Stdio::null()).spawn());
    }
    let is_first = std::env::var_os("CSI_MOUNT_FUSE_CONTINUES").is_none();
    if is_first {
        answer_init(&device);
    }
    if mode.starts_with("helped") {
        // A helper that has the device open, or one that has not.
        let input = if mode == "helped" { Stdio::null() } else { device.try_clone().unwrap().into() };
        let mut helper = Command::new("sleep");
        drop(helper.arg("600").stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).spawn());
    }
    if mode == "greedy" {
        std::thread::spawn(take_memory);
    }
    if mode == "chatty" {
        let name = test_name(at);
        std::thread::spawn(move || {
            for number in 0.. {
                println!("chat {number} of {name}");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }
    if mode.starts_with("hidden") {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
    }
    let mut read = BTreeSet::new();
    let mut request = [0; 8192];
    while device.read(&mut request).is_ok() {
        let operation = operation(&request);
        // Lookups, 1, are received and never answered.
        let is_kept = mode == "continued" && is_first && operation == 1;
        if mode == "greedy when asked" && operation == 1 {
            std::thread::spawn(take_memory);
        }
        if mode == "leaky" && operation == 1 {
            read.insert(std::fs::read_to_string(credential()).unwrap());
            if at.with_file_name("tell").exists() {
                eprintln!("was given {read:?}");
                std::process::exit(3);
            }
        }
        // 36 is FUSE_INTERRUPT.
        if !matches!(mode, "silent" | "held") && operation != 36 && !is_kept {
            let is_refused = mode == "authorized" && !is_accepted(at);
            let refusal = is_refused.then(|| (nix::libc::EACCES, Vec::new()));
            answer(&device, &request, refusal.unwrap_or_else(|| empty_filesystem(operation)));
        }
    }
    drop(device);
    if mode.ends_with("stubborn") {
        std::thread::sleep(Duration::from_secs(600));
    }
    if mode == "late to store" {
        eventually("it can store", || at.with_file_name("backend").exists());
        std::fs::write(at.with_file_name("backend/stored"), "").unwrap();
    }
}

/// The path of the daemon's credential.
fn credential() -> String {
    let argument = |argument: String| argument.strip_prefix("--skip=").map(str::to_owned);
    std::env::args().find_map(argument).unwrap()
}

/// Whether the backend accepts what is in the daemon's credential: it is a file next to the place, with a key in each line.
fn is_accepted(at: &Path) -> bool {
    let key = std::fs::read_to_string(credential()).unwrap();
    let accepted = std::fs::read_to_string(at.with_file_name("accepted")).unwrap();
    accepted.lines().any(|accepted| accepted == key)
}

/// The name of the test's directory. The whole path is a value of the environment, which is hidden in the log.
pub(crate) fn test_name(at: &Path) -> String {
    at.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned()
}

pub(crate) fn daemon(mode: &str, staging: &Target) -> FuseDaemon {
    FuseDaemon::new(std::env::current_exe().unwrap())
        .args(["--exact", SERVE, "--nocapture"])
        .env(MODE, mode)
        .env(AT, staging.path())
        .ready_time_limit(PATIENCE)
}

pub(crate) fn processes(staging: &Target) -> Vec<Pid> {
    daemon_processes(staging.path())
}

/// The one process that serves the place.
pub(crate) fn the_process(staging: &Target) -> Pid {
    the_daemon(staging.path())
}

pub(crate) fn kill(process: Pid) {
    nix::sys::signal::kill(process, nix::sys::signal::SIGKILL).unwrap();
}

/// Kills the daemons if a test failed. They would keep its output open.
struct NoDaemons<'a>(&'a Target);

impl Drop for NoDaemons<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in processes(self.0) {
                // An error means that the process has already ended.
                let _ = nix::sys::signal::kill(process, nix::sys::signal::SIGKILL);
            }
        }
    }
}

/// Runs the test in its own namespace, and checks that no mount and no daemon is left.
pub(crate) fn in_place(test: impl FnOnce(&Target, &Target) + Send) {
    sandbox(|place| {
        let before = mount_count();
        let staging = Target::new(place.join("staging")).unwrap();
        let _no_daemons = NoDaemons(&staging);
        test(&staging, &Target::new(place.join("pod")).unwrap());
        assert!(processes(&staging).is_empty(), "a daemon is left");
        assert_eq!(mount_count(), before, "a mount is left");
    });
}
