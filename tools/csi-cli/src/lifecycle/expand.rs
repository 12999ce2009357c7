//! Expands a volume, while it is in use or between two uses.

use csi_proto::v1;
use rustix::thread::{CapabilitySet, capabilities};
use tonic::Code;

use super::driver::Growth;
use super::report::size;
use super::scenario::LifeCycle;
use super::steps::{Failure, Outcome};
use super::target;
use super::volume_spec::{Keep, TargetChecks};

impl LifeCycle<'_, '_> {
    /// Expands the volume in place, if the driver supports that.
    pub(crate) async fn expand(&mut self) -> Outcome<()> {
        match self.capabilities.growth {
            _ if self.spec.existing.is_some() => {}
            Growth::Never => {
                self.steps.report.left_out("ControllerExpandVolume", "this driver does not expand volumes");
            }
            _ if self.spec.grown <= self.spec.size => {
                self.steps.report.left_out("ControllerExpandVolume", "no larger size was requested");
            }
            Growth::Unused if self.spec.keep == Keep::Everything => {
                self.steps.report.left_out(
                    "ControllerExpandVolume",
                    "it can be expanded only while it is not in use, and --keep leaves it in use",
                );
            }
            Growth::Unused => self.before = self.size_at_target().await?,
            Growth::InUse => {
                self.before = self.size_at_target().await?;
                if self.expand_at_the_controller().await? {
                    self.expand_on_the_node().await?;
                }
            }
        }
        Ok(())
    }

    /// Expands the volume while it is on no node, if the driver supports only that. If the node has to take
    /// part, the volume is put on the node again.
    pub(crate) async fn expand_unused(&mut self) -> Outcome<()> {
        let is_asked_for = self.spec.existing.is_none() && self.spec.grown > self.spec.size;
        if !is_asked_for || self.capabilities.growth != Growth::Unused {
            return Ok(());
        }
        if self.expand_at_the_controller().await? {
            self.attach_stage_publish().await?;
            self.expand_on_the_node().await?;
            self.unpublish_unstage_detach().await?;
        }
        Ok(())
    }

    /// The size at the target, if the targets are checked; otherwise 0.
    async fn size_at_target(&self) -> Outcome<u64> {
        match self.steps.on_node.targets.first().cloned() {
            Some(at) if self.steps.on_node.checks == TargetChecks::Content => {
                let content = self.spec.content;
                let work = move || target::size(&at.path, content);
                self.steps.on_own_thread("  size at the target", work).await
            }
            _ => Ok(0),
        }
    }

    /// Calls the controller, if it expands volumes. Returns whether the node has to take part.
    async fn expand_at_the_controller(&mut self) -> Outcome<bool> {
        let has_node = self.capabilities.node_expands && !self.steps.on_node.targets.is_empty();
        if !self.capabilities.controller_expands {
            return Ok(has_node);
        }
        let requested = self.spec.grown;
        let text = |answer: &v1::ControllerExpandVolumeResponse| match answer.capacity_bytes {
            bytes if bytes < requested => Err(format!("the volume has only {bytes} bytes")),
            bytes => Ok(size(bytes.unsigned_abs())),
        };
        let request = self.volume.controller_expand_volume(requested);
        let answer = self.steps.make("ControllerExpandVolume", request, text).await?;
        self.capacity = answer.capacity_bytes;
        Ok(answer.node_expansion_required && has_node)
    }

    /// Expands the filesystem on the node. If that fails while it is mounted, the next stage does it.
    async fn expand_on_the_node(&mut self) -> Outcome<()> {
        let path = self.steps.on_node.targets[0].path.clone();
        let content = self.spec.content;
        let before = self.before;
        let request = self.volume.node_expand_volume(&path, self.spec.grown);
        let text = |answer: &v1::NodeExpandVolumeResponse| Ok(size(answer.capacity_bytes.unsigned_abs()));
        let grown = self.steps.make("NodeExpandVolume", request, text).await;
        match grown {
            Ok(_) if !self.capabilities.controller_expands => self.capacity = self.spec.grown,
            Ok(_) => {}
            Err(refused) if self.may_refuse_to_grow(&refused) => {
                let why = "a mounted ext4 can be expanded only with CAP_SYS_RESOURCE, which this process \
                           does not have: it is expanded at the next stage";
                self.steps.report.left_out("NodeExpandVolume", why);
                let targets = self.steps.on_node.targets.clone();
                self.volume.unpublish(&mut *self.steps, &targets).await?;
                self.volume.unstage(&mut *self.steps).await?;
                self.volume.stage(&mut *self.steps).await?;
                self.volume.publish(&mut *self.steps, &targets).await?;
            }
            Err(failure) => return Err(failure),
        }
        if self.steps.on_node.checks != TargetChecks::Content {
            return Ok(());
        }
        let work = move || {
            target::check_data(&path, content)?;
            match target::size(&path, content)? {
                after if after > before => Ok(format!("{}, was {}", size(after), size(before))),
                _ => Err(format!("it is still {}", size(before))),
            }
        };
        self.steps.check("  size at the target", work).await
    }

    /// Whether the node's refusal is due to missing CAP_SYS_RESOURCE.
    fn may_refuse_to_grow(&self, refused: &Failure) -> bool {
        let is_ext4_there = || {
            let mount = self.steps.on_node.targets.first().and_then(|at| target::mount_at(&at.path).ok());
            self.steps.on_node.checks != TargetChecks::Off
                && mount.is_some_and(|mount| mount.fs_type == "ext4")
        };
        refused.code == Some(Code::FailedPrecondition)
            && (self.spec.mount.fs_type == "ext4" || is_ext4_there())
            && (!has_cap_sys_resource() || refused.reason.contains("CAP_SYS_RESOURCE"))
    }
}

/// Whether this process, and so a driver that it starts, has CAP_SYS_RESOURCE.
fn has_cap_sys_resource() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE))
}
