//! How flags change the answers that callers get. Needs root.
#![cfg(target_os = "linux")]

mod support;

use csi_proto::v1;
use support::life::Life;
use support::{MIB, Run, in_private, wanted};
use tonic::Code;

// spec: controller-expand-volume.out-of-range, node-expand-volume.out-of-range, create-volume.out-of-range
#[test]
fn sizes_end_where_the_flags_say() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&["--max-volume-size=64Mi", "--max-volume-size-node=32Mi"]).await;
        let code =
            |result: Result<(), tonic::Status>| result.map_or_else(|refused| refused.code(), |()| Code::Ok);
        let told = run.client().controller().get_capacity(v1::GetCapacityRequest::default()).await.unwrap();
        assert_eq!(told.into_inner().maximum_volume_size, Some(64 << 20));
        let large = Life::new(&run, wanted("large", None, 65 * MIB)).await.map(drop);
        assert_eq!(code(large), Code::OutOfRange);
        let mut life = Life::new(&run, wanted("volume", None, 16 * MIB)).await.unwrap();
        life.start().await.unwrap();
        assert_eq!(code(life.expand(65 * MIB).await.map(drop)), Code::OutOfRange);
        assert!(life.expand(64 * MIB).await.unwrap());
        assert_eq!(code(life.expand_on_node(64 * MIB).await), Code::OutOfRange);
        // The caller recovers with a smaller size.
        assert_eq!(code(life.expand_on_node(32 * MIB).await), Code::Ok);
        life.end().await;
        driver.kill().await.unwrap();
    });
}

#[test]
fn where_the_node_does_not_expand_staging_does() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&["--without=node-expand"]).await;
        let mut life = Life::new(&run, wanted("volume", Some("xfs"), 320 * MIB)).await.unwrap();
        let target = life.start().await.unwrap();
        assert!(!life.expand(480 * MIB).await.unwrap(), "nobody could do the node's part");
        life.unpublish(&target).await.unwrap();
        life.unstage().await.unwrap();
        life.stage().await.unwrap();
        let target = life.publish("one").await.unwrap();
        assert!(csi_mount::stats(&target).unwrap().bytes.total > 400 * MIB);
        life.end().await;
        // A raw device does not need a stage to grow: the published device grows at once.
        let mut raw = Life::new(&run, wanted("raw", None, 8 * MIB)).await.unwrap();
        let target = raw.start().await.unwrap();
        assert!(!raw.expand(16 * MIB).await.unwrap());
        let end = std::io::Seek::seek(&mut std::fs::File::open(&target).unwrap(), std::io::SeekFrom::End(0));
        assert_eq!(end.unwrap(), 16 * MIB);
        raw.end().await;
        driver.kill().await.unwrap();
    });
}

#[test]
fn what_callers_of_another_driver_say_is_taken() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let flags = ["--accepted-mutable-parameter-names=e2eVacTest", "--vendor-version=7.8.9"];
        let mut driver = run.start(&flags).await;
        let info = run.client().identity().get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap();
        assert_eq!(info.into_inner().vendor_version, "7.8.9");
        let pair = |name: &str| [(name.to_owned(), "one".to_owned())].into();
        let made = |name: &str| v1::CreateVolumeRequest {
            mutable_parameters: pair(name),
            ..wanted(name, None, MIB)
        };
        let modify = async |life: &Life<'_>, name: &str| {
            let request = v1::ControllerModifyVolumeRequest {
                volume_id: life.id.clone(),
                mutable_parameters: pair(name),
                ..Default::default()
            };
            run.client().controller().controller_modify_volume(request).await.map(drop)
        };
        let life = Life::new(&run, made("e2eVacTest")).await.unwrap();
        modify(&life, "e2eVacTest").await.unwrap();
        modify(&life, "description").await.unwrap();
        for refused in [modify(&life, "other").await, Life::new(&run, made("other")).await.map(drop)] {
            assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        }
        let cut = |value: &str| v1::CreateSnapshotRequest {
            source_volume_id: life.id.clone(),
            name: value.to_owned(),
            parameters: [("ignoreFailedRead".to_owned(), value.to_owned())].into(),
            ..Default::default()
        };
        run.client().controller().create_snapshot(cut("true")).await.unwrap();
        let refused = run.client().controller().create_snapshot(cut("perhaps")).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        driver.kill().await.unwrap();
    });
}
