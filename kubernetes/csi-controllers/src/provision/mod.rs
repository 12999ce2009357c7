//! Volumes for claims: what external-provisioner does when it creates.
//!
//! A claim has a *record* from before the first CreateVolume until the volume's object exists. So no volume is lost, and
//! none is made twice:
//!
//! | the process stops after | what is left | the next one |
//! |---|---|---|
//! | the source's finalizer | the finalizer | removes it once no claim of the source's namespace waits for it |
//! | the record | the record | makes the recorded call, although the claim is gone or its class another one meanwhile |
//! | CreateVolume | that, and a volume | gets the same volume by the same call |
//! | DeleteVolume of an unusable volume | the record | makes it again, and deletes it again |
//! | a final error of CreateVolume | the record | repeats the call, and gets the same error |
//! | the volume's object | an object, and the record | removes the record; of a deleted claim, Kubernetes releases the volume |
//! | the record's removal | nothing | finds the claim bound, or the object by its name |
//!
//! A record is removed with the next request that writes one, or five minutes later, but before the volume is deleted.
//!
//! A cache that is behind can't do harm: what this process created is remembered until the cache has it, and Kubernetes
//! releases a volume whose claim is gone or has another one.

mod decide;
mod protection;
mod record;
mod request;
mod source;
mod topology;
mod volume;

pub(crate) use record::Records;
pub(crate) use request::names;
pub(crate) use topology::{Cluster, Segment};

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use csi_kube::Severity;
use csi_proto::Rpc;
use csi_proto::v1::{self, CreateVolumeRequest, DeleteVolumeRequest};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use self::decide::{Action, Known, decide, provisioner};
use self::record::Record;
use self::source::Source;
use crate::cache::Change;
use crate::calls::{Outcome, outcome};
use crate::context::{CACHE_PAUSE, Context, Room};
use crate::error::{Error, Result, invalid};
use crate::keys;
use crate::memory::{self, Memory};
use crate::objects::{Claim, Class, Key, Kind as _, Volume};
use crate::queue::{Next, Queue};

const WORKERS: usize = 100;
/// How often the deletion of a volume that can't be used is tried at once.
const DELETIONS: usize = 5;

/// Why a volume was not created, and what follows.
#[derive(Debug)]
struct Failure {
    error: Error,
    then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Something is not as it must be, or not yet, or CreateVolume failed.
    Retry,
    /// The chosen node is gone.
    Reschedule,
    /// The volume can't be the claim's: it is deleted, or another object has it.
    StartAgain,
    /// The claim's source is for another program.
    Leave,
}

impl Failure {
    /// What it says of the storage. Without an answer of CreateVolume it says nothing about an earlier call.
    fn outcome(&self) -> Outcome {
        match (self.then, self.error.code()) {
            (Then::StartAgain, _) => Outcome::Final,
            (_, Some(code)) => outcome(Rpc::CreateVolume, code),
            (_, None) => Outcome::Unknown,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, then: Then::Retry }
    }
}

/// The name of a claim's volume, for the driver and as an object.
fn volume_name(uid: &str) -> String {
    format!("pvc-{uid}")
}

/// The room of a class's volume in these places.
fn room(class: &str, places: &[v1::Topology]) -> Room {
    Room { class: class.to_owned(), segments: places.iter().map(|place| place.segments.clone()).collect() }
}

fn selected_node(claim: &Claim) -> Option<&str> {
    claim.annotation(keys::SELECTED_NODE).filter(|node| !node.is_empty())
}

pub(crate) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) -> Arc<Records> {
    let records = Arc::new(Records::new(Arc::clone(context)));
    let sources = protection::start(context, &records, tasks);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let part = Arc::new(Provisioner {
        context: Arc::clone(context),
        identity: format!("{}-{}-{}", now.as_millis(), now.subsec_nanos() % 10_000, context.driver.name),
        known: Memory::default(),
        records: Arc::clone(&records),
        sources,
    });
    let step = async |part: Arc<Provisioner>, key| part.step(&key).await;
    let queue = context.work(tasks, "claims", WORKERS, part, step);
    watch(context, Arc::clone(&records), queue.clone());
    let read = Arc::clone(&records);
    tasks.spawn(async move {
        read.read().await;
        // Their claims can be gone since the last process.
        for (_, record) in read.matching(|_| true) {
            queue.add(record.claim);
        }
        read.clean().await;
    });
    records
}

