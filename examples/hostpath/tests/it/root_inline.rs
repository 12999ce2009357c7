//! Inline volumes exist as long as their pod, and no longer. Needs root.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::Path;

use csi_core::client::VolumeUse;
use csi_mount::{Bind, Target};
use csi_proto::v1;
use nix::mount::{MsFlags, mount};

use crate::support::requests::*;
use crate::support::{Run, in_private, program, with_driver, with_driver_on};

/// The kubelet's call for a pod that was deleted.
fn unpublish(request: &v1::NodePublishVolumeRequest) -> v1::NodeUnpublishVolumeRequest {
    request.into()
}

fn kept_inline(run: &Run) -> usize {
    let all = fs::read_dir(run.of("data").join("inline/node-1")).unwrap().flatten();
    all.filter(|entry| !entry.file_name().to_str().unwrap().starts_with('.')).count()
}

#[test]
fn inline_volumes_live_as_long_as_their_pod() {
    with_driver(&[], async |run, mut driver| {
        for (id, kind, filesystem) in [("csi-1", "directory", ""), ("csi-2", "image", "xfs")] {
            let request = inline(run, id, kind, filesystem);
            let target = Path::new(&request.target_path).to_owned();
            run.call(request.clone()).await.unwrap();
            fs::write(target.join("file"), "x").unwrap();
            // The kubelet publishes repeatedly, and the driver restarts in between.
            driver.restart().await;
            run.call(request.clone()).await.unwrap();
            assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
            let stats = VolumeUse::new(id, Default::default()).node_get_volume_stats(&target);
            let usage = run.call(stats).await.unwrap().usage;
            assert!(kind == "directory" || usage[0].total < 400 << 20, "of the size that was asked for");
            assert_eq!(kept_inline(run), 1);
            for _ in 0..2 {
                run.call(unpublish(&request)).await.unwrap();
            }
            assert_eq!(kept_inline(run), 0, "{kind}");
            run.assert_clean();
        }
    });
}

/// The kubelet's directory is shared, and so is what a container's runtime binds somewhere else: what is mounted at one
/// path appears at the other one too.
#[test]
fn an_inline_volume_ends_where_its_directory_is_seen_at_two_paths() {
    let seen_twice = || {
        let run = Run::on_tmpfs(64 << 30);
        let [data, second] = ["data", "second"].map(|name| run.of(name));
        mount(None::<&str>, &data, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
        fs::create_dir(&second).unwrap();
        Bind::new(&data).at(&Target::new(&second).unwrap()).unwrap();
        run
    };
    with_driver_on(seen_twice, &[], async |run, _driver| {
        for (id, kind, filesystem) in [("csi-1", "directory", ""), ("csi-2", "image", "xfs")] {
            let request = inline(run, id, kind, filesystem);
            run.call(request.clone()).await.unwrap();
            let copy = run.of("second/inline/node-1").join(id).join("staged");
            let is_seen = csi_mount::mounts().unwrap().iter().any(|entry| entry.mount_point == copy);
            assert_eq!(is_seen, kind == "image");
            for _ in 0..2 {
                run.call(unpublish(&request)).await.unwrap();
            }
            assert_eq!(kept_inline(run), 0, "{kind}");
        }
        csi_mount::unmount(&Target::new(run.of("second")).unwrap()).unwrap();
    });
}

#[test]
fn an_inline_volume_survives_a_change_of_the_node_id() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        for (id, kind, filesystem) in [("csi-1", "directory", ""), ("csi-2", "image", "ext4")] {
            let before = run.start_node("before", &[]).await;
            let request = inline(&run, id, kind, filesystem);
            let target = Path::new(&request.target_path).to_owned();
            before.client().call(request.clone()).await.unwrap();
            fs::write(target.join("file"), "x").unwrap();
            let gone = unpublish(&request);

            // Another node with the same data does not take it, while the driver of its node runs.
            let other = run.start_node("other", &[]).await;
            let refused = other.client().call(gone.clone()).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
            assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
            drop((other, before));

            let after = run.start_node("after", &[]).await;
            after.client().call(request).await.unwrap();
            assert_eq!(fs::read(target.join("file")).unwrap(), b"x", "{kind}: it is the same volume");
            drop(after);
            let later = run.start_node("later", &[]).await;
            for _ in 0..2 {
                later.client().call(gone.clone()).await.unwrap();
            }
            for name in ["before", "other", "after", "later"] {
                let place = run.of("data").join("inline").join(name).join(id);
                assert!(!place.exists(), "{} is left", place.display());
            }
            drop(later);
            run.assert_clean();
        }
    });
}

