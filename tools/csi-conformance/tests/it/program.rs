//! The program next to a small correct driver, or one with a fault.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use nix::sys::signal::{Signal, kill};
use tokio::process::{Child, Command};

use crate::memory;
use crate::proxy::{self, Fault};
use crate::support::*;

/// The program with an endpoint alone, and where it keeps its journal.
pub(crate) fn bare(places: &Places, seconds: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csi-conformance"));
    let endpoint = places.endpoint("csi.sock").to_string();
    command.args(["--endpoint", &endpoint, "--size", "1", "--deadline", seconds]);
    command.arg("--journal").arg(places.of("journal")).kill_on_drop(true);
    command
}

pub(crate) fn program(places: &Places) -> Command {
    program_with_deadline(places, "10")
}

pub(crate) fn program_with_deadline(places: &Places, seconds: &str) -> Command {
    let mut command = bare(places, seconds);
    command.arg("--staging").arg(places.of("staging")).arg("--target").arg(places.of("target"));
    command
}

/// Starts it with no one to read what it prints.
pub(crate) fn started(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

pub(crate) fn send(child: &Child, signal: Signal) {
    let id = child.id().unwrap().try_into().unwrap();
    kill(nix::unistd::Pid::from_raw(id), signal).unwrap();
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// All that it printed; panics unless it ended with this status.
#[track_caller]
pub(crate) fn ended(output: &Output, status: i32) -> String {
    let text = text(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    text
}

pub(crate) async fn with_memory<T>(places: &Places, work: impl Future<Output = T>) -> T {
    let plugin = memory::Memory::directories(places.of("volumes")).plugin();
    with_plugin(plugin, &places.endpoint("csi.sock"), work).await
}

/// Runs a test next to this driver, in whose places nothing is left.
pub(crate) fn beside_memory(test: impl AsyncFnOnce(&Places) + Send) {
    in_private(async || {
        let places = Places::new();
        with_memory(&places, test(&places)).await;
        assert_eq!(places.left(), Vec::<PathBuf>::new());
    });
}

/// The same next to this driver with a fault.
pub(crate) fn beside_faulty(
    fault: impl FnOnce(&Places) -> Fault + Send,
    test: impl AsyncFnOnce(&Places) + Send,
) {
    in_private(async || {
        let places = Places::new();
        proxy::faulty(&places, fault(&places), test(&places)).await;
        assert_eq!(places.left(), Vec::<PathBuf>::new());
    });
}
