//! This machine's family of Linux systems: its package manager, and its package names.

use std::fs;

/// Systems with the same package names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// Debian, Ubuntu and their derivatives: apt.
    Debian,
    /// Fedora, CentOS and their derivatives: dnf.
    Fedora,
    /// Alpine: apk.
    Alpine,
    /// Any other system. Debian's names are printed as a hint.
    Other,
}

/// The packages whose names on Fedora and on Alpine differ from Debian's; Alpine splits some in two.
const NAMES: &[(&str, &str, &str)] = &[
    ("e2fsprogs", "e2fsprogs", "e2fsprogs e2fsprogs-extra"),
    ("xfsprogs", "xfsprogs", "xfsprogs xfsprogs-extra"),
    ("mount", "util-linux", "util-linux"),
    ("cryptsetup-bin", "cryptsetup", "cryptsetup"),
    ("qemu-system-x86", "qemu-system-x86", "qemu-system-x86_64"),
    ("xz-utils", "xz", "xz"),
    ("libc-bin", "glibc-common", "musl-utils"),
    ("iproute2", "iproute", "iproute2"),
    ("dmsetup", "device-mapper", "device-mapper"),
    ("multipath-tools", "device-mapper-multipath", "multipath-tools"),
    ("open-iscsi", "iscsi-initiator-utils", "open-iscsi"),
    ("openssh-client", "openssh-clients", "openssh-client openssh-keygen"),
    ("samba-common-bin", "samba-common-tools", "samba-common-tools"),
    ("sshfs", "fuse-sshfs", "sshfs"),
    ("udev", "systemd-udev", "eudev"),
];

impl Family {
    pub(crate) fn of_this_machine() -> Self {
        Self::parse(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// Reads `ID` and `ID_LIKE` of os-release(5). The first known name decides.
    fn parse(os_release: &str) -> Self {
        let value =
            |name: &str| os_release.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let names = [value("ID="), value("ID_LIKE=")].map(|value| value.trim_matches(['"', '\'']));
        let families = names.into_iter().flat_map(str::split_whitespace).map(|name| match name {
            "debian" | "ubuntu" => Self::Debian,
            "fedora" | "rhel" | "centos" => Self::Fedora,
            "alpine" => Self::Alpine,
            _ => Self::Other,
        });
        families.into_iter().find(|family| *family != Self::Other).unwrap_or(Self::Other)
    }

    /// The command that installs packages, as a person would type it.
    pub(crate) fn install_command(self, debian_names: &[&str]) -> String {
        let mut names: Vec<&str> = debian_names.iter().map(|name| self.package(name)).collect();
        names.sort_unstable();
        names.dedup();
        let program = match self {
            Self::Debian | Self::Other => "apt-get install",
            Self::Fedora => "dnf install",
            Self::Alpine => "apk add",
        };
        format!("{program} {}", names.join(" "))
    }

    fn package(self, debian_name: &str) -> &str {
        let named = NAMES.iter().find(|(debian, ..)| *debian == debian_name);
        match (self, named) {
            (Self::Fedora, Some((_, fedora, _))) => fedora,
            (Self::Alpine, Some((.., alpine))) => alpine,
            _ => debian_name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_of_the_family_that_it_says() {
        for (os_release, expected) in [
            ("ID=debian\nVERSION_CODENAME=bookworm\n", Family::Debian),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Family::Debian),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Family::Fedora),
            ("ID=fedora\n", Family::Fedora),
            ("ID=alpine\n", Family::Alpine),
            ("ID=arch\n", Family::Other),
            ("", Family::Other),
        ] {
            assert_eq!(Family::parse(os_release), expected, "{os_release}");
        }
    }

    #[test]
    fn packages_have_the_names_of_the_system() {
        let needed = ["e2fsprogs", "mount", "util-linux", "cryptsetup-bin", "open-iscsi"];
        for (family, expected) in [
            (Family::Debian, "apt-get install cryptsetup-bin e2fsprogs mount open-iscsi util-linux"),
            (Family::Fedora, "dnf install cryptsetup e2fsprogs iscsi-initiator-utils util-linux"),
            (Family::Alpine, "apk add cryptsetup e2fsprogs e2fsprogs-extra open-iscsi util-linux"),
        ] {
            assert_eq!(family.install_command(&needed), expected);
        }
    }
}
