//! A short number for bytes: the same in every process and version, which the standard library's hashers don't promise.

/// FNV-1a: against chance and damage, not against malice.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325u64;
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
