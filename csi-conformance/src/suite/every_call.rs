//! The rules for every call, checked over all calls of the run.

use csi_proto::v1;

use crate::cx::Cx;
use crate::failure::Outcome;
use crate::hidden::CANARY;
use crate::judge::Breach;

crate::test::tests! { "every-call", "Error Scheme; Secrets Requirements; Size Limits";
    "A status other than OK has a message", message, ["errors.message"], [];
    "A status has no details", details, ["errors.no-details"], [];
    "No status and no answer contains a secret", secrets, ["secrets.not-leaked"], [];
    "Every answer is complete and within the limits", answers, ["size-limits.string", "fields.not-negative", "volume-health.reason", "volume-health.unique", "node-get-storage-health.unique"], [];
    "Topologies have keys and values of the allowed alphabet, and one prefix in all answers", places, ["topology.keys", "topology.values", "topology.keys-without-case", "topology.one-prefix"], [];
}

/// Returns the first call that broke the rule. Makes calls of its own first, in case a filter left out all
/// others.
async fn judged(cx: &Cx, breach: Breach) -> Outcome {
    let mut request = v1::ValidateVolumeCapabilitiesRequest {
        secrets: [("password".to_owned(), CANARY.to_owned())].into(),
        ..Default::default()
    };
    let _ = cx.call(request.clone()).await;
    request.volume_id = cx.name();
    request.volume_capabilities = cx.create("").volume_capabilities;
    let _ = cx.call(request.clone()).await;
    if cx.offers.controller(csi_core::ControllerCapability::CreateDeleteVolume) {
        let _ =
            cx.call(v1::CreateVolumeRequest { secrets: request.secrets.clone(), ..Default::default() }).await;
    }
    if cx.offers.has_node {
        let _ = cx.call(v1::NodeGetInfoRequest {}).await;
        let publish = v1::NodePublishVolumeRequest { secrets: request.secrets, ..Default::default() };
        let _ = cx.call(publish).await;
    }
    let _ = cx.call(v1::GetPluginInfoRequest {}).await;
    let breaches = cx.breaches.lock().expect("no panic under it");
    let mut found = breaches.iter().filter(|(one, _)| *one == breach).map(|(_, failure)| failure);
    let Some(first) = found.next() else { return Ok(()) };
    let mut first = first.clone();
    first.came = format!("{} (and {} more calls)", first.came, found.count());
    Err(Box::new(first))
}

async fn message(cx: &Cx) -> Outcome {
    judged(cx, Breach::MessageEmpty).await
}

async fn details(cx: &Cx) -> Outcome {
    judged(cx, Breach::Details).await
}

async fn secrets(cx: &Cx) -> Outcome {
    judged(cx, Breach::Secret).await
}

async fn answers(cx: &Cx) -> Outcome {
    judged(cx, Breach::Answer).await
}

async fn places(cx: &Cx) -> Outcome {
    judged(cx, Breach::Topology).await
}
