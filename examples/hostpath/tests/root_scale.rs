//! What a call takes when there are few volumes, and when there are many: nothing but listing grows. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use csi_core::client::Client;
use csi_proto::v1;
use support::life::Life;
use support::{MIB, Run, in_private, wanted};
use tokio::task::JoinSet;

/// How many calls are measured of each kind; the middle one of them counts.
const SAMPLES: usize = 15;
/// What a page of a listing holds.
const PAGE: i32 = 100;

/// `CSI_TEST_VOLUMES` says up to how many volumes; 10000 is the full size.
fn counts() -> Vec<usize> {
    let most = std::env::var("CSI_TEST_VOLUMES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let mut counts: Vec<usize> = [10, 100, 1_000, 10_000].into_iter().filter(|count| *count < most).collect();
    counts.push(most);
    counts
}

async fn grow_to(client: &Client, from: usize, to: usize) {
    let mut calls = JoinSet::new();
    for at in from..to {
        if calls.len() == 32 {
            calls.join_next().await.unwrap().unwrap();
        }
        let client = client.clone();
        calls.spawn(async move {
            client.controller().create_volume(wanted(&format!("volume-{at}"), Some(""), MIB)).await.unwrap();
        });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The times of a create, a publish, an unpublish and a delete, each the middle one of several.
async fn one_volume(run: &Run) -> [Duration; 4] {
    let mut times: [Vec<Duration>; 4] = Default::default();
    for sample in 0..SAMPLES {
        let mut start = Instant::now();
        let mut lap = |times: &mut Vec<Duration>| {
            times.push(start.elapsed());
            start = Instant::now();
        };
        let life = Life::new(run, wanted(&format!("sample-{sample}"), Some(""), MIB)).await.unwrap();
        lap(&mut times[0]);
        let target = life.publish("one").await.unwrap();
        lap(&mut times[1]);
        life.unpublish(&target).await.unwrap();
        lap(&mut times[2]);
        life.delete().await.unwrap();
        lap(&mut times[3]);
    }
    times.map(middle)
}

/// The time of a page in the middle of the list, and of all pages.
async fn list(client: &Client, due: usize) -> (Duration, Duration) {
    let (mut pages, mut found, mut starting_token) = (Vec::new(), 0, String::new());
    let start = Instant::now();
    loop {
        let page = Instant::now();
        let request = v1::ListVolumesRequest { max_entries: PAGE, starting_token };
        let answer = client.controller().list_volumes(request).await.unwrap().into_inner();
        pages.push(page.elapsed());
        found += answer.entries.len();
        starting_token = answer.next_token;
        if starting_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, due);
    (middle(pages), start.elapsed())
}

#[test]
fn calls_take_as_long_with_many_volumes_as_with_few() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let flags = ["--kind=directory", "--without=attach,stage,condition"];
        let mut driver = run.start(&flags).await;
        let client = run.client();
        let mut table = format!(
            "{:>8} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10}  ms\n",
            "volumes", "create", "publish", "unpublish", "delete", "page of 100", "list all", "start"
        );
        let mut there = 0;
        for count in counts() {
            grow_to(&client, there, count).await;
            there = count;
            let [create, publish, unpublish, delete] = one_volume(&run).await;
            let (page, all) = list(&client, count).await;
            driver.kill().await.unwrap();
            let start = Instant::now();
            driver = run.start(&flags).await;
            let start = start.elapsed();
            let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
            let [create, publish, unpublish, delete, page, all, start] =
                [create, publish, unpublish, delete, page, all, start].map(milliseconds);
            writeln!(
                table,
                "{count:>8} {create:>10.2} {publish:>10.2} {unpublish:>10.2} {delete:>10.2} {page:>12.2} {all:>10.2} {start:>10.2}"
            )
            .unwrap();
            let listed = client.controller().list_volumes(v1::ListVolumesRequest::default()).await.unwrap();
            assert_eq!(listed.into_inner().entries.len(), count, "all are there after the kill");
        }
        println!("{table}");
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}
