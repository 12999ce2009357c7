//! Faults in the block metadata of snapshots.

use csi_proto::v1;

use super::*;

pub(super) fn all() -> Vec<Mutant> {
    type Allocated = v1::GetMetadataAllocatedResponse;
    type Delta = v1::GetMetadataDeltaResponse;
    mutants! {
        "more ranges in a message than were asked for", "metadata.all-data":
            request(Rpc::GetMetadataAllocated, |r: &mut v1::GetMetadataAllocatedRequest| {
                r.max_results = 0;
            }), of_images;
        "ranges are in no order", "metadata.all-data":
            stream(Rpc::GetMetadataAllocated, |messages: &mut Vec<Allocated>| messages.reverse()), of_images;
        "a range is told twice", "metadata.all-data":
            stream(Rpc::GetMetadataAllocated, |messages: &mut Vec<Allocated>| {
                messages.extend(messages.last().cloned());
            }), of_images;
        "the last changes are left out", "metadata.all-changes":
            stream(Rpc::GetMetadataDelta, |messages: &mut Vec<Delta>| {
                messages.pop();
            }), of_images;
        "a stream begins at the beginning", "metadata.from-offset":
            request(Rpc::GetMetadataAllocated, |r: &mut v1::GetMetadataAllocatedRequest| {
                r.starting_offset = 0;
            }), of_images;
        "snapshots of two volumes are compared", "metadata.of-two-volumes":
            accepted(Rpc::GetMetadataDelta, Code::InvalidArgument), of_images;
        "the volume's capacity is not told with its blocks", "metadata.allocated":
            stream(Rpc::GetMetadataAllocated, |messages: &mut Vec<Allocated>| {
                messages.iter_mut().for_each(|one| one.volume_capacity_bytes = 0);
            }), of_images;
        "changed ranges are in no order", "metadata.delta":
            stream(Rpc::GetMetadataDelta, |messages: &mut Vec<Delta>| {
                messages.iter_mut().for_each(|one| one.block_metadata.reverse());
            }), of_images;
        "a snapshot that is not there has no blocks", "metadata.not-found":
            accepted(Rpc::GetMetadataAllocated, Code::NotFound), of_images;
        "nothing has changed since a snapshot that is not there", "metadata.delta-not-found":
            accepted(Rpc::GetMetadataDelta, Code::NotFound), of_images;
    }
}
