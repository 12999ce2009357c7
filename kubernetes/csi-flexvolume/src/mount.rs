//! The commands on the node's directories.
//!
//! `mount` stages the volume and publishes it, because it is the only command with secrets. `unmount` of the last
//! directory unstages it. None of the three ever answers "Not supported": the kubelet would then mount, unmount
//! or grow by itself from now on, for all volumes.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use csi_mount::MountState;
use csi_proto::client::{Target, VolumeUse};
use csi_proto::{NodeCapability, v1};
use tonic::Code;

use crate::Context;
use crate::answer::Answer;
use crate::driver::Refused;
use crate::options::Options;
use crate::volumes::Volume;

/// The most symbolic links that the kernel follows in one path (path_resolution(7)).
const MAX_LINKS: usize = 40;

impl Context {
    /// `mount DIRECTORY OPTIONS`. What a failed call did is undone, because the kubelet does not always repeat it or
    /// run `unmount`.
    pub(crate) async fn mount(&mut self) -> Result<Answer, String> {
        let directory = self.directory(1)?;
        let mut options = self.options(2)?;
        self.driver.set_secrets(std::mem::take(&mut options.secrets));
        let id = options.volume_id.clone();
        let offers = self.driver.node_offers().await?;
        let _lock = self.volumes.lock(&id).await?;
        let mut volume = self.volumes.get(&id)?;
        // Left by a failed `mount` of a pod that is gone: the kubelet removed the directory.
        for target in volume.targets.clone() {
            if state(&target)? == MountState::Absent {
                self.take_off(&id, &mut volume, &target, &offers).await?;
            }
        }
        let is_new = volume.targets.insert(directory.clone());
        volume.name.clone_from(&options.name);
        self.volumes.save(&id, &volume)?;
        let Err(why) = self.put(&options, &mut volume, &directory, &offers).await else {
            return Ok(Answer::success());
        };
        if is_new && let Err(undo) = self.take_off(&id, &mut volume, &directory, &offers).await {
            return Err(format!("{why}; undoing it failed too: {undo}"));
        }
        Err(why)
    }

