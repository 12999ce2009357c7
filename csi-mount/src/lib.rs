//! To come.
#![cfg(target_os = "linux")]

mod attributes;
mod bind;
mod device_number;
mod error;
mod lookup;
mod mount;
mod options;
mod root;
mod state;
mod sys;
mod target;
#[cfg(feature = "testing")]
pub mod testing;
mod unmount;

pub use attributes::MountAttributes;
pub use bind::{Bind, Outcome};
pub use device_number::DeviceNumber;
pub use error::{Error, ErrorKind, Result};
pub use mount::Mount;
pub use options::{FsOption, MountOptions};
pub use root::Root;
pub use state::{MountId, MountPoint, MountState, mount_state};
pub use target::{Created, Removed, Target};
pub use unmount::{Detach, Unmount, Unmounted, unmount};
