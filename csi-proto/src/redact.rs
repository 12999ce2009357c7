//! Hides secrets: wrappers whose `Debug` shows the keys and hides the values.
//!
//! The messages of this crate use them in their own `Debug`. The hidden fields are taken from the descriptor
//! when the code is generated. A type that copies such a field should wrap it in the same way.

use std::collections::BTreeMap;
use std::fmt;

use zeroize::Zeroize as _;

/// The key under which Kubernetes passes a pod's service account tokens to the driver.
pub const TOKENS_KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The text printed in place of a hidden value.
pub const HIDDEN: &str = "***";

/// Mount options whose values are known to be harmless: numbers, versions and modes.
const HARMLESS_OPTIONS: &str = "\
    acdirmax acdirmin acregmax acregmin actimeo allocsize commit compress compress-force data dir_mode dmask \
    errors file_mode fmask gid iocharset local_lock logbsize logbufs lookupcache max_batch_time min_batch_time \
    minorversion mode nconnect nfsvers nr_inodes port proto retrans retry rsize sec size stripe subvol subvolid \
    sunit swidth timeo uid umask vers wsize";

/// A map whose values are all secret: prints only the keys.
///
/// ```
/// use std::collections::BTreeMap;
/// use csi_proto::internal::SecretMap;
///
/// let secrets = BTreeMap::from([("user".to_owned(), "ann".to_owned())]);
/// assert_eq!(format!("{:?}", SecretMap(&secrets)), r#"{"user": ***}"#);
/// ```
#[derive(Clone, Copy)]
pub struct SecretMap<'a>(pub &'a BTreeMap<String, String>);

impl fmt::Debug for SecretMap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|key| (key, Hidden))).finish()
    }
}

/// A map of context or parameters: prints keys and values, but hides the value of [`TOKENS_KEY`].
///
/// ```
/// use std::collections::BTreeMap;
/// use csi_proto::internal::{ContextMap, TOKENS_KEY};
///
/// let context = BTreeMap::from([
///     (TOKENS_KEY.to_owned(), "{}".to_owned()),
///     ("pool".to_owned(), "fast".to_owned()),
/// ]);
/// let text = format!("{:?}", ContextMap(&context));
/// assert_eq!(text, r#"{"csi.storage.k8s.io/serviceAccount.tokens": ***, "pool": "fast"}"#);
/// ```
#[derive(Clone, Copy)]
pub struct ContextMap<'a>(pub &'a BTreeMap<String, String>);

impl fmt::Debug for ContextMap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (key, value) in self.0 {
            if key == TOKENS_KEY {
                map.entry(key, &Hidden);
            } else {
                map.entry(key, value);
            }
        }
        map.finish()
    }
}

/// Mount flags, which can contain secrets: prints plain words, and `key=value` if both are harmless.
///
/// For any other `key=value` only the key is printed, for anything else nothing. A flag is never split at
/// commas, because a value can contain them (an SELinux context does).
///
/// ```
/// use csi_proto::internal::MountFlags;
///
/// let flags = ["noatime", "vers=4.1", "password=x", "a,b"].map(String::from);
/// assert_eq!(format!("{:?}", MountFlags(&flags)), "[noatime, vers=4.1, password=***, ***]");
/// ```
#[derive(Clone, Copy)]
pub struct MountFlags<'a>(pub &'a [String]);

impl fmt::Debug for MountFlags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|flag| Flag(flag))).finish()
    }
}

struct Flag<'a>(&'a str);

impl fmt::Debug for Flag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once('=') {
            None if is_plain(self.0) => f.write_str(self.0),
            Some((key, value)) if is_harmless(key) && is_plain(value) => f.write_str(self.0),
            Some((key, _)) if is_plain(key) => write!(f, "{key}={HIDDEN}"),
            _ => f.write_str(HIDDEN),
        }
    }
}

