//! Encrypted volumes through a whole plugin: the key comes with the secrets of the call, and only encrypted
//! devices are published. Needs root. `root_encryption_mapped.rs` has the tests that need a device mapper.
#![cfg(all(feature = "luks", target_os = "linux"))]

use csi_mount::LoopOptions;
use csi_mount::internal::LoopDevice;
use tonic::Code;

use crate::common::refused;
use crate::encrypted::{KEY, Volume, block, mount};
use crate::private::on_tmpfs;

#[test]
fn without_a_key_nothing_is_begun() {
    on_tmpfs(async |place| {
        let volume = Volume::new(place).await;
        for access in [mount(), block()] {
            for (secrets, code) in [
                (&[][..], Code::Unauthenticated),
                (&[("other", KEY)], Code::Unauthenticated),
                (&[("luksKey", "")], Code::InvalidArgument),
            ] {
                let error = refused(volume.stage(secrets, access.clone()).await, code);
                assert!(error.message().contains("secrets[luksKey]"), "{error}");
                assert!(!error.message().contains(KEY), "{error}");
            }
        }
        assert!(volume.is_zero());
        assert!(LoopDevice::find(place.join("v")).unwrap().is_empty());
    });
}

/// Publishing the device without its open encryption would let a workload write unencrypted data.
#[test]
fn an_encrypted_device_that_is_not_open_is_not_published() {
    on_tmpfs(async |place| {
        let volume = Volume::new(place).await;
        let device = LoopDevice::attach(place.join("v"), &LoopOptions::new()).unwrap();
        let error = refused(volume.publish(block()).await, Code::FailedPrecondition);
        assert!(error.message().contains("not open"), "{error}");
        assert!(!place.join("pod").exists());
        device.detach().unwrap();
    });
}
