//! Daemons in another pod than the driver's. The driver opens `/dev/fuse` and mounts; it sends the open device with the
//! command over a unix socket to a mounter, which runs in that pod without any privilege and starts the command.
//!
//! | file | has |
//! |---|---|
//! | `message`, `command` | what is sent, and a daemon as a part of it |
//! | `socket` | where mounters listen |
//! | `handle` | the driver's handle: where its mounters are, and whom it follows |
//! | `client` | the driver's requests |
//! | `session` | the driver's thread for each daemon |
//! | `server` | the mounter |
//!
//! A request is one message on a connection of its own: the version, a verb, the place (the staging path), and more.
//!
//! | verb | with | answer |
//! |---|---|---|
//! | `serve`, `continue` | the daemon, the device | `serving` |
//! | `attach` | | `serving` with the daemon and, if it can be continued, the device; `unknown` |
//! | `renew` | the daemon | `done`, `unknown` |
//! | `end` | a time limit in milliseconds | `done`, `unknown` |
//! | `list` | no place | `places` |
//!
//! Any answer can be `refused`, with a kind and a text. After `serving` the connection stays, and the mounter sends
//! `continued` each time that the next daemon continues the mount, or `ended`. A connection that ends without that means
//! that the mounter has ended.
//!
//! The device is kept twice: by the mounter, which is the parent of the daemon and so ends together with it, and by the
//! driver. A third process in a pod of its own would save a volume only if both of these end at once.

mod client;
mod command;
mod handle;
mod message;
mod server;
mod session;
mod socket;

pub(super) use handle::source_with_pod;
pub use handle::{Mounter, MounterDaemon};
pub use server::MounterServer;

/// The first word of each request. A driver and a mounter of different versions can meet, because the mounter's pod is
/// replaced later.
const VERSION: &str = "csi-fuse-1";
