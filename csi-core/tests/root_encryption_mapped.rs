//! The life of an encrypted volume through a whole plugin. Needs root and a kernel with `dm_mod` and
//! `dm_crypt`, so it runs where `cargo xtask test --kernels` provides these, and not with `cargo test` alone.
#![cfg(all(feature = "luks", target_os = "linux"))]

#[path = "it/common/mod.rs"]
mod common;
#[path = "it/encrypted/mod.rs"]
mod encrypted;
#[path = "it/private/mod.rs"]
mod private;

use common::{map, refused};
use csi_mount::internal::LoopDevice;
use csi_proto::v1;
use encrypted::{KEY, Volume, block, mount};
use private::on_tmpfs;
use tonic::{Code, Status};

impl Volume<'_> {
    async fn expand(&self, secrets: &[(&str, &str)]) -> Result<i64, Status> {
        let request = v1::NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: self.place.join("pod").display().to_string(),
            // The encrypted device's size. Its content is smaller, because the headers take 16 MiB.
            capacity_range: Some(v1::CapacityRange { required_bytes: 60 << 20, limit_bytes: 60 << 20 }),
            secrets: map(secrets),
            ..Default::default()
        };
        Ok(self.served.call(request).await?.capacity_bytes)
    }

    async fn take_down(&self) {
        let volume = self.used_as(mount());
        self.served.call(volume.node_unpublish_volume(&self.place.join("pod"))).await.unwrap();
        for _ in 0..2 {
            self.served.call(volume.node_unstage_volume()).await.unwrap();
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
            let key = [("luksKey", KEY)];
            let wrong = [("luksKey", "canary-of-another")];
            for _ in 0..2 {
                volume.stage(&key, access.clone()).await.unwrap();
                volume.publish(access.clone()).await.unwrap();
            }
            std::fs::File::options().write(true).open(place.join("v")).unwrap().set_len(60 << 20).unwrap();
            for secrets in [&[][..], &wrong] {
                let error = refused(volume.expand(secrets).await, Code::Unauthenticated);
                assert!(!error.message().contains("canary"), "{error}");
            }
            for _ in 0..2 {
                assert_eq!(volume.expand(&key).await.unwrap(), 60 << 20);
            }
            volume.take_down().await;

            let error = refused(volume.stage(&wrong, access.clone()).await, Code::Unauthenticated);
            assert!(!error.message().contains("canary"), "{error}");
            assert!(LoopDevice::find(place.join("v")).unwrap().is_empty());
            volume.stage(&key, access.clone()).await.unwrap();
            volume.take_down().await;
        });
    }
}
