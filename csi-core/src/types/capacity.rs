//! Sizes: what the caller requests, and how to choose one.

use csi_proto::v1;

use crate::error::{Error, Result};

/// The largest size that an answer can have.
const MOST: u64 = i64::MAX as u64;

/// The sizes that the caller accepts, in bytes. Both ends are optional and inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CapacityRange {
    /// The minimum size in bytes.
    pub required_bytes: Option<u64>,
    /// The maximum size in bytes.
    pub limit_bytes: Option<u64>,
}

impl CapacityRange {
    /// Creates a range from its minimum and maximum, in bytes.
    pub const fn new(required_bytes: Option<u64>, limit_bytes: Option<u64>) -> Self {
        Self { required_bytes, limit_bytes }
    }

    /// Whether the caller accepts a volume of this size.
    pub fn contains(&self, bytes: u64) -> bool {
        self.required_bytes.is_none_or(|least| bytes >= least)
            && self.limit_bytes.is_none_or(|most| bytes <= most)
    }

    /// Raises the required size, if any, to at least `bytes`. If the limit is below `bytes`, the range
    /// becomes empty. For volumes that have a minimum size.
    #[must_use]
    pub fn at_least(self, bytes: u64) -> Self {
        let is_below = self.limit_bytes.is_some_and(|limit| limit < bytes);
        let required_bytes = match self.required_bytes {
            None if !is_below => None,
            required => Some(required.unwrap_or(0).max(bytes)),
        };
        Self { required_bytes, ..self }
    }

    /// Chooses the size of a volume: the required size, or `default` if none is required, rounded up to a
    /// multiple of `granularity` bytes, within the limit and the 2^63 - 1 bytes that an answer can have. The result
    /// is 0 only for a `default` of 0, which is an unknown size.
    ///
    /// - spec: `create-volume.out-of-range`
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when the range contains no multiple of `granularity`.
    ///
    /// ```
    /// use csi_core::CapacityRange;
    /// const MIB: u64 = 1 << 20;
    /// let range = CapacityRange::new(Some(1_000_000), None);
    /// assert_eq!(range.choose(1 << 30, MIB)?, MIB);
    /// assert_eq!(CapacityRange::default().choose(1 << 30, MIB)?, 1 << 30);
    /// # Ok::<(), csi_core::Error>(())
    /// ```
    pub fn choose(&self, default: u64, granularity: u64) -> Result<u64> {
        let granularity = granularity.max(1);
        let most = self.limit_bytes.unwrap_or(MOST).min(MOST) / granularity * granularity;
        let wanted = self.required_bytes.unwrap_or(default.min(most));
        match wanted.checked_next_multiple_of(granularity) {
            // A limit below the first multiple leaves nothing.
            Some(size) if size <= most && most > 0 && (size > 0 || default == 0) => Ok(size),
            // The driver's own minimum can have raised what the caller requires.
            _ => {
                let least = self.required_bytes.unwrap_or(0);
                let most = match self.limit_bytes {
                    Some(limit) => format!("limit_bytes is {limit}"),
                    None => format!("a size has at most {MOST}"),
                };
                let text = format!(
                    "capacity_range: the volume needs at least {least} bytes, in multiples of {granularity}, and {most}"
                );
                Err(Error::OutOfRange(text.into()))
            }
        }
    }

    /// Refuses a volume that was to be expanded and has this size; 0 is an unknown size.
    // spec: controller-expand-volume.out-of-range, node-expand-volume.out-of-range
    pub(crate) fn check_expanded(&self, bytes: u64) -> Result<()> {
        match *self {
            Self { limit_bytes: Some(limit), .. } if bytes > limit => Err(Error::OutOfRange(
                format!(
                    "capacity_range.limit_bytes: the volume already has {bytes} bytes, more than {limit}"
                )
                .into(),
            )),
            Self { required_bytes: Some(required), .. } if bytes != 0 && bytes < required => {
                Err(Error::Unavailable(
                    format!(
                        "capacity_range.required_bytes: the volume has only {bytes} bytes, {required} are \
                         required: its storage has to grow first"
                    )
                    .into(),
                ))
            }
            _ => Ok(()),
        }
    }

    /// The range of an answer's request; any size if the request has none.
    pub(crate) fn asked(wire: Option<&v1::CapacityRange>) -> Result<Self> {
        wire.map_or_else(|| Ok(Self::default()), |range| Self::read("capacity_range", range))
    }

    /// Reads a range that the caller must give.
    pub(crate) fn read_required(field: &str, wire: &Option<v1::CapacityRange>) -> Result<Self> {
        match wire {
            Some(wire) => Self::read(field, wire),
            None => Err(Error::invalid(field, "is required")),
        }
    }

    /// Reads the proto's form; the spec requires at least one of the two ends, neither negative.
    // spec: fields.not-negative
    pub(crate) fn read(field: &str, wire: &v1::CapacityRange) -> Result<Self> {
        let end = |name: &str, bytes: i64| match u64::try_from(bytes) {
            Ok(0) => Ok(None),
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => {
                Err(Error::invalid(format!("{field}.{name}"), format!("is {bytes}, must not be negative")))
            }
        };
        let range = Self {
            required_bytes: end("required_bytes", wire.required_bytes)?,
            limit_bytes: end("limit_bytes", wire.limit_bytes)?,
        };
        match (range.required_bytes, range.limit_bytes) {
            (None, None) => {
                Err(Error::invalid(field, "must have required_bytes or limit_bytes when it is given"))
            }
            (Some(required), Some(limit)) if required > limit => Err(Error::OutOfRange(
                format!("{field}: required_bytes {required} is more than limit_bytes {limit}").into(),
            )),
            _ => Ok(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required: u64, limit: u64) -> CapacityRange {
        CapacityRange { required_bytes: Some(required), limit_bytes: Some(limit) }
    }

    // spec: create-volume.capacity-range, create-volume.out-of-range
    #[test]
    fn chooses_inside_the_range_or_says_that_it_cannot() {
        assert_eq!(range(5, 8).choose(100, 4).unwrap(), 8);
        assert_eq!(range(4, 8).choose(100, 4).unwrap(), 4);
        assert!(range(5, 7).choose(100, 4).is_err());
        let limit_only = CapacityRange { required_bytes: None, limit_bytes: Some(10) };
        assert_eq!(limit_only.choose(100, 4).unwrap(), 8);
        assert!(limit_only.choose(100, 16).is_err(), "and no volume without a byte");
        assert!(limit_only.choose(0, 16).is_err());
        assert_eq!(limit_only.choose(0, 4).unwrap(), 0, "an unknown size");
        assert_eq!(CapacityRange::default().choose(0, 4).unwrap(), 0);
        let most = i64::MAX as u64;
        assert_eq!(range(most - 4095, most).choose(1, 4096).unwrap(), most - 4095);
        for required in [most - 4094, most] {
            let no_limit = CapacityRange::new(Some(required), None);
            assert!(matches!(no_limit.choose(1, 4096), Err(Error::OutOfRange(_))), "{required}");
        }
        assert!(range(u64::MAX - 1, u64::MAX).choose(1, 4096).is_err());
        assert_eq!(range(5, 8).at_least(6).required_bytes, Some(6));
        assert_eq!(limit_only.at_least(6), limit_only, "the default is the caller's own to choose");
        assert!(limit_only.at_least(11).choose(100, 1).is_err(), "the limit is below the least size");
        assert_eq!(CapacityRange::default().at_least(6), CapacityRange::default());
    }
}
