//! The records of volumes that are being created: one ConfigMap in the driver's namespace, with an entry for each claim
//! by its uid.
//!
//! One request writes all entries that wait for it, and removes those that are not needed any more. Only the leader
//! writes, so what it has in memory is what is true.
//!
//! An entry can stay for a while after the volume has its object. It is removed before that object can vanish: otherwise the
//! next process would take a volume that was deleted, or that an administrator keeps, for one that is being created.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_proto::v1::CreateVolumeRequest;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, TopologySelectorTerm};
use prost::Message as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::request::Plan;
use super::source::Source;
use super::topology::{self, Segment};
use super::{Failure, selected_node};
use crate::context::{CACHE_PAUSE, Context};
use crate::error::{Result, ensure, invalid};
use crate::keys;
use crate::objects::{Claim, Class, Key, SecretReference};
use crate::secrets::{self, PROVISIONER};

/// How long an entry that is not needed can stay.
const REMOVAL: Duration = Duration::from_secs(300);
/// The bytes of all entries. An object of the API server has at most 1 MiB.
const ROOM: usize = 900 << 10;

/// What is needed to finish or to undo a creation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(super) claim: Key,
    /// The place that was asked for; empty if the driver is not to be limited.
    place: Segment,
    /// What the other places follow from: the class's, and the node that the scheduler chose.
    allowed: Vec<TopologySelectorTerm>,
    node: Option<String>,
    pub(super) source: Option<Source>,
    secret: Option<SecretReference>,
    /// The request without its secrets and places, encoded: a large cluster has many places.
    request: ByteString,
    /// The volume's object without what the driver's answer adds.
    pub(super) object: Value,
}

impl Record {
    pub(super) fn new(claim: &Claim, class: &Class, plan: &Plan, object: Value) -> Self {
        let request = CreateVolumeRequest {
            secrets: BTreeMap::new(),
            accessibility_requirements: None,
            ..plan.request.clone()
        };
        Self {
            claim: Key::of(claim),
            place: plan.segment.clone(),
            allowed: class.allowed_topologies.clone(),
            node: selected_node(claim).map(str::to_owned),
            source: plan.source.clone(),
            secret: plan.secrets.get(PROVISIONER).cloned(),
            request: ByteString(request.encode_to_vec()),
            object,
        }
    }

    /// The same request again, with what the secret and the places are now.
    pub(super) async fn request(&self, context: &Context) -> Result<CreateVolumeRequest, Failure> {
        let unread = |error| invalid!("the request in the record can't be read: {error}");
        let mut request = CreateVolumeRequest::decode(&*self.request.0).map_err(unread)?;
        let node = self.node.as_deref();
        request.accessibility_requirements =
            topology::requirement(context, &self.claim.name, &self.allowed, node, Some(&self.place))?;
        request.secrets = secrets::read(&context.provisioner, self.secret.as_ref()).await?;
        Ok(request)
    }
}

pub(crate) struct Records {
    context: Arc<Context>,
    key: Key,
    state: Mutex<State>,
    /// Held during a request.
    turn: tokio::sync::Mutex<()>,
    has_ended: Notify,
}

#[derive(Default)]
struct State {
    is_read: bool,
    /// By uid, each with its text.
    entries: BTreeMap<String, (Record, String)>,
    /// The uids whose entries are not in the object as they are here.
    unwritten: BTreeSet<String>,
}

impl Records {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let key = Key::new(context.client.default_namespace(), &keys::creations(&context.driver.name));
        Self {
            context,
            key,
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            has_ended: Notify::new(),
        }
    }

    /// Reads the object, or makes it, however long that takes.
    pub(super) async fn read(&self) {
        while let Err(error) = self.load().await {
            tracing::warn!("no volumes are created: {error}");
            sleep(CACHE_PAUSE).await;
        }
        self.state().is_read = true;
    }

    async fn load(&self) -> Result<()> {
        let key = &self.key;
        let object = self.context.provisioner.read::<ConfigMap>(key).await?;
        let Some(object) = object else { return self.write().await };
        for (uid, text) in object.data.unwrap_or_default() {
            match serde_json::from_str(&text) {
                Ok(record) => drop(self.state().entries.insert(uid, (record, text))),
                Err(error) => tracing::warn!("pvc-{uid} can be left behind: its record in {key}: {error}"),
            }
        }
        Ok(())
    }

    pub(super) fn is_read(&self) -> bool {
        self.state().is_read
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, uid: &str) -> Option<Record> {
        self.state().entries.get(uid).map(|(record, _)| record.clone())
    }

    /// The uids and records of which this holds.
    pub(super) fn matching(&self, holds: impl Fn(&Record) -> bool) -> Vec<(String, Record)> {
        let state = self.state();
        let matching = state.entries.iter().filter(|(_, (record, _))| holds(record));
        matching.map(|(uid, (record, _))| (uid.clone(), record.clone())).collect()
    }

    /// Adds a record, which [`settle`](Self::settle) writes.
    pub(super) fn begin(&self, uid: &str, record: Record) -> Result<()> {
        let text = json!(record).to_string();
        let mut state = self.state();
        let used: usize = state.entries.values().map(|(_, text)| text.len()).sum();
        let count = state.entries.len();
        ensure!(used + text.len() <= ROOM, "{count} volumes are being created, and no more can be");
        state.entries.insert(uid.to_owned(), (record, text));
        state.unwritten.insert(uid.to_owned());
        Ok(())
    }

    /// Waits until the object says of this uid what is said here.
    pub(crate) async fn settle(&self, uid: &str) -> Result<()> {
        ensure!(self.is_read(), "the records of creations are not read yet");
        let _turn = self.turn.lock().await;
        let is_written = !self.state().unwritten.contains(uid);
        if is_written { Ok(()) } else { self.write().await }
    }

    /// Removes the record, in the object a little later. Returns the source that is not needed any more.
    pub(super) fn end(&self, uid: &str) -> Option<Source> {
        let mut state = self.state();
        let (ended, _) = state.entries.remove(uid)?;
        state.unwritten.insert(uid.to_owned());
        self.has_ended.notify_one();
        ended.source
    }

    /// Removes what no other request has removed, without an end.
    pub(super) async fn clean(&self) {
        loop {
            self.has_ended.notified().await;
            sleep(REMOVAL).await;
            let _turn = self.turn.lock().await;
            if self.state().unwritten.is_empty() {
                continue;
            }
            if let Err(error) = self.write().await {
                tracing::info!("records of creations are removed later: {error}");
                self.has_ended.notify_one();
            }
        }
    }

    /// Writes all that has changed.
    async fn write(&self) -> Result<()> {
        let requests = &self.context.provisioner;
        let changed = std::mem::take(&mut self.state().unwritten);
        let data = self.texts(&changed);
        let mut written = requests.merge::<ConfigMap>(&self.key, &json!({ "data": data })).await;
        if let Ok(None) = written {
            let all = self.state().entries.keys().cloned().collect();
            let metadata = json!({ "namespace": self.key.namespace, "name": self.key.name });
            let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self.texts(&all) });
            written = requests.create(&object).await;
        }
        let written = written.and_then(|object| object.ok_or_else(|| invalid!("{} was just made", self.key)));
        if written.is_err() {
            self.state().unwritten.extend(changed);
        }
        written.map(drop)
    }

    fn texts(&self, uids: &BTreeSet<String>) -> Value {
        let state = self.state();
        let text = |uid: &String| state.entries.get(uid).map_or(Value::Null, |(_, text)| json!(text));
        uids.iter().map(|uid| (uid.clone(), text(uid))).collect()
    }
}
