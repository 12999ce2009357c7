//! What a driver costs its node while it does nothing, when it starts, and for a publish: measured on the process of a
//! program, from outside.

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
    /// Starts whose first answer is timed.
    pub starts: u32,
    /// Calls of a volume's life, after which memory is looked at again. None for a program that has no volumes.
    pub calls: u32,
    /// How long wake-ups are counted while nothing is asked.
    pub idle: Duration,
}

/// How long tokio keeps a thread for blocking work that has none, and a moment.
const THREADS_GO: Duration = Duration::from_millis(10_500);
/// A program that has not answered by then never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures the program, which serves at `CSI_ENDPOINT` and has its volumes in `DIRS_ROOT`.
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
        // Threads for blocking work go first; they are not what a driver wakes up for.
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

/// The program, serving.
struct Running<'r> {
    child: Child,
    socket: PathBuf,
    root: PathBuf,
    channel: Channel,
    runtime: &'r Runtime,
}

impl<'r> Running<'r> {
    /// Starts it, and says how long it took until a Probe was answered.
    fn start(program: &Path, place: &Place, runtime: &'r Runtime) -> (Duration, Self) {
        let (socket, root) = (place.path("csi.sock"), place.directory("volumes"));
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
                    Err(error) => assert!(begun.elapsed() < PATIENCE, "it does not serve: {error}"),
                }
            }
        });
        (begun.elapsed(), Self { child, socket, root, channel, runtime })
    }

    fn seen(&self) -> Seen {
        Seen::of(self.child.id())
    }

    /// What the process does while this is done, and how it is afterwards. Done again if one of its threads ended meanwhile.
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

    /// What it takes, and what it wakes up for, while nobody asks.
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
        // Its way to stop is not what is measured.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
