//! The start of a run: waits for the driver, and asks for its capabilities.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use csi_proto::client::Client;
use csi_proto::v1;
use csi_proto::{ControllerCapability, Endpoint, RpcRequest};
use tonic::Code;
use v1::plugin_capability::service::Type as PluginService;
use v1::volume_capability::access_mode::Mode;

use crate::clean_up::clean_up;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::Failure;
use crate::kit::Kit;
use crate::ledger::Ledger;
use crate::offers::{Capabilities, numbers};
use crate::run::CouldNotRun;
use crate::settings::MountAccess;
use crate::wire::Refusal;

/// How often, and at which interval, the kit tries to lock a journal that another run holds.
const MAX_ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// How long a plugin can take to start, whatever the deadline of a call is.
const START: Duration = Duration::from_secs(60);

impl Kit {
    pub(crate) async fn connected(&self) -> Result<TestContext, CouldNotRun> {
        for directory in [&self.0.staging, &self.0.target].into_iter().flatten() {
            if self.0.mount_access == MountAccess::Here && !directory.is_dir() {
                return Err(CouldNotRun(format!(
                    "{} is not a directory: create it first",
                    directory.display()
                )));
            }
            if !directory.is_absolute() || directory.to_str().is_none() {
                return Err(CouldNotRun(format!(
                    "{}: an absolute path in UTF-8 is needed",
                    directory.display()
                )));
            }
        }
        if self.0.mount.mount_flags.iter().any(|flag| flag == "ro") {
            return Err(CouldNotRun(
                "the mount flag ro: the tests write to volumes, so leave it out".to_owned(),
            ));
        }
        let ledger = self.ledger().await?;
        let ctx = TestContext::new(self.0.clone(), ledger);
        let ready = ctx.client().ready(self.0.deadline.max(START)).await;
        ready.map_err(|error| CouldNotRun(format!("{}: {error}", self.0.endpoint)))?;
        Ok(ctx)
    }

