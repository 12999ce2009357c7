//! The context of a test: recorded calls to the driver, unique names, and the facts of the run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::client::Client;
use csi_proto::internal::is_final;
use csi_proto::v1;
use csi_proto::{Rpc, RpcRequest, Service};
use prost::Message;
use tonic::Code;
use v1::plugin_capability::service::Type as PluginService;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};

use crate::content::Kind;
use crate::failure::{Failure, Outcome};
use crate::judge::{AnswerRules, Violation};
use crate::ledger::Ledger;
use crate::offers::Capabilities;
use crate::settings::{CANARY, Settings};
use crate::sources::KnownSizes;
use crate::trace::Trace;
use crate::wire::{Refusal, send};

/// Everything that the tests of a run share. Clones share the same state.
#[derive(Clone)]
pub(crate) struct TestContext(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    node: Client,
    controller: Client,
    pub(crate) ledger: Ledger,
    pub(crate) sizes: KnownSizes,
    pub(crate) judge: AnswerRules,
    pub(crate) offers: Capabilities,
    /// The kinds and access modes that the driver supports.
    pub(crate) modes: BTreeSet<(Kind, Mode)>,
    pub(crate) violations: Mutex<Vec<(Violation, Failure)>>,
    pub(crate) trace: Trace,
    prefix: String,
    counter: AtomicU32,
}

impl std::ops::Deref for TestContext {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl TestContext {
    pub(crate) fn new(settings: Settings, ledger: Ledger) -> Self {
        let node = Client::new(&settings.endpoint);
        let controller = settings.controller_endpoint.as_ref().map_or_else(|| node.clone(), Client::new);
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let prefix = format!("{NAMES}{:x}", since.as_nanos() & 0xffff_ffff_ffff);
        Self(Arc::new(Shared {
            settings,
            node,
            controller,
            ledger,
            sizes: KnownSizes::default(),
            judge: AnswerRules::new(),
            offers: Capabilities::default(),
            modes: BTreeSet::new(),
            violations: Mutex::default(),
            trace: Trace::default(),
            prefix,
            counter: AtomicU32::new(0),
        }))
    }

    /// Only before the first test, while no clone exists.
    pub(crate) fn facts(&mut self) -> (&mut Capabilities, &mut BTreeSet<(Kind, Mode)>) {
        let shared = Arc::get_mut(&mut self.0).expect("no test runs yet");
        (&mut shared.offers, &mut shared.modes)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.node
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.prefix, self.counter.fetch_add(1, Ordering::SeqCst))
    }

    /// A capability of this kind, with one writer on one node, or the nearest supported mode.
    pub(crate) fn capability(&self, kind: Kind) -> v1::VolumeCapability {
        let writing = [
            Mode::SingleNodeWriter,
            Mode::SingleNodeMultiWriter,
            Mode::SingleNodeSingleWriter,
            Mode::MultiNodeMultiWriter,
            Mode::MultiNodeSingleWriter,
        ];
        let mode = writing.into_iter().find(|mode| self.modes.contains(&(kind, *mode)));
        self.capability_in(kind, mode.unwrap_or(Mode::SingleNodeWriter))
    }

