//! Keys of the kernel's keyrings (keyrings(7)). Nothing here waits.
#![allow(unsafe_code, reason = "add_key(2) and keyctl(2) are raw system calls here")]

use std::ffi::CStr;
use std::io;

use nix::errno::Errno;
use nix::libc;

/// The serial number of a key or a keyring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Serial(i32);

impl Serial {
    /// The keyring that ends with this process.
    pub(crate) const OF_THIS_PROCESS: Self = Self(libc::KEY_SPEC_PROCESS_KEYRING);

    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

/// The keyring with this name, wherever it is linked: `/proc/keys` lists those that this process can see.
pub(crate) fn keyring(name: &str) -> io::Result<Option<Serial>> {
    Ok(std::fs::read_to_string("/proc/keys")?.lines().find_map(|line| named(line, name)))
}

/// The serial number in a line such as `1d2e3f40 I--Q---  1 perm 1f0f0000 0 0 keyring .nvme: empty`.
fn named(line: &str, name: &str) -> Option<Serial> {
    let mut words = line.split_whitespace();
    let serial = u32::from_str_radix(words.next()?, 16).ok()?;
    let is_keyring = words.nth(6)? == "keyring";
    let found = words.next()?.trim_end_matches(':');
    (is_keyring && found == name).then_some(Serial(serial.cast_signed()))
}

/// Adds a key to a keyring. One with the same name is replaced. It allocates nothing.
pub(crate) fn add(kind: &CStr, name: &CStr, payload: &[u8], to: Serial) -> Result<Serial, Errno> {
    // SAFETY: the strings end with a NUL, and the payload is as long as the call is told.
    let serial = unsafe {
        libc::syscall(libc::SYS_add_key, kind.as_ptr(), name.as_ptr(), payload.as_ptr(), payload.len(), to.0)
    };
    Ok(Serial(checked(serial)? as i32))
}

/// The key with this name in a keyring. A key lets itself be found only by a process that possesses its keyring, so
/// this thread does that for the moment.
pub(crate) fn find(kind: &CStr, name: &CStr, within: Serial) -> io::Result<Option<Serial>> {
    const OWN: Serial = Serial(libc::KEY_SPEC_THREAD_KEYRING);
    // SAFETY: the arguments are integers.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_LINK, within.0, OWN.0) })?;
    // SAFETY: the strings end with a NUL.
    let serial = unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_SEARCH, OWN.0, kind.as_ptr(), name.as_ptr(), 0)
    };
    let found = checked(serial);
    unlink(within, OWN)?;
    match found {
        Ok(serial) => Ok(Some(Serial(serial as i32))),
        // Revoked and expired ones are as good as none.
        Err(Errno::ENOKEY | Errno::EKEYREVOKED | Errno::EKEYEXPIRED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes a key out of a keyring. Whoever uses it keeps it until the end of that use.
pub(crate) fn unlink(key: Serial, from: Serial) -> io::Result<()> {
    // SAFETY: the arguments are integers.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_UNLINK, key.0, from.0) })?;
    Ok(())
}

fn checked(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyring_is_found_by_its_name() {
        let line = "f1d2e3f4 I--Q---     1 perm 1f0f0000     0     0 keyring   .nvme: empty";
        assert_eq!(named(line, ".nvme"), Some(Serial(0xf1d2_e3f4_u32.cast_signed())));
        assert_eq!(named(line, ".other"), None);
        let key = "01d2e3f4 I--Q---     1 perm 1f0f0000     0     0 psk   .nvme: 32";
        assert_eq!((named(key, ".nvme"), named("", ".nvme")), (None, None));
    }
}
