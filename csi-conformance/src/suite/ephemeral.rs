//! Inline ephemeral volumes, as the kubelet publishes them: without CreateVolume and without staging.

use csi_core::NodeCapability::GetVolumeStats;
use csi_proto::v1;

use super::node_publish::{gone, is_directory, mounts_at};
use crate::cx::Cx;
use crate::failure::{Outcome, check};
use crate::life::Life;
use crate::test::Kind;

crate::test::tests! { "ephemeral", "NodePublishVolume, with the volume_context of an inline volume";
    "An inline volume is published and unpublished, each twice", comes_and_goes, ["node-publish-volume.repeated-is-ok", "node-unpublish-volume.repeated-is-ok", "node-publish-volume.needs-staging-path"], [Ephemeral];
    "An inline volume is a mount, and nothing is left of it after unpublish", leaves_nothing, ["node-publish-volume.directory-at-target", "node-unpublish-volume.deletes-target", "node-unpublish-volume.undoes"], [Ephemeral, Mounts];
    "Two inline volumes are independent", two_are_two, ["node-publish-volume.usable-as-described"], [Ephemeral];
    "The usage of an inline volume is reported", stats, ["node-get-volume-stats.usage"], [Ephemeral, Node(GetVolumeStats)];
    "An inline volume in use can be published repeatedly, as with requiresRepublish", republished, ["node-publish-volume.repeated-is-ok"], [Ephemeral, Mounts];
}

/// The kubelet generates the id, and adds the pod's names.
fn inline(cx: &Cx) -> Life {
    let attributes = cx.settings.ephemeral.as_ref().map(|pairs| pairs.of(csi_core::Rpc::NodePublishVolume));
    let mut volume_context = attributes.unwrap_or_default();
    for (key, value) in [
        ("ephemeral", "true"),
        ("pod.name", "pod"),
        ("pod.namespace", "default"),
        ("pod.uid", "8a1f7e6c-0000-4000-8000-000000000000"),
        ("serviceAccount.name", "default"),
    ] {
        volume_context.insert(format!("csi.storage.k8s.io/{key}"), value.to_owned());
    }
    let volume = v1::Volume { volume_id: format!("csi-{}", cx.name()), volume_context, ..Default::default() };
    Life::with(cx, cx.capability(Kind::Files), volume)
}

fn publishing(life: &Life, target: &std::path::Path) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest { staging_target_path: String::new(), ..life.publishing(target) }
}

async fn comes_and_goes(cx: &Cx) -> Outcome {
    let life = inline(cx);
    let target = life.target();
    for _ in 0..2 {
        cx.ok(publishing(&life, &target)).await?;
    }
    for _ in 0..2 {
        cx.ok(life.unpublishing(&target)).await?;
    }
    Ok(())
}

async fn leaves_nothing(cx: &Cx) -> Outcome {
    let life = inline(cx);
    let target = life.target();
    cx.ok(publishing(&life, &target)).await?;
    is_directory(&target).await?;
    let mounts = mounts_at(&target)?;
    check(mounts <= 1, "no stacked mounts", || mounts.to_string())?;
    cx.ok(life.unpublishing(&target)).await?;
    gone(&target).await
}

async fn two_are_two(cx: &Cx) -> Outcome {
    let (one, other) = (inline(cx), inline(cx));
    let (first, second) = (one.target(), other.target());
    cx.ok(publishing(&one, &first)).await?;
    cx.ok(publishing(&other, &second)).await?;
    let mounts = || if cx.sees_mounts() { mounts_at(&second) } else { Ok(0) };
    let before = mounts()?;
    cx.ok(one.unpublishing(&first)).await?;
    let after = mounts()?;
    check(after == before, "the other volume unchanged", || {
        format!("{after} mounts of it, before that {before}")
    })?;
    cx.ok(publishing(&other, &second)).await?;
    cx.ok(other.unpublishing(&second)).await.map(drop)
}

async fn stats(cx: &Cx) -> Outcome {
    let life = inline(cx);
    let target = life.target();
    cx.ok(publishing(&life, &target)).await?;
    let usage = cx.ok(life.stats(&target)).await?.usage;
    check(!usage.is_empty(), "usage", || "none".into())?;
    cx.ok(life.unpublishing(&target)).await.map(drop)
}

async fn republished(cx: &Cx) -> Outcome {
    let life = inline(cx);
    let target = life.target();
    let mut request = publishing(&life, &target);
    cx.ok(request.clone()).await?;
    // A process that has the directory open keeps seeing its files.
    let before = mounts_at(&target)?;
    for round in 0..3 {
        let tokens =
            format!("{{\"\":{{\"token\":\"t{round}\",\"expirationTimestamp\":\"2030-01-01T00:00:00Z\"}}}}");
        request.volume_context.insert("csi.storage.k8s.io/serviceAccount.tokens".into(), tokens);
        cx.ok(request.clone()).await?;
    }
    let after = mounts_at(&target)?;
    check(after == before, &format!("{before} mounts at the target, as before"), || after.to_string())?;
    cx.ok(life.unpublishing(&target)).await?;
    gone(&target).await
}