    async fn put(
        &mut self,
        options: &Options,
        volume: &mut Volume,
        directory: &Path,
        offers: &[NodeCapability],
    ) -> Result<(), String> {
        let mode = self.mode(offers.contains(&NodeCapability::SingleNodeMultiWriter));
        let capability = options.capability(mode, offers.contains(&NodeCapability::VolumeMountGroup));
        let mut on_node = self.on_node(&options.volume_id, capability, offers);
        on_node.volume_context.clone_from(&options.volume_context);
        on_node.publish_context.clone_from(&volume.publish_context);
        if let Some(staging) = &on_node.staging_path
            && !is_mounted(staging)?
        {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o750).create(staging);
            made.map_err(|error| format!("create {}: {error}", staging.display()))?;
        }
        on_node.stage(&mut self.driver).await?;
        on_node.volume_context.extend(options.pod.clone());
        let target = Target::new(directory);
        let target = if options.is_read_only { target.read_only() } else { target };
        on_node.publish(&mut self.driver, &[target]).await?;
        if let Some(size) = volume.expand_to {
            self.driver.call(on_node.node_expand_volume(directory, size)).await?;
            volume.expand_to = None;
            self.volumes.save(&options.volume_id, volume)?;
        }
        Ok(())
    }

    /// `unmount DIRECTORY`.
    pub(crate) async fn unmount(&mut self) -> Result<Answer, String> {
        let directory = self.directory(1)?;
        let ids = self.volumes.find(|volume| !same_targets(volume, &directory).is_empty())?;
        if ids.is_empty() && is_mounted(&directory)? {
            let directory = directory.display();
            let records = self.volumes.path().display();
            return Err(format!(
                "no record in {records} says which volume is mounted at {directory}: unmount it"
            ));
        }
        for id in ids {
            let offers = self.driver.node_offers().await?;
            let _lock = self.volumes.lock(&id).await?;
            let mut volume = self.volumes.get(&id)?;
            for target in same_targets(&volume, &directory) {
                self.take_off(&id, &mut volume, &target, &offers).await?;
            }
        }
        Ok(Answer::success())
    }

    /// `expandfs OPTIONS DEVICE DIRECTORY NEW-SIZE OLD-SIZE`. The kubelet runs it between `mountdevice` and `mount` too,
    /// when nothing is staged: `mount` then expands.
    pub(crate) async fn expand_filesystem(&mut self) -> Result<Answer, String> {
        let options = self.options(1)?;
        let directory = self.directory(3)?;
        let size = self.arguments.size(4)?;
        let offers = self.driver.node_offers().await?;
        if !offers.contains(&NodeCapability::ExpandVolume) {
            return Ok(Answer::success());
        }
        let id = &options.volume_id;
        let _lock = self.volumes.lock(id).await?;
        let mut volume = self.volumes.get(id)?;
        let here = same_targets(&volume, &directory);
        let Some(target) = here.first().or(volume.targets.first()) else {
            (volume.name, volume.expand_to) = (options.name, Some(size));
            self.volumes.save(id, &volume)?;
            return Ok(Answer::success());
        };
        let mode = self.mode(offers.contains(&NodeCapability::SingleNodeMultiWriter));
        let on_node = self.on_node(id, options.capability(mode, false), &offers);
        self.driver.call(on_node.node_expand_volume(target, size)).await?;
        Ok(Answer::success())
    }

    /// Unpublishes the volume, and unstages it after its last directory.
    async fn take_off(
        &mut self,
        id: &str,
        volume: &mut Volume,
        directory: &Path,
        offers: &[NodeCapability],
    ) -> Result<(), String> {
        let on_node = self.on_node(id, v1::VolumeCapability::default(), offers);
        let unpublished = on_node.unpublish(&mut self.driver, &[directory]).await;
        unpublished.or_else(|refused| accept_missing(refused, directory))?;
        if volume.targets.iter().all(|target| target == directory) {
            let unstaged = on_node.unstage(&mut self.driver).await;
            if let Some(staging) = &on_node.staging_path {
                unstaged.or_else(|refused| accept_missing(refused, staging))?;
                match std::fs::remove_dir(staging) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(format!("remove {}: {error}", staging.display()));
                    }
                    _ => {}
                }
            }
        }
        volume.targets.remove(directory);
        self.volumes.save(id, volume)
    }

    /// The volume on this node, with its staging path if the driver stages.
    fn on_node(&self, id: &str, capability: v1::VolumeCapability, offers: &[NodeCapability]) -> VolumeUse {
        let volume = VolumeUse::new(id, capability);
        if !offers.contains(&NodeCapability::StageUnstageVolume) {
            return volume;
        }
        let is_name = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
        let is_plain = !id.starts_with('.') && id.chars().all(is_name);
        let name = if is_plain { id.to_owned() } else { format!("={}", URL_SAFE_NO_PAD.encode(id)) };
        volume.staged_at(self.config.staging.join(name))
    }

    fn directory(&self, at: usize) -> Result<PathBuf, String> {
        let text = self.arguments.get(at, "the directory")?;
        let path = Path::new(text).is_absolute().then(|| PathBuf::from(text));
        path.ok_or_else(|| format!("argument {at}: {text:?} is not an absolute path"))
    }
}

/// A driver can refuse to undo a step of a volume that does not exist. Where nothing is mounted, nothing is left to undo.
fn accept_missing(refused: Refused, directory: &Path) -> Result<(), String> {
    match refused.code {
        Some(Code::NotFound) if !is_mounted(directory)? => Ok(()),
        _ => Err(refused.into()),
    }
}

/// What is at the directory, by csi-mount, which does not ask the filesystem there: a dead one would hang. Symbolic
/// links are followed.
fn state(directory: &Path) -> Result<MountState, String> {
    let mut path = directory.to_owned();
    for _ in 0..MAX_LINKS {
        let state = csi_mount::Host::kernel().mounts().state(&path).map_err(|error| error.to_string())?;
        // Only what is not a mount can be a link, and is on the filesystem of its parent directory.
        let link = (state == MountState::NotMounted).then(|| std::fs::read_link(&path).ok()).flatten();
        let (Some(link), Some(parent)) = (link, path.parent()) else { return Ok(state) };
        path = parent.join(link);
    }
    Err(format!("{} leads through more than {MAX_LINKS} symbolic links", directory.display()))
}

fn is_mounted(directory: &Path) -> Result<bool, String> {
    Ok(matches!(state(directory)?, MountState::Mounted(_)))
}

/// The recorded targets that are this directory, by the path as it is written or with its links resolved.
fn same_targets(volume: &Volume, directory: &Path) -> Vec<PathBuf> {
    let place = resolved(directory);
    volume
        .targets
        .iter()
        .filter(|target| *target == directory || resolved(target) == place)
        .cloned()
        .collect()
}

/// The path without symbolic links in its parent directory. The directory itself can be a dead mount.
fn resolved(directory: &Path) -> PathBuf {
    let parent = directory.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    let name = directory.file_name();
    parent.zip(name).map_or_else(|| directory.to_owned(), |(parent, name)| parent.join(name))
}
