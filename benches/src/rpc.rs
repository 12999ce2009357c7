//! Two servers on sockets, one with this toolkit's call path and one with tonic alone, and their clients.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_core::node::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use csi_core::{Endpoint, Result, prelude::*};
use csi_proto::v1;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use v1::node_client::NodeClient;

/// A node that does nothing, successfully.
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

/// The same node on tonic alone.
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

/// The measured call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    /// A publish: claims a target and a share of a volume, and is fully checked.
    Publish {
        /// The number of volumes that take turns.
        volumes: usize,
        /// The minimum size of its parameters in bytes.
        parameters: usize,
    },
    /// A call that only asks, and claims nothing.
    Question,
}

/// A request as the kubelet sends it, for the volume with this number.
pub(crate) fn request(at: usize, parameters: usize) -> v1::NodePublishVolumeRequest {
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};
    let pairs =
        |pairs: [(&str, &str); 2]| pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let mut volume_context: std::collections::BTreeMap<String, String> =
        pairs([("pool", "fast"), ("storage.kubernetes.io/csiProvisionerIdentity", "1-8081-a")]);
    let has: usize = volume_context.iter().map(|(key, value)| key.len() + value.len()).sum();
    let more = parameters.saturating_sub(has);
    // Pairs of 64 bytes each, and one with the rest.
    for number in 0..more / 64 {
        volume_context.insert(format!("parameter-{number:06}"), "x".repeat(48));
    }
    volume_context.insert("pool".to_owned(), "fast".to_owned() + &"x".repeat(more % 64));
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
        volume_context,
        ..Default::default()
    }
}

/// The toolkit's server, or tonic alone.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Server {
    Bare,
    Whole,
}

/// Both servers, in threads of this process.
pub(crate) struct Servers {
    runtime: Runtime,
    directory: PathBuf,
}

impl Servers {
    /// Starts them on sockets in this directory.
    pub(crate) fn start(directory: PathBuf) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self::start_on(runtime, directory)
    }

    /// Starts them on a runtime with a single thread, for counting instructions.
    pub(crate) fn start_on(runtime: Runtime, directory: PathBuf) -> Self {
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::bind(directory.join("bare.sock")).unwrap()
        };
        let bare = tonic::transport::Server::builder()
            .add_service(v1::node_server::NodeServer::new(Bare))
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(bare);
        let endpoint: Endpoint = directory.join("whole.sock").to_str().unwrap().parse().unwrap();
        let plugin = Plugin::new("bench.csi.example.org", "1").node(NodeService::new(Arc::new(Idle)));
        runtime.spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
        let socket = directory.join("whole.sock");
        runtime.block_on(async {
            while !socket.exists() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        Self { runtime, directory }
    }

    /// This number of clients of one server, each with its own connection.
    pub(crate) fn clients(&self, server: Server, count: usize) -> Clients<'_> {
        let _inside = self.runtime.enter();
        let name = match server {
            Server::Bare => "bare.sock",
            Server::Whole => "whole.sock",
        };
        let socket = format!("unix://{}", self.directory.join(name).display());
        let endpoint = tonic::transport::Endpoint::from_shared(socket).unwrap();
        let clients = (0..count).map(|_| NodeClient::new(endpoint.connect_lazy())).collect();
        Clients { runtime: &self.runtime, clients, next: 0 }
    }
}

/// Clients of one server.
pub(crate) struct Clients<'s> {
    runtime: &'s Runtime,
    clients: Vec<NodeClient<Channel>>,
    next: usize,
}

impl Clients<'_> {
    /// Each client makes `times` calls, one after the other. Returns the duration of one call per client.
    pub(crate) fn run(&mut self, call: Call, times: u64) -> Duration {
        let begun = Instant::now();
        let from = self.next;
        self.next += self.clients.len() * times as usize;
        let tasks = self.clients.iter().cloned().enumerate().map(|(at, client)| {
            let first = from + at * times as usize;
            self.runtime.spawn(calls(client, call, first, times))
        });
        let tasks: Vec<_> = tasks.collect();
        self.runtime.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        // The cost of one call, whatever the number of clients: the server's work in this time.
        begun.elapsed() / self.clients.len() as u32
    }
}

async fn calls(mut client: NodeClient<Channel>, call: Call, first: usize, times: u64) {
    for at in first..first + times as usize {
        match call {
            Call::Publish { volumes, parameters } => {
                drop(client.node_publish_volume(request(at % volumes, parameters)).await.unwrap());
            }
            Call::Question => drop(client.node_get_info(v1::NodeGetInfoRequest {}).await.unwrap()),
        }
    }
}
