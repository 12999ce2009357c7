//! The keys of TLS in the kernel's keyring: added before a connect, and taken out after the last disconnect.

use std::ffi::{CStr, CString};
use std::path::Path;

use super::target::NvmeTarget;
use super::tls_key::TlsPsk;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::keyring::{self, Serial};

const ADD: &str = "put the TLS key of NVMe into the keyring";
const REMOVE: &str = "take the TLS key of NVMe out of the keyring";
const KEYRING: &str = ".nvme";
/// The kernel's type of such a key.
const KIND: &CStr = c"psk";

fn nvme_keyring(operation: &'static str) -> Result<Option<Serial>> {
    keyring::keyring(KEYRING).map_err(|error| Error::os(operation, KEYRING, error))
}

fn name(identity: &str) -> Result<CString> {
    CString::new(identity).map_err(|error| Error::new(ErrorKind::InvalidInput, ADD, error.to_string()))
}

fn psk(target: &NvmeTarget) -> Option<TlsPsk> {
    Some(target.keys.tls.as_ref()?.derive(&target.host.nqn, &target.nqn))
}

/// The name of the target's key, if it is not in the keyring yet: then it is this attachment's.
pub(in crate::remote) fn missing_key(target: &NvmeTarget) -> Result<Option<String>> {
    let Some(TlsPsk { identity, .. }) = psk(target) else { return Ok(None) };
    let is_there = match nvme_keyring(ADD)? {
        Some(keyring) => find(ADD, &identity, keyring)?.is_some(),
        None => false,
    };
    Ok((!is_there).then_some(identity))
}

fn find(operation: &'static str, identity: &str, keyring: Serial) -> Result<Option<Serial>> {
    keyring::find(KIND, &name(identity)?, keyring).map_err(|error| Error::os(operation, KEYRING, error))
}

/// Puts the target's key into the keyring, if it has one and it is not there. Returns its serial number.
pub(super) fn provide(target: &NvmeTarget) -> Result<Option<i32>> {
    let Some(TlsPsk { identity, key }) = psk(target) else { return Ok(None) };
    let Some(keyring) = nvme_keyring(ADD)? else {
        return Err(Error::new(ErrorKind::Unsupported, ADD, "the kernel has no keyring .nvme").hint(
            "use Linux 6.7 or later with CONFIG_NVME_TCP_TLS, and load nvme-tcp; a container needs root in the \
             node's user namespace",
        ));
    };
    let serial = match find(ADD, &identity, keyring)? {
        Some(serial) => serial,
        None => keyring::add(KIND, &name(&identity)?, &key, keyring)
            .map_err(|error| Error::os(ADD, Path::new(KEYRING), error))?,
    };
    Ok(Some(serial.number()))
}

/// Removes the key from the keyring. Succeeds if there is no such key.
pub(in crate::remote) fn remove(identity: &str) -> Result<()> {
    let Some(keyring) = nvme_keyring(REMOVE)? else { return Ok(()) };
    match find(REMOVE, identity, keyring)? {
        Some(key) => {
            keyring::unlink(key, keyring).map_err(|error| Error::os(REMOVE, Path::new(KEYRING), error))
        }
        None => Ok(()),
    }
}
