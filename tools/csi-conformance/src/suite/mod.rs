//! The tests, one file per subject.

use crate::test::Test;

mod at_once;
mod capacity;
mod concurrency;
mod contents;
mod controller_publish;
mod create_volume;
mod created;
mod ephemeral;
mod every_call;
mod expand;
mod fields;
mod foreign;
mod group_members;
mod groups;
mod health;
mod identity;
mod list;
mod metadata;
mod metadata_contents;
mod modify;
pub(crate) mod mount_flags;
mod mount_group;
mod node_input;
mod node_missing;
mod node_publish;
mod node_use;
mod paging;
mod same_name;
mod sequences;
mod sidecars;
mod sizes;
mod snapshot_states;
mod snapshots;
mod targets;
mod topology;
mod unhealthy;
mod usage;

/// All tests, in the order in which they run. The last ones check the calls of all others.
pub(crate) fn all() -> Vec<Test> {
    let groups = [
        identity::tests(),
        fields::tests(),
        create_volume::tests(),
        same_name::tests(),
        created::tests(),
        concurrency::tests(),
        at_once::tests(),
        list::tests(),
        capacity::tests(),
        controller_publish::tests(),
        topology::tests(),
        snapshots::tests(),
        snapshot_states::tests(),
        groups::tests(),
        group_members::tests(),
        metadata::tests(),
        metadata_contents::tests(),
        expand::tests(),
        modify::tests(),
        node_publish::tests(),
        targets::tests(),
        foreign::tests(),
        node_input::tests(),
        node_missing::tests(),
        node_use::tests(),
        usage::tests(),
        contents::tests(),
        sizes::tests(),
        mount_flags::tests(),
        mount_group::tests(),
        ephemeral::tests(),
        health::tests(),
        unhealthy::tests(),
        sequences::tests(),
        sidecars::tests(),
        every_call::tests(),
    ];
    groups.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_test_has_an_id_of_its_own() {
        let mut ids: Vec<String> = super::all().into_iter().map(|test| test.id).collect();
        let all = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }
}
