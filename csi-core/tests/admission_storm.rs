//! Many impatient callers on few volumes: operations still run one at a time per volume, and nothing is
//! left behind.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Served, block_capability, connect, create, eventually, publish, stage, staging};
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::controller_client::ControllerClient;
use v1::node_client::NodeClient;

const CLIENTS: u64 = 64;
const VOLUMES: u64 = 100;

/// A driver that records which operations run at the same time, by its own rules.
#[derive(Default)]
struct Critical {
    /// The number of running operations per subject; -1 is an operation that must run alone.
    inside: Mutex<HashMap<String, i32>>,
    running: AtomicU32,
    entered: AtomicU32,
    collisions: AtomicU32,
}

impl Critical {
    async fn section(&self, alone: String, shared: Option<String>) {
        let count = self.entered.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_add(1, Ordering::SeqCst);
        self.enter(&alone, -1);
        shared.iter().for_each(|key| self.enter(key, 1));
        match count % 4 {
            0 => blocking(|| {
                std::thread::sleep(Duration::from_millis(2));
                Ok(())
            })
            .await
            .unwrap(),
            length => tokio::time::sleep(Duration::from_millis(u64::from(length) * 2)).await,
        }
        self.leave(&alone, -1);
        shared.iter().for_each(|key| self.leave(key, 1));
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    fn enter(&self, key: &str, how: i32) {
        let mut inside = self.inside.lock().unwrap();
        let before = inside.entry(key.to_owned()).or_default();
        if *before < 0 || (how < 0 && *before > 0) {
            self.collisions.fetch_add(1, Ordering::SeqCst);
        }
        *before += how;
    }

    fn leave(&self, key: &str, how: i32) {
        *self.inside.lock().unwrap().get_mut(key).unwrap() -= how;
    }
}

#[async_trait]
impl Controller for Critical {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        Ok(Some(Volume::new(volume_id.clone(), 1)))
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl CreateDeleteVolume for Critical {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        self.section(format!("name {}", request.name), None).await;
        Ok(Volume::new(VolumeId::from_name(&request.name)?, 1))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.section(format!("volume {}", request.volume_id), None).await;
        Ok(())
    }
}

#[async_trait]
impl PublishUnpublishVolume for Critical {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        let (volume, node) = (request.volume_id, request.node_id);
        self.section(format!("volume {volume} on {node}"), Some(format!("volume {volume}"))).await;
        Ok(Published::default())
    }

    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        let (volume, node) = (request.volume_id, request.node_id.expect("the test names one"));
        self.section(format!("volume {volume} on {node}"), Some(format!("volume {volume}"))).await;
        Ok(())
    }
}

#[async_trait]
impl Node for Critical {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("node-1")
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let (volume, target) = (request.volume_id, request.target_path);
        self.section(format!("target {target}"), Some(format!("here {volume}"))).await;
        Ok(())
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let (volume, target) = (request.volume_id, request.target_path);
        self.section(format!("target {target}"), Some(format!("here {volume}"))).await;
        Ok(())
    }
}

#[async_trait]
impl StageUnstageVolume for Critical {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        self.section(format!("here {}", request.volume_id), None).await;
        Ok(())
    }

    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        self.section(format!("here {}", request.volume_id), None).await;
        Ok(())
    }
}

fn plugin(driver: Arc<Critical>) -> Plugin {
    Plugin::new("storm.csi.example.org", "1")
        .controller(ControllerService::new(driver.clone()).create_delete_volume().publish_unpublish_volume())
        .node(NodeService::new(driver).stage_unstage_volume())
}

/// Pseudo-random numbers, the same in every run (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn request<T>(message: T, timeout: Option<Duration>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    request
}

