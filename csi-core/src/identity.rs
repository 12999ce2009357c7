//! The Identity service: the plugin's name, its capabilities and its health.

use std::collections::BTreeMap;

use async_trait::async_trait;
use csi_proto::v1;

use crate::call::request::question;
use crate::call::{Call, Reply};
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::types::id::{STRING_MAX, check_size};
use crate::types::wire::check_map;

/// The state of the plugin, as Probe reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// Ready to serve.
    Ready,
    /// Healthy, but still starting: callers wait and probe again.
    Starting,
}

/// What a driver can add to the Identity service. Without an implementation the plugin is always ready.
///
/// Spec: "Identity Service RPC".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Identity`",
    label = "needs `impl Identity for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait Identity: Send + Sync + 'static {
    /// Returns the state of the plugin. Sidecars call it until it returns [`Readiness::Ready`], and
    /// liveness probes call it for as long as the plugin runs, so it should be cheap.
    ///
    /// - spec: `probe.starting`, `probe.ready`, `probe.unhealthy`, `probe.documented`
    ///
    /// # Errors
    /// [`Error::Unhealthy`] (FAILED_PRECONDITION) when the plugin does not work or
    /// a dependency is missing: its container is restarted.
    async fn probe(&self) -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    /// Information about the plugin for people, in GetPluginInfo's manifest.
    fn manifest(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// The Identity of a driver that adds nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AlwaysReady;

impl Identity for AlwaysReady {}

question!(GetPluginInfoRequest, GetPluginCapabilitiesRequest, ProbeRequest);

impl Call for GetPluginInfoRequest {
    type Answer = v1::GetPluginInfoResponse;

    // spec: get-plugin-info.version
    fn reply(answer: Self::Answer, _: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        check_size("vendor_version", &answer.vendor_version, STRING_MAX).map_err(Error::broken)?;
        check_map("manifest", &answer.manifest).map_err(Error::broken)?;
        Ok(answer)
    }
}

impl Call for GetPluginCapabilitiesRequest {
    type Answer = ();

    // spec: get-plugin-capabilities.same-everywhere
    fn reply((): (), _: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        Ok(v1::GetPluginCapabilitiesResponse { capabilities: offer.plugin_wire() })
    }
}

impl Call for ProbeRequest {
    type Answer = Readiness;

    // spec: probe.served, probe.starting, probe.ready
    fn reply(answer: Readiness, _: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        Ok(v1::ProbeResponse { ready: Some(answer == Readiness::Ready) })
    }
}
