//! The bed of all tests: hostpath as the driver, an API server in memory, and this crate between them as a process that
//! can be killed.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use clap::Parser as _;
use csi_controllers::ControllerArgs;
use csi_core::internal::LocalCalls;
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::kube_api::{ApiServer, Cluster, Link};
use tokio::task::JoinHandle;
use tower::layer::layer_fn;
use tower::service_fn;

use crate::driver::Calls;

pub(crate) const DRIVER: &str = "hostpath.csi.example.org";
pub(crate) const NODE: &str = "worker-1";
pub(crate) const RECORDS: &str = "configmaps/driver/hostpath-csi-example-org-volume-creations";

/// The longest wait for anything, in the tests' own time.
const LIMIT: Duration = Duration::from_secs(3600);

/// What an object of a kind has, unless a test says otherwise.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| serde_saphyr::from_str(include_str!("situations/defaults.yaml")).unwrap());

/// Driver, API server and cluster.
pub(crate) struct Bed {
    pub(crate) server: ApiServer,
    pub(crate) calls: Calls,
    pub(crate) local: LocalCalls,
    _cluster: Cluster,
    _plugin: JoinHandle<()>,
    directory: TempDir,
}

impl Bed {
    /// A cluster with one node and the class `fast` of the driver, which has these flags.
    pub(crate) async fn new(flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let data = format!("--data={}", directory.path().join("data").display());
        let socket = format!("--endpoint=unix://{}", directory.path().join("csi.sock").display());
        let id = format!("--node-id={NODE}");
        // Less than any disk has free, whose room the driver would report otherwise.
        let pool = "--pool=only=1000Mi";
        let own = ["hostpath", &data, &socket, &id, "--kind=directory", "--mode=controller", pool];
        let args = hostpath::Args::parse_from(own.iter().chain(flags));
        let calls = Calls::default();
        let faults = calls.clone();
        let layer = layer_fn(move |driver: csi_core::server::CallService| {
            let faults = faults.clone();
            service_fn(move |request| faults.clone().answer(driver.clone(), request))
        });
        let plugin = hostpath::plugin(&args).unwrap().with_args(&args.driver).layer(layer);
        let local = csi_core::internal::local_calls(&plugin);
        let endpoint = args.driver.endpoint().unwrap();
        let plugin = tokio::spawn(async move {
            plugin.serve_until(&endpoint, std::future::pending()).await.unwrap();
        });
        let server = ApiServer::new();
        let cluster = Cluster::start(&server);
        let bed = Self { server, calls, local, _cluster: cluster, _plugin: plugin, directory };
        bed.server.create_node(DRIVER, NODE, &[]);
        bed.apply("storageclasses/fast", json!({}));
        bed
    }

    /// As [`new`](Self::new), with this crate at work.
    pub(crate) async fn started(flags: &[&str]) -> (Self, Process) {
        let bed = Self::new(flags).await;
        let process = bed.start();
        (bed, process)
    }

    /// As [`apply`].
    pub(crate) fn apply(&self, path: &str, change: Value) {
        apply(&self.server, path, change);
    }

    /// A claim of 1 MiB and the class `fast`.
    pub(crate) fn claim(&self, name: &str) {
        self.apply(&format!("persistentvolumeclaims/team/{name}"), json!({}));
    }

    /// The volume of a new claim.
    pub(crate) async fn volume(&self, claim: &str) -> Value {
        self.claim(claim);
        self.bound(claim).await
    }

    pub(crate) fn attach(&self, attachment: &str, volume: &str) {
        let source = json!({ "source": { "persistentVolumeName": volume } });
        self.apply(&format!("volumeattachments/{attachment}"), json!({ "spec": source }));
    }

    /// Where the driver has its `volumes` or its `snapshots`.
    pub(crate) fn place(&self, kind: &str) -> std::path::PathBuf {
        self.directory.path().join("data").join(kind)
    }

