//! The caches of all kinds.

use crate::cache::{Cache, Change};
use crate::objects::{
    Attachment, AttributesClass, Capacity, Claim, Class, CsiNode, GroupContent, GroupSnapshotClass, Key,
    Kind, Node, Snapshot, SnapshotClass, SnapshotContent, Volume,
};
use crate::queue::Queue;

/// A kind that has a cache.
pub(crate) trait Cached: Kind {
    fn cache(caches: &Caches) -> &Cache<Self>;
}

macro_rules! caches {
    ($($name:ident: $kind:ty,)*) => {
        /// The objects in memory. A cache that no part needs is never started, and stays empty.
        #[derive(Clone, Default)]
        pub(crate) struct Caches {
            $(pub(crate) $name: Cache<$kind>,)*
        }

        $(impl Cached for $kind {
            fn cache(caches: &Caches) -> &Cache<Self> {
                &caches.$name
            }
        })*
    };
}

caches! {
    claims: Claim,
    volumes: Volume,
    classes: Class,
    attributes_classes: AttributesClass,
    attachments: Attachment,
    csi_nodes: CsiNode,
    nodes: Node,
    capacities: Capacity,
    snapshots: Snapshot,
    snapshot_contents: SnapshotContent,
    snapshot_classes: SnapshotClass,
    group_contents: GroupContent,
    group_classes: GroupSnapshotClass,
}

impl Caches {
    /// Adds the volume of each attachment that is gone.
    pub(crate) fn add_detached(&self, queue: Queue<Key>) {
        self.attachments.on_change(move |change| {
            if let Change::Gone(attachment) = change
                && let Some(volume) = attachment.volume()
            {
                queue.add(Key::new("", volume));
            }
        });
    }
}