fn watch(context: &Context, records: Arc<Records>, queue: Queue<Key>) {
    let driver = context.driver.name.clone();
    let is_ours = move |claim: &Claim| {
        provisioner(claim) == Some(driver.as_str()) || records.get(claim.uid()).is_some()
    };
    let is_own = is_ours.clone();
    // What this part writes itself must not shorten the pause after a failure.
    let matters = move |before: Option<&Claim>, now: &Claim| {
        is_own(now) && before.is_none_or(|before| state(before) != state(now))
    };
    let claims = context.caches.claims.clone();
    claims.add_changed(&queue, matters);
    context.caches.classes.on_change(move |change| {
        let Change::Set { now: class, .. } = change else { return };
        for claim in claims.all() {
            if claim.class_name() == Some(class.name()) && is_ours(&claim) {
                queue.add(Key::of(&*claim));
            }
        }
    });
}

/// What matters here of a claim.
fn state(claim: &Claim) -> (&str, &str, bool, Option<&str>, Option<&str>) {
    let bound = &*claim.spec.volume_name;
    (claim.uid(), bound, claim.is_deleting(), selected_node(claim), provisioner(claim))
}

struct Provisioner {
    context: Arc<Context>,
    /// Says which process made a volume.
    identity: String,
    /// What is known of the claim with this uid: one that was deleted and made again is another one.
    known: Memory<Key, (Box<str>, Known)>,
    records: Arc<Records>,
    /// Sources that can be without a use.
    sources: Queue<Source>,
}

impl Provisioner {
    /// The record is not needed any more: the volume has its object, or does not exist.
    fn finish(&self, uid: &str) {
        if let Some(source) = self.records.end(uid) {
            self.sources.add(source);
        }
    }

    async fn step(&self, key: &Key) -> Result<Next> {
        let claims = &self.context.caches.claims;
        if claims.is_behind(key) || !self.records.is_read() {
            return Ok(Next::After(CACHE_PAUSE));
        }
        let claim = claims.get(key);
        let next = if let Some(claim) = &claim {
            self.step_of(claim).await?
        } else {
            self.known.remove(key);
            Next::Done
        };
        let waiting = claim.as_ref().filter(|claim| claim.waits_for_volume()).map(|claim| claim.uid());
        for (uid, record) in self.records.matching(|record| record.claim == *key) {
            if waiting != Some(&*uid) {
                self.abandon(&uid, &record).await?;
            }
        }
        Ok(next)
    }

    /// Finishes what was begun for a claim that is gone, is being deleted, or has another volume. Kubernetes releases the
    /// volume, and it goes the way of its class.
    async fn abandon(&self, uid: &str, record: &Record) -> Result<()> {
        let context = &*self.context;
        let object: Option<Volume> = context.provisioner.read(&Key::new("", &volume_name(uid))).await?;
        let own = object.filter(|object| object.source_of(&context.driver.name).is_some());
        if !own.is_some_and(|object| object.is_of(uid)) {
            let request = record.request(context).await.map_err(|failure| failure.error)?;
            match self.complete(uid, record, request).await {
                Err(failure) if failure.outcome() == Outcome::Unknown => return Err(failure.error),
                _ => {}
            }
        }
        self.finish(uid);
        Ok(())
    }

    async fn step_of(&self, claim: &Claim) -> Result<Next> {
        let caches = &self.context.caches;
        let has_record = self.records.get(claim.uid()).is_some();
        if !claim.spec.volume_name.is_empty() && !has_record {
            // All that was written is in the cache.
            self.known.remove(&Key::of(claim));
            return Ok(Next::Done);
        }
        let class = claim.class_name().and_then(|name| caches.classes.named(name));
        let volume = caches.volumes.named(&volume_name(claim.uid()));
        let known = self.known.get(&Key::of(claim)).filter(|(uid, _)| **uid == *claim.uid());
        let known = known.map(|(_, known)| known);
        let driver = &self.context.driver.name;
        let action = decide(driver, claim, has_record, class.as_deref(), volume.as_deref(), known.as_ref());
        match action {
            Action::Create => self.attempt(claim, class.as_deref()).await,
            Action::Finish => {
                self.finish(claim.uid());
                Ok(Next::Done)
            }
            Action::Delay(pause) => Ok(Next::After(pause)),
            Action::Ignore => Ok(Next::Done),
        }
    }

