//! The driver with the kernel's clients, in an emulated machine, on a Ceph cluster outside of it:
//! `cargo xtask test --systems ceph`. The rows that the tests print are those of docs/ceph.md.

mod support;

use support::{CephClient, on_bed, scenarios};
use test_support::ceph::Daemon;

const KERNEL: CephClient = CephClient::Kernel;

#[test]
fn it_conforms_and_nothing_is_left() {
    on_bed(KERNEL, scenarios::conforms);
}

#[test]
fn a_volume_lives_with_snapshots_and_clones() {
    on_bed(KERNEL, scenarios::lives);
}

#[test]
fn what_the_cluster_refuses_is_named_and_the_key_is_not() {
    on_bed(KERNEL, scenarios::refuses);
}

#[test]
fn the_monitor_is_stopped() {
    on_bed(KERNEL, async |bed| scenarios::outlives(bed, Daemon::Monitor, false).await);
}

#[test]
fn the_monitor_is_killed() {
    on_bed(KERNEL, async |bed| scenarios::outlives(bed, Daemon::Monitor, true).await);
}

#[test]
fn the_metadata_server_is_stopped() {
    on_bed(KERNEL, async |bed| scenarios::outlives(bed, Daemon::Metadata, false).await);
}

#[test]
fn the_metadata_server_is_killed() {
    on_bed(KERNEL, async |bed| scenarios::outlives(bed, Daemon::Metadata, true).await);
}

#[test]
fn the_osd_is_stopped() {
    on_bed(KERNEL, async |bed| scenarios::outlives(bed, Daemon::Osd, false).await);
}

#[test]
fn images_conform_and_nothing_is_left() {
    on_bed(CephClient::Rbd, scenarios::conforms);
}

#[test]
fn an_image_lives_with_snapshots_and_copies() {
    on_bed(CephClient::Rbd, scenarios::images_live);
}
