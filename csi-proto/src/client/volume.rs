//! A volume's life on a node: the order of its calls.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::calls::MakeCalls;
use crate::redact::ContextMap;
use crate::{Pairs, v1};

/// A volume as its orchestrator uses it on one node: it makes the requests of the volume's life and knows
/// their order.
///
/// ```no_run
/// # async fn f(client: csi_proto::client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use csi_proto::client::{Target, VolumeUse};
/// use csi_proto::v1::{VolumeCapability, volume_capability::access_mode::Mode};
///
/// let capability = VolumeCapability::mount(Mode::SingleNodeWriter);
/// let mut volume = VolumeUse::new("vol-1", capability).staged_at("/var/lib/kubelet/staging/vol-1");
/// let targets = [Target::new("/var/lib/kubelet/pods/1/volumes/vol-1")];
/// volume.attach_stage_publish(&client, &targets).await?;
/// let usage = client.call(volume.node_get_volume_stats(&targets[0].path)).await?.usage;
/// volume.unpublish_unstage_detach(&client, &targets).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct VolumeUse {
    /// The volume's id.
    pub volume_id: String,
    /// The volume context, from CreateVolume's answer.
    pub volume_context: BTreeMap<String, String>,
    /// How the volume is used.
    pub capability: v1::VolumeCapability,
    /// The id of the node; `None` if the driver does not attach volumes (PUBLISH_UNPUBLISH_VOLUME).
    pub node_id: Option<String>,
    /// The publish context, from ControllerPublishVolume's answer.
    pub publish_context: BTreeMap<String, String>,
    /// The staging path; `None` if the driver does not stage volumes (STAGE_UNSTAGE_VOLUME).
    pub staging_path: Option<PathBuf>,
    /// The secrets of its calls, for all or by RPC.
    pub secrets: Pairs,
}

/// A path where a volume is published.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Target {
    /// The path.
    pub path: PathBuf,
    /// Whether the volume is read-only there.
    pub is_read_only: bool,
}

impl Target {
    /// A path where the volume can be written to.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_read_only: false }
    }

    /// Makes the volume read-only there.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { is_read_only: true, ..self }
    }
}

impl AsRef<Path> for Target {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl VolumeUse {
    /// A volume that is neither attached nor staged.
    pub fn new(volume_id: impl Into<String>, capability: v1::VolumeCapability) -> Self {
        Self { volume_id: volume_id.into(), capability, ..Self::default() }
    }

    /// Attaches the volume to this node before it is staged.
    #[must_use]
    pub fn attached_to(self, node_id: impl Into<String>) -> Self {
        Self { node_id: Some(node_id.into()), ..self }
    }

    /// Stages the volume at this path before it is published.
    #[must_use]
    pub fn staged_at(self, path: impl Into<PathBuf>) -> Self {
        Self { staging_path: Some(path.into()), ..self }
    }

    /// Attaches, stages and publishes the volume, as the attacher and the kubelet do.
    ///
    /// # Errors
    /// Of the first call that fails. The calls before it are not undone.
    pub async fn attach_stage_publish<C: MakeCalls>(
        &mut self,
        mut calls: C,
        targets: &[Target],
    ) -> Result<(), C::Error> {
        self.attach(&mut calls).await?;
        self.stage(&mut calls).await?;
        self.publish(calls, targets).await
    }

    /// Unpublishes, unstages and detaches the volume.
    ///
    /// # Errors
    /// Of the first call that fails.
    pub async fn unpublish_unstage_detach<C: MakeCalls>(
        &self,
        mut calls: C,
        targets: &[impl AsRef<Path> + Sync],
    ) -> Result<(), C::Error> {
        self.unpublish(&mut calls, targets).await?;
        self.unstage(&mut calls).await?;
        self.detach(calls).await
    }

    /// Attaches the volume, if it has a node id, and keeps the publish context.
    ///
    /// # Errors
    /// Of the call.
    pub async fn attach<C: MakeCalls>(&mut self, mut calls: C) -> Result<(), C::Error> {
        if self.node_id.is_some() {
            self.publish_context = calls.make_call(self.controller_publish_volume()).await?.publish_context;
        }
        Ok(())
    }

    /// Stages the volume, if it has a staging path. The path must exist.
    ///
    /// # Errors
    /// Of the call.
    pub async fn stage<C: MakeCalls>(&self, mut calls: C) -> Result<(), C::Error> {
        match self.staging_path {
            Some(_) => calls.make_call(self.node_stage_volume()).await.map(drop),
            None => Ok(()),
        }
    }

    /// Publishes the volume at each target. The directories above a target must exist.
    ///
    /// # Errors
    /// Of the first call that fails.
    pub async fn publish<C: MakeCalls>(&self, mut calls: C, targets: &[Target]) -> Result<(), C::Error> {
        for target in targets {
            let request = self.node_publish_volume(&target.path);
            calls
                .make_call(v1::NodePublishVolumeRequest { readonly: target.is_read_only, ..request })
                .await?;
        }
        Ok(())
    }

    /// Unpublishes the volume at each path.
    ///
    /// # Errors
    /// Of the first call that fails.
    pub async fn unpublish<C: MakeCalls>(
        &self,
        mut calls: C,
        targets: &[impl AsRef<Path> + Sync],
    ) -> Result<(), C::Error> {
        for target in targets {
            calls.make_call(self.node_unpublish_volume(target.as_ref())).await?;
        }
        Ok(())
    }

