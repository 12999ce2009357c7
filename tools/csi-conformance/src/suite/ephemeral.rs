//! Inline ephemeral volumes, as the kubelet publishes them: without CreateVolume and without staging.

use csi_proto::NodeCapability::GetVolumeStats;
use csi_proto::v1;

use super::node_publish::{gone, is_directory, mounts_at};
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;

crate::test::tests! { "ephemeral", "Inline volumes of Kubernetes, which the spec does not have";
    Practice "An inline volume is published and unpublished, each twice", comes_and_goes, ["node-publish-volume.repeated-is-ok", "node-unpublish-volume.repeated-is-ok", "node-publish-volume.needs-staging-path"], [Ephemeral];
    Practice "An inline volume is a mount, and nothing is left of it after unpublish", leaves_nothing, ["node-publish-volume.directory-at-target", "node-unpublish-volume.deletes-target", "node-unpublish-volume.undoes"], [Ephemeral, Mounts];
    Practice "Two inline volumes are independent", two_are_two, ["node-publish-volume.usable-as-described"], [Ephemeral];
    Practice "The usage of an inline volume is reported", stats, ["node-get-volume-stats.usage"], [Ephemeral, Node(GetVolumeStats)];
    Practice "An inline volume in use can be published repeatedly, as with requiresRepublish", republished, ["node-publish-volume.repeated-is-ok"], [Ephemeral, Mounts];
}

/// The kubelet generates the id, and adds the pod's names.
fn inline(ctx: &TestContext) -> VolumeLifecycle {
    let attributes = ctx.settings.ephemeral.as_ref().map(|pairs| pairs.of(csi_proto::Rpc::NodePublishVolume));
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
    let volume =
        v1::Volume { volume_id: format!("csi-{}", ctx.name()), volume_context, ..Default::default() };
    VolumeLifecycle::with(ctx, ctx.capability(Kind::Files), volume)
}

fn publishing(life: &VolumeLifecycle, target: &std::path::Path) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest { staging_target_path: String::new(), ..life.node_publish_volume(target) }
}

async fn comes_and_goes(ctx: &TestContext) -> Outcome {
    let life = inline(ctx);
    let target = life.target();
    ctx.twice(publishing(&life, &target)).await?;
    ctx.twice(life.node_unpublish_volume(&target)).await
}

async fn leaves_nothing(ctx: &TestContext) -> Outcome {
    let life = inline(ctx);
    let target = life.target();
    ctx.ok(publishing(&life, &target)).await?;
    is_directory(&target).await?;
    let mounts = mounts_at(&target)?;
    check(mounts <= 1, "no stacked mounts", || mounts.to_string())?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    gone(&target).await
}

async fn two_are_two(ctx: &TestContext) -> Outcome {
    let one = inline(ctx);
    let other = inline(ctx);
    let first = one.target();
    let second = other.target();
    ctx.ok(publishing(&one, &first)).await?;
    ctx.ok(publishing(&other, &second)).await?;
    let mounts = || if ctx.sees_mounts() { mounts_at(&second) } else { Ok(0) };
    let before = mounts()?;
    ctx.ok(one.node_unpublish_volume(&first)).await?;
    let after = mounts()?;
    check(after == before, "the other volume unchanged", || {
        format!("{after} mounts of it, before that {before}")
    })?;
    ctx.ok(publishing(&other, &second)).await?;
    ctx.ok(other.node_unpublish_volume(&second)).await.map(drop)
}

async fn stats(ctx: &TestContext) -> Outcome {
    let life = inline(ctx);
    let target = life.target();
    ctx.ok(publishing(&life, &target)).await?;
    let usage = ctx.ok(life.node_get_volume_stats(&target)).await?.usage;
    check(!usage.is_empty(), "usage", || "none".into())?;
    ctx.ok(life.node_unpublish_volume(&target)).await.map(drop)
}

async fn republished(ctx: &TestContext) -> Outcome {
    let life = inline(ctx);
    let target = life.target();
    let mut request = publishing(&life, &target);
    ctx.ok(request.clone()).await?;
    // A process that has the directory open keeps seeing its files.
    let before = mounts_at(&target)?;
    for round in 0..3 {
        let tokens =
            format!("{{\"\":{{\"token\":\"t{round}\",\"expirationTimestamp\":\"2030-01-01T00:00:00Z\"}}}}");
        request.volume_context.insert("csi.storage.k8s.io/serviceAccount.tokens".into(), tokens);
        ctx.ok(request.clone()).await?;
    }
    let after = mounts_at(&target)?;
    check(after == before, &format!("{before} mounts at the target, as before"), || after.to_string())?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    gone(&target).await
}
