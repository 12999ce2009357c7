//! The driver with `ceph-fuse`, on a Ceph cluster of its own. Needs root, and Ceph's programs:
//! `cargo xtask test --systems ceph`. The rows that the tests print are those of docs/ceph.md.

mod support;

use support::{CephClient, on_bed, scenarios};
use test_support::ceph::Daemon;

const FUSE: CephClient = CephClient::Fuse;

#[test]
fn it_conforms_and_nothing_is_left() {
    on_bed(FUSE, scenarios::conforms);
}

#[test]
fn a_volume_lives_with_snapshots_and_clones() {
    on_bed(FUSE, scenarios::lives);
}

#[test]
fn what_the_cluster_refuses_is_named_and_the_key_is_not() {
    on_bed(FUSE, scenarios::refuses);
}

#[test]
fn the_monitor_is_stopped() {
    on_bed(FUSE, async |bed| scenarios::outlives(bed, Daemon::Monitor, false).await);
}

#[test]
fn the_monitor_is_killed() {
    on_bed(FUSE, async |bed| scenarios::outlives(bed, Daemon::Monitor, true).await);
}

#[test]
fn the_metadata_server_is_stopped() {
    on_bed(FUSE, async |bed| scenarios::outlives(bed, Daemon::Metadata, false).await);
}

#[test]
fn the_metadata_server_is_killed() {
    on_bed(FUSE, async |bed| scenarios::outlives(bed, Daemon::Metadata, true).await);
}

#[test]
fn the_osd_is_stopped() {
    on_bed(FUSE, async |bed| scenarios::outlives(bed, Daemon::Osd, false).await);
}
