//! One client of a soak, which runs volumes of its own through their lives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use csi_proto::client::Target;
use csi_proto::internal::MakeCalls;
use csi_proto::{ControllerCapability as Can, NodeCapability, Rpc, RpcRequest, v1};
use tonic::Code;
use v1::plugin_capability::{service::Type as PluginService, volume_expansion::Type as Expansion};

use super::SoakCounts;
use crate::content::Kind;
use crate::context::TestContext;
use crate::life::VolumeLifecycle;
use crate::wire::Refusal;

/// The largest number of failures in the report. The soak ends at this number, because each failure can leave
/// a volume behind.
pub(super) const MAX_REPORTED: usize = 20;
/// One of this number of calls is given up first, after a random time of at most this many microseconds.
const ABANDON_ONE_IN: u64 = 8;
const ABANDON_WITHIN_MICROS: u64 = 10_000;
/// The wait before an ABORTED call is repeated.
const PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Client {
    ctx: TestContext,
    counts: Arc<Mutex<SoakCounts>>,
    random: AtomicU64,
    end: Instant,
}

/// A call failed. The volume's life is abandoned, and undone at the end.
pub(super) struct CallFailed;

type Step<T = ()> = Result<T, CallFailed>;

impl MakeCalls for &Client {
    type Error = CallFailed;

    async fn make_call<R: RpcRequest>(&mut self, request: R) -> Step<R::Answer> {
        self.call(request).await
    }
}

impl Client {
    pub(super) fn new(ctx: TestContext, counts: Arc<Mutex<SoakCounts>>, number: u64, end: Instant) -> Self {
        Self { ctx, counts, random: AtomicU64::new(0x9e37_79b9_7f4a_7c15 ^ (number + 1) << 17), end }
    }

    pub(super) async fn run(self) {
        let mut turn = 0;
        while Instant::now() < self.end && !self.has_enough_failures() {
            self.ctx.trace.clear();
            // The failure is recorded already.
            let _ = self.life(turn).await;
            turn += 1;
            tokio::task::yield_now().await;
        }
    }

    fn has_enough_failures(&self) -> bool {
        let violations = self.ctx.violations.lock().expect("no panic under it").len();
        violations + self.counts.lock().expect("no panic under it").failures.len() >= MAX_REPORTED
    }

