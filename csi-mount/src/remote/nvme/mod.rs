//! NVMe over TCP and RDMA: `/dev/nvme-fabrics` and sysfs, without `nvme-cli`.
//!
//! | file | has |
//! |---|---|
//! | `target.rs` | what the driver says: subsystem, namespace, portals, host, limits, keys |
//! | `tree.rs` | what the kernel says: controllers and the paths to namespaces |
//! | `decide.rs` | which portals need a connection, which path is usable, what is disconnected |
//! | `attach.rs` | the steps of an attach and of a refresh |
//! | `tls_key.rs`, `tls.rs` | keys of TLS: what the kernel's keyring gets, and when |
//! | `connect.rs` | the calls that can hang: connect, disconnect, the size that the target reports |

mod attach;
mod connect;
pub(super) mod decide;
pub(super) mod target;
pub(super) mod tls;
mod tls_key;
mod tree;
