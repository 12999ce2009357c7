//! The tests of csi-core. Programs of their own have those that look at the whole process (its log, its memory), use
//! the kit, which is published later, or do not run everywhere.

mod common;
mod daemons;
mod driver;
mod encrypted;
mod foreign;
mod log;
mod private;
mod raw;
mod rpcs;

mod admission_storm;
mod calls;
mod compile_errors;
mod process;
mod root_adoption;
mod root_attachments;
mod root_encryption;
mod root_flow_block;
mod root_flow_ephemeral;
mod root_flow_fuse;
mod root_flow_shared;
mod root_mount_group;
mod root_owner;
mod root_permissions;
mod root_publish_matrix;
mod root_records;
mod root_socket;
mod server;
mod slow_backend;