    /// xorshift64. Any order works, as long as the clients differ.
    fn random(&self) -> u64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        x
    }

    /// Makes the call if the driver offers it.
    async fn call_if_offered<C: RpcRequest>(&self, request: C) -> Step {
        if self.ctx.offers.serves(C::RPC) {
            self.call(request).await?;
        }
        Ok(())
    }

    /// Sends the call, sometimes gives it up once first, and repeats it while the driver returns ABORTED.
    async fn call<C: RpcRequest>(&self, request: C) -> Step<C::Answer> {
        self.call_with_retry(C::RPC, || self.ctx.call(request.clone())).await
    }

    async fn call_with_retry<T, F>(&self, rpc: Rpc, call: impl Fn() -> F) -> Step<T>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        if self.random().is_multiple_of(ABANDON_ONE_IN) {
            let within = Duration::from_micros(self.random() % ABANDON_WITHIN_MICROS);
            if tokio::time::timeout(within, call()).await.is_err() {
                self.counts.lock().expect("no panic under it").row(rpc).abandoned += 1;
            }
        }
        let begun = Instant::now();
        loop {
            let start = Instant::now();
            let answer = call().await;
            if let Some(step) = self.recorded(rpc, start.elapsed(), answer, begun) {
                return step;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Records the answer. Returns `None` if the call must be repeated.
    fn recorded<T>(
        &self,
        rpc: Rpc,
        took: Duration,
        answer: Result<T, Refusal>,
        begun: Instant,
    ) -> Option<Step<T>> {
        let mut counts = self.counts.lock().expect("no panic under it");
        let row = counts.row(rpc);
        row.took(took);
        match answer {
            Ok(answer) => Some(Ok(answer)),
            Err(refusal) if refusal.code == Code::Aborted && begun.elapsed() < self.ctx.settings.deadline => {
                row.aborted += 1;
                None
            }
            Err(refusal) => {
                row.failed += 1;
                if counts.failures.len() < MAX_REPORTED {
                    counts.failures.push(format!("{rpc}: {}", self.ctx.refusal_text(&refusal)));
                }
                Some(Err(CallFailed))
            }
        }
    }

    async fn life(&self, turn: u64) -> Step {
        self.identity_calls().await?;
        if !self.ctx.offers.controller(Can::CreateDeleteVolume) {
            return Ok(());
        }
        let kinds = [Kind::Files, Kind::Device].into_iter().filter(|kind| {
            self.ctx.modes.is_empty() || self.ctx.modes.iter().any(|(known, _)| known == kind)
        });
        let kinds: Vec<Kind> = kinds.collect();
        let capability = self.ctx.capability(kinds[turn as usize % kinds.len().max(1)]);
        let request = v1::CreateVolumeRequest {
            volume_capabilities: vec![capability.clone()],
            ..self.ctx.create(&self.ctx.name())
        };
        let volume = self.call(request).await?.volume.unwrap_or_default();
        let mut life = VolumeLifecycle::with(&self.ctx, capability, volume);
        self.call(life.validate_volume_capabilities()).await?;
        self.on_node(&mut life).await?;
        self.of_controller(&life).await?;
        self.call(life.delete_volume()).await.map(drop)
    }

    async fn identity_calls(&self) -> Step {
        self.call(v1::GetPluginInfoRequest {}).await?;
        self.call(v1::GetPluginCapabilitiesRequest {}).await?;
        self.call(v1::ProbeRequest {}).await?;
        self.call_if_offered(v1::ControllerGetCapabilitiesRequest {}).await?;
        self.call_if_offered(v1::GroupControllerGetCapabilitiesRequest {}).await?;
        self.call_if_offered(v1::NodeGetCapabilitiesRequest {}).await?;
        self.call_if_offered(v1::NodeGetInfoRequest {}).await
    }

    /// Attaches, stages, publishes, checks and expands the volume, and undoes all of it. Without a node or a
    /// directory for targets, the volume is only attached and detached.
    async fn on_node(&self, life: &mut VolumeLifecycle) -> Step {
        let offers = &self.ctx.offers;
        if !offers.has_node || self.ctx.settings.target.is_none() {
            life.volume.attach(self).await?;
            return life.volume.detach(self).await;
        }
        life.make_staging_directory().map_err(|_| CallFailed)?;
        let target = life.target();
        life.volume.attach_stage_publish(self, &[Target::new(&target)]).await?;
        if offers.node(NodeCapability::GetVolumeStats) {
            self.call(life.node_get_volume_stats(&target)).await?;
        }
        let volume_id = life.volume_id.clone();
        self.call_if_offered(v1::NodeGetVolumeHealthRequest { volume_id, ..Default::default() }).await?;
        self.call_if_offered(v1::NodeGetStorageHealthRequest::default()).await?;
        if offers.expands(Expansion::Online) {
            self.grow(life).await?;
            let wanted = self.ctx.settings.size.saturating_mul(2);
            self.call_if_offered(life.node_expand_volume(&target, wanted)).await?;
        }
        life.volume.unpublish_unstage_detach(self, &[&target]).await?;
        let _ = std::fs::remove_dir(life.staging_path());
        Ok(())
    }

    async fn grow(&self, life: &VolumeLifecycle) -> Step {
        let wanted = self.ctx.settings.size.saturating_mul(2);
        self.call_if_offered(life.controller_expand_volume(wanted)).await
    }

    async fn of_controller(&self, life: &VolumeLifecycle) -> Step {
        let offers = &self.ctx.offers;
        let volume_id = life.volume_id.clone();
        self.call_if_offered(v1::ListVolumesRequest { max_entries: 10, ..Default::default() }).await?;
        self.call_if_offered(v1::ControllerGetVolumeRequest { volume_id: volume_id.clone() }).await?;
        self.call_if_offered(v1::GetCapacityRequest::default()).await?;
        let health =
            v1::ControllerGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
        self.call_if_offered(health).await?;
        let list = v1::ControllerListVolumeHealthRequest { max_entries: 10, ..Default::default() };
        self.call_if_offered(list).await?;
        let mutable_parameters = self.ctx.settings.mutable_parameters.of(Rpc::ControllerModifyVolume);
        if !mutable_parameters.is_empty() {
            let request =
                v1::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
            self.call_if_offered(request).await?;
        }
        if offers.expands(Expansion::Offline) && !offers.expands(Expansion::Online) {
            self.grow(life).await?;
        }
        if offers.controller(Can::CreateDeleteSnapshot) {
            self.snapshots(life).await?;
        }
        self.groups(life).await
    }

    async fn snapshots(&self, life: &VolumeLifecycle) -> Step {
        let request = v1::CreateSnapshotRequest {
            parameters: self.ctx.settings.parameters.of(Rpc::CreateSnapshot),
            ..life.create_snapshot(self.ctx.name())
        };
        let snapshot_id = self.call(request).await?.snapshot.unwrap_or_default().snapshot_id;
        let get = v1::GetSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
        self.call_if_offered(get).await?;
        self.call_if_offered(v1::ListSnapshotsRequest { max_entries: 10, ..Default::default() }).await?;
        let is_device =
            matches!(life.capability.access_type, Some(v1::volume_capability::AccessType::Block(_)));
        if self.ctx.offers.plugin(PluginService::SnapshotMetadataService) && is_device {
            let allocated =
                v1::GetMetadataAllocatedRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
            self.call_with_retry(Rpc::GetMetadataAllocated, || self.ctx.stream(allocated.clone())).await?;
            let delta = v1::GetMetadataDeltaRequest {
                base_snapshot_id: snapshot_id.clone(),
                target_snapshot_id: snapshot_id.clone(),
                ..Default::default()
            };
            self.call_with_retry(Rpc::GetMetadataDelta, || self.ctx.stream(delta.clone())).await?;
        }
        self.call(v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() }).await.map(drop)
    }

    async fn groups(&self, life: &VolumeLifecycle) -> Step {
        if !self.ctx.offers.serves(Rpc::CreateVolumeGroupSnapshot) {
            return Ok(());
        }
        let request = v1::CreateVolumeGroupSnapshotRequest {
            name: self.ctx.name(),
            source_volume_ids: vec![life.volume_id.clone()],
            ..Default::default()
        };
        let group = self.call(request).await?.group_snapshot.unwrap_or_default();
        let snapshot_ids: Vec<String> = group.snapshots.into_iter().map(|one| one.snapshot_id).collect();
        let request = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: snapshot_ids.clone(),
            ..Default::default()
        };
        self.call(request).await?;
        let request = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id,
            snapshot_ids,
            ..Default::default()
        };
        self.call(request).await.map(drop)
    }
}
