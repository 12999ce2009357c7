//! Volume ids that contain the location of the volume.

use std::fmt;
use std::marker::PhantomData;

use super::percent;
use crate::error::{Error, Result};
use crate::types::VolumeId;

/// Types that can be the fields of an id: tuples of up to five parts that implement `Display` and
/// `FromStr`, and any type for which a driver implements this trait.
///
/// The fields must survive the round trip: `from_fields(to_fields(x))` is `x`.
pub trait IdFields: Sized {
    /// Returns the fields as text; their number never changes.
    fn to_fields(&self) -> Vec<String>;

    /// Returns the value with these fields; `None` if no such value exists.
    fn from_fields(fields: &[String]) -> Option<Self>;
}

macro_rules! tuples {
    ($($count:literal: $($part:ident $at:tt),+;)+) => { $(
        impl<$($part: fmt::Display + std::str::FromStr),+> IdFields for ($($part,)+) {
            fn to_fields(&self) -> Vec<String> {
                vec![$(self.$at.to_string()),+]
            }

            fn from_fields(fields: &[String]) -> Option<Self> {
                if fields.len() != $count {
                    return None;
                }
                Some(($(fields[$at].parse::<$part>().ok()?,)+))
            }
        }
    )+ };
}

tuples! {
    1: A 0;
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
    5: A 0, B 1, C 2, D 3, E 4;
}

/// Writes typed fields as a readable volume id, for example `v1:fast:pvc-1`, and reads them back.
///
/// `:`, `/`, `%` and control characters in a field are percent-encoded, so the id is also safe as a file
/// name. Each value has exactly one id: a text that could be parsed but would be written differently
/// (`v1:007`) is not an id of this codec.
///
/// When the fields change, change the version, and read old ids with the old codec.
///
/// ```
/// use csi_core::types::IdCodec;
/// use csi_core::{Error, VolumeId};
///
/// /// Pool and number of a volume.
/// const IDS: IdCodec<(String, u32)> = IdCodec::new("v1");
///
/// let id = IDS.encode(&("fast:ssd".to_owned(), 7))?;
/// assert_eq!(id.as_str(), "v1:fast%3Assd:7");
/// let (pool, number) = IDS.decode(&id)?;
/// assert_eq!((pool.as_str(), number), ("fast:ssd", 7));
///
/// let foreign = VolumeId::new("vol-0123456789")?;
/// assert!(matches!(IDS.decode(&foreign), Err(Error::VolumeNotFound(_))));
/// # Ok::<(), csi_core::Error>(())
/// ```
pub struct IdCodec<F> {
    version: &'static str,
    fields: PhantomData<fn() -> F>,
}

impl<F: IdFields> IdCodec<F> {
    /// Creates a codec whose ids begin with `version` and a colon.
    ///
    /// # Panics
    /// When `version` is empty or contains anything but ASCII letters and digits. For a `const` this is a
    /// compile error.
    pub const fn new(version: &'static str) -> Self {
        let bytes = version.as_bytes();
        assert!(!bytes.is_empty(), "an id codec needs a version");
        let mut at = 0;
        while at < bytes.len() {
            assert!(bytes[at].is_ascii_alphanumeric(), "an id codec's version is letters and digits");
            at += 1;
        }
        Self { version, fields: PhantomData }
    }

    /// Returns the id for these fields.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names `name`, when the id would exceed the spec's 128 bytes:
    /// CreateVolume's request makes it long.
    pub fn encode(&self, fields: &F) -> Result<VolumeId> {
        let id = self.text(fields);
        let size = id.len();
        VolumeId::new(id).map_err(|_| {
            Error::invalid("name", format!("makes a volume id of {size} bytes, the limit is 128"))
        })
    }

    /// Returns the fields of the id.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND) when this codec can't have written the id.
    pub fn decode(&self, id: &VolumeId) -> Result<F> {
        self.read(id.as_str()).ok_or_else(|| Error::VolumeNotFound(id.clone()))
    }

    fn text(&self, fields: &F) -> String {
        let mut id = self.version.to_owned();
        for field in fields.to_fields() {
            id.push(':');
            id.push_str(&percent::encode(&field, is_escaped));
        }
        id
    }

    fn read(&self, id: &str) -> Option<F> {
        let fields = id.strip_prefix(self.version)?.strip_prefix(':')?;
        let fields: Option<Vec<String>> = fields.split(':').map(percent::decode).collect();
        F::from_fields(&fields?).filter(|fields| self.text(fields) == id)
    }
}

impl<F> fmt::Debug for IdCodec<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdCodec").field("version", &self.version).finish_non_exhaustive()
    }
}

fn is_escaped(_: usize, character: char) -> bool {
    matches!(character, ':' | '/' | '%') || character.is_ascii_control()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDS: IdCodec<(String, u32, String)> = IdCodec::new("v1");

    #[test]
    fn foreign_ids_are_volumes_that_do_not_exist() {
        for id in [
            "x",
            "v1",
            "v1:",
            "v1:a:1",
            "v1:a:1:b:c",
            "v2:a:1:b",
            "v1:a:+1:b",
            "v1:a:01:b",
            "v1:a:-1:b",
            "v1:a:x:b",
            "V1:a:1:b",
            "v1:%41:1:b",
            "v1:%3a:1:b",
            "v1:%:1:b",
            "v1:%3:1:b",
            "v1:%é:1:b",
            "v1:%+1:1:b",
            "v1:%FF:1:b",
            "v1:a/b:1:b",
            "v11:a:1:b",
        ] {
            let decoded = IDS.decode(&VolumeId::new(id).unwrap());
            assert!(matches!(decoded, Err(Error::VolumeNotFound(_))), "{id}: {decoded:?}");
        }
        assert!(IDS.decode(&VolumeId::new("v1::1:").unwrap()).is_ok(), "empty fields are fields");
    }

    #[test]
    fn the_limit_is_the_specs() {
        let fits = IDS.encode(&("p".repeat(120), 1, "é".into())).unwrap();
        assert_eq!(fits.as_str().len(), 128);
        let error = IDS.encode(&("p".repeat(121), 1, "é".into())).unwrap_err();
        assert_eq!(error.to_string(), "name: makes a volume id of 129 bytes, the limit is 128");
    }

    proptest! {
        #[test]
        fn fields_come_back_as_they_were(pool in ".{0,12}", number in any::<u32>(), name in "[a-z:%/.\u{0}é]{0,16}") {
            let fields = (pool, number, name);
            if let Ok(id) = IDS.encode(&fields) {
                prop_assert!(id.as_file_name().is_ok(), "{}", id);
                prop_assert_eq!(IDS.decode(&id).unwrap(), fields);
            }
        }

        #[test]
        fn what_can_be_read_is_written_the_same(id in "v1:[a:%0-9A-F/]{1,20}") {
            let id = VolumeId::new(id).unwrap();
            if let Ok(fields) = IDS.decode(&id) {
                prop_assert_eq!(IDS.encode(&fields).unwrap(), id);
            }
        }

        #[test]
        fn no_id_makes_it_panic(id in "\\PC{1,60}") {
            let _ = IDS.decode(&VolumeId::new(id.chars().take(30).collect::<String>()).unwrap());
        }
    }
}
