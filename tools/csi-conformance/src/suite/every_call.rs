//! The rules for every call, checked over all calls of the run.

use csi_proto::v1;

use crate::context::TestContext;
use crate::failure::Outcome;
use crate::judge::Violation;
use crate::settings::CANARY;

crate::test::tests! { "every-call", "Error Scheme; Secrets Requirements; Size Limits";
    Must "A status other than OK has a message", message = judged(Violation::MessageEmpty), ["errors.message"], [];
    Must "A status has no details", details = judged(Violation::Details), ["errors.no-details"], [];
    Must "No status and no answer contains a secret", secrets = judged(Violation::Secret), ["secrets.not-leaked"], [];
    Must "Every answer is complete and within the limits", answers = judged(Violation::Answer), ["size-limits.string", "fields.not-negative", "volume-health.reason", "volume-health.unique", "node-get-storage-health.unique"], [];
    Must "Topologies have keys and values of the allowed alphabet, and one prefix in all answers", places = judged(Violation::Topology), ["topology.keys", "topology.values", "topology.keys-without-case", "topology.one-prefix"], [];
}

/// Returns the first call that broke the rule. Makes calls of its own first, in case a filter left out all
/// others.
async fn judged(ctx: &TestContext, violation: Violation) -> Outcome {
    let mut request = v1::ValidateVolumeCapabilitiesRequest {
        secrets: [("password".to_owned(), CANARY.to_owned())].into(),
        ..Default::default()
    };
    let _ = ctx.call(request.clone()).await;
    request.volume_id = ctx.name();
    request.volume_capabilities = ctx.create("").volume_capabilities;
    let _ = ctx.call(request.clone()).await;
    if ctx.offers.controller(csi_proto::ControllerCapability::CreateDeleteVolume) {
        let _ = ctx
            .call(v1::CreateVolumeRequest { secrets: request.secrets.clone(), ..Default::default() })
            .await;
    }
    if ctx.offers.has_node {
        let _ = ctx.call(v1::NodeGetInfoRequest {}).await;
        let publish = v1::NodePublishVolumeRequest { secrets: request.secrets, ..Default::default() };
        let _ = ctx.call(publish).await;
    }
    let _ = ctx.call(v1::GetPluginInfoRequest {}).await;
    let violations = ctx.violations.lock().expect("no panic under it");
    let mut found = violations.iter().filter(|(one, _)| *one == violation).map(|(_, failure)| failure);
    let Some(first) = found.next() else { return Ok(()) };
    let mut first = first.clone();
    first.actual = format!("{} (and {} more calls)", first.actual, found.count());
    Err(Box::new(first))
}
