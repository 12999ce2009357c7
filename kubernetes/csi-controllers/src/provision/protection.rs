//! The finalizers that keep the source of a volume while the volume is made. They are removed once no claim waits for
//! the source; a claim that vanished counts, be it while nobody worked.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::record::{Record, Records};
use super::source::Source;
use crate::cache::Change;
use crate::caches::Cached;
use crate::context::{CACHE_PAUSE, Context};
use crate::error::Result;
use crate::keys::{CLONE_FINALIZER, SNAPSHOT_SOURCE_FINALIZER};
use crate::objects::{Claim, Key, Kind};
use crate::queue::{Next, Queue};

const WORKERS: usize = 10;

/// What the finalizers depend on.
struct Protection {
    context: Arc<Context>,
    records: Arc<Records>,
}

/// The queue of sources that can be without a use.
pub(super) fn start(
    context: &Arc<Context>,
    records: &Arc<Records>,
    tasks: &mut JoinSet<()>,
) -> Queue<Source> {
    let part = Protection { context: Arc::clone(context), records: Arc::clone(records) };
    let queue = context.work(tasks, "sources", WORKERS, Arc::new(part), release);
    let restored = queue.clone();
    let sources = queue.clone();
    context.caches.claims.on_change(move |change| {
        let (Change::Set { now: claim, .. } | Change::Gone(claim)) = change;
        if let Some(source) = Source::of(claim) {
            sources.add(source);
        }
        if claim.is_deleting() && claim.has_finalizer(CLONE_FINALIZER) {
            sources.add(Source::Claim(Key::of(&**claim)));
        }
    });
    context.caches.snapshots.on_change(move |change| {
        if let Change::Set { now, .. } = change
            && now.has_finalizer(SNAPSHOT_SOURCE_FINALIZER)
        {
            restored.add(Source::Snapshot(Key::of(&**now)));
        }
    });
    queue
}

/// Adds the finalizer, before the call that needs the source.
pub(super) async fn protect(context: &Context, source: &Source) -> Result<()> {
    let caches = &context.caches;
    match source {
        Source::Snapshot(key) => add(context, caches.snapshots.get(key), SNAPSHOT_SOURCE_FINALIZER).await,
        Source::Claim(key) => add(context, caches.claims.get(key), CLONE_FINALIZER).await,
    }
}

async fn add<K: Cached>(context: &Context, source: Option<Arc<K>>, name: &str) -> Result<()> {
    if let Some(source) = source {
        context.provisioner.edit(&*source, |source| Ok(source.adding_finalizer(name))).await?;
    }
    Ok(())
}

/// Removes the finalizer if no claim needs it. The source of clones keeps it until the source is deleted.
async fn release(part: Arc<Protection>, source: Source) -> Result<Next> {
    if !part.records.is_read() {
        return Ok(Next::After(CACHE_PAUSE));
    }
    let caches = &part.context.caches;
    match &source {
        Source::Snapshot(key) => {
            remove(&part, &source, caches.snapshots.get(key), SNAPSHOT_SOURCE_FINALIZER).await?;
        }
        Source::Claim(key) => {
            let deleting = caches.claims.get(key).filter(|claim| claim.is_deleting());
            remove(&part, &source, deleting, CLONE_FINALIZER).await?;
        }
    }
    Ok(Next::Done)
}

async fn remove<K: Cached>(
    part: &Protection,
    source: &Source,
    object: Option<Arc<K>>,
    name: &str,
) -> Result<()> {
    let kept = object.filter(|object| object.has_finalizer(name));
    if let Some(object) = kept.filter(|_| !is_needed(part, source)) {
        part.context.provisioner.edit(&*object, |object| Ok(object.removing_finalizer(name))).await?;
    }
    Ok(())
}

/// A claim of another namespace counts only once it has a record: whether it is allowed to use the source is not known
/// before.
fn is_needed(part: &Protection, source: &Source) -> bool {
    let waits = |claim: &Claim| {
        matches!(&*claim.status.phase, "" | "Pending")
            && *claim.namespace() == *source.key().namespace
            && Source::of(claim).as_ref() == Some(source)
    };
    let is_made_from = |record: &Record| record.source.as_ref() == Some(source);
    !part.records.matching(is_made_from).is_empty() || part.context.caches.claims.find(waits).is_some()
}
