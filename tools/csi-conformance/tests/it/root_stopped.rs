//! The program is stopped or killed while the driver is busy: what it made is undone. Needs root, for the mounts.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use csi_core::{Rpc, Service};
use csi_proto::v1;
use nix::sys::signal::Signal;
use tokio::process::Child;
use tokio::sync::Notify;
use tonic::Status;

use crate::program::*;
use crate::proxy::{asked, with_state};
use crate::support::*;

/// How long a run takes at most to end.
const END: Duration = Duration::from_secs(120);

async fn end(mut child: Child) -> ExitStatus {
    tokio::time::timeout(END, child.wait()).await.expect("it ends").unwrap()
}

/// Starts the program with these flags, and waits until the driver reports that it is in the middle of a call.
async fn in_the_middle(places: &Places, flags: &[&str], busy: &Notify) -> Child {
    let child = started(program(places).args(flags));
    tokio::time::timeout(END, busy.notified()).await.expect("the driver is called");
    child
}

/// Whether a request is the provisioner's for a volume, and not one of the kit before its tests.
fn of_a_claim(rpc: Rpc, bytes: &[u8]) -> bool {
    asked::<v1::CreateVolumeRequest>(rpc, bytes)
        .is_some_and(|request| request.parameters.contains_key("csi.storage.k8s.io/pvc/name"))
}

/// The first creation of the test continues after its caller is gone. Until then other calls about it are ABORTED.
#[test]
fn what_the_driver_is_busy_with_is_undone() {
    struct Slow {
        busy: Arc<Notify>,
        is_first: AtomicBool,
        is_running: AtomicBool,
    }
    let busy = Arc::new(Notify::new());
    let state = Slow { busy: busy.clone(), is_first: true.into(), is_running: false.into() };
    let slow = with_state(state, |state, rpc, bytes, behind| async move {
        if rpc.service() != Service::Identity && state.is_running.load(Ordering::SeqCst) {
            return Err(Status::aborted("the volume is being created"));
        }
        if !(of_a_claim(rpc, &bytes) && state.is_first.swap(false, Ordering::SeqCst)) {
            return behind.call(rpc, bytes).await;
        }
        state.is_running.store(true, Ordering::SeqCst);
        state.busy.notify_one();
        let work = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let answer = behind.call(rpc, bytes).await;
            state.is_running.store(false, Ordering::SeqCst);
            answer
        });
        work.await.unwrap()
    });
    beside_faulty(
        |_| slow,
        async |places| {
            let child = in_the_middle(places, &["--only", "sequences.provisioner"], &busy).await;
            send(&child, Signal::SIGINT);
            assert_eq!(end(child).await.code(), Some(2));
            assert_eq!(places.left(), Vec::<PathBuf>::new());
            assert!(!places.of("journal").exists());
        },
    );
}

/// The driver never ends the call about a mount that is not its own.
#[test]
fn the_kits_own_mount_is_undone() {
    let busy = Arc::new(Notify::new());
    let hangs = |places: &Places| {
        with_state((places.of("target"), busy.clone()), |state, rpc, bytes, behind| async move {
            let (target, busy) = &*state;
            if let Some(v1::NodeUnpublishVolumeRequest { target_path, .. }) = asked(rpc, &bytes) {
                assert!(target_path.starts_with(target.to_str().unwrap()));
                let is_the_kits = csi_mount::mounts().unwrap().iter().any(|mount| {
                    mount.mount_point == Path::new(&target_path) && mount.source == "csi-conformance"
                });
                if is_the_kits {
                    busy.notify_one();
                    std::future::pending::<()>().await;
                }
            }
            behind.call(rpc, bytes).await
        })
    };
    beside_faulty(hangs, async |places| {
        let flags = ["--only", "foreign.mount-of-nobody"];
        let child = in_the_middle(places, &flags, &busy).await;
        send(&child, Signal::SIGINT);
        assert_eq!(end(child).await.code(), Some(2));
        assert_eq!(places.left(), Vec::<PathBuf>::new(), "after Ctrl-C");

        let child = in_the_middle(places, &flags, &busy).await;
        send(&child, Signal::SIGKILL);
        end(child).await;
        assert_eq!(mounts_below(&places.of("target")), 1);
        ended(&program(places).arg("--clean-up").output().await.unwrap(), 0);
        assert_eq!(places.left(), Vec::<PathBuf>::new(), "after a kill");
    });
}

/// Without a driver nothing was made, so there is nothing to wait for.
#[test]
fn ctrl_c_ends_the_wait_for_a_driver() {
    in_private(async || {
        let places = Places::new();
        let mut child = program(&places).stderr(Stdio::piped()).spawn().unwrap();
        while !places.of("journal.lock").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The journal is taken after the signals are.
        send(&child, Signal::SIGINT);
        let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await;
        assert_eq!(status.expect("it ends at once").unwrap().code(), Some(2));
    });
}

#[test]
fn a_closed_output_is_an_error_and_no_panic() {
    beside_memory(async |places| {
        for format in ["text", "tap"] {
            let mut program = program(places);
            program.args(["--only", "two-names", "--format", format]);
            let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stdout.take());
            let shown = ended(&child.wait_with_output().await.unwrap(), 2);
            assert!(shown.contains("standard output: Broken pipe"), "{shown}");
        }
    });
}

/// From the second test on no call is answered, as if the driver had died.
#[test]
fn a_driver_that_died_ends_the_run() {
    let is_dead = Arc::new(AtomicBool::new(false));
    let state = (is_dead.clone(), AtomicBool::new(true));
    let dies = with_state(state, |state, rpc, bytes, behind| async move {
        let (is_dead, is_first) = &*state;
        if of_a_claim(rpc, &bytes) && is_first.swap(false, Ordering::SeqCst) {
            is_dead.store(true, Ordering::SeqCst);
        }
        if is_dead.load(Ordering::SeqCst) {
            return Err(Status::unavailable("no driver"));
        }
        behind.call(rpc, bytes).await
    });
    beside_faulty(
        |_| dies,
        async |places| {
            let mut first = program_with_deadline(places, "1");
            first.args(["--only", "identity.probe", "--only", "sequences"]);
            let shown = ended(&first.output().await.unwrap(), 1);
            for words in [
                "FAILED  sequences.provisioner",
                "then the driver did not answer any more, and the run was ended",
                "not everything was undone: the same command with --clean-up",
            ] {
                assert!(shown.contains(words), "{words}: {shown}");
            }
            assert!(!shown.contains("sequences.snapshotter"), "{shown}");
            is_dead.store(false, Ordering::SeqCst);
            ended(&program(places).arg("--clean-up").output().await.unwrap(), 0);
            assert_eq!(places.left(), Vec::<PathBuf>::new());
            let again = program(places).arg("--clean-up").output().await.unwrap();
            assert!(ended(&again, 0).contains("no run left anything"));
        },
    );
}
