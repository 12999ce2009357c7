//! The driver under the conformance kit: all on, each feature off, both kinds of volume, while another client hammers it,
//! and killed at random moments in between. Needs root.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_conformance::{Kit, Report};
use csi_core::Endpoint;
use csi_core::client::Client;
use csi_proto::v1;
use tokio::process::{Child, Command};

/// Switches that each take a feature away.
const OFF: &[&str] = &[
    // One entry for each flag of `hostpath --help` that switches something off.
];

struct Run {
    directory: Option<tempfile::TempDir>,
}

impl Run {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["staging", "target", "data"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory: Some(directory) }
    }

    fn of(&self, name: &str) -> PathBuf {
        self.directory.as_ref().unwrap().path().join(name)
    }

    fn endpoint(&self) -> Endpoint {
        format!("unix://{}", self.of("csi.sock").display()).parse().unwrap()
    }

    /// The driver, serving.
    async fn start(&self, flags: &[&str]) -> Child {
        let child = Command::new(env!("CARGO_BIN_EXE_hostpath"))
            .args(["--endpoint", &self.endpoint().to_string(), "--node-id", "node-1", "--data"])
            .arg(self.of("data"))
            .args(flags)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Client::new(&self.endpoint()).ready(Duration::from_secs(30)).await.unwrap();
        child
    }

    fn kit(&self) -> Kit {
        // XFS grows while it is mounted without CAP_SYS_RESOURCE.
        let kit = Kit::new(self.endpoint()).fs_type("xfs").size(320 << 20).deadline(Duration::from_secs(60));
        kit.staging(self.of("staging")).target(self.of("target")).journal(self.of("journal"))
    }

    /// No mount and no loop device is left, and nothing lies in the kit's directories.
    fn assert_clean(&self) {
        let root = self.directory.as_ref().unwrap().path();
        let mounts = csi_mount::mounts().unwrap();
        let below: Vec<_> = mounts.iter().filter(|entry| entry.mount_point.starts_with(root)).collect();
        assert!(below.is_empty(), "mounts are left: {below:?}");
        let loops: Vec<_> = loops_below(root);
        assert!(loops.is_empty(), "loop devices are left: {loops:?}");
        for name in ["staging", "target"] {
            let left: Vec<_> = std::fs::read_dir(self.of(name)).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

impl Drop for Run {
    /// What lies below is deleted only when nothing is mounted there.
    fn drop(&mut self) {
        if let Some(directory) = self.directory.take()
            && csi_mount::mounts()
                .unwrap()
                .iter()
                .any(|entry| entry.mount_point.starts_with(directory.path()))
        {
            eprintln!("mounts are left, so {} stays", directory.keep().display());
        }
    }
}

/// The backing files of loop devices, as the kernel tells them, that lie below a directory.
fn loops_below(root: &Path) -> Vec<String> {
    let blocks = std::fs::read_dir("/sys/block").unwrap().flatten();
    let files =
        blocks.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    files.filter(|file| Path::new(file.trim()).starts_with(root)).collect()
}

fn in_private(test: impl AsyncFnOnce() + Send) {
    csi_mount::testing::private_mount_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

async fn conforms(flags: &[&str]) -> Report {
    let run = Run::new();
    let mut driver = run.start(flags).await;
    let report = run.kit().run().await.unwrap();
    println!("{flags:?}: {}", report.summary());
    report.assert_ok();
    run.assert_clean();
    driver.kill().await.unwrap();
    report
}

#[test]
fn all_on() {
    in_private(async || {
        let report = conforms(&[]).await;
        println!("{}", report.text());
    });
}

#[test]
fn each_feature_off() {
    in_private(async || {
        let all = conforms(&[]).await.passed();
        for flag in OFF {
            let report = conforms(&[*flag]).await;
            assert!(report.passed() <= all, "{flag}: what is off is not tested");
        }
    });
}

fn wanted(name: String) -> v1::CreateVolumeRequest {
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};
    v1::CreateVolumeRequest {
        name,
        capacity_range: Some(v1::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: 1 }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        ..Default::default()
    }
}

/// A thousand calls at once, again and again, until it is dropped.
async fn hammer(client: Client) {
    for round in 0.. {
        let calls: Vec<_> = (0..1000)
            .map(|at| {
                let client = client.clone();
                tokio::spawn(async move {
                    let request = wanted(format!("hammer-{round}-{}", at % 100));
                    let answer = client.controller().create_volume(request).await;
                    if let Some(volume) = answer.ok().and_then(|answer| answer.into_inner().volume) {
                        let volume_id = volume.volume_id;
                        let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
                        let _ = client.controller().delete_volume(delete).await;
                    }
                })
            })
            .collect();
        for call in calls {
            let _ = call.await;
        }
    }
}

#[test]
fn while_another_client_hammers() {
    in_private(async || {
        let run = Run::new();
        let mut driver = run.start(&[]).await;
        let hammering = tokio::spawn(hammer(Client::new(&run.endpoint())));
        let report = run.kit().run().await.unwrap();
        hammering.abort();
        println!("{}", report.summary());
        report.assert_ok();
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

async fn listed(client: &Client) -> Vec<String> {
    let list =
        client.controller().list_volumes(v1::ListVolumesRequest::default()).await.unwrap().into_inner();
    list.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)).collect()
}

/// CSI_TEST_ROUNDS says how many times; 200 is the full size.
#[test]
fn killed_at_random_moments() {
    let rounds: u32 = std::env::var("CSI_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    in_private(async || {
        let run = Run::new();
        let (mut kept, mut killed) = (BTreeSet::new(), 0);
        let mut moment = 0x9e37_79b9_u32;
        for round in 0..rounds {
            let mut driver = run.start(&[]).await;
            let client = Client::new(&run.endpoint());
            // The same name again after the kill is the same volume: what was answered is kept, nothing is doubled.
            let request = wanted(format!("kept-{}", round / 2));
            let making = tokio::spawn({
                let (client, request) = (client.clone(), request.clone());
                async move { client.controller().create_volume(request).await }
            });
            let kit = tokio::spawn(run.kit().skip("concurrency").run());
            moment = moment.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            tokio::time::sleep(Duration::from_millis(u64::from(moment >> 16) % 1500)).await;
            driver.kill().await.unwrap();
            killed += 1;
            kit.abort();
            let _ = kit.await;
            let answered = making.await.unwrap().ok().and_then(|answer| answer.into_inner().volume);

            let mut driver = run.start(&[]).await;
            let again =
                client.controller().create_volume(request).await.unwrap().into_inner().volume.unwrap();
            if let Some(volume) = answered {
                assert_eq!(volume.volume_id, again.volume_id, "round {round}: a name is one volume");
            }
            kept.insert(again.volume_id);
            let left = run.kit().clean_up().await.unwrap();
            assert!(left.is_empty(), "round {round}: {left:?}");
            run.assert_clean();
            let now = listed(&client).await;
            let distinct: BTreeSet<_> = now.iter().cloned().collect();
            assert_eq!(distinct.len(), now.len(), "round {round}: none is doubled");
            assert_eq!(distinct, kept, "round {round}: none is lost, and none is left of the kit's");
            driver.kill().await.unwrap();
        }
        println!("{killed} kills, {} volumes kept", kept.len());
    });
}
