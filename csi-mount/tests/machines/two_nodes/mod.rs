//! A disk of a target, and two nodes that have it: two initiators on this machine, each with a name of its own. The disk
//! of the target can be told to wait.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::devices::{Image, eventually};
use crate::iscsi_target::{ADDRESSES, Lio, iscsiadm, log_out_by_hand};
use crate::nvme_target::{Nvmet, PORTS, address, disconnect_by_hand, transport};
use crate::remote_bed::Bed as _;

/// In MiB.
pub(crate) const SIZE: u64 = 64;
/// The number of the disk at the target.
const NUMBER: u64 = 9;
/// Its serial number over iSCSI.
const SERIAL: &str = "00000009-0000-4000-8000-000000000000";

/// A block for direct I/O.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    pub(crate) fn new(byte: u8) -> Self {
        Self::with(&[byte; 4096])
    }

    /// The content's length is a multiple of 4096.
    pub(crate) fn with(content: &[u8]) -> Self {
        let mut bytes = vec![0; content.len() + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, length: content.len() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Opens a disk for direct I/O.
pub(crate) fn direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_DIRECT).open(path).unwrap()
}

/// A loop device beneath a mapping that can be suspended.
struct Backing {
    /// It holds the loop device.
    _image: Image,
    path: PathBuf,
}

