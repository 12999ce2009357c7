//! The Kubernetes objects behind a CSI call, read one by one or kept in memory.

use std::fmt;
use std::sync::Arc;

use csi_core::kubernetes::{ClaimNames, PodInfo};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use tokio_stream::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use crate::error::{Error, Result};
use crate::request::{send, with_answer_limit};

/// Reads the claim, volume, pod, class or namespace of a CSI call, by the names that the sidecars and the
/// kubelet add to it.
///
/// ```
/// # use csi_core::{Result, prelude::*};
/// use csi_core::kubernetes::ClaimNames;
/// use csi_kube::Objects;
/// async fn team(objects: &Objects, request: &CreateVolumeRequest) -> Result<Option<String>> {
///     let claim = objects.claim(&ClaimNames::from_parameters(&request.parameters)).await?;
///     Ok(claim.metadata.labels.as_ref().and_then(|labels| labels.get("team").cloned()))
/// }
/// ```
///
/// Without a `cache_…` method each read is one request. With it, a watch keeps all objects of the kind in
/// memory, and a read of one costs no request. An object in memory can be some time old. One that is not in
/// memory is asked for, so a new object is never taken for missing.
///
/// Each read and each cache needs its own [rules](crate::rules).
#[derive(Clone)]
pub struct Objects {
    client: Client,
    claims: Option<Cache<PersistentVolumeClaim>>,
    volumes: Option<Cache<PersistentVolume>>,
    pods: Option<Cache<Pod>>,
    classes: Option<Cache<StorageClass>>,
    namespaces: Option<Cache<Namespace>>,
}

/// The objects of a kind, kept up to date by a task that ends with the last clone.
#[derive(Clone)]
struct Cache<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Store<K>,
    _watch: Arc<AbortOnDropHandle<()>>,
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    fn start(client: &Client, config: watcher::Config) -> Option<Self> {
        let (store, writer) = reflector::store();
        let stream = watcher(Api::<K>::all(with_answer_limit(client)), config).default_backoff();
        let mut changes = Box::pin(reflector::reflector(writer, stream));
        let watch = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                if let Err(error) = change {
                    tracing::info!(kind = %K::kind(&()), "the watch is repeated: {error}");
                }
            }
        });
        Some(Self { store, _watch: Arc::new(AbortOnDropHandle::new(watch)) })
    }
}

impl Objects {
    /// Reads each object with a request of its own.
    pub fn new(client: Client) -> Self {
        Self { client, claims: None, volumes: None, pods: None, classes: None, namespaces: None }
    }

    /// Keeps all claims in memory.
    #[must_use]
    pub fn cache_claims(mut self) -> Self {
        self.claims = Cache::start(&self.client, watcher::Config::default());
        self
    }

    /// Keeps all persistent volumes in memory.
    #[must_use]
    pub fn cache_volumes(mut self) -> Self {
        self.volumes = Cache::start(&self.client, watcher::Config::default());
        self
    }

    /// Keeps the pods of this node in memory: for the node part of a driver.
    #[must_use]
    pub fn cache_pods_of(mut self, node: &str) -> Self {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        self.pods = Cache::start(&self.client, config);
        self
    }

    /// Keeps all storage classes in memory.
    #[must_use]
    pub fn cache_storage_classes(mut self) -> Self {
        self.classes = Cache::start(&self.client, watcher::Config::default());
        self
    }

    /// Keeps all namespaces in memory.
    #[must_use]
    pub fn cache_namespaces(mut self) -> Self {
        self.namespaces = Cache::start(&self.client, watcher::Config::default());
        self
    }

    /// Returns the claim that a volume is created for.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the parameters don't name it: external-provisioner adds the names with
    /// `--extra-create-metadata`. [`Error::NotFound`], [`Error::Api`] and [`Error::TimedOut`].
    pub async fn claim(&self, names: &ClaimNames<'_>) -> Result<Arc<PersistentVolumeClaim>> {
        let part = |value: Option<&str>, key: &str| {
            value.map(str::to_owned).ok_or_else(|| {
                let field = format!("parameters[csi.storage.k8s.io/pvc/{key}]");
                Error::invalid(field, "is missing: run external-provisioner with --extra-create-metadata")
            })
        };
        let namespace = part(names.namespace, "namespace")?;
        let name = part(names.claim, "name")?;
        let claims = Api::namespaced(self.client.clone(), &namespace);
        read(self.claims.as_ref(), &claims, &ObjectRef::new(&name).within(&namespace), |_| true).await
    }

    /// Returns the persistent volume with this name. While CreateVolume runs for it, it does not exist yet.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Api`] and [`Error::TimedOut`].
    pub async fn volume(&self, name: &str) -> Result<Arc<PersistentVolume>> {
        let volumes = Api::all(self.client.clone());
        read(self.volumes.as_ref(), &volumes, &ObjectRef::new(name), |_| true).await
    }

    /// Returns the pod that a volume is published for: the one with the same uid, and not a later pod with the
    /// same name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Api`] and [`Error::TimedOut`].
    pub async fn pod(&self, pod: &PodInfo<'_>) -> Result<Arc<Pod>> {
        let pods = Api::namespaced(self.client.clone(), pod.namespace);
        let is_same = |found: &Pod| found.metadata.uid.as_deref() == Some(pod.uid);
        read(self.pods.as_ref(), &pods, &ObjectRef::new(pod.name).within(pod.namespace), is_same).await
    }

    /// Returns the storage class with this name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Api`] and [`Error::TimedOut`].
    pub async fn storage_class(&self, name: &str) -> Result<Arc<StorageClass>> {
        let classes = Api::all(self.client.clone());
        read(self.classes.as_ref(), &classes, &ObjectRef::new(name), |_| true).await
    }

    /// Returns the namespace with this name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Api`] and [`Error::TimedOut`].
    pub async fn namespace(&self, name: &str) -> Result<Arc<Namespace>> {
        let namespaces = Api::all(self.client.clone());
        read(self.namespaces.as_ref(), &namespaces, &ObjectRef::new(name), |_| true).await
    }
}

async fn read<K>(
    cache: Option<&Cache<K>>,
    api: &Api<K>,
    key: &ObjectRef<K>,
    is_wanted: impl Fn(&K) -> bool,
) -> Result<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + 'static,
{
    if let Some(found) = cache.and_then(|cache| cache.store.get(key)).filter(|found| is_wanted(found)) {
        return Ok(found);
    }
    let object = match &key.namespace {
        Some(namespace) => format!("{} {namespace}/{}", K::kind(&()).to_lowercase(), key.name),
        None => format!("{} {}", K::kind(&()).to_lowercase(), key.name),
    };
    let found = send(&format!("read {object}"), api.get_opt(&key.name)).await?;
    found.filter(is_wanted).map(Arc::new).ok_or(Error::NotFound { object })
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}
