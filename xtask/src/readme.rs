//! The code in README.md, compiled as a doctest.
#![cfg(target_os = "linux")]
#![doc = include_str!("../../README.md")]
