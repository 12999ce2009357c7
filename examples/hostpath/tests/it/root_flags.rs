//! How flags change the answers that callers get. Needs root.
#![cfg(target_os = "linux")]

use csi_proto::v1;
use tonic::Code;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, code, with_driver};

// spec: controller-expand-volume.out-of-range, node-expand-volume.out-of-range, create-volume.out-of-range
#[test]
fn sizes_end_where_the_flags_say() {
    with_driver(&["--max-volume-size=64Mi", "--max-volume-size-node=32Mi"], async |run, _driver| {
        let told = run.call(v1::GetCapacityRequest::default()).await.unwrap();
        assert_eq!(told.maximum_volume_size, Some(64 << 20));
        let large = Life::new(run, wanted("large", None, 65 * MIB)).await.map(drop);
        assert_eq!(code(large), Code::OutOfRange);
        let mut life = Life::new(run, wanted("volume", None, 16 * MIB)).await.unwrap();
        life.start().await.unwrap();
        assert_eq!(code(life.expand(65 * MIB).await.map(drop)), Code::OutOfRange);
        assert!(life.expand(64 * MIB).await.unwrap());
        assert_eq!(code(life.expand_on_node(64 * MIB).await), Code::OutOfRange);
        // The caller recovers with a smaller size.
        assert_eq!(code(life.expand_on_node(32 * MIB).await), Code::Ok);
        life.end().await;
    });
}

// spec: node-expand-volume.grows, node-expand-volume.out-of-range
#[test]
fn the_node_expands_only_to_a_size_that_the_volume_has() {
    with_driver(&[], async |run, _driver| {
        let way = run.of("way");
        std::os::unix::fs::symlink(run.of("target"), &way).unwrap();
        for (name, filesystem) in [
            ("ext4", Some("ext4")),
            ("xfs", Some("xfs")),
            ("btrfs", Some("btrfs")),
            ("raw", None),
            ("dir", Some("")),
        ] {
            let mut request = wanted(name, filesystem, 320 * MIB);
            if name == "dir" {
                request.parameters.insert("kind".to_owned(), "directory".to_owned());
            }
            let mut life = Life::new(run, request).await.unwrap();
            life.start().await.unwrap();
            // The kubelet's directory can be a symbolic link.
            let target = way.join(life.target("one").file_name().unwrap());
            let on_node = async |required_bytes: u64, limit_bytes: u64| {
                let mut request = life.volume.node_expand_volume(&target, required_bytes as i64);
                request.capacity_range.as_mut().unwrap().limit_bytes = limit_bytes as i64;
                let answer = run.call(request).await;
                answer.map_or_else(
                    |refused| (refused.code(), 0),
                    |answer| (Code::Ok, answer.capacity_bytes as u64),
                )
            };
            assert_eq!(on_node(480 * MIB, 0).await.0, Code::Unavailable, "{name}: the image is smaller");
            assert_eq!(on_node(1, 319 * MIB).await.0, Code::OutOfRange, "{name}: the image is larger");
            life.expand(480 * MIB).await.unwrap();
            assert_eq!(on_node(1, 479 * MIB).await.0, Code::OutOfRange, "{name}");
            let grown = on_node(480 * MIB, 480 * MIB).await;
            // Without CAP_SYS_RESOURCE an ext4 grows at its next stage.
            let is_left = name == "ext4" && grown.0 == Code::FailedPrecondition;
            assert!(is_left || grown == (Code::Ok, 480 * MIB), "{name}: {grown:?}");
            life.end().await;
        }
    });
}

#[test]
fn where_the_node_does_not_expand_staging_does() {
    with_driver(&["--without=node-expand"], async |run, _driver| {
        let mut life = Life::new(run, wanted("volume", Some("xfs"), 320 * MIB)).await.unwrap();
        let target = life.start().await.unwrap();
        assert!(!life.expand(480 * MIB).await.unwrap(), "nobody could do the node's part");
        life.unpublish(&target).await.unwrap();
        life.unstage().await.unwrap();
        life.stage().await.unwrap();
        let target = life.publish("one").await.unwrap();
        assert!(csi_mount::Host::kernel().mounts().stats(&target).unwrap().bytes.total > 400 * MIB);
        life.end().await;
        // A raw device does not need a stage to grow: the published device grows at once.
        let mut raw = Life::new(run, wanted("raw", None, 8 * MIB)).await.unwrap();
        let target = raw.start().await.unwrap();
        assert!(!raw.expand(16 * MIB).await.unwrap());
        let end = std::io::Seek::seek(&mut std::fs::File::open(&target).unwrap(), std::io::SeekFrom::End(0));
        assert_eq!(end.unwrap(), 16 * MIB);
        raw.end().await;
    });
}

#[test]
fn what_callers_of_another_driver_say_is_taken() {
    let flags = ["--accepted-mutable-parameter-names=e2eVacTest", "--vendor-version=7.8.9"];
    with_driver(&flags, async |run, _driver| {
        let info = run.call(v1::GetPluginInfoRequest {}).await.unwrap();
        assert_eq!(info.vendor_version, "7.8.9");
        let made = |name: &str| v1::CreateVolumeRequest {
            mutable_parameters: map(&[(name, "one")]),
            ..wanted(name, None, MIB)
        };
        let modify = async |life: &Life<'_>, name: &str| {
            run.call(modification(&life.id, &[(name, "one")])).await.map(drop)
        };
        let life = Life::new(run, made("e2eVacTest")).await.unwrap();
        modify(&life, "e2eVacTest").await.unwrap();
        modify(&life, "description").await.unwrap();
        for refused in [modify(&life, "other").await, Life::new(run, made("other")).await.map(drop)] {
            assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        }
        let cut = |value: &str| v1::CreateSnapshotRequest {
            parameters: map(&[("ignoreFailedRead", value)]),
            ..life.volume.create_snapshot(value)
        };
        run.call(cut("true")).await.unwrap();
        let refused = run.call(cut("perhaps")).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    });
}
