//! What the driver's pod does before it stops on a node that is being drained.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt as _;

use crate::error::{Error, Result};
use crate::request::{Pauses, send, with_answer_limit};

/// Taints of a node that is being removed, in addition to the mark of `kubectl drain`.
const REMOVAL_TAINTS: [&str; 4] = [
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/out-of-service",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
];

/// Waits until the driver's volumes are detached from a node that is being drained: the work of a preStop
/// hook.
///
/// Without the driver's pod nobody unmounts the volumes. Kubernetes then waits six minutes before it detaches
/// them by force and attaches them to another node.
///
/// ```
/// # async fn pre_stop(client: kube::Client, node: &str) -> csi_kube::Result<()> {
/// use csi_kube::Drain;
/// let drain = Drain::new("block.csi.example.org", node);
/// let ended = drain.run(&client, |left| eprintln!("{} volumes are attached", left.len())).await?;
/// # let _ = ended;
/// # Ok(()) }
/// ```
///
/// The pod's `terminationGracePeriodSeconds` must be longer than [`limit`](Self::limit). It needs the rules
/// [`rules::DRAIN`](crate::rules::DRAIN).
#[derive(Debug, Clone)]
pub struct Drain {
    driver: String,
    node: String,
    limit: Duration,
    is_unconditional: bool,
}

/// The end of a [`Drain`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drained {
    /// The node is not being drained: only the driver's pod stops, for example for an update. Volumes stay
    /// mounted.
    NotNeeded,
    /// The node has no volume of the driver any more.
    Detached,
    /// The time is over. These VolumeAttachment objects are left, each with the name of its PersistentVolume
    /// if it has one.
    Left(Vec<String>),
}

impl Drain {
    /// Waits for the volumes of this driver on this node, for 2 minutes.
    pub fn new(driver: impl Into<String>, node: impl Into<String>) -> Self {
        Self {
            driver: driver.into(),
            node: node.into(),
            limit: Duration::from_secs(120),
            is_unconditional: false,
        }
    }

    /// Sets how long to wait.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Waits also on a node that shows no sign of a drain.
    #[must_use]
    pub fn unconditional(mut self) -> Self {
        self.is_unconditional = true;
        self
    }

    /// Waits. `progress` is called with the volumes that are left, once at the beginning and after each change.
    ///
    /// # Errors
    /// [`Error::Api`] and [`Error::TimedOut`], if it can't be known what is attached.
    pub async fn run(&self, client: &Client, mut progress: impl FnMut(&[String])) -> Result<Drained> {
        let begun = Instant::now();
        let mut pauses = Pauses::within(self.limit);
        let is_needed = loop {
            match self.is_needed(client).await {
                Err(error) if error.is_transient() => pauses.after(error).await?,
                known => break known?,
            }
        };
        if !is_needed {
            return Ok(Drained::NotNeeded);
        }
        let attachments: Api<VolumeAttachment> = Api::all(with_answer_limit(client));
        let mut events = pin!(watcher(attachments, watcher::Config::default()).default_backoff());
        let mut known = Attached::default();
        let mut shown = None;
        let mut failure = None;
        while let Ok(event) = timeout(self.limit.saturating_sub(begun.elapsed()), events.next()).await {
            match event {
                Some(Ok(event)) => known.apply(event, |one| self.is_ours(one)),
                Some(Err(error)) => {
                    let error = watch_error(error);
                    tracing::debug!("{error}");
                    if !error.is_transient() {
                        return Err(error);
                    }
                    failure = Some(error);
                }
                // A watch has no end.
                None => break,
            }
            let Some(left) = known.left() else { continue };
            if shown.as_ref() != Some(&left) {
                progress(&left);
            }
            if left.is_empty() {
                return Ok(Drained::Detached);
            }
            shown = Some(left);
        }
        match (shown, failure) {
            (Some(left), _) => Ok(Drained::Left(left)),
            (None, Some(error)) => Err(error),
            (None, None) => {
                Err(Error::TimedOut { action: "list volumeattachments".to_owned(), limit: self.limit })
            }
        }
    }

    /// Whether the node is being drained or removed, or is gone already, if that matters.
    async fn is_needed(&self, client: &Client) -> Result<bool> {
        if self.is_unconditional {
            return Ok(true);
        }
        let nodes: Api<Node> = Api::all(client.clone());
        let node = send(&format!("read node {}", self.node), nodes.get_opt(&self.node)).await?;
        let Some(node) = node else { return Ok(true) };
        let is_deleted = node.metadata.deletion_timestamp.is_some();
        let Some(spec) = node.spec else { return Ok(is_deleted) };
        let mut taints = spec.taints.iter().flatten();
        let is_tainted = taints.any(|taint| REMOVAL_TAINTS.contains(&taint.key.as_str()));
        Ok(is_deleted || spec.unschedulable == Some(true) || is_tainted)
    }

    fn is_ours(&self, attachment: &VolumeAttachment) -> bool {
        attachment.spec.attacher == self.driver && attachment.spec.node_name == self.node
    }
}

/// The attachments on the node, as far as the watch has shown them.
#[derive(Default)]
struct Attached {
    /// A whole list, with the changes since.
    complete: Option<BTreeMap<String, String>>,
    /// A list that is being read.
    listing: BTreeMap<String, String>,
}

impl Attached {
    fn apply(&mut self, event: Event<VolumeAttachment>, is_ours: impl Fn(&VolumeAttachment) -> bool) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(one) if is_ours(&one) => drop(self.listing.insert(key(&one), title(&one))),
            Event::InitDone => self.complete = Some(std::mem::take(&mut self.listing)),
            Event::Apply(one) if is_ours(&one) => {
                self.complete.as_mut().map(|known| known.insert(key(&one), title(&one)));
            }
            Event::Delete(one) => {
                self.complete.as_mut().map(|known| known.remove(&key(&one)));
            }
            Event::InitApply(_) | Event::Apply(_) => {}
        }
    }

    fn left(&self) -> Option<Vec<String>> {
        Some(self.complete.as_ref()?.values().cloned().collect())
    }
}

fn key(attachment: &VolumeAttachment) -> String {
    attachment.metadata.name.clone().unwrap_or_default()
}

fn title(attachment: &VolumeAttachment) -> String {
    let name = key(attachment);
    match &attachment.spec.source.persistent_volume_name {
        Some(volume) => format!("{name} ({volume})"),
        None => name,
    }
}

fn watch_error(error: watcher::Error) -> Error {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    let source = match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => error,
        WatchError(status) => kube::Error::Api(status),
        NoResourceVersion => {
            return Error::invalid("volumeattachments: metadata.resourceVersion", "is missing in the list");
        }
    };
    Error::Api { action: "watch volumeattachments".to_owned(), source: Box::new(source) }
}