fn dmsetup(arguments: &[&str]) {
    let output = Command::new("dmsetup").args(arguments).env("DM_DISABLE_UDEV", "1").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Backing {
    fn new() -> Self {
        let image = Image::new(SIZE);
        let table = format!("0 {} linear {} 0", SIZE * 2048, image.path().display());
        dmsetup(&["create", "backing", "--table", &table]);
        let names = fs::read_dir("/sys/block").unwrap().flatten();
        let mut names = names.filter(|entry| {
            fs::read_to_string(entry.path().join("dm/name")).is_ok_and(|name| name.trim() == "backing")
        });
        let path = Path::new("/dev").join(names.next().unwrap().file_name());
        Self { _image: image, path }
    }

    /// Direct, so that nothing in a cache of this machine hides what the target wrote.
    fn read(&self, offset: u64, blocks: usize) -> Vec<u8> {
        let mut content = Aligned::with(&vec![0; blocks * 4096]);
        direct(&self.path).read_exact_at(content.bytes_mut(), offset).unwrap();
        content.bytes().to_vec()
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup").args(["resume", "backing"]).env("DM_DISABLE_UDEV", "1").output();
        eventually("the target lets go of its disk", || {
            let removed =
                Command::new("dmsetup").args(["remove", "backing"]).env("DM_DISABLE_UDEV", "1").output();
            removed.unwrap().status.success().then_some(())
        });
    }
}

/// The disk of a target, as two nodes show it.
pub(crate) trait SharedDisk: Sync {
    /// The paths of the disk on the nodes.
    fn nodes(&self) -> [PathBuf; 2];

    /// Lets the target wait for its own disk.
    fn suspend(&self) {
        dmsetup(&["suspend", "--nolockfs", "--noflush", "backing"]);
    }

    fn resume(&self) {
        dmsetup(&["resume", "backing"]);
    }

    /// What the target has, in blocks of 4 KiB.
    fn read(&self, offset: u64, blocks: usize) -> Vec<u8>;

    /// Ends the target, starts it again, and waits until both nodes are connected. What it had in memory is gone.
    fn restart(&self);

    /// Gives a node a new session, as a reboot does.
    fn reboot(&self, node: usize);

    /// Waits until both nodes are connected.
    fn is_back(&self) {
        for disk in self.nodes() {
            // The first commands of a new session can fail.
            let read = || direct(&disk).read_exact_at(Aligned::new(0).bytes_mut(), 0).ok();
            eventually("the node reads its disk", read);
        }
    }
}

pub(crate) struct IscsiDisk {
    lio: Lio,
    disk: PathBuf,
    backing: Backing,
}

const INITIATORS: [&str; 2] = ["node-a", "node-b"];

fn portal(node: usize) -> String {
    format!("{}:3260", std::net::Ipv4Addr::from(ADDRESSES[node]))
}

impl IscsiDisk {
    pub(crate) fn new() -> Self {
        for place in ["/var/target/pr", "/etc/target/pr"] {
            fs::create_dir_all(place).unwrap();
        }
        // Another test's.
        let _ = fs::remove_file(stored());
        let backing = Backing::new();
        let lio = Lio::on_two_addresses("shared", 0);
        let disk = Path::new("/sys/kernel/config/target/core/fileio_0/shared").to_owned();
        let shared = Self { lio, disk, backing };
        shared.serve();
        for (node, name) in INITIATORS.into_iter().enumerate() {
            iscsiadm(&["-m", "iface", "-I", name, "-o", "new"]);
            let own = format!("iqn.2026-01.org.example:{name}");
            iscsiadm(&["-m", "iface", "-I", name, "-o", "update", "-n", "iface.initiatorname", "-v", &own]);
            let place = ["-m", "node", "-T", &shared.lio.iqn, "-p", &portal(node), "-I", name];
            iscsiadm(&[&place[..], &["-o", "new"]].concat());
            iscsiadm(&[&place[..], &["--login"]].concat());
        }
        shared
    }

    fn serve(&self) {
        fs::create_dir(&self.disk).unwrap();
        let control = format!("fd_dev_name={},fd_dev_size={}", self.backing.path.display(), SIZE << 20);
        fs::write(self.disk.join("control"), control).unwrap();
        fs::write(self.disk.join("wwn/vpd_unit_serial"), SERIAL).unwrap();
        fs::write(self.disk.join("enable"), "1").unwrap();
        self.load();
        self.lio.map_place(NUMBER, &self.disk);
    }

    /// Gives the target what it had stored of its registrations, as its tools do after a restart.
    fn load(&self) {
        let stored = fs::read_to_string(stored()).unwrap_or_default();
        for registration in stored.split("PR_REG_START").skip(1) {
            let entries: Vec<&str> = registration.lines().filter(|line| line.contains('=')).collect();
            fs::write(self.disk.join("pr/res_aptpl_metadata"), entries.join(",")).unwrap();
        }
    }
}

/// Where the target keeps registrations.
pub(crate) fn stored() -> PathBuf {
    Path::new("/var/target/pr").join(format!("aptpl_{SERIAL}"))
}

impl SharedDisk for IscsiDisk {
    fn nodes(&self) -> [PathBuf; 2] {
        INITIATORS.map(|name| {
            eventually("the node shows the disk", || {
                let sessions = fs::read_dir("/sys/class/iscsi_session").unwrap().flatten();
                let own = format!("iqn.2026-01.org.example:{name}");
                let is_own = |place: &PathBuf| {
                    fs::read_to_string(place.join("initiatorname")).is_ok_and(|found| found.trim() == own)
                };
                let session = sessions.map(|entry| entry.path()).find(is_own)?;
                disk_below(&session.join("device")).filter(|disk| disk.exists())
            })
        })
    }

    fn read(&self, offset: u64, blocks: usize) -> Vec<u8> {
        self.backing.read(offset, blocks)
    }

    fn restart(&self) {
        self.lio.stop();
        fs::remove_dir(&self.disk).unwrap();
        self.lio.make();
        self.serve();
        self.lio.answer();
        self.is_back();
    }

    fn reboot(&self, node: usize) {
        let place = ["-m", "node", "-T", &self.lio.iqn, "-p", &portal(node), "-I", INITIATORS[node]];
        iscsiadm(&[&place[..], &["--logout"]].concat());
        iscsiadm(&[&place[..], &["--login"]].concat());
    }
}

fn disk_below(session: &Path) -> Option<PathBuf> {
    let entries = |place: &Path| {
        let found = fs::read_dir(place).into_iter().flatten().flatten();
        found.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_target = |place: &PathBuf| place.file_name().unwrap().to_string_lossy().starts_with("target");
    let targets = entries(session).into_iter().filter(is_target);
    let units = targets.flat_map(|target| entries(&target));
    let mut disks = units.flat_map(|unit| entries(&unit.join("block")));
    Some(Path::new("/dev").join(disks.next()?.file_name()?))
}

impl Drop for IscsiDisk {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup").args(["resume", "backing"]).env("DM_DISABLE_UDEV", "1").output();
        log_out_by_hand();
        for name in INITIATORS {
            let _ = Command::new("iscsiadm").args(["-m", "iface", "-I", name, "-o", "delete"]).output();
        }
        self.lio.unmap(NUMBER);
        let removed = fs::remove_dir(&self.disk);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

pub(crate) struct NvmeDisk {
    nvmet: Nvmet,
    backing: Backing,
}

const HOSTS: [(&str, &str); 2] = [
    ("nqn.2026-01.org.example:node-a", "3f2504e0-4f89-41d3-9a0c-0305e82c330a"),
    ("nqn.2026-01.org.example:node-b", "3f2504e0-4f89-41d3-9a0c-0305e82c330b"),
];

impl NvmeDisk {
    pub(crate) fn new() -> Self {
        let backing = Backing::new();
        let nvmet = Nvmet::new("shared", 0, 1);
        let shared = Self { nvmet, backing };
        shared.nvmet.serve(NUMBER, &shared.backing.path);
        (0..HOSTS.len()).for_each(|node| shared.connect(node));
        shared
    }

    fn connect(&self, node: usize) {
        let portal = address(PORTS[0]);
        let place = format!("transport={},traddr={},trsvcid={}", transport(), portal.ip(), portal.port());
        let (host, id) = HOSTS[node];
        // `nvme` connects a machine only once.
        let node = format!("nqn={},hostnqn={host},hostid={id},reconnect_delay=1", self.nvmet.nqn);
        fs::write("/dev/nvme-fabrics", format!("{place},{node}")).unwrap();
    }
}

/// The directory of a node's controller.
fn controller(nqn: &str) -> Option<PathBuf> {
    let controllers = fs::read_dir("/sys/class/nvme").unwrap().flatten();
    let is_own =
        |place: &PathBuf| fs::read_to_string(place.join("hostnqn")).is_ok_and(|found| found.trim() == nqn);
    controllers.map(|entry| entry.path()).find(is_own)
}

impl SharedDisk for NvmeDisk {
    fn nodes(&self) -> [PathBuf; 2] {
        HOSTS.map(|(nqn, _)| {
            eventually("the node shows the disk", || {
                let controller = controller(nqn)?;
                let name = controller.file_name()?.to_str()?.to_owned() + "n";
                let mut disks = fs::read_dir(&controller).unwrap().flatten();
                let disk = disks.find(|entry| entry.file_name().to_string_lossy().starts_with(&name))?;
                Some(Path::new("/dev").join(disk.file_name())).filter(|disk| disk.exists())
            })
        })
    }

    fn read(&self, offset: u64, blocks: usize) -> Vec<u8> {
        self.backing.read(offset, blocks)
    }

    fn restart(&self) {
        self.nvmet.set_open(PORTS[0], false);
        self.nvmet.withdraw(NUMBER);
        self.nvmet.serve(NUMBER, &self.backing.path);
        self.nvmet.set_open(PORTS[0], true);
        self.is_back();
    }

    fn reboot(&self, node: usize) {
        let (host, _) = HOSTS[node];
        fs::write(controller(host).unwrap().join("delete_controller"), "1").unwrap();
        eventually("the node is disconnected", || controller(host).is_none().then_some(()));
        self.connect(node);
    }
}

impl Drop for NvmeDisk {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup").args(["resume", "backing"]).env("DM_DISABLE_UDEV", "1").output();
        disconnect_by_hand();
        eventually("the nodes are disconnected", || {
            crate::nvme_target::controllers().is_empty().then_some(())
        });
        self.nvmet.withdraw(NUMBER);
    }
}
