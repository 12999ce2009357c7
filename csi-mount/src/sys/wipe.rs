//! Memory that held a secret.
#![allow(unsafe_code, reason = "a write that the compiler may not leave out")]

use std::sync::atomic::{Ordering, compiler_fence};

/// Sets the bytes to zero, also where nobody reads them afterwards.
pub(crate) fn wipe(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a mutable reference may be written to.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
    compiler_fence(Ordering::SeqCst);
}
