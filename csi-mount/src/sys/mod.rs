//! The system calls that neither nix nor rustix has. All `unsafe` of this crate is in here.
#![allow(unsafe_code, reason = "raw system calls; each block says why it is sound")]

pub(crate) mod features;
