//! The commands on volumes and nodes. The controller manager runs all but `mountdevice` and `unmountdevice`.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use csi_proto::client::VolumeUse;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::{ControllerCapability, v1};
use tonic::Code;

use crate::Context;
use crate::answer::Answer;
use crate::options::Options;

/// The beginning of a device that carries a publish context. No such path exists: the kubelet looks there whether
/// the device is still open, and continues only if the look ends with ENOENT.
const DEVICE: &str = "/csi-publish-context/";
/// The longest name of a file in most filesystems is 255 bytes, and the longest path 4,095.
const NAME_MAX: usize = 200;
const PATH_MAX: usize = 4000;

impl Context {
    pub(crate) fn options(&self, at: usize) -> Result<Options, String> {
        Options::read(self.arguments.get(at, "the options as JSON")?, &self.config.volume_handle)
    }

    /// The access mode: that of the file, or the one of Kubernetes for ReadWriteOnce.
    pub(crate) fn mode(&self, multi_writer: bool) -> Mode {
        let otherwise = if multi_writer { Mode::SingleNodeMultiWriter } else { Mode::SingleNodeWriter };
        self.config.access_mode.unwrap_or(otherwise)
    }

    /// `attach OPTIONS NODE`: the publish context leaves as the device, which the caller keeps in the node's status
    /// and hands to `mountdevice` on the node.
    pub(crate) async fn attach(&mut self) -> Result<Answer, String> {
        let options = self.options(1)?;
        let node = self.arguments.get(2, "the node's name")?.to_owned();
        let offers = self.driver.controller_offers().await?;
        if !offers.contains(&ControllerCapability::PublishUnpublishVolume) {
            return Ok(Answer::not_supported());
        }
        let id = &options.volume_id;
        let _lock = self.volumes.lock(id).await?;
        let mut volume = self.volumes.get(id)?;
        volume.name.clone_from(&options.name);
        volume.nodes.insert(node.clone());
        self.volumes.save(id, &volume)?;
        let mode = self.mode(offers.contains(&ControllerCapability::SingleNodeMultiWriter));
        let mut attached = VolumeUse::new(id, options.capability(mode, false)).attached_to(node);
        attached.volume_context = options.volume_context;
        attached.attach(&mut self.driver).await?;
        Ok(Answer::device(device(&attached.publish_context)?))
    }

    /// `detach NAME NODE`: the record of `attach` says which volume it is. Without one, which is in the directory of
    /// another machine or is gone because this call is a repetition, the name is the volume's id.
    pub(crate) async fn detach(&mut self) -> Result<Answer, String> {
        let name = self.arguments.get(1, "the volume's name")?.to_owned();
        let node = self.arguments.get(2, "the node's name")?.to_owned();
        let offers = self.driver.controller_offers().await?;
        if !offers.contains(&ControllerCapability::PublishUnpublishVolume) {
            return Ok(Answer::not_supported());
        }
        let known = self.volumes.find(|volume| volume.name == name && volume.nodes.contains(&node))?;
        let is_known = !known.is_empty();
        for id in if is_known { known } else { vec![name] } {
            let _lock = self.volumes.lock(&id).await?;
            let detached = VolumeUse::new(&id, v1::VolumeCapability::default()).attached_to(&node);
            match detached.detach(&mut self.driver).await {
                Err(refused) if refused.code == Some(Code::NotFound) && !is_known => {}
                detached => detached?,
            }
            let mut volume = self.volumes.get(&id)?;
            volume.nodes.remove(&node);
            self.volumes.save(&id, &volume)?;
        }
        Ok(Answer::success())
    }

    /// `isattached OPTIONS NODE`.
    pub(crate) async fn is_attached(&mut self) -> Result<Answer, String> {
        let options = self.options(1)?;
        let node = self.arguments.get(2, "the node's name")?.to_owned();
        let offers = self.driver.controller_offers().await?;
        let due = [ControllerCapability::GetVolume, ControllerCapability::ListVolumesPublishedNodes];
        if !due.iter().all(|one| offers.contains(one)) {
            return Ok(Answer::not_supported());
        }
        let request = v1::ControllerGetVolumeRequest { volume_id: options.volume_id };
        let status = self.driver.call(request).await?.status.unwrap_or_default();
        Ok(Answer::attached(status.published_node_ids.contains(&node)))
    }

