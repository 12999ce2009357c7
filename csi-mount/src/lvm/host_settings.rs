//! What the administrator's own lvm reads. The driver's commands read the group's disks, whatever is set.

use crate::lvm::group::VolumeGroup;
use crate::preflight::{PreflightFinding, Verdict};

impl VolumeGroup {
    /// Checks whether the node's own lvm, as the boot and the administrator run it, can look into volumes: it activates what a
    /// tenant has written there. It is fine if its `global_filter` refuses what it does not name (lvm.conf(5)), or if it has a
    /// devices file (lvmdevices(8)).
    pub fn preflight(&self) -> PreflightFinding {
        let lvm = &self.0.lvm;
        let settings =
            ["lvmconfig", "--typeconfig", "full", "devices/use_devicesfile", "devices/global_filter"];
        let (verdict, detail) = match lvm.ask("lvm", &settings) {
            Err(error) => (Verdict::Degraded, format!("not known: {error}")),
            Ok(settings) if refuses_others(&settings) => (Verdict::Fine, String::new()),
            Ok(settings) if settings.contains("use_devicesfile=1") && lvm.ask("lvm", &["lvmdevices"]).is_ok() => {
                (Verdict::Fine, String::new())
            }
            Ok(_) => (
                Verdict::Degraded,
                "the node's own lvm looks into volumes, and activates what tenants have written there; set devices/global_filter in \
                 its lvm.conf to the node's disks and \"r|.*|\", or use a devices file (lvmdevices)"
                    .to_owned(),
            ),
        };
        PreflightFinding { subject: "lvm.conf".to_owned(), verdict, detail }
    }
}

/// Whether the filter refuses a device that no other part of it names. Any byte can be around a pattern.
fn refuses_others(settings: &str) -> bool {
    let filter = settings.lines().find_map(|line| line.trim().strip_prefix("global_filter="));
    filter.unwrap_or_default().split(['[', ',', ']']).any(|part| {
        let pattern = part.trim().trim_matches('"').strip_prefix('r').map(str::as_bytes);
        matches!(pattern, Some([first, b'.', b'*', last]) if first == last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_refuses_what_it_does_not_name() {
        for (filter, refuses) in [
            (r#"["a|^/dev/sda$|","r|.*|"]"#, true),
            (r#"[ "a/^\/dev\/sda$/", "r/.*/" ]"#, true),
            (r#"["r|.*|"]"#, true),
            (r#"["a|.*|"]"#, false),
            (r#"["r|/dev/sdb.*|","a|.*|"]"#, false),
            ("[]", false),
        ] {
            assert_eq!(
                refuses_others(&format!("use_devicesfile=0\nglobal_filter={filter}\n")),
                refuses,
                "{filter}"
            );
        }
        assert!(!refuses_others("use_devicesfile=0"));
    }
}
