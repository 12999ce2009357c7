//! A million volumes come and go, and the table of running operations is as small as before. In a file of its own:
//! it measures its process.

mod common;

use common::{Served, eventually, plugin, stage};

const CLIENTS: u32 = 16;
const MIB: u64 = 1 << 20;

/// The memory of this process that is in RAM, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Stages so many volumes, each with an id that was never seen before.
async fn stage_volumes(served: &Served, generation: &'static str, count: u32) {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let mut node = served.node();
            tokio::spawn(async move {
                for volume in (client..count).step_by(CLIENTS as usize) {
                    node.node_stage_volume(stage(&format!("{generation}-{volume:032}"))).await.unwrap();
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
    let served = Served::start(plugin(Default::default())).await;
    // What a process takes once: its connection's buffers, the runtime's queues, the allocator's arenas.
    stage_volumes(&served, "first", 10_000).await;
    let before = resident();
    stage_volumes(&served, "then", volumes).await;
    let growth = || resident().saturating_sub(before);
    println!("{volumes} volumes: {} KiB before, {} KiB more after", before / 1024, growth() / 1024);
    eventually("within a MiB of where it began", || growth() <= MIB).await;
}