    pub(crate) async fn ledger(&self) -> Result<Ledger, CouldNotRun> {
        let mut attempts = 0;
        loop {
            let error = match Ledger::open(self.0.journal.clone()) {
                Ok(ledger) => return Ok(ledger),
                Err(error) => error,
            };
            if error.kind() != ErrorKind::WouldBlock {
                return Err(CouldNotRun(format!("the journal can't be used: {error}")));
            }
            // A stopped run of the same process releases the journal soon.
            if attempts == MAX_ATTEMPTS {
                let path = self.0.journal.as_deref().unwrap_or(Path::new("the journal"));
                return Err(CouldNotRun(format!(
                    "another run uses {}: wait for its end, or name another journal",
                    path.display()
                )));
            }
            attempts += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(crate) async fn discover(&self) -> Result<TestContext, CouldNotRun> {
        let mut ctx = self.connected().await?;
        if let Some(journal) = ctx.ledger.journal().filter(|_| !ctx.ledger.all().is_empty()) {
            let path = journal.display();
            return Err(CouldNotRun(format!(
                "{path} lists what an earlier run has left: undo it first (--clean-up), or remove the file"
            )));
        }
        let info = answer(&ctx, v1::GetPluginInfoRequest {}).await?;
        let plugin = answer(&ctx, v1::GetPluginCapabilitiesRequest {}).await?;
        let mut offers =
            Capabilities { driver: info.name, version: info.vendor_version, ..Default::default() };
        offers.take_plugin(plugin);
        if offers.plugin(PluginService::ControllerService) {
            let answer = answer(&ctx, v1::ControllerGetCapabilitiesRequest {}).await?;
            offers.controller = numbers!(answer, v1::controller_service_capability::Type::Rpc);
        }
        if offers.plugin(PluginService::GroupControllerService) {
            let answer = answer(&ctx, v1::GroupControllerGetCapabilitiesRequest {}).await?;
            offers.group = numbers!(answer, v1::group_controller_service_capability::Type::Rpc);
        }
        discover_node(&ctx, &mut offers).await;
        if let Some(endpoint) = &self.0.second_node {
            offers.second_node_id = Some(second_node_id(&ctx, endpoint).await?);
        }
        *ctx.facts().0 = offers;
        let survey = Survey::of(&ctx).await;
        let (offers, modes) = ctx.facts();
        offers.uses_unclear = survey.unclear;
        offers.no_volume = survey.first_refusal.filter(|_| survey.modes.is_empty());
        *modes = survey.modes;
        Ok(ctx)
    }
}

/// The answer to a call without which no test can run.
async fn answer<C: RpcRequest>(ctx: &TestContext, request: C) -> Result<C::Answer, CouldNotRun> {
    let answer = ctx.call(request).await;
    answer.map_err(|refusal| CouldNotRun(format!("{} failed: {}", C::RPC, ctx.refusal_text(&refusal))))
}

async fn discover_node(ctx: &TestContext, offers: &mut Capabilities) {
    match ctx.call(v1::NodeGetCapabilitiesRequest {}).await {
        Ok(answer) => {
            offers.has_node = true;
            offers.node = numbers!(answer, v1::node_service_capability::Type::Rpc);
        }
        Err(refusal) => {
            if refusal.code != Code::Unimplemented {
                let due = "the node's capabilities, or Unimplemented if there is no node service";
                let request = v1::NodeGetCapabilitiesRequest {};
                offers.node_unclear = Some(*ctx.failure(&request, ctx.refusal_text(&refusal), due));
            }
            return;
        }
    }
    let info = ctx.call(v1::NodeGetInfoRequest {}).await.unwrap_or_default();
    offers.node_id = info.node_id;
    offers.max_volumes = info.max_volumes_per_node;
    offers.place = info.accessible_topology.filter(|place| !place.segments.is_empty());
}

async fn second_node_id(ctx: &TestContext, endpoint: &Endpoint) -> Result<String, CouldNotRun> {
    let client = Client::new(endpoint);
    let failed = |what: String| CouldNotRun(format!("the second node, {endpoint}: {what}"));
    client.ready(ctx.settings.deadline.max(START)).await.map_err(|error| failed(error.to_string()))?;
    let answer = client.call(v1::NodeGetInfoRequest {}).await;
    let answer =
        answer.map_err(|status| failed(format!("NodeGetInfo: {}", ctx.refusal_text(&status.into()))))?;
    Ok(answer.node_id)
}

/// The capabilities that volumes can be used with. For each kind a volume is created and validated in each
/// access mode. A driver can make volumes of several sorts, so a volume is also created for each mode that the first
/// one does not have. An existing volume is validated too. Without a controller service, an existing volume is
/// taken to have a filesystem and a single writer.
#[derive(Default)]
struct Survey {
    modes: BTreeSet<(Kind, Mode)>,
    /// The first CreateVolume that was refused, with its status.
    first_refusal: Option<String>,
    /// The first refusal for another reason than an unsupported capability.
    unclear: Option<Failure>,
}

impl Survey {
    async fn of(ctx: &TestContext) -> Self {
        let mut survey = Self::default();
        let makes = ctx.offers.controller(ControllerCapability::CreateDeleteVolume);
        match ctx.premade().filter(|_| !makes) {
            Some(volume) if ctx.offers.plugin(PluginService::ControllerService) => {
                survey.ask(ctx, &volume, Kind::Files, &modes(ctx)).await;
                survey.ask(ctx, &volume, Kind::Device, &modes(ctx)).await;
            }
            Some(_) => drop(survey.modes.insert((Kind::Files, Mode::SingleNodeWriter))),
            None if makes => {
                survey.make(ctx, Kind::Files).await;
                survey.make(ctx, Kind::Device).await;
            }
            None => {}
        }
        survey
    }

    /// Creates a volume of this kind, in the first mode that the driver accepts, and validates its modes.
    async fn make(&mut self, ctx: &TestContext, kind: Kind) {
        for first in [
            Mode::SingleNodeWriter,
            Mode::MultiNodeMultiWriter,
            Mode::MultiNodeReaderOnly,
            Mode::SingleNodeReaderOnly,
        ] {
            if let Some(volume) = self.created(ctx, kind, first).await {
                self.modes.insert((kind, first));
                self.ask(ctx, &volume, kind, &modes(ctx)).await;
                for mode in modes(ctx) {
                    // The driver can have little room.
                    clean_up(ctx).await;
                    if !self.modes.contains(&(kind, mode))
                        && let Some(volume) = self.created(ctx, kind, mode).await
                    {
                        self.ask(ctx, &volume, kind, &[mode]).await;
                    }
                }
                break;
            }
        }
        clean_up(ctx).await;
    }

    async fn created(&mut self, ctx: &TestContext, kind: Kind, mode: Mode) -> Option<v1::Volume> {
        let volume_capabilities = vec![ctx.capability_in(kind, mode)];
        let request = v1::CreateVolumeRequest { volume_capabilities, ..ctx.create(&ctx.name()) };
        match ctx.settled(&request).await {
            Ok(answer) => Some(answer.volume.unwrap_or_default()),
            Err(refusal) => {
                self.first_refusal.get_or_insert_with(|| ctx.refusal_text(&refusal));
                self.refused(ctx, &request, &refusal);
                None
            }
        }
    }

    /// Asks the driver in which of these modes the volume can be used.
    async fn ask(&mut self, ctx: &TestContext, volume: &v1::Volume, kind: Kind, modes: &[Mode]) {
        for &mode in modes {
            let request = v1::ValidateVolumeCapabilitiesRequest {
                volume_id: volume.volume_id.clone(),
                volume_context: volume.volume_context.clone(),
                volume_capabilities: vec![ctx.capability_in(kind, mode)],
                ..Default::default()
            };
            match ctx.settled(&request).await {
                Ok(answer) if answer.confirmed.is_some() => drop(self.modes.insert((kind, mode))),
                Ok(_) => {}
                Err(refusal) => self.refused(ctx, &request, &refusal),
            }
        }
    }

    fn refused<C: RpcRequest>(&mut self, ctx: &TestContext, request: &C, refusal: &Refusal) {
        if !matches!(refusal.code, Code::InvalidArgument | Code::Unimplemented | Code::ResourceExhausted) {
            let due = "OK, or InvalidArgument if the driver does not support this capability";
            self.unclear.get_or_insert_with(|| *ctx.failure(request, ctx.refusal_text(refusal), due));
        }
    }
}

/// The modes that the driver can know.
fn modes(ctx: &TestContext) -> Vec<Mode> {
    let several = ctx.offers.controller(ControllerCapability::SingleNodeMultiWriter);
    Mode::ALL.into_iter().filter(|mode| several || !mode.needs_single_node_multi_writer()).collect()
}
