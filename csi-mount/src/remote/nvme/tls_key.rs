//! Keys of NVMe over TLS: the interchange format, and what the kernel's keyring gets (NVMe/TCP Transport
//! Specification, "PSK Interchange Format" and "TLS PSK and PSK Identity Derivation").

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha384};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

const PREFIX: &str = "NVMeTLSkey-1:";
/// The length of the CRC-32 after the key.
const CRC: usize = 4;
const VERSION: &str = "NVMe1R";

/// A pre-shared key as an administrator gives it to the node and to the target. It is never printed, and wiped
/// from memory.
#[derive(Clone)]
pub(in crate::remote) struct TlsKey {
    key: Zeroizing<Vec<u8>>,
    /// The hash by which the key becomes the node's own.
    transform: Option<Hash>,
}

/// What the keyring gets: a name, which is no secret, and the key.
pub(in crate::remote) struct TlsPsk {
    pub(in crate::remote) identity: String,
    pub(in crate::remote) key: Zeroizing<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Sha256,
    Sha384,
}

impl Hash {
    fn length(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// Its number in keys and identities.
    fn number(self) -> &'static str {
        match self {
            Self::Sha256 => "01",
            Self::Sha384 => "02",
        }
    }

    fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        match self {
            Self::Sha256 => hmac::<Sha256, 64>(key, parts),
            Self::Sha384 => hmac::<Sha384, 128>(key, parts),
        }
    }

    /// HKDF-Extract without a salt (RFC 5869), then HKDF-Expand-Label (RFC 8446), for one block of this hash.
    fn derive(self, key: &[u8], label: &str, context: &str) -> Zeroizing<Vec<u8>> {
        let extracted = self.hmac(&[0; 48][..self.length()], &[key]);
        let label = format!("tls13 {label}");
        let length = (self.length() as u16).to_be_bytes();
        let label_length = [label.len() as u8];
        let context_length = [context.len() as u8];
        let parts: [&[u8]; 6] =
            [&length, &label_length, label.as_bytes(), &context_length, context.as_bytes(), &[1]];
        self.hmac(&extracted, &parts)
    }
}

/// HMAC (RFC 2104), of a key that is not longer than a block of the hash.
fn hmac<D: Digest, const BLOCK: usize>(key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let pad = |with: u8| {
        let mut block = Zeroizing::new([with; BLOCK]);
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = parts.iter().fold(D::new_with_prefix(*pad(0x36)), D::chain_update);
    let outer = D::new_with_prefix(*pad(0x5c)).chain_update(inner.finalize());
    Zeroizing::new(outer.finalize().to_vec())
}

impl TlsKey {
    /// Reads `NVMeTLSkey-1:01:…:`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let invalid = |reason: &str| {
            Error::new(ErrorKind::InvalidInput, "read a TLS key of NVMe", format!("it {reason}"))
        };
        let form = || invalid("does not have the form NVMeTLSkey-1:…");
        let (hash, rest) =
            text.trim().strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')).ok_or_else(form)?;
        let digits = rest.strip_suffix(':').ok_or_else(form)?;
        let decoded = Zeroizing::new(STANDARD.decode(digits).map_err(|_| form())?);
        let Some((key, crc)) = decoded.len().checked_sub(CRC).map(|length| decoded.split_at(length)) else {
            return Err(form());
        };
        let transform = match (hash, key.len()) {
            ("00", 32 | 48) => None,
            ("01", 32) => Some(Hash::Sha256),
            ("02", 48) => Some(Hash::Sha384),
            _ => return Err(invalid("has an unknown hash, or not its length")),
        };
        if crc32(key).to_le_bytes() != *crc {
            return Err(invalid("has a wrong checksum"));
        }
        Ok(Self { key: Zeroizing::new(key.to_vec()), transform })
    }

    /// The key for this node and this subsystem.
    pub(in crate::remote) fn derive(&self, host_nqn: &str, nqn: &str) -> TlsPsk {
        let hash = match (self.transform, self.key.len()) {
            (Some(hash), _) => hash,
            (None, 48) => Hash::Sha384,
            (None, _) => Hash::Sha256,
        };
        let retained = match self.transform {
            Some(hash) => hash.derive(&self.key, "HostNQN", host_nqn),
            None => self.key.clone(),
        };
        let names = format!("{host_nqn} {nqn}");
        let digest = hash.hmac(&retained, &[names.as_bytes(), b" NVMe-over-Fabrics"]);
        let context = format!("{} {}", hash.number(), STANDARD.encode(&*digest));
        let key = hash.derive(&retained, "nvme-tls-psk", &context);
        let identity = context.replacen(' ', &format!(" {names} "), 1);
        TlsPsk { identity: format!("{VERSION}{identity}"), key }
    }
}

/// The checksum of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "nqn.2026-01.org.example:node";
    const SUBSYSTEM: &str = "nqn.2026-01.org.example:tls";

    fn interchange(hash: &str, key: &[u8]) -> String {
        let mut bytes = key.to_vec();
        bytes.extend(crc32(key).to_le_bytes());
        format!("{PREFIX}{hash}:{}:", STANDARD.encode(bytes))
    }

    #[test]
    fn hashes_are_those_of_the_standards() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        // RFC 4231, test case 2.
        let found = Hash::Sha256.hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]);
        let hex: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let found = Hash::Sha384.hmac(b"Jefe", &[b"what do ya want for nothing?"]);
        assert_eq!(found[..4], [0xaf, 0x45, 0xd2, 0xe3]);
    }

    #[test]
    fn a_key_is_checked_and_differs_for_each_subsystem() {
        for (hash, length) in [("00", 32), ("00", 48), ("01", 32), ("02", 48)] {
            let text = interchange(hash, &vec![7; length]);
            let key = TlsKey::parse(&text).unwrap();
            let [one, same, other] = [SUBSYSTEM, SUBSYSTEM, "nqn.x"].map(|nqn| key.derive(HOST, nqn));
            assert!(one.identity == same.identity && one.key == same.key && one.key.len() == length);
            assert!(
                one.identity.contains(SUBSYSTEM) && one.key != other.key && one.key[..] != [7; 48][..length]
            );
        }
        // As `nvme check-tls-key --identity=1` of nvme-cli 2.16 prints it.
        let text = "NVMeTLSkey-1:01:qafd8jtV/ct6gx2twJJdkO1fFp1rSybL41+Sa/UODxRfzGi/:";
        assert_eq!(
            TlsKey::parse(text).unwrap().derive(HOST, SUBSYSTEM).identity,
            format!("NVMe1R01 {HOST} {SUBSYSTEM} NNKjqU2kDTL2W8XxGt5O9mQAQ/qESuwqs3/FPkgY/Q0=")
        );
        let right = interchange("01", &[7; 32]);
        for wrong in [
            "",
            "NVMeTLSkey-1:01:",
            "NVMeTLSkey-1:01:!:",
            "NVMeTLSkey-1:01:AA==:",
            &right.replace(":01:", ":02:"),
            &right.replace(":01:", ":03:"),
            &right.replace("-1:", "-2:"),
            &right.replacen("Bw", "Bx", 1),
            right.trim_end_matches(':'),
        ] {
            let error = TlsKey::parse(wrong).map(drop).unwrap_err();
            assert!(!error.to_string().contains("Bw"), "{error}");
        }
    }
}
