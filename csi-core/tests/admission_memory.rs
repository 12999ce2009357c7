//! After a million volumes come and go, the table of running operations is as small as before. This test
//! has its own file because it measures the memory of its process.

#[path = "it/common/mod.rs"]
mod common;
#[path = "it/driver/mod.rs"]
mod driver;

use std::sync::Arc;

use common::{Served, eventually, stage};
use driver::plugin;

const CLIENTS: u32 = 16;
const MIB: u64 = 1 << 20;

/// The resident memory of this process (VmRSS), in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Stages `count` volumes, each with a new id.
async fn stage_volumes(served: &Served, generation: &'static str, count: u32) {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let driver = served.client.clone();
            tokio::spawn(async move {
                for volume in (client..count).step_by(CLIENTS as usize) {
                    driver.call(stage(&format!("{generation}-{volume:032}"))).await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn memory_is_flat_over_any_number_of_volumes() {
    let volumes =
        std::env::var("CSI_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20_000);
    let served = Served::start(plugin(&Arc::default())).await;
    // This first batch allocates what a process needs once: the buffers of its connection, the queues of
    // the runtime, the arenas of the allocator.
    stage_volumes(&served, "first", 10_000).await;
    let before = resident();
    stage_volumes(&served, "then", volumes).await;
    let growth = || resident().saturating_sub(before);
    println!("{volumes} volumes: {} KiB before, {} KiB more after", before / 1024, growth() / 1024);
    eventually("within a MiB of where it began", || growth() <= MIB).await;
}
