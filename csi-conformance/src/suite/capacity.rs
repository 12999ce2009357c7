//! GetCapacity.

use std::collections::BTreeMap;

use csi_core::ControllerCapability::GetCapacity;
use csi_proto::v1;

use crate::cx::Cx;
use crate::failure::{Outcome, check};

crate::test::tests! { "get-capacity", "Controller Service RPC: GetCapacity";
    "The capacity is not negative, nor are the bounds of a volume's size", not_negative, ["get-capacity.not-negative"], [Controller(GetCapacity)];
    "Raw StorageClass parameters, as the provisioner sends them, are taken", raw_parameters, ["get-capacity.not-negative"], [Controller(GetCapacity)];
}

async fn not_negative(cx: &Cx) -> Outcome {
    let parameters = cx.settings.parameters.of(csi_core::Rpc::CreateVolume);
    let answer = cx.ok(v1::GetCapacityRequest { parameters, ..Default::default() }).await?;
    let all = [Some(answer.available_capacity), answer.maximum_volume_size, answer.minimum_volume_size];
    check(all.iter().flatten().all(|bytes| *bytes >= 0), "sizes of 0 or more", || format!("{all:?}"))
}

async fn raw_parameters(cx: &Cx) -> Outcome {
    let mut parameters: BTreeMap<_, _> = cx.settings.parameters.of(csi_core::Rpc::CreateVolume);
    parameters.insert("csi.storage.k8s.io/fstype".into(), "ext4".into());
    parameters.insert("csi.storage.k8s.io/provisioner-secret-name".into(), "name".into());
    cx.ok(v1::GetCapacityRequest { parameters, ..Default::default() }).await.map(drop)
}