    pub(crate) fn capability_in(&self, kind: Kind, mode: Mode) -> v1::VolumeCapability {
        let access_type = match kind {
            Kind::Files => AccessType::Mount(MountVolume {
                fs_type: self.settings.mount.fs_type.clone(),
                ..Default::default()
            }),
            Kind::Device => AccessType::Block(BlockVolume {}),
        };
        v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(access_type),
        }
    }

    /// The kind of volumes in tests where it does not matter.
    pub(crate) fn any_kind(&self) -> Kind {
        let files = self.modes.is_empty() || self.modes.iter().any(|(kind, _)| *kind == Kind::Files);
        if files { Kind::Files } else { Kind::Device }
    }

    /// As the provisioner's request: if the driver's volumes are not accessible from everywhere, it says where the
    /// volume will be used.
    pub(crate) fn create(&self, name: &str) -> v1::CreateVolumeRequest {
        let place = self.offers.place.clone();
        let place = place.filter(|_| self.offers.plugin(PluginService::VolumeAccessibilityConstraints));
        v1::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(v1::CapacityRange { required_bytes: self.settings.size, limit_bytes: 0 }),
            volume_capabilities: vec![self.capability(self.any_kind())],
            parameters: self.settings.parameters.of(Rpc::CreateVolume),
            accessibility_requirements: place.map(|place| v1::TopologyRequirement {
                requisite: vec![place.clone()],
                preferred: vec![place],
            }),
            ..Default::default()
        }
    }

    /// Asks for a volume that is not smaller than its source: a smaller one is OUT_OF_RANGE.
    pub(crate) fn create_from(&self, source: v1::VolumeContentSource) -> v1::CreateVolumeRequest {
        let required_bytes = self.settings.size.max(self.sizes.of(&source));
        v1::CreateVolumeRequest {
            capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes: 0 }),
            volume_content_source: Some(source),
            ..self.create(&self.name())
        }
    }

    pub(crate) fn premade(&self) -> Option<v1::Volume> {
        let (id, context) = self.settings.volume.as_ref()?;
        let volume_context = context.of(Rpc::CreateVolume);
        Some(v1::Volume { volume_id: id.clone(), volume_context, ..Default::default() })
    }

    /// A capability that the driver does not support, if there is one.
    pub(crate) fn unsupported(&self) -> Option<v1::VolumeCapability> {
        let modes = || Mode::ALL.into_iter().filter(|mode| !mode.needs_single_node_multi_writer());
        let all = [Kind::Files, Kind::Device].into_iter();
        let mut all = all.flat_map(|kind| modes().map(move |mode| (kind, mode)));
        let missing = all.find(|way| !self.modes.is_empty() && !self.modes.contains(way));
        missing.map(|(kind, mode)| self.capability_in(kind, mode))
    }

    pub(crate) async fn volume(&self) -> Outcome<v1::Volume> {
        self.created(self.create(&self.name())).await
    }

    pub(crate) async fn created(&self, request: v1::CreateVolumeRequest) -> Outcome<v1::Volume> {
        let answer = self.ok(request.clone()).await?;
        answer.volume.ok_or_else(|| self.failure(&request, "an answer without a volume", "a volume"))
    }

    pub(crate) fn failure<C: RpcRequest>(
        &self,
        request: &C,
        came: impl Into<String>,
        due: impl Into<String>,
    ) -> Box<Failure> {
        Box::new(Failure::new(due, came).sent(self.redacted_request(C::RPC, &request.encode_to_vec())))
    }

    /// Sends the call, and repeats it while it is ABORTED: the driver can still be busy with it, for example because
    /// it creates volumes in the background. Whether a driver does this is not the subject of a test.
    pub(crate) async fn settled<C: RpcRequest>(&self, request: &C) -> Result<C::Answer, Refusal> {
        let messages = self.settled_raw(C::RPC, &request.encode_to_vec()).await?;
        Ok(decoded::<C>(messages.first().map_or(&[], Vec::as_slice)))
    }

    pub(crate) async fn settled_raw(&self, rpc: Rpc, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut wait = self.retries();
        loop {
            match self.raw(rpc, bytes.to_vec(), self.settings.deadline).await {
                Err(refusal) if refusal.code == Code::Aborted && wait.again().await => {}
                answer => return answer,
            }
        }
    }

    /// Sends the call and returns its answer. Any other status than OK is a failure.
    pub(crate) async fn ok<C: RpcRequest>(&self, request: C) -> Outcome<C::Answer> {
        match self.settled(&request).await {
            Ok(answer) => Ok(answer),
            Err(refusal) => Err(self.unexpected(&request, &refusal, "OK")),
        }
    }

    /// The call was refused. That the driver has no room for it is no fault.
    pub(crate) fn unexpected<C: RpcRequest>(
        &self,
        request: &C,
        refusal: &Refusal,
        due: &str,
    ) -> Box<Failure> {
        let mut failure = self.failure(request, self.refusal_text(refusal), due);
        failure.lacks_room = refusal.lacks_room(C::RPC);
        failure
    }

    /// Makes the call again, as a caller that lost the first answer.
    pub(crate) async fn twice<C: RpcRequest>(&self, request: C) -> Outcome {
        self.ok(request.clone()).await?;
        self.ok(request).await.map(drop)
    }

    /// Expands a volume. The size in the answer must be this one at least.
    pub(crate) async fn expanded(
        &self,
        request: v1::ControllerExpandVolumeRequest,
        wanted: i64,
    ) -> Outcome<v1::ControllerExpandVolumeResponse> {
        let answer = self.ok(request.clone()).await?;
        let bytes = answer.capacity_bytes;
        self.check(&request, bytes >= wanted, format!("at least {wanted} bytes"), || {
            format!("{bytes} bytes")
        })?;
        Ok(answer)
    }

    /// Sends a call that can also be refused with one of these codes: it has no answer then.
    pub(crate) async fn ok_or<C: RpcRequest>(
        &self,
        request: C,
        codes: &[Code],
        due: &str,
    ) -> Outcome<Option<C::Answer>> {
        match self.settled(&request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(refusal) if codes.contains(&refusal.code) => Ok(None),
            Err(refusal) => Err(self.unexpected(&request, &refusal, due)),
        }
    }

    /// Whether the driver copies volumes in use.
    pub(crate) async fn in_use_is_ok<C: RpcRequest>(&self, alone: C) -> Outcome<bool> {
        let answer = self.ok_or(alone, &[Code::FailedPrecondition], "OK or FailedPrecondition").await?;
        Ok(answer.is_some())
    }

    /// Checks a condition on the answer to this request.
    pub(crate) fn check<C: RpcRequest>(
        &self,
        request: &C,
        holds: bool,
        due: impl Into<String>,
        came: impl FnOnce() -> String,
    ) -> Outcome {
        if holds { Ok(()) } else { Err(self.failure(request, came(), due)) }
    }

    /// Checks that the call is refused with one of these codes. `why` is the reason, for the failure's text.
    pub(crate) async fn refused<C: RpcRequest>(&self, request: C, codes: &[Code], why: &str) -> Outcome {
        let due = || {
            let names: Vec<String> = codes.iter().map(|code| format!("{code:?}")).collect();
            format!("{}: {why}", names.join(" or "))
        };
        let answer = if codes.contains(&Code::Aborted) {
            self.call(request.clone()).await
        } else {
            self.settled(&request).await
        };
        match answer {
            Err(refusal) if codes.contains(&refusal.code) => Ok(()),
            Err(refusal) => Err(self.unexpected(&request, &refusal, &due())),
            Ok(answer) => {
                let answer = self.redacted_answer(C::RPC, &answer.encode_to_vec());
                Err(self.failure(&request, format!("OK {answer}"), due()))
            }
        }
    }

    /// Checks that the call fails, with any code: for a condition that has no code in the spec.
    pub(crate) async fn fails<C: RpcRequest>(&self, request: C, why: &str) -> Outcome {
        match self.settled(&request).await {
            Err(_) => Ok(()),
            Ok(answer) => {
                let answer = self.redacted_answer(C::RPC, &answer.encode_to_vec());
                Err(self.failure(&request, format!("OK {answer}"), format!("an error: {why}")))
            }
        }
    }

    pub(crate) async fn call<C: RpcRequest>(&self, request: C) -> Result<C::Answer, Refusal> {
        self.call_within(request, self.settings.deadline).await
    }

    pub(crate) async fn call_within<C: RpcRequest>(
        &self,
        request: C,
        deadline: Duration,
    ) -> Result<C::Answer, Refusal> {
        let messages = self.raw(C::RPC, request.encode_to_vec(), deadline).await?;
        Ok(decoded::<C>(messages.first().map_or(&[], Vec::as_slice)))
    }

    pub(crate) async fn stream<C: RpcRequest>(&self, request: C) -> Result<Vec<C::Answer>, Refusal> {
        let messages = self.raw(C::RPC, request.encode_to_vec(), self.settings.deadline).await?;
        Ok(messages.iter().map(|bytes| decoded::<C>(bytes)).collect())
    }

    /// Sends all requests at the same time, and returns the answers in the order of the requests.
    pub(crate) async fn at_once<C: RpcRequest>(&self, requests: Vec<C>) -> Vec<Result<C::Answer, Refusal>> {
        // Dropping the set aborts all of its calls, so no call outlives a caller that gives up.
        let mut calls = tokio::task::JoinSet::new();
        for (at, request) in requests.into_iter().enumerate() {
            let ctx = self.clone();
            calls.spawn(async move { (at, ctx.call(request).await) });
        }
        let mut answers = calls.join_all().await;
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// All requests are sent through this function.
    pub(crate) async fn raw(
        &self,
        rpc: Rpc,
        bytes: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let sent = self.with_hidden_values(rpc, &bytes);
        let channel = match rpc.service() {
            Service::Identity | Service::Node => self.node.channel(),
            _ => self.controller.channel(),
        };
        self.ledger.begins(rpc, &bytes);
        let at = self.trace.begins(rpc, &bytes);
        let result = send(&channel, rpc, sent, deadline).await;
        self.trace.ends(at, result.as_ref().map_or_else(|refusal| refusal.code, |_| Code::Ok));
        let secrets: Vec<String> =
            self.settings.secrets.values().cloned().chain([CANARY.to_owned()]).collect();
        let (violation, came) = match &result {
            Ok(messages) => {
                for message in messages {
                    self.ledger.succeeded(rpc, &bytes, message);
                    self.sizes.learn(rpc, message);
                }
                let wrong =
                    messages.iter().find_map(|message| self.judge.answer(rpc, &bytes, message, &secrets));
                (
                    wrong,
                    messages.first().map_or_else(String::new, |message| self.redacted_answer(rpc, message)),
                )
            }
            Err(refusal) => {
                if is_final(refusal.code) {
                    self.ledger.refused(rpc, &bytes);
                }
                (self.judge.status(rpc, refusal, &secrets), self.refusal_text(refusal))
            }
        };
        if let Some((violation, what)) = violation {
            let failure = Failure::new("the rules for every answer", format!("{what}: {came}"))
                .sent(self.redacted_request(rpc, &bytes));
            self.violations.lock().expect("no panic under it").push((violation, failure));
        }
        result
    }

    /// A request as text, without the secrets that are sent with it.
    pub(crate) fn redacted_request(&self, rpc: Rpc, bytes: &[u8]) -> String {
        self.hide(&format!("{rpc} {}", self.judge.request_text(rpc, bytes)))
    }

    pub(crate) fn redacted_answer(&self, rpc: Rpc, bytes: &[u8]) -> String {
        self.hide(&self.judge.answer_text(rpc, bytes))
    }

    pub(crate) fn refusal_text(&self, refusal: &Refusal) -> String {
        self.hide(&format!("{:?}: {:?}", refusal.code, refusal.message))
    }
}

/// The prefix of the names of all runs.
pub(crate) const NAMES: &str = "csi-conformance-";

fn decoded<C: RpcRequest>(bytes: &[u8]) -> C::Answer {
    // A message that can't be decoded is reported by the judge, which sees every answer.
    C::Answer::decode(bytes).unwrap_or_default()
}
