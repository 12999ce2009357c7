//! CRC-32C (Castagnoli), with which ext4 and XFS check their superblocks.

/// Adds bytes to a sum that is not inverted: ext4's sums begin with `!0` and stay as they are, XFS inverts
/// them at the end.
pub(super) fn crc32c(sum: u32, bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    bytes.iter().fold(sum, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (POLYNOMIAL & (sum & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32/ISCSI, and the examples of RFC 3720, B.4.
    #[test]
    fn sums_are_those_of_the_standard() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(!crc32c(!0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(!crc32c(!0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
    }
}
