//! The tests that run on emulated machines only: they need a device mapper, a disk of the network, or quotas.

#[path = "../it/devices/mod.rs"]
mod devices;
#[path = "../it/fuse_process/mod.rs"]
mod fuse_process;
#[path = "../it/fuse_support/mod.rs"]
mod fuse_support;
#[path = "../it/measure/mod.rs"]
mod measure;
#[path = "../it/mount_support/mod.rs"]
mod mount_support;
#[path = "../it/quota_support/mod.rs"]
mod quota_support;
#[path = "../it/stepper/mod.rs"]
mod stepper;

mod fc_target;
mod iscsi_target;
mod lio;
mod luks_support;
mod lvm_support;
mod multipath_node;
mod nfs_support;
mod nvme_target;
mod rbd_cluster;
mod remote_alua;
mod remote_bed;
mod remote_crash;
mod started;
mod two_nodes;

mod crash_lvm;
mod fuse_memory;
mod hang_nfs;
mod luks_crash;
mod luks_flow;
mod luks_mapping;
mod luks_raw;
mod lvm;
mod lvm_neighbours;
mod quotas;
mod quotas_crash;
mod real_disks;
mod remote_fc;
mod remote_fc_alua;
mod remote_fc_crash;
mod remote_iscsi;
mod remote_iscsi_alua;
mod remote_iscsi_crash;
mod remote_iscsi_multipath;
mod remote_iscsi_odd;
mod remote_multipath;
mod remote_nvme;
mod remote_nvme_crash;
mod remote_nvme_tls;
mod remote_oracle;
mod remote_rbd;
mod remote_rbd_crash;
mod remote_reservations;
mod remote_storage;