fn is_harmless(key: &str) -> bool {
    HARMLESS_OPTIONS.split(' ').any(|harmless| harmless == key)
}

fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/-".contains(&b))
}

/// Prints [`HIDDEN`].
struct Hidden;

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// A request whose secrets can be removed, so that the rest can be stored, or compared with a retry.
///
/// It is implemented for the request of every RPC.
///
/// ```
/// use csi_proto::internal::ClearSecrets;
/// use csi_proto::v1::DeleteVolumeRequest;
///
/// let mut request = DeleteVolumeRequest {
///     volume_id: "v1".into(),
///     secrets: [("password".into(), "x".into())].into(),
/// };
/// request.clear_secrets();
/// assert_eq!(request, DeleteVolumeRequest { volume_id: "v1".into(), ..Default::default() });
/// ```
pub trait ClearSecrets {
    /// Empties the fields that the spec marks as secret, and removes [`TOKENS_KEY`] from the request's other
    /// maps. The memory of the removed values is overwritten with zeros.
    ///
    /// Mount flags are kept: requests with different flags are different requests.
    fn clear_secrets(&mut self) {}
}

macro_rules! redacted_debug {
    ($($message:path, $name:literal { $($shown:ident $field:ident,)* })*) => {$(
        impl ::std::fmt::Debug for $message {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct($name)
                    $(.field(stringify!($field), redacted_debug!(@$shown self.$field)))*
                    .finish()
            }
        }
    )*};
    (@plain $value:expr) => { &$value };
    (@secret $value:expr) => { &$crate::redact::SecretMap(&$value) };
    (@context $value:expr) => { &$crate::redact::ContextMap(&$value) };
    (@flags $value:expr) => { &$crate::redact::MountFlags(&$value) };
}

/// Removes these keys, and overwrites the memory of their values.
pub(crate) fn wipe(map: &mut BTreeMap<String, String>, is_secret: impl Fn(&str) -> bool) {
    map.retain(|key, value| {
        let goes = is_secret(key);
        if goes {
            value.zeroize();
        }
        !goes
    });
}

macro_rules! clear_secrets {
    ($($message:path { $($shown:ident $field:ident,)* })*) => {$(
        impl $crate::redact::ClearSecrets for $message {
            fn clear_secrets(&mut self) {
                $(clear_secrets!(@$shown self.$field);)*
            }
        }
    )*};
    (@secret $value:expr) => { $crate::redact::wipe(&mut $value, |_| true) };
    (@context $value:expr) => { $crate::redact::wipe(&mut $value, |key| key == $crate::redact::TOKENS_KEY) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(flag: &str) -> String {
        format!("{:?}", Flag(flag))
    }

    #[test]
    fn harmless_flags_show_in_full() {
        for flag in
            ["ro", "noatime", "hard", "vers=4.1", "sec=krb5p", "size=10485760", "data=ordered", "subvol=/a/b"]
        {
            assert_eq!(shown(flag), flag);
        }
    }

    // spec: mount-flags.not-leaked
    #[test]
    fn other_values_are_hidden() {
        for (flag, expected) in [
            ("password=hunter2", "password=***"),
            ("credentials=/etc/smb", "credentials=***"),
            ("secret=AQD==", "secret=***"),
            ("password=", "password=***"),
            // A harmless key does not make a value harmless that could contain another option.
            ("vers=4.1,password=x", "vers=***"),
            ("vers=a b", "vers=***"),
            ("vers=", "vers=***"),
            ("VERS=x", "VERS=***"),
            ("context=\"system_u:object_r:t:s0:c1,c2\"", "context=***"),
            ("mode,password=x", "***"),
            ("noatime,password", "***"),
            ("pass word", "***"),
            ("user:pa$$", "***"),
            ("=x", "***"),
            ("", "***"),
            ("ключ=x", "***"),
        ] {
            assert_eq!(shown(flag), expected, "{flag}");
        }
    }
}
