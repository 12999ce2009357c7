//! The life of an encrypted volume through a whole plugin. Needs root and a kernel with `dm_mod` and
//! `dm_crypt`, so it runs where `cargo xtask test --kernels` provides these, and not with `cargo test` alone.
#![cfg(all(feature = "luks", target_os = "linux"))]

mod common;
mod encrypted;
mod private;

use csi_mount::LoopDevice;
use csi_proto::v1;
use encrypted::{KEY, Volume, block, map, mount};
use private::on_tmpfs;
use tonic::Code;

impl Volume<'_> {
    async fn expand(&self, secrets: &[(&str, &str)]) -> std::result::Result<i64, tonic::Status> {
        let request = v1::NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: self.path("pod"),
            secrets: map(secrets),
            ..Default::default()
        };
        Ok(self.served.node().node_expand_volume(request).await?.into_inner().capacity_bytes)
    }

    async fn take_down(&self) {
        let request = v1::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: self.path("pod") };
        self.served.node().node_unpublish_volume(request).await.unwrap();
        let request =
            v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: self.path("staging") };
        for _ in 0..2 {
            self.served.node().node_unstage_volume(request.clone()).await.unwrap();
        }
        assert!(LoopDevice::find(self.place.join("v")).unwrap().is_empty());
    }
}

/// Runs each step twice, as a filesystem and as a raw device.
#[test]
fn a_volume_lives_and_grows() {
    for access in [mount(), block()] {
        on_tmpfs(async |place| {
            let volume = Volume::new(place).await;
            let (key, wrong) = ([("luksKey", KEY)], [("luksKey", "canary-of-another")]);
            for _ in 0..2 {
                volume.stage(&key, access.clone()).await.unwrap();
                volume.publish(access.clone()).await.unwrap();
            }
            std::fs::File::options().write(true).open(place.join("v")).unwrap().set_len(60 << 20).unwrap();
            for secrets in [&[][..], &wrong] {
                let error = volume.expand(secrets).await.unwrap_err();
                assert_eq!(error.code(), Code::Unauthenticated, "{error}");
                assert!(!error.message().contains("canary"), "{error}");
            }
            for _ in 0..2 {
                let size = volume.expand(&key).await.unwrap();
                assert!((43 << 20..=44 << 20).contains(&size), "{size}");
            }
            volume.take_down().await;

            let error = volume.stage(&wrong, access.clone()).await.unwrap_err();
            assert_eq!(error.code(), Code::Unauthenticated, "{error}");
            assert!(!error.message().contains("canary"), "{error}");
            assert!(LoopDevice::find(place.join("v")).unwrap().is_empty());
            volume.stage(&key, access.clone()).await.unwrap();
            volume.take_down().await;
        });
    }
}
