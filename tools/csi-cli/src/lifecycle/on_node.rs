//! The use of a volume at its targets: written to, read, and its usage reported.

use csi_proto::v1;

use super::call::{Outcome, Repeat};
use super::report::size;
use super::scenario::LifeCycle;
use super::target;
use super::volume_spec::TargetChecks;

impl LifeCycle<'_, '_> {
    pub(crate) async fn write_and_read(&mut self) -> Outcome<()> {
        let content = self.spec.content;
        if self.steps.on_node.checks != TargetChecks::Content {
            self.steps.caller.report.left_out("  write and read", "writing is not allowed for this volume");
            return Ok(());
        }
        let writable = self.steps.on_node.targets[0].path.clone();
        let read_only = self.steps.on_node.targets.get(1).map(|target| target.path.clone());
        let read = read_only.clone().unwrap_or_else(|| writable.clone());
        let work = move || target::write_and_read(&writable, &read, content);
        let caller = &mut *self.steps.caller;
        caller.check("  write and read", work).await?;
        let Some(read_only) = read_only else {
            caller.report.left_out("  write, read-only", "the access mode allows only one target");
            return Ok(());
        };
        let work = move || target::refused_write(&read_only, content).map(|why| format!("refused: {why}"));
        caller.check("  write, read-only", work).await
    }

    pub(crate) async fn stats(&mut self) -> Outcome<()> {
        if !self.capabilities.stats {
            return Ok(());
        }
        let request = self.volume.node_get_volume_stats(&self.steps.on_node.targets[0].path);
        self.steps.make("NodeGetVolumeStats", request, Repeat::MayDiffer, usage).await.map(drop)
    }
}

fn usage(answer: &v1::NodeGetVolumeStatsResponse) -> Result<String, String> {
    let bytes = answer.usage.iter().find(|usage| usage.unit() == v1::volume_usage::Unit::Bytes);
    let bytes = bytes.ok_or("the answer has no bytes")?;
    if bytes.total <= 0 {
        return Err(format!("the total is {} bytes", bytes.total));
    }
    let total = size(bytes.total.unsigned_abs());
    match (bytes.available, bytes.used) {
        (0, 0) => Ok(total),
        _ => Ok(format!("{total}, {} free", size(bytes.available.unsigned_abs()))),
    }
}
