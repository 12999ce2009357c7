//! Block volumes inside encrypted devices: the part of [`BlockNode`](super::BlockNode) that differs with
//! and without the feature `luks`.

use std::path::{Path, PathBuf};

use csi_mount::flow::block::StagePlan;
use csi_mount::{DeviceAccess, Grown, Host, OwnedPath};
#[cfg(feature = "luks")]
use csi_mount::{Luks, LuksKey};

use super::block_devices::{Attachment, BlockDevices};
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::node::NodePublishVolumeRequest;
use crate::types::Secrets;

/// How a volume's device is encrypted, and its key, if it is encrypted.
pub(super) struct Encryption {
    #[cfg(feature = "luks")]
    luks: Option<(Luks, LuksKey)>,
}

#[cfg(feature = "luks")]
impl Encryption {
    /// Reads the driver's choice for the volume, with the key from the call's secrets.
    pub(super) fn of(devices: &impl BlockDevices, volume: &Attachment) -> Result<Self> {
        let Some(luks) = devices.encryption(volume)? else { return Ok(Self { luks: None }) };
        let name = devices.encryption_key();
        match key(devices, &volume.secrets)? {
            Some(key) => Ok(Self { luks: Some((luks, key)) }),
            None => {
                let near = volume.secrets.misspelling_of(name);
                let advice = near.map(|near| format!("; {near} is a misspelling of it")).unwrap_or_default();
                Err(Error::Unauthenticated(
                    format!("secrets[{name}]: the volume is encrypted, and its key is missing{advice}")
                        .into(),
                ))
            }
        }
    }

    pub(super) fn plan(&self, plan: StagePlan) -> StagePlan {
        match &self.luks {
            Some((luks, key)) => plan.encrypted(luks.clone(), key.clone()),
            None => plan,
        }
    }

    /// Opens an encrypted device that is published raw; an unencrypted device needs nothing.
    pub(super) fn stage_device(
        &self,
        host: &Host,
        device: &Path,
        staging: &OwnedPath,
        access: DeviceAccess,
    ) -> Result<()> {
        if let Some((luks, key)) = &self.luks {
            host.block().stage_device(device, staging, luks, key, access)?;
        }
        Ok(())
    }
}

#[cfg(not(feature = "luks"))]
impl Encryption {
    #[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
    pub(super) fn of(_: &impl BlockDevices, _: &Attachment) -> Result<Self> {
        Ok(Self {})
    }

    pub(super) fn plan(&self, plan: StagePlan) -> StagePlan {
        plan
    }

    #[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
    pub(super) fn stage_device(&self, _: &Host, _: &Path, _: &OwnedPath, _: DeviceAccess) -> Result<()> {
        Ok(())
    }
}

/// The device with the volume's content: the decrypted device if an encrypted one is open, else the
/// volume's own device.
pub(super) async fn content(devices: &impl BlockDevices, volume: &Attachment) -> Result<Option<PathBuf>> {
    let Some(device) = devices.device(volume).await? else { return Ok(None) };
    let host = volume.host().clone();
    blocking(move || Ok(Some(host.block().opened_device(&device)?.unwrap_or(device)))).await
}

/// Refuses to publish the volume if its encrypted device is not open: nothing is allowed to write to the
/// raw device beneath.
pub(super) async fn refuse_closed(
    devices: &impl BlockDevices,
    request: &NodePublishVolumeRequest,
) -> Result<()> {
    let id = &request.volume_id;
    let volume = Attachment::from(request);
    if !is_encrypted(devices, &volume)? {
        return Ok(());
    }
    let inside = match devices.device(&volume).await? {
        Some(device) => {
            let host = request.host().clone();
            blocking(move || Ok(host.block().opened_device(&device)?)).await?
        }
        None => None,
    };
    let closed = || Error::NotStaged(format!("the encrypted device of volume {id} is not open").into());
    inside.map(drop).ok_or_else(closed)
}

/// Whether the driver says that the volume is encrypted.
fn is_encrypted(devices: &impl BlockDevices, volume: &Attachment) -> Result<bool> {
    #[cfg(feature = "luks")]
    return Ok(devices.encryption(volume)?.is_some());
    #[cfg(not(feature = "luks"))]
    {
        let _ = (devices, volume);
        Ok(false)
    }
}

/// Reads the key from these secrets, under the driver's name for it.
#[cfg(feature = "luks")]
fn key(devices: &impl BlockDevices, secrets: &Secrets) -> Result<Option<LuksKey>> {
    let name = devices.encryption_key();
    let read = |text: &str| {
        LuksKey::new(text).map_err(|error| Error::invalid(format!("secrets[{name}]"), error.to_string()))
    };
    secrets.get(name).map(read).transpose()
}

/// Returns a function that grows the filesystem or device at a path, with the key for an encrypted device,
/// if there is one.
pub(super) fn expander<D: BlockDevices>(
    devices: &D,
    secrets: &Secrets,
) -> Result<impl FnOnce(&Host, &Path) -> csi_mount::Result<Grown> + Send + use<D>> {
    #[cfg(feature = "luks")]
    let key = key(devices, secrets)?;
    #[cfg(not(feature = "luks"))]
    let _ = (devices, secrets);
    Ok(move |host: &Host, path: &Path| {
        #[cfg(feature = "luks")]
        if let Some(key) = key {
            return host.block().expand_encrypted(path, &key);
        }
        host.block().expand(path)
    })
}
