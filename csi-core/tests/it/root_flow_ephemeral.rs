//! Volumes of known content through the whole plugin, on real mounts. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use csi_core::mount::flow::ephemeral::Content;
use csi_core::node::NodePublishVolumeRequest;
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::{Served, block_capability, mount_capability, mount_with, refused};
use crate::private::on_tmpfs;

/// The content of the volumes.
#[derive(Default)]
struct Vault {
    secret: Mutex<Option<String>>,
    removed: AtomicU32,
}

#[async_trait]
impl EphemeralContent for Vault {
    async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content> {
        let secret = self.secret.lock().unwrap().clone();
        let secret = secret.ok_or_else(|| Error::Unavailable("the vault is sealed".into()))?;
        let pod = request.volume_context.pod("pod.name").unwrap_or_default();
        Ok(Content::new().file_with_mode("secret", secret, 0o440)?.file("pod/name", pod)?)
    }

    async fn removed(&self, _: &VolumeId) -> Result<()> {
        self.removed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn publish(target: &Path, token: &str) -> v1::NodePublishVolumeRequest {
    let context = [("ephemeral", "true"), ("pod.name", "web-0"), ("serviceAccount.tokens", token)];
    let context = context.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
    v1::NodePublishVolumeRequest {
        volume_id: "csi-1f0c".into(),
        target_path: target.display().to_string(),
        volume_capability: Some(mount_capability(1)),
        readonly: true,
        volume_context: BTreeMap::from(context),
        ..Default::default()
    }
}

#[test]
fn a_republish_refreshes_in_place() {
    on_tmpfs(async |place| {
        let vault = Arc::new(Vault::default());
        let node = EphemeralNode::service(vault.clone());
        let served = Served::start(Plugin::new("vault.csi.example.org", "1").node(node)).await;
        let target = place.join("target");
        let read = || std::fs::read_to_string(target.join("secret")).unwrap();

        refused(served.call(publish(&target, "t")).await, Code::Unavailable);
        assert!(!target.exists());

        for secret in ["one", "two", "two", "three"] {
            *vault.secret.lock().unwrap() = Some(secret.to_owned());
            served.call(publish(&target, secret)).await.unwrap();
            assert_eq!(read(), secret);
            let stacked =
                csi_mount::mounts().unwrap().iter().filter(|entry| entry.mount_point == target).count();
            assert_eq!(stacked, 1);
        }
        assert_eq!(std::fs::read_to_string(target.join("pod/name")).unwrap(), "web-0");
        assert!(std::fs::write(target.join("x"), "").is_err(), "read-only");

        // If the driver cannot return the content now, the existing files stay.
        *vault.secret.lock().unwrap() = None;
        served.call(publish(&target, "t")).await.unwrap_err();
        assert_eq!(read(), "three");

        *vault.secret.lock().unwrap() = Some("four".to_owned());
        let writable = v1::NodePublishVolumeRequest { readonly: false, ..publish(&target, "t") };
        refused(served.call(writable).await, Code::AlreadyExists);
        let elsewhere = place.join("elsewhere");
        served.call(publish(&elsewhere, "t")).await.unwrap();

        for path in [&target, &target, &elsewhere] {
            served.call(v1::NodeUnpublishVolumeRequest::from(&publish(path, "t"))).await.unwrap();
            assert!(!path.exists());
        }
        assert_eq!(vault.removed.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn what_these_volumes_cannot_be_is_refused() {
    on_tmpfs(async |place| {
        let vault = Arc::new(Vault { secret: Mutex::new(Some("s".to_owned())), ..Vault::default() });
        let served =
            Served::start(Plugin::new("vault.csi.example.org", "1").node(EphemeralNode::service(vault)))
                .await;
        let target = place.join("target");
        let with_flags =
            mount_with(1, MountVolume { mount_flags: vec!["size=1g".into()], ..Default::default() });
        for (capability, code) in
            [(with_flags, Code::InvalidArgument), (block_capability(1), Code::FailedPrecondition)]
        {
            let request =
                v1::NodePublishVolumeRequest { volume_capability: Some(capability), ..publish(&target, "t") };
            refused(served.call(request).await, code);
        }
        assert!(!target.exists());
    });
}
