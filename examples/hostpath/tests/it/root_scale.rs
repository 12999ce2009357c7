//! The duration of calls with few and with many volumes: only listing gets slower. Needs root.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use csi_core::client::Client;
use csi_proto::v1;
use tokio::task::JoinSet;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, in_private};

/// The number of measured calls of each kind.
const SAMPLES: usize = 15;
/// The number of entries on a page of a listing.
const PAGE: i32 = 100;
/// How much longer a call is allowed to take with many volumes. With ten times as many volumes, a time that
/// grows with their number would be ten times as long.
const FLAT: u32 = 4;
/// How often the samples are taken, until the fastest call of each kind is as fast as among few volumes.
const MORE: usize = 10;
/// Below this, the noise of the machine is what is measured.
const LEAST: Duration = Duration::from_millis(2);

/// The kind of volumes, and how the driver is started for them.
struct Shape {
    name: &'static str,
    flags: &'static [&'static str],
    filesystem: &'static str,
    bytes: u64,
    /// Whether the volumes are also attached and staged.
    whole: bool,
    /// Whether a page of the listing takes no longer: only the volumes on the page are looked at.
    pages: bool,
}

const DIRECTORIES: Shape = Shape {
    name: "directories, neither attached nor staged, listed without condition",
    flags: &["--kind=directory", "--without=attach,stage,condition"],
    filesystem: "",
    bytes: MIB,
    whole: false,
    pages: true,
};

/// The driver with its defaults. A volume's condition is that of its image, and each page of a listing
/// looks at all images.
const IMAGES: Shape = Shape {
    name: "images with ext4, attached and staged, listed with their condition",
    flags: &[],
    filesystem: "ext4",
    bytes: 16 * MIB,
    whole: true,
    pages: false,
};

/// The times of calls of one kind.
type Times = Vec<Duration>;

/// `CSI_TEST_VOLUMES` sets the largest number of volumes; 10000 is the full size.
fn counts() -> Vec<usize> {
    let most = std::env::var("CSI_TEST_VOLUMES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let mut counts: Vec<usize> = [10, 100, 1_000, 10_000].into_iter().filter(|count| *count < most).collect();
    counts.push(most);
    counts
}

impl Shape {
    fn wanted(&self, name: &str) -> v1::CreateVolumeRequest {
        wanted(name, Some(self.filesystem), self.bytes)
    }

    async fn grow_to(&self, client: &Client, from: usize, to: usize) {
        let mut calls = JoinSet::new();
        for at in from..to {
            if calls.len() == 32 {
                calls.join_next().await.unwrap().unwrap();
            }
            let client = client.clone();
            let request = self.wanted(&format!("volume-{at}"));
            calls.spawn(async move { drop(client.call(request).await.unwrap()) });
        }
        while let Some(done) = calls.join_next().await {
            done.unwrap();
        }
    }

    /// The times of each call of a volume's life.
    async fn lives(&self, run: &Run) -> Vec<(&'static str, Times)> {
        let mut times: Vec<(&'static str, Times)> = Vec::new();
        for sample in 0..SAMPLES {
            let mut start = Instant::now();
            let mut lap = |call: &'static str| {
                let taken = start.elapsed();
                match times.iter_mut().find(|(name, _)| *name == call) {
                    Some((_, times)) => times.push(taken),
                    None => times.push((call, vec![taken])),
                }
                start = Instant::now();
            };
            let mut life = Life::new(run, self.wanted(&format!("sample-{sample}"))).await.unwrap();
            lap("create");
            if self.whole {
                life.attach("node-1").await.unwrap();
                lap("attach");
                life.stage().await.unwrap();
                lap("stage");
            }
            let target = life.publish("one").await.unwrap();
            lap("publish");
            life.unpublish(&target).await.unwrap();
            lap("unpublish");
            if self.whole {
                life.unstage().await.unwrap();
                lap("unstage");
                life.detach("node-1").await.unwrap();
                lap("detach");
            }
            life.delete().await.unwrap();
            lap("delete");
        }
        times
    }

    async fn measure(&self) {
        let run = Run::on_tmpfs(1 << 40);
        let mut driver = run.start(self.flags).await;
        let client = run.client();
        let mut there = 0;
        let mut few = BTreeMap::new();
        println!("{}; ms, the middle one of {SAMPLES}:", self.name);
        for count in counts() {
            self.grow_to(&client, there, count).await;
            there = count;
            let mut times = self.lives(&run).await;
            let (mut pages, all) = list(&client, count).await;
            // One listing has few pages, which a busy machine can all slow down.
            for _ in 1..SAMPLES {
                pages.extend(list(&client, count).await.0);
            }
            // More samples find a faster call on a busy machine, and none where the calls are slow.
            for _ in 1..MORE {
                if times.iter().all(|(call, times)| is_flat(&few, call, times)) {
                    break;
                }
                for ((_, times), (_, more)) in times.iter_mut().zip(self.lives(&run).await) {
                    times.extend(more);
                }
            }
            if self.pages && count >= PAGE as usize {
                flat(count, &mut few, "page of 100", &pages);
            }
            for (call, times) in &times {
                flat(count, &mut few, call, times);
            }
            driver.kill();
            let start = Instant::now();
            driver.start_again().await;
            times.extend([("page of 100", pages), ("list all", vec![all]), ("start", vec![start.elapsed()])]);
            print_row(count, times);
            assert_eq!(volumes(&client).await.len(), count, "all are there after the kill");
        }
        run.assert_clean();
    }
}

/// The times of the pages of a listing, and the time of the whole listing.
async fn list(client: &Client, due: usize) -> (Times, Duration) {
    let mut pages = Vec::new();
    let mut found = 0;
    let mut starting_token = String::new();
    let start = Instant::now();
    loop {
        let page = Instant::now();
        let request = v1::ListVolumesRequest { max_entries: PAGE, starting_token };
        let answer = client.call(request).await.unwrap();
        pages.push(page.elapsed());
        found += answer.entries.len();
        starting_token = answer.next_token;
        if starting_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, due);
    (pages, start.elapsed())
}

/// Checks that a call with `count` volumes takes at most [`FLAT`] times as long as in the first
/// measurement. Compares the fastest calls, because the slower ones include other work of the machine.
fn flat(count: usize, first: &mut BTreeMap<String, Duration>, call: &str, times: &Times) {
    let now = *times.iter().min().unwrap();
    let few = *first.entry(call.to_owned()).or_insert(now);
    assert!(is_flat(first, call, times), "{call}: {few:?} among few volumes, {now:?} among {count}");
}

fn is_flat(first: &BTreeMap<String, Duration>, call: &str, times: &Times) -> bool {
    let now = *times.iter().min().unwrap();
    first.get(call).is_none_or(|few| now <= (*few).max(LEAST) * FLAT)
}

fn print_row(count: usize, times: Vec<(&'static str, Times)>) {
    let middle = |(call, mut times): (&str, Times)| {
        times.sort();
        format!("{call} {:.2}", times[times.len() / 2].as_secs_f64() * 1000.0)
    };
    let row: Vec<String> = times.into_iter().map(middle).collect();
    println!("{count:>6} volumes: {}", row.join(", "));
}

#[test]
fn calls_take_as_long_with_many_volumes_as_with_few() {
    in_private(async || {
        // One after the other, so that each has the machine to itself.
        for shape in [DIRECTORIES, IMAGES] {
            shape.measure().await;
        }
    });
}
