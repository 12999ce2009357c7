//! The node's events in Kubernetes, by `--node-events`. Needs root.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use csi_mount::Target;
use csi_proto::v1;
use test_support::kube_api::ApiServer;
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, in_private, program};

/// Another pod with a private copy of all mounts.
struct Copies(Child);

impl Copies {
    fn begin() -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation=private", "sh", "-c", "echo done; exec sleep 600"]);
        let mut child = unshare.stdout(Stdio::piped()).spawn().expect("util-linux");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
        Self(child)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Waits for an event of the node with this reason, and returns its text.
async fn note_of(server: &ApiServer, reason: &str) -> String {
    let found = async {
        loop {
            let events = server.objects("events/default/");
            if let Some(event) = events.iter().find(|event| event["reason"] == reason) {
                assert_eq!(event["regarding"]["name"], "node-1");
                return event["note"].as_str().unwrap().to_owned();
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), found).await.expect("an event")
}

#[test]
fn what_only_a_person_can_end_is_an_event_of_the_node() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let server = ApiServer::new();
        server.listen(&run.of("kubeconfig")).await;
        let start = || {
            let mut program = program();
            program.env("KUBECONFIG", run.of("kubeconfig"));
            run.start_as(program, "csi.sock", "node-1", &["--node-events"])
        };
        let mut driver = start().await;

        let mut life = Life::new(&run, wanted("one", Some("ext4"), 64 * MIB)).await.unwrap();
        life.start().await.unwrap();
        life.unpublish(&life.target("one")).await.unwrap();
        let copies = Copies::begin();
        assert_eq!(life.unstage().await.unwrap_err().code(), Code::FailedPrecondition);
        let note = note_of(&server, "CSIVolumeInUse").await;
        let holder = format!("process {}", copies.0.id());
        assert!(note.contains("another mount namespace") && note.contains(&holder), "{note}");
        drop(copies);
        life.unstage().await.unwrap();
        life.detach("node-1").await.unwrap();
        run.call(delete_volume(&life.id)).await.unwrap();

        // A reboot of a node that has the kubelet's directory in memory.
        let pod = run.of("target").join("pod");
        let target_path = pod.join("mount").to_str().unwrap().to_owned();
        let request = v1::NodePublishVolumeRequest { target_path, ..inline(&run, "csi-1", "directory", "") };
        fs::create_dir(&pod).unwrap();
        run.call(request.clone()).await.unwrap();
        driver.kill();
        csi_mount::unmount(&Target::new(pod.join("mount")).unwrap()).unwrap();
        fs::remove_dir(pod.join("mount")).unwrap();
        fs::remove_dir(&pod).unwrap();
        driver = start().await;
        let note = note_of(&server, "CSIVolumeLeft").await;
        let end =
            format!("csi node unpublish-volume --volume-id csi-1 --target-path {}", request.target_path);
        assert!(note.ends_with(&end), "{note}");
        run.call(v1::NodeUnpublishVolumeRequest::from(&request)).await.unwrap();
        drop(driver);
        run.assert_clean();
    });
}
