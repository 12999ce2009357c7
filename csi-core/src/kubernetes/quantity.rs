//! Kubernetes quantities: sizes as people write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

use crate::error::{Error, Result};

/// The suffixes and their factors, the largest first.
const BINARY: [(&str, u64); 6] =
    [("Ei", 1 << 60), ("Pi", 1 << 50), ("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
const DECIMAL: [(&str, u64); 6] = [
    ("E", 1_000_000_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// A number of bytes, parsed and printed like a Kubernetes quantity: `1Gi`, `500M`, `1.5Ti`, `12e6`,
/// `4096`.
///
/// A fraction of a byte is rounded up, as in Kubernetes. The printed form is the shortest exact one with a
/// binary suffix, or plain digits. A field of a driver's parameters can have this type:
///
/// ```
/// use csi_core::kubernetes::Quantity;
/// assert_eq!("1.5Gi".parse::<Quantity>()?.bytes(), 1_610_612_736);
/// assert_eq!("500M".parse::<Quantity>()?.bytes(), 500_000_000);
/// assert_eq!(Quantity::new(3 << 30).to_string(), "3Gi");
///
/// #[derive(serde::Deserialize)]
/// struct Params {
///     reserve: Quantity,
/// }
/// # Ok::<(), csi_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Quantity(u64);

impl Quantity {
    /// Creates a quantity of this many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// # Errors
/// [`Error::InvalidArgument`] for text that is not a quantity, is negative or exceeds 63 bits.
impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        read(text).map(Self).map_err(|reason| Error::invalid("quantity", format!("{text:?} {reason}")))
    }
}

/// Parses `[+]digits[.digits][suffix]`; the suffix can be an exponent of ten.
fn read(text: &str) -> Result<u64, &'static str> {
    const SHAPE: &str = "is not a size like 1Gi, 500M, 1.5Ti or 4096";
    const LARGE: &str = "is more than 63 bits of bytes";
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(if text.starts_with('-') { "is negative" } else { SHAPE });
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return multiplier(suffix).map(|_| 0).ok_or(SHAPE);
    }
    // 38 digits fit into 128 bits; no real size has more.
    let digits: u128 = digits.parse().map_err(|_| LARGE)?;
    let (factor, exponent) = multiplier(suffix).ok_or(SHAPE)?;
    let scale = exponent - i32::try_from(fraction.len()).map_err(|_| LARGE)?;
    let product = digits.checked_mul(u128::from(factor)).ok_or(LARGE)?;
    let power = |exponent: u32| 10_u128.checked_pow(exponent);
    let bytes = match u32::try_from(scale) {
        Ok(scale) => power(scale).and_then(|power| product.checked_mul(power)).ok_or(LARGE)?,
        // A divisor that does not fit is larger than any product that does, so the rounded-up result is 1
        // byte.
        Err(_) => power(scale.unsigned_abs()).map_or(1, |power| product.div_ceil(power)),
    };
    i64::try_from(bytes).map(i64::unsigned_abs).map_err(|_| LARGE)
}

/// The meaning of a suffix: a factor and a power of ten.
fn multiplier(suffix: &str) -> Option<(u64, i32)> {
    match suffix {
        "" => Some((1, 0)),
        "n" => Some((1, -9)),
        "u" => Some((1, -6)),
        "m" => Some((1, -3)),
        _ => BINARY
            .iter()
            .chain(&DECIMAL)
            .find(|(name, _)| *name == suffix)
            .map(|(_, factor)| (*factor, 0))
            .or_else(|| {
                let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
                (-100..=100).contains(&exponent).then_some((1, exponent))
            }),
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = BINARY.iter().find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor));
        match unit {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

/// Parses a parameter's text. The message does not contain the text, as with every other parameter.
struct Text;

impl de::Visitor<'_> for Text {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size like 1Gi")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        read(text).map(Quantity).map_err(E::custom)
    }
}

impl From<Quantity> for u64 {
    fn from(quantity: Quantity) -> u64 {
        quantity.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_kubernetes_writes() {
        for (text, bytes) in [
            ("0", 0),
            ("0Ei", 0),
            ("1", 1),
            ("+1", 1),
            ("1k", 1000),
            ("1Ki", 1024),
            ("1Gi", 1 << 30),
            ("500M", 500_000_000),
            ("1.5Ti", 3 << 39),
            (".5Ki", 512),
            ("5.Ki", 5120),
            ("1e3", 1000),
            ("12E6", 12_000_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1.5e1", 15),
            ("100m", 1),
            ("1500m", 2),
            ("0.1", 1),
            ("1n", 1),
            ("1e-100", 1),
            ("7Ei", 7 << 60),
            ("9223372036854775807", i64::MAX.unsigned_abs()),
            ("000000000000000000000000000000000000000000000001", 1),
            ("1.000000000000000000000000000000000000000000000000", 1),
        ] {
            assert_eq!(text.parse::<Quantity>().unwrap().bytes(), bytes, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in [
            "",
            " ",
            "Gi",
            "1 Gi",
            "1gi",
            "1GiB",
            "1KI",
            "1K",
            "-1",
            "-1Gi",
            "1.2.3",
            "1e",
            "1e1.5",
            "0x10",
            "8Ei",
            "9223372036854775808",
            "1e100",
            "1e101",
            "1e99999999999",
            ".",
            "+",
            "++1",
            "１",
        ] {
            let error = text.parse::<Quantity>().unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn is_written_short_and_exact() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1000, "1000"),
            (1024, "1Ki"),
            (1536, "1536"),
            (3 << 30, "3Gi"),
            (1 << 60, "1Ei"),
        ] {
            assert_eq!(Quantity::new(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(bytes in 0..=i64::MAX.unsigned_abs()) {
            prop_assert_eq!(Quantity::new(bytes).to_string().parse::<Quantity>().unwrap().bytes(), bytes);
        }

        #[test]
        fn a_fraction_is_rounded_up_and_never_down(whole in 0..1_000_000_u64, thousandths in 0..1000_u64) {
            let have = format!("{whole}.{thousandths:03}Mi").parse::<Quantity>().unwrap().bytes();
            let thousand_times = (u128::from(whole) * 1000 + u128::from(thousandths)) * (1 << 20);
            prop_assert_eq!(u128::from(have), thousand_times.div_ceil(1000));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,24}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
