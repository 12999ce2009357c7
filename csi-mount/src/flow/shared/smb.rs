//! Mount options that `mount.cifs` would otherwise find out for the kernel: the server's address.

use nix::libc;

use super::SharedSource;
use super::kernel_log::KernelLog;
use super::source::{address, is_host};
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::diagnose;
use crate::mounting::options::MountOptions;
use crate::path::paths;
use crate::table::smb_root;

const OPERATION: &str = "mount SMB from";

/// Options that `mount.cifs` replaces by others and the kernel ignores, each with what to use.
const OF_THE_HELPER: [(&str, &str); 3] = [
    ("credentials", "give the options username, password and domain"),
    ("cred", "give the options username, password and domain"),
    ("guest", "for a server that admits everyone give the option sec=none"),
];

/// Messages of every mount, which say nothing about a failure.
const NOTICES: [&str; 2] = ["Attempting to mount", "No dialect specified"];

impl SharedSource {
    /// A share of an SMB server, or a directory below one: `//server/share` or `//server/share/directory`.
    /// Backslashes are slashes.
    ///
    /// The server is a name or an address. Give the user in the options `username`, `password` and `domain`:
    /// only the kernel gets them. `credentials=` and `guest` are options of `mount.cifs`, and are refused.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for any other form, and for a path that contains `..`.
    #[doc(alias = "mount.cifs")]
    #[doc(alias = "cifs")]
    pub fn smb(unc: &str) -> Result<Self> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, OPERATION, why).at(unc));
        let slashed = unc.replace('\\', "/");
        let Some((host, path)) = slashed.strip_prefix("//").and_then(|rest| rest.split_once('/')) else {
            return refuse("it does not have the form //server/share");
        };
        if !is_host(host) {
            return refuse("it does not begin with the name or address of a server");
        }
        let path = paths::absolute(OPERATION, format!("/{path}").as_ref())?;
        match path.to_str() {
            Some(path) if path != "/" && !path.contains(char::is_control) => {
                Ok(Self::new("cifs", format!("//{host}{path}")))
            }
            _ => refuse("it does not name a share"),
        }
    }
}

/// Returns the options for the kernel: the given ones, plus the server's address if it is missing.
pub(super) fn complete(source: &SharedSource, options: MountOptions) -> Result<MountOptions> {
    if !smb_root::is_smb(&source.fs_type) {
        return Ok(options);
    }
    let has = |key: &str| options.filesystem().iter().any(|option| option.key() == key);
    if let Some((option, instead)) = OF_THE_HELPER.iter().find(|(option, _)| has(option)) {
        let reason = format!("only mount.cifs knows the option {option}, and it is not called");
        return Err(Error::new(ErrorKind::InvalidOption, OPERATION, reason)
            .at(&source.source)
            .hint(*instead));
    }
    if ["ip", "addr"].iter().any(|key| has(key)) {
        return Ok(options);
    }
    let host = source.source.trim_start_matches(['/', '\\']).split(['/', '\\']).next().unwrap_or_default();
    options.with_option("ip", &address(OPERATION, host)?.to_string())
}

/// Adds what the error number means for an SMB mount, and what the kernel's log says.
pub(super) fn explained(source: &SharedSource, error: Error, log: KernelLog) -> Error {
    if !smb_root::is_smb(&source.fs_type) {
        return error;
    }
    let error = with_meaning(error);
    let messages = log.messages(&["CIFS: "]).into_iter();
    messages
        .filter(|message| !NOTICES.iter().any(|notice| message.starts_with(notice)))
        .map(|message| diagnose::hidden(&message, &source.options))
        .fold(error, |error, message| error.add_reason(format_args!("kernel log: {message}")))
}