    /// `expandvolume OPTIONS DEVICE NEW-SIZE OLD-SIZE`.
    pub(crate) async fn expand_volume(&mut self) -> Result<Answer, String> {
        let options = self.options(1)?;
        let size = self.arguments.size(3)?;
        let offers = self.driver.controller_offers().await?;
        if !offers.contains(&ControllerCapability::ExpandVolume) {
            return Ok(Answer::not_supported());
        }
        let mode = self.mode(offers.contains(&ControllerCapability::SingleNodeMultiWriter));
        let volume = VolumeUse::new(&options.volume_id, options.capability(mode, false));
        let answer = self.driver.call(volume.controller_expand_volume(size)).await?;
        Ok(Answer::new_size(answer.capacity_bytes))
    }

    /// `mountdevice DIRECTORY DEVICE OPTIONS`: keeps the publish context for `mount`. It does not stage the volume,
    /// because it receives no secrets.
    pub(crate) async fn mount_device(&mut self) -> Result<Answer, String> {
        let publish_context = publish_context(self.arguments.get(2, "the device")?)?;
        let options = self.options(3)?;
        let _lock = self.volumes.lock(&options.volume_id).await?;
        let mut volume = self.volumes.get(&options.volume_id)?;
        (volume.name, volume.publish_context) = (options.name, publish_context);
        self.volumes.save(&options.volume_id, &volume)?;
        Ok(Answer::success())
    }

    /// `unmountdevice DIRECTORY`. The kubelet runs it only if something is mounted there.
    pub(crate) async fn unmount_device(&mut self) -> Result<Answer, String> {
        let directory = Path::new(self.arguments.get(1, "the directory")?);
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        for id in self.volumes.find(|volume| volume.name == name && volume.targets.is_empty())? {
            let _lock = self.volumes.lock(&id).await?;
            let mut volume = self.volumes.get(&id)?;
            if volume.targets.is_empty() {
                volume.publish_context.clear();
                self.volumes.save(&id, &volume)?;
            }
        }
        Ok(Answer::success())
    }
}

fn device(publish_context: &BTreeMap<String, String>) -> Result<String, String> {
    if publish_context.is_empty() {
        return Ok(String::new());
    }
    let text = URL_SAFE_NO_PAD.encode(serde_json::to_vec(publish_context).expect("texts"));
    let parts: Vec<&str> = (0..text.len())
        .step_by(NAME_MAX)
        .map(|start| &text[start..(start + NAME_MAX).min(text.len())])
        .collect();
    let device = format!("{DEVICE}{}", parts.join("/"));
    match device.len() {
        0..=PATH_MAX => Ok(device),
        length => Err(format!("the driver's publish context takes {length} bytes, the limit is {PATH_MAX}")),
    }
}

fn publish_context(device: &str) -> Result<BTreeMap<String, String>, String> {
    if device.is_empty() {
        return Ok(BTreeMap::new());
    }
    let text =
        device.strip_prefix(DEVICE).and_then(|text| URL_SAFE_NO_PAD.decode(text.replace('/', "")).ok());
    text.and_then(|text| serde_json::from_slice(&text).ok()).ok_or_else(|| {
        format!("the device {device} is not from `attach` of csi-flexvolume: detach the volume")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_context_travels_as_a_path_that_does_not_exist() {
        for size in [0, 1, 500, 1400] {
            let context = BTreeMap::from([("lun".to_owned(), "7/".repeat(size))]);
            let path = device(&context).unwrap();
            assert_eq!(publish_context(&path).unwrap(), context);
            assert_eq!(std::fs::metadata(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        }
        assert_eq!(device(&BTreeMap::new()).unwrap(), "");
        assert_eq!(publish_context("").unwrap(), BTreeMap::new());
        assert!(publish_context("/dev/sda").unwrap_err().contains("/dev/sda is not from `attach`"));
        let context = BTreeMap::from([("lun".to_owned(), "x".repeat(5000))]);
        assert!(device(&context).unwrap_err().contains("the limit is 4000"));
    }
}
