//! Many impatient callers on few volumes: operations still run one at a time per volume, and nothing is
//! left behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_core::client::{Client, VolumeUse, explain};
use csi_core::controller::Published;
use csi_core::*;
use tonic::{Code, Status};

use crate::common::*;
use crate::driver::{Method, TestDriver, plugin};

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

/// The subjects of a request: one that it has alone, and one that it shares.
type Subjects = (String, Option<String>);

/// Replaces a method of the driver: it records its subjects while it runs.
fn record<Q, A>(critical: &Arc<Critical>, method: &Method<Q, A>, subjects: fn(&Q) -> Subjects, answer: A)
where
    Q: 'static,
    A: Clone + Send + Sync + 'static,
{
    let critical = critical.clone();
    method.runs(move |request| {
        let critical = critical.clone();
        let answer = answer.clone();
        let (alone, shared) = subjects(&request);
        async move {
            critical.section(alone, shared).await;
            Ok(answer)
        }
    });
}

fn driver(critical: &Arc<Critical>) -> Arc<TestDriver> {
    let driver = Arc::new(TestDriver::default());
    let volume = Volume::new(VolumeId::new("any").unwrap(), 0);
    record(critical, &driver.create_volume, |r| (format!("name {}", r.name), None), volume);
    record(critical, &driver.delete_volume, |r| (format!("volume {}", r.volume_id), None), ());
    record(
        critical,
        &driver.controller_publish_volume,
        |r| (format!("volume {} on {}", r.volume_id, r.node_id), Some(format!("volume {}", r.volume_id))),
        Published::default(),
    );
    record(
        critical,
        &driver.controller_unpublish_volume,
        |r| {
            let node_id = r.node_id.as_ref().expect("the test names one");
            (format!("volume {} on {node_id}", r.volume_id), Some(format!("volume {}", r.volume_id)))
        },
        (),
    );
    record(
        critical,
        &driver.node_publish_volume,
        |r| (format!("target {}", r.target_path.display()), Some(format!("here {}", r.volume_id))),
        (),
    );
    record(
        critical,
        &driver.node_unpublish_volume,
        |r| (format!("target {}", r.target_path.display()), Some(format!("here {}", r.volume_id))),
        (),
    );
    record(critical, &driver.node_stage_volume, |r| (format!("here {}", r.volume_id), None), ());
    record(critical, &driver.node_unstage_volume, |r| (format!("here {}", r.volume_id), None), ());
    driver
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

/// One call of one of the eight RPCs, for one of the volumes.
async fn call(client: &Client, dice: [u64; 3]) -> Result<(), Status> {
    let [rpc, volume, other] = dice;
    let volume_id = format!("v{volume}");
    let target = format!("/target/{volume}/{other}");
    let volume = VolumeUse::new(&volume_id, block_capability(5)).attached_to(format!("node-{other}"));
    match rpc {
        0 => client.call(create(&volume_id)).await.map(drop),
        1 => client.call(delete(&volume_id)).await.map(drop),
        2 => client.call(volume.controller_publish_volume()).await.map(drop),
        3 => client.call(volume.controller_unpublish_volume()).await.map(drop),
        4 => client.call(stage(&volume_id)).await.map(drop),
        5 => client.call(unstage(&volume_id)).await.map(drop),
        6 => client.call(publish(&volume_id, &target)).await.map(drop),
        _ => client.call(unpublish(&volume_id, &target)).await.map(drop),
    }
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
    let mut client = connect(&endpoint);
    for _ in 0..calls {
        let what = [dice.roll(8), dice.roll(VOLUMES), dice.roll(2)];
        let patience = Duration::from_millis(dice.roll(6));
        let how = dice.roll(4);
        let caller = if how == 1 { client.clone().deadline(patience) } else { client.clone() };
        let call = call(&caller, what);
        let outcome = match how {
            2 | 3 => tokio::time::timeout(patience, call).await.ok(),
            _ => Some(call.await),
        };
        match outcome {
            Some(Ok(())) => tally.answered += 1,
            Some(Err(status)) => match status.code() {
                Code::Aborted => tally.aborted += 1,
                Code::Cancelled | Code::DeadlineExceeded if how == 1 => tally.deadlines += 1,
                _ => panic!("{what:?}: {}", explain(&status)),
            },
            None if how == 2 => tally.left += 1,
            None => {
                tally.connections_dropped += 1;
                client = connect(&endpoint);
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
    let critical = Arc::new(Critical::default());
    let mut served = Served::start(plugin(&driver(&critical)).grace(10 * PATIENCE)).await;

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
    eventually("what was begun is done", || critical.running.load(Ordering::SeqCst) == 0).await;
    let entered = critical.entered.load(Ordering::SeqCst);
    let collisions = critical.collisions.load(Ordering::SeqCst);
    println!("{all:?}; operations run: {entered}, collisions: {collisions}, in {:?}", begun.elapsed());
    assert_eq!(collisions, 0);
    assert!(all.aborted > 0 && all.deadlines > 0 && all.left > 0 && all.connections_dropped > 0, "{all:?}");

    // Nothing is stuck: every volume can be claimed again, on the controller and on the node.
    for volume in 0..VOLUMES {
        for rpc in [0, 1, 5] {
            let done = call(&served.client, [rpc, volume, 0]).await;
            assert!(done.is_ok(), "volume {volume}: {done:?}");
        }
    }
    // The table is empty: the server stops at once and does not wait for its grace time.
    served.stop.take().unwrap().send(()).unwrap();
    drop(served.client);
    tokio::time::timeout(PATIENCE, served.server).await.expect("it stops").unwrap().unwrap();
}
