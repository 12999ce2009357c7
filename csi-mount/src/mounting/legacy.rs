//! Mounting with one `mount(2)` call that takes the attributes and one string of options: before Linux 5.2,
//! and for the few options that a filesystem context gets wrong.

use std::ffi::CString;
use std::path::Path;

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::bounded::in_flight;
use crate::detached::prepared::Prepared;
use crate::detached::scratch::{Scratch, mount_flags};
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::options::{FsOption, MountOptions};
use crate::mounting::runner::MountRunner;
use crate::mounting::{MOUNT, diagnose};
use crate::place::target::Target;
use crate::sys::new_mount::{MountMethod, Refusal};

/// Options that are flags of `mount(2)`, not text for the filesystem.
const FLAGS: [(&str, MountFlags); 4] = [
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
    ("lazytime", MountFlags::LAZYTIME),
    ("mand", MountFlags::PERMIT_MANDATORY_FILE_LOCKING),
];

/// Mounts it in a private directory, from where it is moved onto the target.
pub(crate) fn prepare(
    fs_type: &str,
    source: &Path,
    options: &MountOptions,
    target: &Target,
    runner: &MountRunner,
) -> Result<Prepared> {
    let (flags, words): (Vec<_>, Vec<_>) =
        options.filesystem().iter().partition(|option| flag_of(option).is_some());
    let flags = flags.into_iter().filter_map(flag_of);
    let flags = flags.fold(mount_flags(options.attributes()), |all, flag| all | flag);
    let refuse = |reason| Error::new(ErrorKind::InvalidOption, MOUNT, reason).at(target.path());
    let data = data(&words).map_err(refuse)?;
    let scratch = Scratch::new(FileType::Directory)?;
    let text = |text: &Path| in_flight::c_string(text).map_err(|error| target.error(MOUNT, error));
    let method = MountMethod::Path {
        source: &text(source)?,
        place: &text(&scratch.mount_path())?,
        fs_type: &text(fs_type.as_ref())?,
        flags,
        options: &data,
    };
    let mounted = runner.make(method, &options.named_descriptors());
    mounted.map_err(|error| error.at(target.path()))?.map_err(|Refusal { error, .. }| match error {
        Errno::NODEV => diagnose::type_error(target, fs_type, error),
        _ => {
            let what = format!("{fs_type} from {}", source.display());
            diagnose::explained(target.error(MOUNT, error).add_reason(what), source, options)
        }
    })?;
    scratch.into_prepared()
}

fn flag_of(option: &FsOption) -> Option<MountFlags> {
    if option.value().is_some() {
        return None;
    }
    FLAGS.iter().find(|(word, _)| *word == option.key()).map(|(_, flag)| *flag)
}

/// Joins the options into one string. Only SELinux options can contain a comma in a value, in quotes.
fn data(options: &[&FsOption]) -> std::result::Result<CString, String> {
    let words = options.iter().map(|option| match option.value() {
        None => Ok(option.key().to_owned()),
        Some(value) if !value.contains(',') => Ok(format!("{}={value}", option.key())),
        Some(value) if option.key().ends_with("context") => Ok(format!("{}=\"{value}\"", option.key())),
        Some(_) => {
            Err(format!("the value of option {} contains a comma, which needs Linux 5.2", option.key()))
        }
    });
    let data = words.collect::<std::result::Result<Vec<_>, _>>()?.join(",");
    CString::new(data).map_err(|_| "an option contains a NUL".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_a_comma_is_quoted_or_refused() {
        let options = MountOptions::parse(["nouuid", "context=u:r:t:s0:c1,c2"]).unwrap();
        let words: Vec<_> = options.filesystem().iter().collect();
        assert_eq!(data(&words).unwrap().to_str().unwrap(), "nouuid,context=\"u:r:t:s0:c1,c2\"");
        let options = MountOptions::parse(["subvol=a,ro"]).unwrap();
        let error = data(&options.filesystem().iter().collect::<Vec<_>>()).unwrap_err();
        assert!(error.contains("subvol") && !error.contains("a,ro"), "{error}");
    }
}
