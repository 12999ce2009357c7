//! Repairs attachments whose status differs from what the driver lists: somebody detached the volume by hand.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::ControllerCapability;
use tokio::time::sleep;

use super::Attacher;
use crate::error::Result;
use crate::objects::{Attachment, Key};
use crate::queue::Queue;

const PERIOD: Duration = Duration::from_secs(60);
/// After so many periods all attachments that are not as they should be are looked at again.
const RESYNC_PERIODS: u32 = 10;

impl Attacher {
    /// Runs without an end.
    pub(super) async fn reconcile(self: Arc<Self>, queue: Queue<Key>) {
        self.context.synced().await;
        let driver = &self.context.driver;
        let lists_nodes = driver.can(ControllerCapability::ListVolumes)
            && driver.can(ControllerCapability::ListVolumesPublishedNodes);
        for period in 1_u32.. {
            if lists_nodes && let Err(error) = self.compare(&queue).await {
                tracing::info!("the attachments can't be compared with the driver's list: {error}");
            }
            sleep(PERIOD).await;
            if period % RESYNC_PERIODS == 0 {
                for attachment in self.own().filter(|attachment| self.has_work(attachment)) {
                    queue.add(Key::of(&*attachment));
                }
            }
        }
    }

    fn own(&self) -> impl Iterator<Item = Arc<Attachment>> {
        self.context.caches.attachments.all().into_iter().filter(|attachment| self.is_own(attachment))
    }

    async fn compare(&self, queue: &Queue<Key>) -> Result<()> {
        // What is attached or detached during the list must not look as if it were missing.
        let is_done = |one: &Arc<Attachment>| !self.has_work(one);
        let before: HashSet<Key> = self.own().filter(is_done).map(|one| Key::of(&*one)).collect();
        let mut published: HashSet<(String, String)> = HashSet::new();
        for entry in self.context.calls.all_volumes().await? {
            if let (Some(volume), Some(status)) = (entry.volume, entry.status) {
                let nodes = status.published_node_ids.into_iter();
                published.extend(nodes.map(|node| (volume.volume_id.clone(), node)));
            }
        }
        for attachment in self.own().filter(is_done) {
            let key = Key::of(&*attachment);
            let Ok(node) = self.node_id(&attachment) else { continue };
            let volume = attachment.volume().and_then(|name| self.context.caches.volumes.named(name));
            let source = volume.as_ref().and_then(|volume| volume.source_of(&self.context.driver.name));
            let Some(source) = source else { continue };
            let is_published = published.contains(&(source.volume_handle.to_string(), node));
            if before.contains(&key) && is_published != attachment.status.attached {
                tracing::warn!(%key, attached = attachment.status.attached, "the driver's list differs");
                self.forced.set(key.clone(), ());
                queue.add(key);
            }
        }
        Ok(())
    }
}