    /// Unstages the volume, if it has a staging path.
    ///
    /// # Errors
    /// Of the call.
    pub async fn unstage<C: MakeCalls>(&self, mut calls: C) -> Result<(), C::Error> {
        match self.staging_path {
            Some(_) => calls.make_call(self.node_unstage_volume()).await.map(drop),
            None => Ok(()),
        }
    }

    /// Detaches the volume, if it has a node id.
    ///
    /// # Errors
    /// Of the call.
    pub async fn detach<C: MakeCalls>(&self, mut calls: C) -> Result<(), C::Error> {
        match self.node_id {
            Some(_) => calls.make_call(self.controller_unpublish_volume()).await.map(drop),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for VolumeUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeUse")
            .field("volume_id", &self.volume_id)
            .field("volume_context", &ContextMap(&self.volume_context))
            .field("capability", &self.capability)
            .field("node_id", &self.node_id)
            .field("publish_context", &ContextMap(&self.publish_context))
            .field("staging_path", &self.staging_path)
            .field("secrets", &self.secrets)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use v1::volume_capability::access_mode::Mode;

    use super::*;
    use crate::{Rpc, RpcRequest};

    /// Records the calls, and fails from the call with this number on.
    struct Recorder {
        calls: Vec<Rpc>,
        published: Vec<v1::NodePublishVolumeRequest>,
        fails_at: usize,
    }

    impl MakeCalls for Recorder {
        type Error = Rpc;

        async fn make_call<R: RpcRequest>(&mut self, request: R) -> Result<R::Answer, Rpc> {
            if self.calls.len() >= self.fails_at {
                return Err(R::RPC);
            }
            self.calls.push(R::RPC);
            if R::RPC == Rpc::NodePublishVolume {
                self.published.push(Message::decode(&*request.encode_to_vec()).unwrap());
            }
            let answer = v1::ControllerPublishVolumeResponse {
                publish_context: [("device".to_owned(), "/dev/x".to_owned())].into(),
            };
            let is_attached = R::RPC == Rpc::ControllerPublishVolume;
            let bytes = if is_attached { answer.encode_to_vec() } else { Vec::new() };
            Ok(R::Answer::decode(&*bytes).unwrap())
        }
    }

    fn recorder(fails_at: usize) -> Recorder {
        Recorder { calls: Vec::new(), published: Vec::new(), fails_at }
    }

    fn run<F: Future>(life: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(life)
    }

    #[test]
    fn each_call_has_its_own_secrets() {
        let mut volume = VolumeUse::new("v", v1::VolumeCapability::mount(Mode::SingleNodeWriter));
        volume.secrets = "all=1\n[NodeStageVolume]\nkey=canary".parse().unwrap();
        assert_eq!(volume.node_stage_volume().secrets, [("all", "1"), ("key", "canary")].map(own).into());
        for secrets in [
            volume.controller_publish_volume().secrets,
            volume.node_publish_volume(Path::new("/t")).secrets,
            volume.node_expand_volume(Path::new("/t"), 1).secrets,
        ] {
            assert_eq!(secrets, [("all", "1")].map(own).into());
        }
        assert!(!format!("{volume:?}").contains("canary"));
    }

    fn own((key, value): (&str, &str)) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn the_order_is_the_orchestrators() {
        use Rpc::*;
        let mut volume = VolumeUse::new("v", v1::VolumeCapability::mount(Mode::SingleNodeWriter))
            .attached_to("n")
            .staged_at("/staging");
        let targets = [Target::new("/a"), Target::new("/b").read_only()];
        let mut calls = recorder(usize::MAX);
        run(volume.attach_stage_publish(&mut calls, &targets)).unwrap();
        run(volume.unpublish_unstage_detach(&mut calls, &targets)).unwrap();
        let due = [
            ControllerPublishVolume,
            NodeStageVolume,
            NodePublishVolume,
            NodePublishVolume,
            NodeUnpublishVolume,
            NodeUnpublishVolume,
            NodeUnstageVolume,
            ControllerUnpublishVolume,
        ];
        assert_eq!(calls.calls, due);
        assert!(calls.published.iter().all(|request| request.publish_context["device"] == "/dev/x"));
        let read_only: Vec<_> = calls.published.iter().map(|request| request.readonly).collect();
        assert_eq!(read_only, [false, true]);
        for fails_at in 0..4 {
            let mut calls = recorder(fails_at);
            assert_eq!(run(volume.attach_stage_publish(&mut calls, &targets)), Err(due[fails_at]));
            assert_eq!(calls.calls, due[..fails_at]);
        }
        // A driver that neither attaches nor stages.
        let mut plain = VolumeUse { node_id: None, staging_path: None, ..volume };
        let mut calls = recorder(usize::MAX);
        run(plain.attach_stage_publish(&mut calls, &targets[..1])).unwrap();
        run(plain.unpublish_unstage_detach(&mut calls, &["/a"])).unwrap();
        assert_eq!(calls.calls, [NodePublishVolume, NodeUnpublishVolume]);
        assert_eq!(plain.node_publish_volume(Path::new("/a")).staging_target_path, "");
    }

    #[test]
    fn debug_shows_no_token() {
        let mut volume = VolumeUse::new("v", v1::VolumeCapability::default());
        volume.volume_context.insert(crate::redact::TOKENS_KEY.to_owned(), "canary".to_owned());
        assert!(!format!("{volume:?}").contains("canary"), "{volume:?}");
    }
}