#[test]
fn an_inline_volume_that_is_not_published_is_not_there() {
    with_driver(&[], async |run, mut driver| {
        for (kind, filesystem) in [("directory", ""), ("image", "xfs")] {
            let request = inline(run, "csi-1", kind, filesystem);
            // A file blocks the target. After a final error the kubelet does not unpublish.
            fs::write(&request.target_path, "x").unwrap();
            run.call(request.clone()).await.unwrap_err();
            assert_eq!(kept_inline(run), 0, "{kind}");
            fs::remove_file(&request.target_path).unwrap();
            run.assert_clean();

            // The driver is killed after the volume was staged and before it was published, and after it
            // was published.
            run.call(request.clone()).await.unwrap();
            driver.kill();
            let place = run.of("data").join("inline/node-1/csi-1");
            csi_mount::unmount(&Target::new(&request.target_path).unwrap()).unwrap();
            driver.start_again().await;
            assert_eq!(kept_inline(run), 1, "its publish was answered: its pod may still be there");
            driver.kill();
            let record = fs::read_to_string(place.join("record.json")).unwrap();
            let half = record.replace("\"published\": true", "\"published\": false");
            assert_ne!(half, record);
            fs::write(place.join("record.json"), half).unwrap();
            driver.start_again().await;
            assert_eq!(kept_inline(run), 0, "{kind}");
            run.call(unpublish(&request)).await.unwrap();
            run.assert_clean();

            // Existing inline volumes are also removed by a driver that no longer creates new ones.
            run.call(request.clone()).await.unwrap();
            driver.kill();
            driver = run.start(&["--without=inline"]).await;
            run.call(unpublish(&request)).await.unwrap();
            assert_eq!(kept_inline(run), 0, "{kind}");
            run.assert_clean();
            driver.kill();
            driver = run.start(&[]).await;
        }
    });
}

/// A reboot of a node that has the kubelet's directory in memory: nothing asks for the volume's end, and only the API
/// server knows whether its pod still exists.
#[test]
fn an_inline_volume_whose_pods_directory_is_gone_is_named_at_each_start() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let log = run.of("log");
        let mut command = program();
        command.stderr(File::create(&log).unwrap());
        let mut driver = run.start_as(command, "csi.sock", "node-1", &[]).await;
        for (id, kind, filesystem) in [("csi-1", "directory", ""), ("csi-2", "image", "xfs")] {
            let pod = run.of("target").join("pod");
            let target_path = pod.join("mount").to_str().unwrap().to_owned();
            let request = v1::NodePublishVolumeRequest { target_path, ..inline(&run, id, kind, filesystem) };
            let is_named = || {
                let text = format!("inline volume {id} is kept, and its pod's directory is gone");
                fs::read_to_string(&log).unwrap().contains(&text)
            };
            let reboot = || {
                let place = run.of("data/inline/node-1").join(id);
                csi_mount::unmount(&Target::new(pod.join("mount")).unwrap()).unwrap();
                if kind == "image" {
                    csi_mount::unmount(&Target::new(place.join("staged")).unwrap()).unwrap();
                    csi_mount::Host::kernel().devices().loop_detach(&place.join("image")).unwrap();
                }
            };
            fs::create_dir(&pod).unwrap();
            run.call(request.clone()).await.unwrap();
            driver.kill();
            reboot();
            driver.start_again().await;
            assert!(!is_named(), "{kind}: the kubelet has its directory");
            driver.kill();
            fs::remove_dir(pod.join("mount")).unwrap();
            fs::remove_dir(&pod).unwrap();
            driver.start_again().await;
            assert!(is_named(), "{kind}");
            // Its pod still exists, and then no longer.
            fs::create_dir(&pod).unwrap();
            run.call(request.clone()).await.unwrap();
            run.call(unpublish(&request)).await.unwrap();
            fs::remove_dir(&pod).unwrap();
            assert_eq!(kept_inline(&run), 0, "{kind}");
        }
        drop(driver);
        run.assert_clean();
    });
}

/// The pod ends whatever became of the record, and takes the volume with it.
#[test]
fn an_inline_volume_without_a_readable_record_ends_with_its_pod() {
    with_driver(&[], async |run, mut driver| {
        for (kind, filesystem) in [("directory", ""), ("image", "xfs")] {
            for damage in ["", "{\"kind\": ", "garbage", "{\"older\": 1}"] {
                let request = inline(run, "csi-1", kind, filesystem);
                run.call(request.clone()).await.unwrap();
                driver.kill();
                fs::write(run.of("data").join("inline/node-1/csi-1/record.json"), damage).unwrap();
                driver.start_again().await;
                assert_eq!(kept_inline(run), 1);
                run.call(unpublish(&request)).await.unwrap();
                run.call(unpublish(&request)).await.unwrap();
                assert_eq!(kept_inline(run), 0, "{kind}: {damage}");
                run.assert_clean();
            }
        }
    });
}

/// A misspelt attribute is an error of the pod's author, and not a volume of the default size.
#[test]
fn a_misspelt_attribute_is_refused() {
    with_driver(&[], async |run, _driver| {
        let mut request = inline(run, "csi-1", "directory", "");
        let size = request.volume_context.remove("size").unwrap();
        request.volume_context.insert("sise".to_owned(), size);
        let refused = run.call(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("volume_context[sise]"), "{refused}");
        assert!(refused.message().ends_with("did you mean size?"), "{refused}");
        assert_eq!(kept_inline(run), 0);
    });
}
