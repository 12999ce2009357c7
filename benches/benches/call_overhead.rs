//! What a call costs over the same call to a bare tonic handler, through the same kind of socket.
//!
//! `cargo bench -p benches --bench call_overhead` prints criterion's figures, and then the median ratio of short
//! rounds that take turns, each compared with its neighbour, so that a busy machine disturbs both alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use csi_core::*;
use csi_proto::v1;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use v1::node_client::NodeClient;

const CLIENTS: [usize; 2] = [1, 32];
/// Calls of each client in a round, and rounds of each server, for the ratio.
const CALLS: usize = 20;
const ROUNDS: usize = 301;

/// Does nothing, successfully.
struct Idle;

#[async_trait]
impl csi_core::Node for Idle {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("node-1")
    }

    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        Ok(())
    }

    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

/// The same, on tonic alone.
struct Bare;

macro_rules! bare {
    ($($method:ident: $request:ident -> $reply:ident = $answer:expr;)+) => {
        #[tonic::async_trait]
        impl v1::node_server::Node for Bare {
            $(async fn $method(&self, _: Request<v1::$request>) -> Result<Response<v1::$reply>, Status> {
                $answer
            })+
        }
    };
}

bare! {
    node_publish_volume: NodePublishVolumeRequest -> NodePublishVolumeResponse =
        Ok(Response::new(v1::NodePublishVolumeResponse {}));
    node_get_info: NodeGetInfoRequest -> NodeGetInfoResponse =
        Ok(Response::new(v1::NodeGetInfoResponse { node_id: "node-1".to_owned(), ..Default::default() }));
    node_stage_volume: NodeStageVolumeRequest -> NodeStageVolumeResponse = Err(Status::unimplemented("not here"));
    node_unstage_volume: NodeUnstageVolumeRequest -> NodeUnstageVolumeResponse =
        Err(Status::unimplemented("not here"));
    node_unpublish_volume: NodeUnpublishVolumeRequest -> NodeUnpublishVolumeResponse =
        Err(Status::unimplemented("not here"));
    node_get_volume_stats: NodeGetVolumeStatsRequest -> NodeGetVolumeStatsResponse =
        Err(Status::unimplemented("not here"));
    node_get_volume_health: NodeGetVolumeHealthRequest -> NodeGetVolumeHealthResponse =
        Err(Status::unimplemented("not here"));
    node_get_storage_health: NodeGetStorageHealthRequest -> NodeGetStorageHealthResponse =
        Err(Status::unimplemented("not here"));
    node_expand_volume: NodeExpandVolumeRequest -> NodeExpandVolumeResponse =
        Err(Status::unimplemented("not here"));
    node_get_capabilities: NodeGetCapabilitiesRequest -> NodeGetCapabilitiesResponse =
        Err(Status::unimplemented("not here"));
}

#[derive(Clone, Copy)]
enum Call {
    /// Claims a target and a share of a volume, and is checked in full.
    Publish,
    /// A mere question.
    Info,
}

/// Clients with a connection each.
type Clients = Vec<NodeClient<Channel>>;

async fn one(client: &mut NodeClient<Channel>, call: Call, at: usize) {
    match call {
        Call::Publish => drop(client.node_publish_volume(publish(at)).await.unwrap()),
        Call::Info => drop(client.node_get_info(v1::NodeGetInfoRequest {}).await.unwrap()),
    }
}

/// As the kubelet sends it.
fn publish(at: usize) -> v1::NodePublishVolumeRequest {
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};
    let pairs =
        |pairs: [(&str, &str); 2]| pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    v1::NodePublishVolumeRequest {
        volume_id: format!("pvc-0f3c3f0e-6c2c-4c8e-9d0a-{at:012}"),
        publish_context: pairs([("device", "/dev/disk/by-id/scsi-3600"), ("lun", "7")]),
        staging_target_path: "/var/lib/kubelet/plugins/kubernetes.io/csi/a/globalmount".to_owned(),
        target_path: format!("/var/lib/kubelet/pods/{at}/volumes/kubernetes.io~csi/pvc/mount"),
        volume_capability: Some(v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: 1 }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: "ext4".to_owned(),
                ..Default::default()
            })),
        }),
        volume_context: pairs([
            ("pool", "fast"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "1-8081-a"),
        ]),
        ..Default::default()
    }
}

