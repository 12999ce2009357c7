//! What a driver costs its node while idle, at its start, and for a publish: measured from outside, on the
//! process of a program.

mod process;
mod volumes;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csi_proto::v1;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use v1::identity_client::IdentityClient;

use crate::Place;
use process::{Seen, Work};

/// How much of it to measure.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The number of starts whose first answer is timed.
    pub starts: u32,
    /// The number of calls after which memory is measured again. 0 for a program without volumes.
    pub calls: u32,
    /// How long wake-ups are counted while the driver is idle.
    pub idle: Duration,
}

/// How long tokio keeps an idle thread for blocking work (10 s), plus a margin.
const THREADS_GO: Duration = Duration::from_millis(10_500);
/// A program that does not answer within this time has failed.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Measures the program, which must serve at `CSI_ENDPOINT` and keep its volumes in `DIRS_ROOT`.
///
/// # Panics
/// When it does not do so.
pub fn measure(program: &Path, plan: Plan) -> Value {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut starts: Vec<f64> =
        (0..plan.starts).map(|_| Running::start(program, &place, &runtime).0.as_secs_f64() * 1e3).collect();
    starts.sort_by(f64::total_cmp);

    let (_, running) = Running::start(program, &place, &runtime);
    let fresh = running.idle(plan.idle);
    let mut found = json!({
        "bytes": program.metadata().expect("the program").len(),
        "first_probe_ms": { "median": at(&starts, 0.5), "low": at(&starts, 0.25), "high": at(&starts, 0.75) },
        "idle": fresh,
    });
    if plan.calls > 0 {
        let after = volumes::live(&running, plan.calls);
        // Lets tokio's threads for blocking work end first: they are not part of the driver's idle wake-ups.
        std::thread::sleep(THREADS_GO);
        found["calls"] = plan.calls.into();
        found["after_calls"] = after;
        found["idle_after_calls"] = running.idle(plan.idle);
        found["publish"] = volumes::publish(&running);
    }
    found
}

fn at(sorted: &[f64], part: f64) -> f64 {
    sorted.get((sorted.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN)
}

/// The running program.
struct Running<'r> {
    child: Child,
    socket: PathBuf,
    root: PathBuf,
    channel: Channel,
    runtime: &'r Runtime,
}

impl<'r> Running<'r> {
    /// Starts the program, and returns how long it took until a Probe was answered.
    fn start(program: &Path, place: &Place, runtime: &'r Runtime) -> (Duration, Self) {
        let socket = place.path("csi.sock");
        let root = place.directory("volumes");
        let mut command = Command::new(program);
        command.env("CSI_ENDPOINT", format!("unix://{}", socket.display())).env("DIRS_ROOT", &root);
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("a path");
        let begun = Instant::now();
        let child = command.stdin(Stdio::null()).spawn().expect("start the program");
        let channel = runtime.block_on(async {
            loop {
                match endpoint.connect().await {
                    Ok(channel) => {
                        let mut client = IdentityClient::new(channel.clone());
                        client.probe(v1::ProbeRequest {}).await.expect("an answer");
                        return channel;
                    }
                    Err(error) => assert!(begun.elapsed() < START_TIMEOUT, "it does not serve: {error}"),
                }
            }
        });
        (begun.elapsed(), Self { child, socket, root, channel, runtime })
    }

    fn seen(&self) -> Seen {
        Seen::of(self.child.id())
    }

    /// Returns the work of the process during `done`, and its state afterwards. Repeats `done` if one of the
    /// threads ended meanwhile.
    fn while_doing(&self, mut done: impl FnMut()) -> (Seen, Work) {
        for _ in 0..10 {
            let before = self.seen();
            done();
            let after = self.seen();
            if let Some(work) = after.since(&before) {
                return (after, work);
            }
        }
        panic!("threads of the process come and go");
    }

    /// The memory and the wake-ups while no call runs.
    fn idle(&self, time: Duration) -> Value {
        std::thread::sleep(Duration::from_millis(300));
        let (after, work) = self.while_doing(|| std::thread::sleep(time));
        json!({
            "resident_kib": after.resident_kib,
            "private_kib": after.private_kib,
            "threads": after.threads,
            "wakeups": work.switches,
            "cpu_us": work.cpu.as_micros() as u64,
            "seconds": time.as_secs_f64(),
        })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // A graceful stop is not measured.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
