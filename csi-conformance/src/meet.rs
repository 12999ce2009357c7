//! The start of a run: waits for the driver, and asks for its capabilities.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use csi_core::client::Client;
use csi_core::{ControllerCapability, Endpoint};
use csi_proto::v1;
use tonic::Code;
use v1::plugin_capability::service::Type as PluginService;

use crate::clean_up::clean_up;
use crate::cx::Cx;
use crate::failure::Failure;
use crate::kit::Kit;
use crate::ledger::Ledger;
use crate::offers::{Offers, numbers};
use crate::run::CouldNotRun;
use crate::settings::MountAccess;
use crate::test::Kind;
use crate::wire::{Call, Refusal};

/// How often, and at which interval, the kit tries to lock a journal that another run holds.
const ROUNDS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

impl Kit {
    pub(crate) async fn connected(&self) -> Result<Cx, CouldNotRun> {
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
        let cx = Cx::new(self.0.clone(), ledger);
        let ready = cx.client().ready(self.0.deadline).await;
        ready.map_err(|error| CouldNotRun(format!("{}: {error}", self.0.endpoint)))?;
        Ok(cx)
    }

    async fn ledger(&self) -> Result<Ledger, CouldNotRun> {
        let mut rounds = 0;
        loop {
            let error = match Ledger::open(self.0.journal.clone()) {
                Ok(ledger) => return Ok(ledger),
                Err(error) => error,
            };
            if error.kind() != ErrorKind::WouldBlock {
                return Err(CouldNotRun(format!("the journal can't be used: {error}")));
            }
            // A stopped run of the same process releases the journal soon.
            if rounds == ROUNDS {
                let path = self.0.journal.as_deref().unwrap_or(Path::new("the journal"));
                return Err(CouldNotRun(format!(
                    "another run uses {}: wait for its end, or name another journal",
                    path.display()
                )));
            }
            rounds += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks the driver for its capabilities.
    pub(crate) async fn meet(&self) -> Result<Cx, CouldNotRun> {
        let mut cx = self.connected().await?;
        if let Some(journal) = cx.ledger.journal().filter(|_| !cx.ledger.all().is_empty()) {
            let path = journal.display();
            return Err(CouldNotRun(format!(
                "{path} is the journal of a run that was killed: clean up after that run first, or remove \
                 the file"
            )));
        }
        let told =
            |what: &str, cx: &Cx, refusal| CouldNotRun(format!("{what} failed: {}", cx.told(&refusal)));
        let info = cx.call(v1::GetPluginInfoRequest {}).await.map_err(|r| told("GetPluginInfo", &cx, r))?;
        let plugin = cx.call(v1::GetPluginCapabilitiesRequest {}).await;
        let plugin = plugin.map_err(|r| told("GetPluginCapabilities", &cx, r))?;
        let mut offers = Offers { driver: info.name, version: info.vendor_version, ..Default::default() };
        offers.take_plugin(plugin);
        if offers.plugin(PluginService::ControllerService) {
            let answer = cx.call(v1::ControllerGetCapabilitiesRequest {}).await;
            let answer = answer.map_err(|r| told("ControllerGetCapabilities", &cx, r))?;
            offers.controller = numbers!(answer, v1::controller_service_capability::Type::Rpc);
        }
        if offers.plugin(PluginService::GroupControllerService) {
            let answer = cx.call(v1::GroupControllerGetCapabilitiesRequest {}).await;
            let answer = answer.map_err(|r| told("GroupControllerGetCapabilities", &cx, r))?;
            offers.group = numbers!(answer, v1::group_controller_service_capability::Type::Rpc);
        }
        meet_node(&cx, &mut offers).await;
        if let Some(endpoint) = &self.0.second_node {
            offers.second_node_id = Some(second_node_id(&cx, endpoint).await?);
        }
        *cx.facts().0 = offers;
        let survey = Survey::of(&cx).await;
        let (offers, modes) = cx.facts();
        (offers.uses_unclear, *modes) = (survey.unclear, survey.modes);
        Ok(cx)
    }
}

async fn meet_node(cx: &Cx, offers: &mut Offers) {
    match cx.call(v1::NodeGetCapabilitiesRequest {}).await {
        Ok(answer) => {
            offers.has_node = true;
            offers.node = numbers!(answer, v1::node_service_capability::Type::Rpc);
        }
        Err(refusal) => {
            if refusal.code != Code::Unimplemented {
                let due = "the node's capabilities, or Unimplemented if there is no node service";
                let request = v1::NodeGetCapabilitiesRequest {};
                offers.node_unclear = Some(*cx.failure(&request, cx.told(&refusal), due));
            }
            return;
        }
    }
    let info = cx.call(v1::NodeGetInfoRequest {}).await.unwrap_or_default();
    offers.node_id = info.node_id;
    offers.max_volumes = info.max_volumes_per_node;
    offers.place = info.accessible_topology.filter(|place| !place.segments.is_empty());
}

async fn second_node_id(cx: &Cx, endpoint: &Endpoint) -> Result<String, CouldNotRun> {
    let client = Client::new(endpoint);
    let failed = |what: String| CouldNotRun(format!("the second node, {endpoint}: {what}"));
    client.ready(cx.settings.deadline).await.map_err(|error| failed(error.to_string()))?;
    let answer = client.node().node_get_info(v1::NodeGetInfoRequest {}).await;
    let answer = answer.map_err(|status| failed(format!("NodeGetInfo: {}", cx.told(&status.into()))))?;
    Ok(answer.into_inner().node_id)
}

/// The capabilities that volumes can be used with. For each kind a volume is created and validated in each
/// access mode. An existing volume is validated too. Without a controller service, an existing volume is
/// taken to have a filesystem and a single writer.
#[derive(Default)]
struct Survey {
    modes: BTreeSet<(Kind, i32)>,
    /// The first refusal for another reason than an unsupported capability.
    unclear: Option<Failure>,
}

impl Survey {
    async fn of(cx: &Cx) -> Self {
        let mut survey = Self::default();
        let makes = cx.offers.controller(ControllerCapability::CreateDeleteVolume);
        match cx.premade().filter(|_| !makes) {
            Some(volume) if cx.offers.plugin(PluginService::ControllerService) => {
                survey.ask(cx, &volume, Kind::Files).await;
                survey.ask(cx, &volume, Kind::Device).await;
            }
            Some(_) => drop(survey.modes.insert((Kind::Files, 1))),
            None if makes => {
                survey.make(cx, Kind::Files).await;
                survey.make(cx, Kind::Device).await;
            }
            None => {}
        }
        survey
    }

    /// Creates a volume of this kind, in the first mode that the driver accepts, and validates its modes.
    async fn make(&mut self, cx: &Cx, kind: Kind) {
        for first in [1, 5, 3, 2] {
            let volume_capabilities = vec![cx.capability_in(kind, first)];
            let request = v1::CreateVolumeRequest { volume_capabilities, ..cx.create(&cx.name()) };
            match cx.call(request.clone()).await {
                Ok(answer) => {
                    self.modes.insert((kind, first));
                    self.ask(cx, &answer.volume.unwrap_or_default(), kind).await;
                    clean_up(cx).await;
                    return;
                }
                Err(refusal) => self.was_refused(cx, &request, &refusal),
            }
        }
        clean_up(cx).await;
    }

    /// Asks the driver in which modes the volume can be used.
    async fn ask(&mut self, cx: &Cx, volume: &v1::Volume, kind: Kind) {
        let several = cx.offers.controller(ControllerCapability::SingleNodeMultiWriter);
        for mode in (1..=7).filter(|mode| *mode <= 5 || several) {
            let request = v1::ValidateVolumeCapabilitiesRequest {
                volume_id: volume.volume_id.clone(),
                volume_context: volume.volume_context.clone(),
                volume_capabilities: vec![cx.capability_in(kind, mode)],
                ..Default::default()
            };
            match cx.call(request.clone()).await {
                Ok(answer) if answer.confirmed.is_some() => drop(self.modes.insert((kind, mode))),
                Ok(_) => {}
                Err(refusal) => self.was_refused(cx, &request, &refusal),
            }
        }
    }

    fn was_refused<C: Call>(&mut self, cx: &Cx, request: &C, refusal: &Refusal) {
        if !matches!(refusal.code, Code::InvalidArgument | Code::Unimplemented) {
            let due = "OK, or InvalidArgument if the driver does not support this capability";
            self.unclear.get_or_insert_with(|| *cx.failure(request, cx.told(refusal), due));
        }
    }
}