    async fn attempt(&self, claim: &Claim, class: Option<&Class>) -> Result<Next> {
        let key = Key::of(claim);
        let note = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.context.publish(claim, Severity::Normal, "Provisioning", note);
        let begun = Instant::now();
        let provisioned = self.provision(claim, class).await;
        let took = provisioned.is_ok().then(|| begun.elapsed());
        let source = claim.spec.data_source.as_ref().map(|source| source.kind.clone());
        let class_name = claim.class_name().unwrap_or_default().to_owned();
        let labels = [("class", class_name), ("source", source.unwrap_or_default())];
        self.context.calls.metrics.creations.count(&labels, took);
        let Err(failure) = provisioned else { return Ok(Next::Done) };
        let outcome = failure.outcome();
        let Failure { error, then } = failure;
        if then == Then::Leave {
            self.context.publish(claim, Severity::Normal, "Provisioning", error.to_string());
            return Ok(Next::Done);
        }
        let delayed = "Volume provisioning failed with infeasible error. Retries will be delayed. ";
        let delayed = if outcome == Outcome::Infeasible { delayed } else { "" };
        let note = format!("{delayed}{error}");
        self.context.publish(claim, Severity::Warning, "ProvisioningFailed", note);
        if then == Then::Reschedule {
            return self.reschedule(claim).await;
        }
        if outcome == Outcome::Unknown {
            return Ok(Next::Again);
        }
        let failure = memory::Failure::new(outcome, error.code());
        let class = class.map_or("", |class| class.uid());
        let known = Known::NothingLeft { failure, class: class.to_owned() };
        self.known.set(key, (claim.uid().into(), known));
        self.finish(claim.uid());
        if error.code() == Some(Code::ResourceExhausted) {
            drop(self.context.capacity_changed.send(room(claim.class_name().unwrap_or_default(), &[])));
            if self.context.driver.has_topology {
                return self.reschedule(claim).await;
            }
        }
        Ok(failure.pause().map_or(Next::Again, Next::After))
    }

    /// Creates the volume and its object.
    async fn provision(&self, claim: &Claim, class: Option<&Class>) -> Result<(), Failure> {
        let context = &*self.context;
        let (record, request) = match self.records.get(claim.uid()) {
            // With other arguments, the volume of an earlier call can be lost.
            Some(record) => (record.clone(), record.request(context).await?),
            None => self.begin(claim, class).await?,
        };
        if let Some(source) = &record.source {
            protection::protect(context, source).await?;
        }
        let note = format!("Successfully provisioned volume {}", request.name);
        self.complete(claim.uid(), &record, request).await?;
        self.known.set(Key::of(claim), (claim.uid().into(), Known::Saved));
        context.publish(claim, Severity::Normal, "ProvisioningSucceeded", note);
        self.finish(claim.uid());
        Ok(())
    }

    /// Chooses all of a volume. Its source is kept from here on.
    async fn begin(
        &self,
        claim: &Claim,
        class: Option<&Class>,
    ) -> Result<(Record, CreateVolumeRequest), Failure> {
        let context = &*self.context;
        let class = class.ok_or_else(|| invalid!("its class does not exist"))?;
        let plan = request::plan(context, claim, class).await?;
        let object = volume::template(&context.driver, &self.identity, claim, class, &plan);
        let record = Record::new(claim, class, &plan, object);
        self.records.begin(claim.uid(), record.clone())?;
        self.known.remove(&Key::of(claim));
        Ok((record, plan.request))
    }

