//! What NodeGetVolumeStats reports while a workload writes and deletes files.

use std::path::Path;

use csi_proto::NodeCapability::GetVolumeStats;
use csi_proto::v1;
use v1::volume_usage::Unit;

use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;

crate::test::tests! { "usage", "Node Service RPC: NodeGetVolumeStats";
    Practice "The reported usage grows when a file is written", written, ["node-get-volume-stats.usage"], [Volume(Files), Mounts, Node(GetVolumeStats)];
    Practice "The reported usage shrinks when the file is deleted", freed, ["node-get-volume-stats.usage"], [Volume(Files), Mounts, Node(GetVolumeStats)];
    Practice "The used and the available bytes are both reported, which the kubelet needs", reported, ["node-get-volume-stats.usage"], [Volume(Files), Mounts, Node(GetVolumeStats)];
}

const LARGEST: u64 = 16 << 20;

pub(super) fn bytes(answer: &v1::NodeGetVolumeStatsResponse) -> v1::VolumeUsage {
    answer.usage.iter().find(|usage| usage.unit() == Unit::Bytes).copied().unwrap_or_default()
}

/// What the driver reported, and what the kernel reported before and after that.
#[derive(Debug, Clone, Copy)]
struct Reading {
    usage: v1::VolumeUsage,
    kernel: Option<[(u64, u64); 2]>,
}

impl Reading {
    async fn of(life: &VolumeLifecycle, target: &Path) -> Outcome<Self> {
        let before = content::kernel_usage(target).await?;
        let usage = bytes(&life.ctx.ok(life.node_get_volume_stats(target)).await?);
        let after = content::kernel_usage(target).await?;
        Ok(Self { usage, kernel: before.zip(after).map(|(before, after)| [before, after]) })
    }

    /// Neither field is required.
    fn is_silent(&self) -> bool {
        self.usage.used == 0 && self.usage.available == 0
    }

    /// Whether the driver reports the numbers of the kernel. On a filesystem that others write to too, these
    /// are right, although they do not move as this test expects.
    fn is_the_kernels(&self, slack: u64) -> bool {
        // A filesystem without a limit reports more than fits into the answer.
        let fit = |number: u64| number.min(i64::MAX.cast_unsigned());
        let is_near = |value: i64, [one, other]: [u64; 2]| {
            let range = fit(one.min(other)).saturating_sub(slack)..=fit(one.max(other)).saturating_add(slack);
            range.contains(&value.unsigned_abs())
        };
        self.kernel.is_some_and(|[before, after]| {
            let used = [before.0, after.0];
            let available = [before.1, after.1];
            is_near(self.usage.used, used) && is_near(self.usage.available, available)
        })
    }

    /// Whether at least `bytes` more are in use than at `before`.
    fn has_grown_since(&self, before: &Self, bytes: i64) -> bool {
        self.usage.used >= before.usage.used.saturating_add(bytes)
            || (self.usage.used == 0 && self.usage.available.saturating_add(bytes) <= before.usage.available)
    }
}

/// A published volume, and the size of the file that these tests write.
async fn published(ctx: &TestContext) -> Outcome<(VolumeLifecycle, std::path::PathBuf, u64)> {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let size = (life.size().unsigned_abs() / 4).min(LARGEST);
    Ok((life, target, size))
}

/// Waits until the usage is as expected: a driver is allowed to measure from time to time only.
async fn expect(
    life: &VolumeLifecycle,
    target: &Path,
    due: &str,
    before: Reading,
    slack: u64,
    is_due: impl Fn(&Reading) -> bool,
) -> Outcome<Reading> {
    let mut wait = life.ctx.retries();
    loop {
        let now = Reading::of(life, target).await?;
        if now.is_silent() || is_due(&now) || now.is_the_kernels(slack) {
            return Ok(now);
        }
        if !wait.again().await {
            let came = wait.describe(&format!("{:?}, and {:?} before", now.usage, before.usage));
            return Err(life.ctx.failure(&life.node_get_volume_stats(target), came, due));
        }
    }
}

async fn write(life: &VolumeLifecycle, target: &Path, size: u64) -> Outcome<Reading> {
    let before = Reading::of(life, target).await?;
    let filled = content::fill(target, size).await?;
    check(!filled.is_full, &format!("room for {size} bytes"), || format!("room for {}", filled.bytes))?;
    let half = size / 2;
    let due = format!("a usage that has grown by about {size} bytes");
    let grown = |now: &Reading| now.has_grown_since(&before, half.cast_signed());
    expect(life, target, &due, before, half, grown).await
}

async fn written(ctx: &TestContext) -> Outcome {
    let (life, target, size) = published(ctx).await?;
    write(&life, &target, size).await?;
    life.end(&[&target]).await
}

async fn freed(ctx: &TestContext) -> Outcome {
    let (life, target, size) = published(ctx).await?;
    let before = write(&life, &target, size).await?;
    content::clear(&target).await?;
    let half = size / 2;
    let due = format!("a usage that has shrunk by about {size} bytes");
    let shrunk = |now: &Reading| before.has_grown_since(now, half.cast_signed());
    expect(&life, &target, &due, before, half, shrunk).await?;
    life.end(&[&target]).await
}

async fn reported(ctx: &TestContext) -> Outcome {
    let (life, target, size) = published(ctx).await?;
    let now = write(&life, &target, size).await?;
    check(now.usage.used > 0 && now.usage.available > 0, "used and available bytes above 0", || {
        format!("{:?}", now.usage)
    })?;
    life.end(&[&target]).await
}