    /// The driver's `volumes` or `snapshots`.
    pub(crate) fn stored(&self, kind: &str) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.place(kind)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// The driver's names of the cluster's volumes.
    pub(crate) fn handles(&self) -> BTreeSet<String> {
        let handle = |volume: &Value| volume["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned();
        self.server.objects("persistentvolumes/").iter().map(handle).collect()
    }

    /// Deletes all objects of a kind as users do, and waits until none is left.
    pub(crate) async fn delete_all(&self, kind: &str) {
        for object in self.server.objects(kind) {
            self.server.begin_deletion(&path(kind, &object));
        }
        self.none_is_left(kind).await;
    }

    pub(crate) async fn none_is_left(&self, kind: &str) {
        self.until(&format!("no {kind} is left"), || self.server.objects(kind).is_empty()).await;
    }

    /// The object at this path, which must exist.
    pub(crate) fn get(&self, path: &str) -> Value {
        self.server.get(path).unwrap_or_else(|| panic!("{path} does not exist"))
    }

    /// Waits until the claim is bound, and returns its volume.
    pub(crate) async fn bound(&self, claim: &str) -> Value {
        let path = format!("persistentvolumeclaims/team/{claim}");
        let is_bound = || self.server.get(&path).is_some_and(|claim| is_bound(&claim));
        self.until(&format!("{claim} is bound"), is_bound).await;
        self.get(&format!("persistentvolumes/{}", self.get(&path)["spec"]["volumeName"].as_str().unwrap()))
    }

    /// Whether all claims are bound, all volumes attached, and all snapshots taken.
    pub(crate) fn is_settled(&self) -> bool {
        let all = |kind: &str, is_done: fn(&Value) -> bool| {
            let is_kept = |object: &Value| object["metadata"]["deletionTimestamp"].is_null();
            self.server.objects(kind).iter().all(|object| is_kept(object) && is_done(object))
        };
        all("persistentvolumeclaims/", |claim| {
            is_bound(claim) && claim["status"]["capacity"] == claim["spec"]["resources"]["requests"]
        }) && all("volumeattachments/", |attachment| attachment["status"]["attached"] == true)
            && all("volumesnapshots/", |snapshot| snapshot["status"]["readyToUse"] == true)
            && all("volumesnapshotcontents/", |content| content["status"]["readyToUse"] == true)
    }

    /// Waits until this holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        assert!(self.holds_soon(holds).await, "{what}: not within {LIMIT:?}");
    }

    /// Whether this holds before the end of the longest wait.
    pub(crate) async fn holds_soon(&self, holds: impl Fn() -> bool) -> bool {
        let waited = async {
            let mut pause = Duration::from_millis(5);
            while !holds() {
                tokio::time::sleep(pause).await;
                pause = (pause * 21 / 20).min(Duration::from_secs(1));
            }
        };
        tokio::time::timeout(LIMIT, waited).await.is_ok()
    }

    /// The events with this reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<String> {
        let events = self.server.objects("events/");
        let of_reason = events.iter().filter(|event| event["reason"] == reason);
        of_reason.map(|event| event["note"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts this crate as a process would.
    pub(crate) fn start(&self) -> Process {
        self.start_with(&[])
    }

    pub(crate) fn start_with(&self, flags: &[&str]) -> Process {
        self.spawn(flags, csi_controllers::internal::work_alone)
    }

    /// Starts one of several processes. It works once it has the leases.
    pub(crate) fn start_in_turn(&self) -> Process {
        self.spawn(&[], csi_controllers::internal::work_in_turn)
    }

    fn spawn<F>(&self, flags: &[&str], work: fn(Client, LocalCalls, ControllerArgs) -> F) -> Process
    where
        F: Future<Output = ()> + Send + 'static,
    {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            controllers: ControllerArgs,
        }
        let rates = ["controller", "--kube-api-qps=1000", "--kube-api-burst=1000"];
        let args = Flags::parse_from(rates.iter().chain(flags)).controllers;
        let (client, link) = self.server.linked_client();
        let task = tokio::spawn(work(client, self.local.clone(), args));
        Process { link, task }
    }
}

/// What users, administrators and the kubelet do: creates the object at this path with what its kind needs, or merges
/// this into it. `"delete"` deletes it as users do, and `"remove"` at once. With `"hold"` no change of a kind is seen,
/// until `"release"`; `"expire"` ends all watches, and their clients list again.
pub(crate) fn apply(server: &ApiServer, path: &str, change: Value) {
    match change.as_str() {
        Some("delete") => return server.begin_deletion(path),
        Some("remove") => return server.delete(path),
        Some("hold") => return server.hold_watch(path),
        Some("release") => return server.release_watch(path),
        Some("expire") => return server.expire_watches(),
        _ => {}
    }
    if server.get(path).is_none() {
        let (collection, name) = path.rsplit_once('/').unwrap();
        let kind = collection.split('/').next().unwrap();
        let mut object = json!({ "metadata": { "name": name } });
        if let Some(defaults) = DEFAULTS.get(kind) {
            json_patch::merge(&mut object, defaults);
        }
        json_patch::merge(&mut object, &change);
        server.create(collection, object);
    } else {
        server.edit(path, |object| json_patch::merge(object, &change));
    }
    if !change["status"].is_null() {
        server.edit_status(path, |status| json_patch::merge(status, &change["status"]));
    }
}

/// The path of an object of this kind.
pub(crate) fn path(kind: &str, object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/"));
    format!("{kind}{}{}", namespace.unwrap_or_default(), metadata["name"].as_str().unwrap())
}

pub(crate) fn is_bound(claim: &Value) -> bool {
    claim["status"]["phase"] == "Bound"
}

/// This crate at work. Dropped, it is killed: no request and no call begins any more.
pub(crate) struct Process {
    pub(crate) link: Link,
    task: JoinHandle<()>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.task.abort();
    }
}
