//! The processes of several drivers next to each other: the first answer, memory, Probes and creates.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use csi_proto::v1;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;
use v1::controller_client::ControllerClient;
use v1::identity_client::IdentityClient;

use super::volumes::capability;
use super::{Running, at};
use crate::Place;

/// The numbers of clients that call Probe at the same time.
const PROBE_CLIENTS: [usize; 3] = [1, 8, 32];
/// The Probes of all clients together.
const PROBES: usize = 3200;
/// The numbers of clients that create volumes at the same time, one measurement after the other.
const CREATE_CLIENTS: [usize; 2] = [1, 8];
/// The volumes that the clients of one measurement create together.
const CREATES: usize = 500;

/// Measures drivers, given by name, in turns, and returns the median of each number over the rounds.
///
/// Each driver must serve at `CSI_ENDPOINT` and keep its volumes in `DIRS_ROOT` or `DATA_DIR`, or in memory.
/// All clients run on one thread of this process.
///
/// # Panics
/// When a driver does not do so.
pub fn compare(drivers: &[(String, PathBuf)], rounds: usize) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut found: Vec<BTreeMap<String, Vec<f64>>> = vec![BTreeMap::new(); drivers.len()];
    for round in 0..rounds {
        for turn in 0..drivers.len() {
            let driver = (round + turn) % drivers.len();
            for (name, value) in measure(&drivers[driver].1, &runtime) {
                found[driver].entry(name).or_default().push(value);
            }
        }
    }
    let medians = found.into_iter().map(|numbers| {
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            at(&values, 0.5)
        };
        numbers.into_iter().map(|(name, values)| (name, median(values))).collect::<BTreeMap<_, _>>()
    });
    drivers.iter().zip(medians).map(|((name, _), numbers)| (name.clone(), json!(numbers))).collect()
}

/// The numbers of one process of this driver, by name.
fn measure(program: &std::path::Path, runtime: &Runtime) -> BTreeMap<String, f64> {
    let place = Place::new();
    let (first, running) = Running::start(program, &place, runtime);
    let mut found = BTreeMap::new();
    let size = program.metadata().expect("the program").len();
    found.insert("bytes".to_owned(), size as f64);
    found.insert("first answer, ms".to_owned(), first.as_secs_f64() * 1e3);
    let resident = running.idle(Duration::from_millis(200))["resident_kib"].as_f64();
    found.insert("resident idle, KiB".to_owned(), resident.unwrap_or(f64::NAN));
    let endpoint = Endpoint::from_shared(format!("unix://{}", running.socket.display())).expect("a path");
    for clients in PROBE_CLIENTS {
        let times = probes(runtime, &endpoint, clients);
        for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
            found.insert(format!("Probe {name}, {clients} clients, µs"), at(&times, part));
        }
    }
    for clients in CREATE_CLIENTS {
        let speed = creates(runtime, &endpoint, clients);
        found.insert(format!("creates/s, {clients} clients"), speed);
    }
    found.insert("resident after 1,000 creates, KiB".to_owned(), running.seen().resident_kib as f64);
    found
}

/// The times of all Probes in microseconds, sorted.
fn probes(runtime: &Runtime, endpoint: &Endpoint, clients: usize) -> Vec<f64> {
    let one = |endpoint: Endpoint| async move {
        let mut client = IdentityClient::new(endpoint.connect().await.expect("a connection"));
        let mut times = Vec::new();
        for _ in 0..PROBES / clients {
            let begun = Instant::now();
            client.probe(v1::ProbeRequest {}).await.expect("an answer");
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        times
    };
    let tasks: Vec<_> = (0..clients).map(|_| runtime.spawn(one(endpoint.clone()))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(runtime.block_on(task).expect("a client"));
    }
    all.sort_by(f64::total_cmp);
    all
}

/// The volumes created in a second.
fn creates(runtime: &Runtime, endpoint: &Endpoint, clients: usize) -> f64 {
    let one = |endpoint: Endpoint, client: usize| async move {
        let mut controller = ControllerClient::new(endpoint.connect().await.expect("a connection"));
        for at in 0..CREATES / clients {
            let create = v1::CreateVolumeRequest {
                name: format!("pvc-{clients}-{client}-{at}"),
                volume_capabilities: vec![capability()],
                // hostpath reserves the size, and its place is small.
                capacity_range: Some(v1::CapacityRange { required_bytes: 4096, limit_bytes: 0 }),
                ..Default::default()
            };
            controller.create_volume(create).await.expect("create");
        }
    };
    let begun = Instant::now();
    let tasks: Vec<_> = (0..clients).map(|client| runtime.spawn(one(endpoint.clone(), client))).collect();
    for task in tasks {
        runtime.block_on(task).expect("a client");
    }
    (CREATES / clients * clients) as f64 / begun.elapsed().as_secs_f64()
}