/// Each client calls so many times; how long it took in all.
async fn round(clients: &Clients, call: Call, calls: usize) -> Duration {
    let begun = Instant::now();
    let tasks: Vec<_> = clients
        .iter()
        .cloned()
        .enumerate()
        .map(|(at, mut client)| {
            tokio::spawn(async move {
                for _ in 0..calls {
                    one(&mut client, call, at).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    begun.elapsed()
}

struct Servers {
    runtime: Runtime,
    directory: tempfile::TempDir,
}

impl Servers {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::bind(directory.path().join("bare.sock")).unwrap()
        };
        let bare = tonic::transport::Server::builder()
            .add_service(v1::node_server::NodeServer::new(Bare))
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(bare);
        let endpoint: Endpoint = directory.path().join("full.sock").to_str().unwrap().parse().unwrap();
        let plugin = Plugin::new("bench.csi.example.org", "1").node(NodeService::new(Arc::new(Idle)));
        runtime.spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
        while !directory.path().join("full.sock").exists() {
            std::thread::yield_now();
        }
        Self { runtime, directory }
    }

    fn clients(&self, server: &str, count: usize) -> Clients {
        let _inside = self.runtime.enter();
        let socket = format!("unix://{}", self.directory.path().join(format!("{server}.sock")).display());
        let endpoint = tonic::transport::Endpoint::from_shared(socket).unwrap();
        (0..count).map(|_| NodeClient::new(endpoint.connect_lazy())).collect()
    }
}

const CALL_KINDS: [(&str, Call); 2] = [("publish", Call::Publish), ("info", Call::Info)];

fn with_criterion(servers: &Servers) {
    let mut criterion = Criterion::default().configure_from_args().sample_size(30);
    for (name, call) in CALL_KINDS {
        let mut group = criterion.benchmark_group(name);
        for (server, count) in CLIENTS.into_iter().flat_map(|count| [("bare", count), ("full", count)]) {
            let clients = servers.clients(server, count);
            group.bench_function(BenchmarkId::new(server, count), |bencher| {
                bencher.iter_custom(|iterations| {
                    let calls = usize::try_from(iterations).unwrap();
                    servers.runtime.block_on(round(&clients, call, calls))
                });
            });
        }
        group.finish();
    }
    criterion.final_summary();
}

fn ratios(servers: &Servers) {
    println!("medians of {ROUNDS} pairs of rounds of {CALLS} calls a client:");
    for (name, call) in CALL_KINDS {
        for count in CLIENTS {
            let [bare, full] = ["bare", "full"].map(|server| servers.clients(server, count));
            let mut times = [Vec::new(), Vec::new()];
            for turn in 0..=ROUNDS {
                for (clients, times) in [&bare, &full].into_iter().zip(&mut times) {
                    let time = servers.runtime.block_on(round(clients, call, CALLS));
                    // The first round connects.
                    if turn > 0 {
                        times.push(time);
                    }
                }
            }
            let micros =
                |times: &[Duration]| median(times.iter().map(|time| time.as_secs_f64() * 1e6 / CALLS as f64));
            let [bare, full] = &times;
            let ratio =
                median(bare.iter().zip(full).map(|(bare, full)| full.as_secs_f64() / bare.as_secs_f64()));
            let (bare, full) = (micros(bare), micros(full));
            println!("{name}, {count} clients: bare {bare:.1} µs, full {full:.1} µs, ratio {ratio:.2}");
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let servers = Servers::start();
    // Called by `cargo test` too, with no time to spare.
    if std::env::args().any(|argument| argument == "--bench") {
        if std::env::var_os("CSI_BENCH_RATIO_ONLY").is_none() {
            with_criterion(&servers);
        }
        ratios(&servers);
    }
}
