//! GET_CAPACITY.

use csi_core::{Capacity, GetCapacity, GetCapacityRequest, Place, Result, TopologyRequirement, async_trait};

use crate::host::Driver;
use crate::parameters::Parameters;

#[async_trait]
impl GetCapacity for Driver {
    async fn capacity(&self, request: GetCapacityRequest) -> Result<Capacity> {
        let parameters: Parameters = request.parameters.parse_known()?;
        let Ok(kind) = self.choose_kind(parameters.kind, &request.volume_capabilities) else {
            return Ok(Capacity::default());
        };
        let here = request.accessible_topology.map(|place| TopologyRequirement::new([place], []));
        let mut pools = std::collections::BTreeMap::new();
        let places = self.pools.places(parameters.pool.as_deref(), "");
        // A pool that has several places is counted once.
        for place in Place::candidates(&places, here.as_ref(), 0).unwrap_or_default() {
            pools.insert(&place.value.name, place.available_bytes.unwrap_or(0));
        }
        // Promised but unwritten space counts as free on the disk; space that other programs use does not.
        let free = self.with(|host| host.free_bytes()).await?;
        let most = pools.values().copied().max().unwrap_or(0).min(self.sizes.most);
        let capacity = Capacity::new(free.min(pools.values().sum()))
            .minimum_volume_size(kind.least(&request.volume_capabilities));
        // A thin volume can be larger than the free space, so that is not reported as its maximum.
        Ok(if most <= free { capacity.maximum_volume_size(most) } else { capacity })
    }
}
