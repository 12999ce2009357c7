//! The lowest layer: raw system calls, the kernel's types, and small helpers that do not depend on mounts.
//!
//! All `unsafe` of this crate is in here. Imports nothing of the crate.
#![allow(unsafe_code, reason = "raw system calls; each block says why it is sound")]

pub(crate) mod attributes;
pub(crate) mod btrfs;
pub(crate) mod child;
pub(crate) mod deadline;
pub(crate) mod descriptor;
pub(crate) mod descriptor_copies;
#[cfg(feature = "remote")]
pub(crate) mod device_call;
pub(crate) mod device_mapper;
#[cfg(any(feature = "lvm", feature = "remote"))]
pub(crate) mod durable;
pub(crate) mod exec;
pub(crate) mod features;
pub(crate) mod hash;
pub(crate) mod ids;
pub(crate) mod ioctl;
#[cfg(feature = "remote")]
pub(crate) mod keyring;
pub(crate) mod many_reads;
pub(crate) mod memory;
pub(crate) mod mount_api;
pub(crate) mod new_mount;
#[cfg(feature = "remote")]
pub(crate) mod nvme_command;
pub(crate) mod own_descriptors;
pub(crate) mod process;
pub(crate) mod project_quota;
#[cfg(feature = "remote")]
pub(crate) mod reservation;
#[cfg(feature = "remote")]
pub(crate) mod scsi_command;
pub(crate) mod super_options;
pub(crate) mod user_namespace;
