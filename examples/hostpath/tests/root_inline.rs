//! Inline volumes exist as long as their pod, and no longer. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::path::Path;

use csi_proto::v1;
use support::{Run, capability, in_private};

fn inline(run: &Run, id: &str, kind: &str, filesystem: &str) -> v1::NodePublishVolumeRequest {
    let attributes = [
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "pod"),
        ("kind", kind),
        ("size", "320Mi"),
    ];
    v1::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: run.of("target").join(id).to_str().unwrap().to_owned(),
        volume_capability: Some(capability(Some(filesystem), 1)),
        volume_context: attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..Default::default()
    }
}

fn kept_inline(run: &Run) -> usize {
    let all = fs::read_dir(run.of("data").join("inline/node-1")).unwrap().flatten();
    all.filter(|entry| !entry.file_name().to_str().unwrap().starts_with('.')).count()
}

#[test]
fn inline_volumes_live_as_long_as_their_pod() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        for (id, kind, filesystem) in [("csi-1", "directory", ""), ("csi-2", "image", "xfs")] {
            let request = inline(&run, id, kind, filesystem);
            let target = Path::new(&request.target_path).to_owned();
            run.client().node().node_publish_volume(request.clone()).await.unwrap();
            fs::write(target.join("file"), "x").unwrap();
            // The kubelet publishes repeatedly, and the driver restarts in between.
            driver.kill().await.unwrap();
            driver = run.start(&[]).await;
            run.client().node().node_publish_volume(request).await.unwrap();
            assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
            let stats = v1::NodeGetVolumeStatsRequest {
                volume_id: id.to_owned(),
                volume_path: target.to_str().unwrap().to_owned(),
                ..Default::default()
            };
            let usage = run.client().node().node_get_volume_stats(stats).await.unwrap().into_inner().usage;
            assert!(kind == "directory" || usage[0].total < 400 << 20, "of the size that was asked for");
            assert_eq!(kept_inline(&run), 1);
            let gone = v1::NodeUnpublishVolumeRequest {
                volume_id: id.to_owned(),
                target_path: target.to_str().unwrap().to_owned(),
            };
            for _ in 0..2 {
                run.client().node().node_unpublish_volume(gone.clone()).await.unwrap();
            }
            assert_eq!(kept_inline(&run), 0, "{kind}");
            run.assert_clean();
        }
        driver.kill().await.unwrap();
    });
}

async fn unpublished(run: &Run, request: &v1::NodePublishVolumeRequest) {
    let gone = v1::NodeUnpublishVolumeRequest {
        volume_id: request.volume_id.clone(),
        target_path: request.target_path.clone(),
    };
    run.client().node().node_unpublish_volume(gone).await.unwrap();
}

#[test]
fn an_inline_volume_that_is_not_published_is_not_there() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        for (kind, filesystem) in [("directory", ""), ("image", "xfs")] {
            let request = inline(&run, "csi-1", kind, filesystem);
            // A file blocks the target. After a final error the kubelet does not unpublish.
            fs::write(&request.target_path, "x").unwrap();
            run.client().node().node_publish_volume(request.clone()).await.unwrap_err();
            assert_eq!(kept_inline(&run), 0, "{kind}");
            fs::remove_file(&request.target_path).unwrap();
            run.assert_clean();

            // The driver is killed after the volume was staged and before it was published, and after it
            // was published.
            run.client().node().node_publish_volume(request.clone()).await.unwrap();
            driver.kill().await.unwrap();
            let place = run.of("data").join("inline/node-1/csi-1");
            csi_mount::unmount(&csi_mount::Target::new(&request.target_path).unwrap()).unwrap();
            driver = run.start(&[]).await;
            assert_eq!(kept_inline(&run), 1, "its publish was answered: its pod may still be there");
            driver.kill().await.unwrap();
            let record = fs::read_to_string(place.join("record.json")).unwrap();
            let half = record.replace("\"published\": true", "\"published\": false");
            assert_ne!(half, record);
            fs::write(place.join("record.json"), half).unwrap();
            driver = run.start(&[]).await;
            assert_eq!(kept_inline(&run), 0, "{kind}");
            unpublished(&run, &request).await;
            run.assert_clean();

            // Existing inline volumes are also removed by a driver that no longer creates new ones.
            run.client().node().node_publish_volume(request.clone()).await.unwrap();
            driver.kill().await.unwrap();
            driver = run.start(&["--without=inline"]).await;
            unpublished(&run, &request).await;
            assert_eq!(kept_inline(&run), 0, "{kind}");
            run.assert_clean();
            driver.kill().await.unwrap();
            driver = run.start(&[]).await;
        }
        driver.kill().await.unwrap();
    });
}
