//! How a disk is connected to the node: its logical unit number, and its name in `/dev/disk/by-path`, which
//! udev computes in the same way (`path_id`).

use std::fs;
use std::path::{Path, PathBuf};

use super::text;

/// A SCSI address: host, channel, target, logical unit.
struct ScsiAddress {
    host: u64,
    channel: u64,
    target: u64,
    lun: u64,
}

impl ScsiAddress {
    fn parse(name: &str) -> Option<Self> {
        let numbers: Vec<u64> = name.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        match numbers[..] {
            [host, channel, target, lun] => Some(Self { host, channel, target, lun }),
            _ => None,
        }
    }

    /// Numbers from 256 on are written as the 8 bytes of the protocol.
    fn lun_text(&self) -> String {
        let lun = self.lun;
        if lun < 256 {
            lun.to_string()
        } else {
            format!("0x{:04x}{:04x}00000000", lun & 0xffff, lun >> 16 & 0xffff)
        }
    }
}

pub(super) fn lun(disk: &Path) -> Option<u64> {
    let device = fs::canonicalize(disk.join("device")).ok()?;
    ScsiAddress::parse(device.file_name()?.to_str()?).map(|address| address.lun)
}

/// None on a bus that is not listed at [`ExpectedDevice::by_path`](crate::ExpectedDevice::by_path).
pub(super) fn by_path(disk: &Path) -> Option<String> {
    let place = fs::canonicalize(disk).ok()?;
    // The directories from the disk up.
    let above: Vec<(&str, &Path)> =
        place.ancestors().filter_map(|path| Some((path.file_name()?.to_str()?, path))).collect();
    let named = |is: &dyn Fn(&str) -> bool| above.iter().find(|(name, _)| is(name)).copied();
    let pci = || named(&is_pci).map(|(address, _)| format!("pci-{address}"));
    if let Some(address) = above.iter().find_map(|(name, _)| ScsiAddress::parse(name)) {
        if let Some((session, path)) = named(&|name| is_numbered(name, "session")) {
            return iscsi(session, path, &address);
        }
        if let Some((guid, _)) = named(&is_guid) {
            return Some(format!("vmbus-{guid}-lun-{}", address.lun_text()));
        }
        let is_other = |name: &str| {
            ["rport-", "end_device-"].iter().any(|prefix| name.starts_with(prefix))
                || ["ata", "usb"].iter().any(|prefix| is_numbered(name, prefix))
        };
        if named(&is_other).is_some() {
            return None;
        }
        let (_, host) = named(&|name| name == format!("host{}", address.host))?;
        let host = address.host - first_host(host.parent()?)?;
        let ScsiAddress { channel, target, lun, .. } = address;
        return Some(format!("{}-scsi-{host}:{channel}:{target}:{lun}", pci()?));
    }
    if place.file_name()?.to_str()?.starts_with("nvme") {
        return Some(format!("{}-nvme-{}", pci()?, text(&place.join("nsid"))?));
    }
    named(&|name| is_numbered(name, "virtio"))?;
    pci()
}

fn iscsi(session: &str, path: &Path, address: &ScsiAddress) -> Option<String> {
    let number = session.strip_prefix("session")?;
    let target = text(&path.join(format!("iscsi_session/{session}/targetname")))?;
    let connection = format!("connection{number}:0");
    let connection: PathBuf = path.join(&connection).join("iscsi_connection").join(&connection);
    let host = text(&connection.join("persistent_address"))?;
    let port = text(&connection.join("persistent_port"))?;
    Some(format!("ip-{host}:{port}-iscsi-{target}-lun-{}", address.lun_text()))
}

/// The lowest number of a controller's hosts. The kernel numbers the hosts of all controllers together.
fn first_host(controller: &Path) -> Option<u64> {
    let entries = fs::read_dir(controller).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("host")?.parse().ok()).min()
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// `0000:00:1f.2`
fn is_pci(name: &str) -> bool {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    name.split_once('.').is_some_and(|(address, function)| {
        is_hex(function) && address.split(':').count() == 3 && address.split(':').all(is_hex)
    })
}

/// A device of Hyper-V.
fn is_guid(name: &str) -> bool {
    let lengths: Vec<usize> = name.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && name.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_a_network_and_of_a_hypervisor_have_a_path() {
        let root = tempfile::tempdir().unwrap();
        let session = "platform/host6/session4";
        let connection = format!("{session}/connection4:0/iscsi_connection/connection4:0");
        for (file, content) in [
            (format!("{session}/iscsi_session/session4/targetname"), "iqn.2026-01.org.example:1"),
            (format!("{connection}/persistent_address"), "10.0.0.1"),
            (format!("{connection}/persistent_port"), "3260"),
        ] {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{content}\n")).unwrap();
        }
        let guid = "f8b3781a-1e82-4818-a1c3-63d806ec15bb";
        for (place, expected) in [
            (
                format!("{session}/target6:0:0/6:0:0:1/block/sdc"),
                Some("ip-10.0.0.1:3260-iscsi-iqn.2026-01.org.example:1-lun-1".to_owned()),
            ),
            (
                format!("VMBUS:00/{guid}/host3/target3:0:0/3:0:0:5/block/sdd"),
                Some(format!("vmbus-{guid}-lun-5")),
            ),
            (
                "pci0000:00/0000:00:04.0/host8/target8:0:0/8:0:0:256/block/sde".to_owned(),
                Some("pci-0000:00:04.0-scsi-1:0:0:256".to_owned()),
            ),
            ("pci0000:00/0000:00:1f.2/ata1/host1/target1:0:0/1:0:0:0/block/sdf".to_owned(), None),
            ("virtual/block/loop0".to_owned(), None),
        ] {
            let place = root.path().join(place);
            fs::create_dir_all(&place).unwrap();
            fs::create_dir_all(root.path().join("pci0000:00/0000:00:04.0/host7")).unwrap();
            assert_eq!(by_path(&place), expected, "{}", place.display());
        }
        assert_eq!(ScsiAddress::parse("0:0:0:257").unwrap().lun_text(), "0x0101000000000000");
    }
}