/// One call of one of the eight RPCs, for one of the volumes.
async fn call(
    channel: tonic::transport::Channel,
    dice: [u64; 3],
    timeout: Option<Duration>,
) -> Result<(), Code> {
    let (mut controller, mut node) = (ControllerClient::new(channel.clone()), NodeClient::new(channel));
    let [rpc, volume, other] = dice;
    let (volume_id, target_path) = (format!("v{volume}"), format!("/target/{volume}/{other}"));
    let node_id = format!("node-{other}");
    let done = match rpc {
        0 => controller.create_volume(request(create(&volume_id), timeout)).await.map(drop),
        1 => {
            let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
            controller.delete_volume(request(delete, timeout)).await.map(drop)
        }
        2 => {
            let volume_capability = Some(block_capability(5));
            let attach = v1::ControllerPublishVolumeRequest {
                volume_id,
                node_id,
                volume_capability,
                ..Default::default()
            };
            controller.controller_publish_volume(request(attach, timeout)).await.map(drop)
        }
        3 => {
            let detach = v1::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
            controller.controller_unpublish_volume(request(detach, timeout)).await.map(drop)
        }
        4 => node.node_stage_volume(request(stage(&volume_id), timeout)).await.map(drop),
        5 => node.node_unstage_volume(request(unstage(volume_id), timeout)).await.map(drop),
        6 => node.node_publish_volume(request(publish(&volume_id, &target_path), timeout)).await.map(drop),
        _ => {
            let unpublish = v1::NodeUnpublishVolumeRequest { volume_id, target_path };
            node.node_unpublish_volume(request(unpublish, timeout)).await.map(drop)
        }
    };
    done.map_err(|status| status.code())
}

fn unstage(volume_id: String) -> v1::NodeUnstageVolumeRequest {
    v1::NodeUnstageVolumeRequest { staging_target_path: staging(&volume_id), volume_id }
}

#[derive(Default, Debug)]
struct Tally {
    answered: u32,
    aborted: u32,
    deadlines: u32,
    left: u32,
    connections_dropped: u32,
}

/// A client that makes random calls and gives up at random: by a deadline, by dropping the call, by
/// dropping its connection.
async fn client(endpoint: Endpoint, seed: u64, calls: u64) -> Tally {
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ (seed + 1));
    // Similar seeds give similar first values, so the first values are dropped.
    for _ in 0..20 {
        dice.roll(2);
    }
    let mut tally = Tally::default();
    let mut channel = connect(&endpoint);
    for _ in 0..calls {
        let what = [dice.roll(8), dice.roll(VOLUMES), dice.roll(2)];
        let patience = Duration::from_millis(dice.roll(6));
        let how = dice.roll(4);
        let timeout = (how == 1).then_some(patience);
        let call = call(channel.clone(), what, timeout);
        let outcome = match how {
            2 | 3 => tokio::time::timeout(patience, call).await.ok(),
            _ => Some(call.await),
        };
        match outcome {
            Some(Ok(())) => tally.answered += 1,
            Some(Err(Code::Aborted)) => tally.aborted += 1,
            Some(Err(Code::Cancelled | Code::DeadlineExceeded)) if how == 1 => tally.deadlines += 1,
            Some(Err(code)) => panic!("{what:?}: {code:?}"),
            None if how == 2 => tally.left += 1,
            None => {
                tally.connections_dropped += 1;
                channel = connect(&endpoint);
            }
        }
    }
    tally
}

// spec: concurrency.simultaneous-calls, create-volume.one-volume-a-name
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_whatever_the_callers_do() {
    let calls =
        std::env::var("CSI_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10_000);
    let begun = std::time::Instant::now();
    let driver = Arc::new(Critical::default());
    let mut served = Served::start(plugin(driver.clone())).await;

    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| tokio::spawn(client(served.endpoint.clone(), seed, calls / CLIENTS + 1)))
        .collect();
    let mut all = Tally::default();
    for client in clients {
        let tally = client.await.unwrap();
        all.answered += tally.answered;
        all.aborted += tally.aborted;
        all.deadlines += tally.deadlines;
        all.left += tally.left;
        all.connections_dropped += tally.connections_dropped;
    }
    eventually("what was begun is done", || driver.running.load(Ordering::SeqCst) == 0).await;
    let (entered, collisions) =
        (driver.entered.load(Ordering::SeqCst), driver.collisions.load(Ordering::SeqCst));
    println!("{all:?}; operations run: {entered}, collisions: {collisions}, in {:?}", begun.elapsed());
    assert_eq!(collisions, 0);
    assert!(all.aborted > 0 && all.deadlines > 0 && all.left > 0 && all.connections_dropped > 0, "{all:?}");

    // Nothing is stuck: every volume can be claimed again, on the controller and on the node.
    for volume in 0..VOLUMES {
        for rpc in [0, 1, 5] {
            let done = call(served.channel.clone(), [rpc, volume, 0], None).await;
            assert_eq!(done, Ok(()), "volume {volume}");
        }
    }
    // The table is empty: the server stops at once and does not wait for its grace time of 30 s.
    served.stop.take().unwrap().send(()).unwrap();
    drop(served.channel);
    tokio::time::timeout(Duration::from_secs(5), served.server).await.expect("it stops").unwrap().unwrap();
}