fn with_meaning(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EKEYREJECTED) => error
            .with_kind(ErrorKind::WrongKey)
            .add_reason("the server refuses this user, the password, or the user's access to the share")
            .hint("check the secret"),
        Some(libc::EKEYEXPIRED | libc::EKEYREVOKED) => error
            .with_kind(ErrorKind::WrongKey)
            .add_reason("the password has expired, or the account is disabled")
            .hint("check the secret"),
        Some(libc::ENOENT) => {
            error.hint("check whether the server has this share, and the share this directory")
        }
        Some(libc::EOPNOTSUPP) => {
            error.hint("the server does not offer this version or security (vers=, sec=, seal)")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(source: &SharedSource, flags: &[&str]) -> Result<Vec<String>> {
        let options = complete(source, MountOptions::parse(flags).unwrap())?;
        let word = |option: &crate::FsOption| format!("{}={}", option.key(), option.value().unwrap_or(""));
        Ok(options.filesystem().iter().map(word).collect())
    }

    #[test]
    fn the_address_is_added_and_given_options_stay() {
        let all = ["vers=3.1.1", "multichannel", "max_channels=4", "username=u", "password2=x"];
        let words = completed(&SharedSource::smb("//192.0.2.7/share/a").unwrap(), &all).unwrap();
        let due =
            ["vers=3.1.1", "multichannel=", "max_channels=4", "username=u", "password2=x", "ip=192.0.2.7"];
        assert_eq!(words, due);
        let named = SharedSource::smb("//x.invalid/share").unwrap();
        for given in ["ip=192.0.2.1", "addr=192.0.2.1"] {
            assert_eq!(completed(&named, &[given]).unwrap(), [given]);
        }
        let six = SharedSource::new("smb3", r"\\::1\share");
        assert_eq!(completed(&six, &[]).unwrap(), ["ip=::1"]);
        assert_eq!(completed(&SharedSource::new("tmpfs", "//x/y"), &["guest"]).unwrap(), ["guest="]);
        let error = completed(&named, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive);
        assert!(error.to_string().contains("x.invalid: its name could not be resolved"), "{error}");
    }

    #[test]
    fn a_source_is_a_share_of_a_server() {
        for (unc, source) in [
            ("//smb.example.org/share", "//smb.example.org/share"),
            ("//192.0.2.7/share//a/./b/", "//192.0.2.7/share/a/b"),
            (r"\\server\share\a b", "//server/share/a b"),
            ("//2001:db8::7/share$", "//2001:db8::7/share$"),
        ] {
            assert_eq!(SharedSource::smb(unc).unwrap().source, source);
        }
        for unc in [
            "",
            "/",
            "//",
            "//server",
            "//server/",
            "///share",
            "server/share",
            "//a b/share",
            "//s/share/../x",
            "//s/sh\nare",
            "//s/a\0",
        ] {
            let error = SharedSource::smb(unc).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{unc:?}: {error}");
        }
    }

    #[test]
    fn options_of_the_mount_helper_are_refused_without_their_value() {
        let share = SharedSource::smb("//192.0.2.7/share").unwrap();
        for flag in ["credentials=/geheim", "cred=/geheim", "guest"] {
            let error = completed(&share, &[flag]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            let text = error.to_string();
            assert!(text.contains(flag.split('=').next().unwrap()) && !text.contains("geheim"), "{text}");
        }
    }

    #[test]
    fn what_a_refusal_means_is_said() {
        let share = SharedSource::smb("//192.0.2.7/share").unwrap();
        let of = |source: &SharedSource, number| {
            let error = Error::os("mount at", "/staging", std::io::Error::from_raw_os_error(number));
            explained(source, error, KernelLog::from_now())
        };
        for (number, kind, part) in [
            (libc::EACCES, ErrorKind::WrongKey, "check the secret"),
            (libc::EKEYEXPIRED, ErrorKind::WrongKey, "expired"),
            (libc::ENOENT, ErrorKind::NotFound, "has this share"),
            (libc::EINVAL, ErrorKind::InvalidInput, ""),
            (libc::EOPNOTSUPP, ErrorKind::Unsupported, "vers="),
            (libc::EHOSTDOWN, ErrorKind::Unresponsive, ""),
        ] {
            let error = of(&share, number);
            assert!(error.kind() == kind && error.to_string().contains(part), "{error:?}");
        }
        assert_eq!(of(&SharedSource::new("nfs", "s:/e"), libc::EACCES).kind(), ErrorKind::PermissionDenied);
    }
}
