//! A driver's volumes: created, published, and deleted.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use csi_proto::client::VolumeUse;
use csi_proto::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use v1::controller_client::ControllerClient;
use v1::node_client::NodeClient;
use v1::volume_capability::access_mode::Mode;

use super::Running;

fn capability() -> v1::VolumeCapability {
    v1::VolumeCapability::mount(Mode::SingleNodeWriter)
}

/// Creates a volume, and returns its id.
async fn create(running: &Running<'_>, name: String) -> String {
    let volume_capabilities = vec![capability()];
    let create = v1::CreateVolumeRequest { name, volume_capabilities, ..Default::default() };
    let mut controller = ControllerClient::new(running.channel.clone());
    let made = controller.create_volume(create).await.expect("create").into_inner();
    made.volume.expect("a volume").volume_id
}

/// Runs whole lives of volumes, with four calls each, up to this number of calls. Returns the memory then.
pub(super) fn live(running: &Running<'_>, calls: u32) -> Value {
    running.runtime.block_on(async {
        let mut controller = ControllerClient::new(running.channel.clone());
        for at in 0..calls / 4 {
            let volume_id = create(running, format!("pvc-{at}")).await;
            publish_and_back(running, &volume_id, 1).await;
            let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
            controller.delete_volume(delete).await.expect("delete");
        }
    });
    let seen = running.seen();
    json!({ "resident_kib": seen.resident_kib, "private_kib": seen.private_kib, "threads": seen.threads })
}

async fn publish_and_back(running: &Running<'_>, volume_id: &str, times: u32) {
    let mut node = NodeClient::new(running.channel.clone());
    let volume = VolumeUse::new(volume_id, capability());
    let target = running.root.with_file_name("target");
    for _ in 0..times {
        let publish = v1::NodePublishVolumeRequest { readonly: true, ..volume.node_publish_volume(&target) };
        node.node_publish_volume(publish).await.expect("publish");
        node.node_unpublish_volume(volume.node_unpublish_volume(&target)).await.expect("unpublish");
    }
}

const TIMES: u32 = 200;

/// Context switches and system calls of one publish and its unpublish; the latter need strace.
pub(super) fn publish(running: &Running<'_>) -> Value {
    let volume_id = running.runtime.block_on(create(running, "counted".to_owned()));
    let times = |times| running.runtime.block_on(publish_and_back(running, &volume_id, times));
    // After this the driver has all the threads that it needs.
    times(10);
    let (_, work) = running.while_doing(|| times(TIMES));
    let per_pair = |count: u64| count as f64 / f64::from(TIMES);
    json!({
        "context_switches": per_pair(work.switches),
        "cpu_us": per_pair(work.cpu.as_micros() as u64),
        "system_calls": counted_calls(running, || times(TIMES)).map(per_pair),
    })
}

/// The number of system calls of the process and its children during `work`.
fn counted_calls(running: &Running<'_>, work: impl FnOnce()) -> Option<u64> {
    let table = running.root.with_file_name("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "calls,name", "-p", &running.child.id().to_string(), "-o"]).arg(&table);
    let mut strace = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    std::thread::sleep(Duration::from_millis(500));
    work();
    kill(Pid::from_raw(strace.id() as i32), Signal::SIGINT).expect("stop strace");
    strace.wait().expect("strace");
    let text = fs::read_to_string(table).ok()?;
    text.lines().rev().find_map(|line| line.trim().strip_suffix("total")?.trim().parse().ok())
}
