//! A whole driver that leads, or waits: on real sockets, in real time.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use csi_core::{Controller, ControllerService, Endpoint, Plugin, Result, Volume, VolumeCapability, VolumeId};
use csi_core::{CreateDeleteVolume, CreateVolumeRequest, DeleteVolumeRequest, async_trait};
use csi_kube::Timing;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::leader_election::{free_lease, server};
use test_support::kube_api::{ApiServer, Link, LinkState};

struct Nothing;

#[async_trait]
impl Controller for Nothing {
    async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> {
        Ok(None)
    }
    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl CreateDeleteVolume for Nothing {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        Ok(Volume::new(VolumeId::from_name(&request.name)?, 0))
    }
    async fn delete_volume(&self, _: DeleteVolumeRequest) -> Result<()> {
        Ok(())
    }
}

fn start(server: &ApiServer, socket: &Path) -> (JoinHandle<ExitCode>, Link) {
    let (client, link) = server.linked_client();
    let second = Duration::from_secs(1);
    let timing = Timing::new(8 * second, 4 * second, second / 2).unwrap();
    let election = csi_kube::Election::new(client, "block").timing(timing);
    let endpoint: Endpoint = format!("unix://{}", socket.display()).parse().unwrap();
    let plugin = || {
        let controller = ControllerService::new(Arc::new(Nothing)).create_delete_volume();
        Plugin::new("block.csi.example.org", "1").controller(controller)
    };
    let run = async move { election.run_on(&endpoint, |_| plugin()).await };
    (tokio::spawn(run), link)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let poll = async {
        while !is_so() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(120), poll).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_processes_has_a_socket() {
    let server = server();
    free_lease(&server);
    let folder = tempfile::tempdir().unwrap();
    let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
    let (first, link) = start(&server, &sockets[0]);
    until("the first leads", || sockets[0].exists()).await;
    let (second, _link) = start(&server, &sockets[1]);
    link.set(LinkState::Cut);
    until("the second leads", || {
        let [first, second] = [0, 1].map(|one: usize| sockets[one].exists());
        assert!(!(first && second), "a process that does not lead accepts calls");
        second
    })
    .await;
    let code = timeout(Duration::from_secs(120), first).await.unwrap().unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    second.abort();
}