    /// Creates a volume, once its record is written, and its object.
    async fn complete(
        &self,
        uid: &str,
        record: &Record,
        request: CreateVolumeRequest,
    ) -> Result<(), Failure> {
        let context = &*self.context;
        self.records.settle(uid).await?;
        let answer = context.calls.call(request.clone()).await.map_err(Error::from)?;
        let missing = || invalid!("the driver's answer to CreateVolume has no volume");
        let volume = answer.volume.ok_or_else(missing)?;
        let class = record.object["spec"]["storageClassName"].as_str().unwrap_or_default();
        drop(context.capacity_changed.send(room(class, &volume.accessible_topology)));
        // Two objects must not have one volume: with the first of them it would be deleted.
        let driver = &context.driver.name;
        let has_it = |one: &Volume| one.name() != request.name && one.has_handle(driver, &volume.volume_id);
        if let Some(other) = context.caches.volumes.find(has_it) {
            let error = invalid!("PersistentVolume {} has this volume", other.name());
            return Err(Failure { error, then: Then::StartAgain });
        }
        if let Some(fault) = volume::fault(&request, &volume) {
            return Err(self.undo(&request, &volume, fault).await);
        }
        self.save(uid, record, &request, &volume).await
    }

    async fn save(
        &self,
        uid: &str,
        record: &Record,
        request: &CreateVolumeRequest,
        volume: &v1::Volume,
    ) -> Result<(), Failure> {
        let name = &request.name;
        let requests = &self.context.provisioner;
        let saving = |error: Error| invalid!("error saving volume {name}: {error}");
        let claim = || self.context.caches.claims.get(&record.claim);
        let is_unwanted = || claim().is_none_or(|claim| claim.uid() != uid || !claim.waits_for_volume());
        let object = volume::object(&record.object, request, volume);
        let created: Option<Volume> = match requests.create(&object).await {
            Ok(created) => created,
            // Else a volume that nobody wants would stay as long as the cluster refuses its object.
            Err(Error::Api(error)) if !error.is_transient() && is_unwanted() => {
                return Err(self.undo(request, volume, saving(error.into()).to_string()).await);
            }
            Err(error) => return Err(saving(error).into()),
        };
        if created.is_some() {
            return Ok(());
        }
        let found: Option<Volume> = requests.read(&Key::new("", name)).await.map_err(saving)?;
        let Some(found) = found else {
            return Err(saving(invalid!("it existed, and is gone now")).into());
        };
        let fault = format!("error saving volume {name}: a PersistentVolume of this name exists");
        if !found.has_handle(&self.context.driver.name, &volume.volume_id) {
            // So nothing names the new volume.
            let fault = format!("{fault} for another volume");
            return Err(self.undo(request, volume, fault).await);
        }
        if !found.is_of(uid) {
            let error = invalid!("{fault} for another claim");
            return Err(Failure { error, then: Then::StartAgain });
        }
        Ok(())
    }

    /// Deletes a volume that can't be the claim's, unless it has the object of an earlier call.
    async fn undo(&self, created: &CreateVolumeRequest, volume: &v1::Volume, fault: String) -> Failure {
        let request =
            DeleteVolumeRequest { volume_id: volume.volume_id.clone(), secrets: created.secrets.clone() };
        let name = &created.name;
        let object: Option<Volume> = match self.context.provisioner.read(&Key::new("", name)).await {
            Ok(object) => object,
            Err(error) => return error.into(),
        };
        let driver = &self.context.driver.name;
        if object.is_some_and(|object| object.has_handle(driver, &volume.volume_id)) {
            return invalid!("{fault}, and {name} has it").into();
        }
        let mut deleted = Ok(v1::DeleteVolumeResponse {});
        for _ in 0..DELETIONS {
            deleted = self.context.calls.call(request.clone()).await;
            if deleted.is_ok() {
                break;
            }
        }
        match deleted {
            Ok(_) => Failure { error: Error::Invalid(fault), then: Then::StartAgain },
            Err(status) => {
                let error = Error::from(status);
                invalid!("{fault}. Cleanup of volume {name} failed, volume is orphaned: {error}").into()
            }
        }
    }

    /// Asks the scheduler for another node, if it chose this one.
    async fn reschedule(&self, claim: &Claim) -> Result<Next> {
        if selected_node(claim).is_none() {
            return Ok(Next::Again);
        }
        let removal = json!({ "metadata": { "annotations": { (keys::SELECTED_NODE): null } } });
        let is_same = |now: &Claim| selected_node(now) == selected_node(claim);
        let change = |now: &Claim| Ok(is_same(now).then(|| removal.clone()));
        self.context.provisioner.edit(claim, change).await?;
        self.known.remove(&Key::of(claim));
        Ok(Next::Done)
    }
}
