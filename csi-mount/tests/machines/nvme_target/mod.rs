//! An NVMe target of the kernel (`nvmet`) on this machine, with loop devices as its namespaces. It is reached over
//! TCP, or over RDMA if `CSI_NVME_TRANSPORT=rdma` is set.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use csi_mount::remote::{NamespaceId, NvmeHost, NvmeTarget, RemoteTarget};
use csi_mount::{Mount, Target};

use crate::devices::{Image, run};
use crate::multipath_node::{active, has_native_multipath, maps};
use crate::remote_bed::Bed;

const CONFIG: &str = "/sys/kernel/config/nvmet";
pub(crate) const HOST_NQN: &str = "nqn.2026-01.org.example:node";
pub(crate) const HOST_ID: &str = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

/// The ports of a subsystem that has two.
pub(crate) const PORTS: [u16; 2] = [4420, 4421];

/// The name of the network device that has the RDMA adapter in software (`rdma_rxe`).
const RDMA_NETWORK: &str = "rdma_net";
const RDMA_ADDRESS: [u8; 4] = [10, 3, 0, 1];

fn is_rdma() -> bool {
    match std::env::var("CSI_NVME_TRANSPORT").as_deref() {
        Ok("rdma") => true,
        Ok(other) => panic!("{other}"),
        Err(_) => false,
    }
}

/// The kernel's name of the transport.
pub(crate) fn transport() -> &'static str {
    if is_rdma() { "rdma" } else { "tcp" }
}

fn prepare() {
    run("ip", &["link", "set", "lo", "up"]);
    if !Path::new(CONFIG).exists() {
        Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
    }
    if is_rdma() && !Path::new("/sys/class/net").join(RDMA_NETWORK).exists() {
        let address = format!("{}/24", std::net::Ipv4Addr::from(RDMA_ADDRESS));
        run("ip", &["link", "add", RDMA_NETWORK, "type", "dummy"]);
        run("ip", &["addr", "add", &address, "dev", RDMA_NETWORK]);
        run("ip", &["link", "set", RDMA_NETWORK, "up"]);
        run("rdma", &["link", "add", "rxe0", "type", "rxe", "netdev", RDMA_NETWORK]);
    }
}

pub(crate) fn host() -> NvmeHost {
    NvmeHost::new(HOST_NQN, HOST_ID).unwrap()
}

/// The states of all controllers, by name.
pub(crate) fn controllers() -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/class/nvme").unwrap().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path().join("state")).ok()?;
            Some((entry.file_name().into_string().unwrap(), state.trim().to_owned()))
        })
        .collect();
    all.sort();
    all
}

/// Disks of NVMe that exist on this machine, as `/dev/nvme0n1`.
pub(crate) fn disks() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    let names = entries.filter_map(|entry| {
        let is_disk = entry.path().join("dev").exists();
        entry.file_name().into_string().ok().filter(|name| is_disk && name.starts_with("nvme"))
    });
    names.map(|name| Path::new("/dev").join(name)).collect()
}

pub(crate) fn live() -> usize {
    controllers().iter().filter(|(_, state)| state == "live").count()
}

/// Connects as an administrator, or another driver, does.
pub(crate) fn connect_by_hand(nqn: &str, port: u16) {
    let address = address(port);
    let ip = address.ip().to_string();
    let port = port.to_string();
    let subsystem = ["-t", transport(), "-a", &ip, "-s", &port, "-n", nqn];
    let host = ["-q", HOST_NQN, "-I", HOST_ID, "--reconnect-delay=1"];
    run("nvme", &[&["connect"], &subsystem[..], &host].concat());
}

pub(crate) fn disconnect_by_hand() {
    for (name, _) in controllers() {
        let _ = fs::write(format!("/sys/class/nvme/{name}/delete_controller"), "1");
    }
}

fn set(place: impl AsRef<Path>, value: &str) {
    let place = place.as_ref();
    fs::write(place, value).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

/// A subsystem with its own ports.
pub(crate) struct Nvmet {
    pub(crate) nqn: String,
    pub(crate) images: Vec<Image>,
    pub(crate) ports: Vec<u16>,
    subsystem: PathBuf,
    name: String,
}

impl Nvmet {
    /// A subsystem with namespaces of 300 MiB and this number of ports, from the first of [`PORTS`] on.
    pub(crate) fn new(name: &str, namespaces: usize, ports: u16) -> Self {
        Self::at(name, namespaces, PORTS[0]..PORTS[0] + ports)
    }

    pub(crate) fn at(name: &str, namespaces: usize, ports: std::ops::Range<u16>) -> Self {
        static READY: Once = Once::new();
        READY.call_once(prepare);
        let nqn = nqn(name);
        let subsystem = Path::new(CONFIG).join("subsystems").join(&nqn);
        let images = (0..namespaces).map(|_| Image::new(300)).collect();
        let target = Self { nqn, images, ports: ports.collect(), subsystem, name: name.to_owned() };
        for port in &target.ports {
            let place = target.port(*port);
            fs::create_dir(&place).unwrap();
            let ip = address(*port).ip().to_string();
            for (name, value) in [("addr_trtype", transport()), ("addr_adrfam", "ipv4"), ("addr_traddr", &ip)]
            {
                set(place.join(name), value);
            }
            set(place.join("addr_trsvcid"), &port.to_string());
        }
        target.start();
        target
    }

    fn port(&self, port: u16) -> PathBuf {
        Path::new(CONFIG).join("ports").join(port.to_string())
    }

    fn namespace(&self, index: usize) -> PathBuf {
        self.subsystem.join("namespaces").join((index + 1).to_string())
    }

    /// Serves a device as the namespace with this number, with reservations if the kernel's target has them.
    pub(crate) fn serve(&self, number: u64, device: &Path) {
        let place = self.subsystem.join("namespaces").join(number.to_string());
        fs::create_dir(&place).unwrap();
        set(place.join("device_path"), device.to_str().unwrap());
        // A restart keeps it.
        set(place.join("device_uuid"), &uuid(number as usize));
        if place.join("resv_enable").exists() {
            set(place.join("resv_enable"), "1");
        }
        set(place.join("enable"), "1");
    }

    /// Takes the namespace with this number away.
    pub(crate) fn withdraw(&self, number: u64) {
        let place = self.subsystem.join("namespaces").join(number.to_string());
        set(place.join("enable"), "0");
        fs::remove_dir(&place).unwrap();
    }

    /// Gives a namespace the name of this number, as if its number was given to another volume.
    pub(crate) fn rename(&self, index: usize, name: usize) {
        let place = self.namespace(index);
        set(place.join("enable"), "0");
        set(place.join("device_path"), self.images[index].path().to_str().unwrap());
        set(place.join("device_uuid"), &uuid(name));
        set(place.join("device_nguid"), &nguid(name));
        set(place.join("enable"), "1");
    }

    pub(crate) fn set_enabled(&self, index: usize, is_enabled: bool) {
        set(self.namespace(index).join("enable"), if is_enabled { "1" } else { "0" });
    }

    /// Lets the port answer, or ends its connections and refuses new ones.
    pub(crate) fn set_open(&self, port: u16, is_open: bool) {
        let link = self.port(port).join("subsystems").join(&self.nqn);
        if is_open {
            symlink(&self.subsystem, link).unwrap();
        } else {
            fs::remove_file(link).unwrap();
        }
    }

    pub(crate) fn set_access(&self, port: u16, state: &str) {
        set(self.port(port).join("ana_groups/1/ana_state"), state);
    }

    /// Allows only this test's host, with this key. The subsystem itself has the other one.
    pub(crate) fn require_key(&self, key: &str, own: &str) {
        let host = Path::new(CONFIG).join("hosts").join(HOST_NQN);
        fs::create_dir(&host).unwrap();
        set(host.join("dhchap_key"), key);
        set(host.join("dhchap_ctrl_key"), own);
        set(self.subsystem.join("attr_allow_any_host"), "0");
        symlink(&host, self.subsystem.join("allowed_hosts").join(HOST_NQN)).unwrap();
    }

    /// Refuses connections without TLS at its ports. The ports must be closed.
    pub(crate) fn require_tls(&self) {
        for port in &self.ports {
            set(self.port(*port).join("addr_tsas"), "tls1.3");
            set(self.port(*port).join("addr_treq"), "required");
        }
    }

    /// What a driver says about the namespace with this index, with all portals.
    pub(crate) fn target(&self, index: usize) -> NvmeTarget {
        let target = self.target_at(index, &[]);
        self.ports.iter().fold(target, |target, port| target.portal(address(*port)))
    }

    pub(crate) fn target_at(&self, index: usize, ports: &[u16]) -> NvmeTarget {
        namespace_of(&self.name, index, ports)
    }
}

/// Without the kernel's native multipath the node has multipathd.
impl Bed for Nvmet {
    fn volume(&self, index: usize) -> RemoteTarget {
        self.target(index).into()
    }

    fn image(&self, index: usize) -> &Image {
        &self.images[index]
    }

    fn grow(&self, index: usize, mebibytes: u64) {
        self.images[index].grow_to(mebibytes);
        set(self.namespace(index).join("revalidate_size"), "1");
    }

    fn paths(&self) -> usize {
        self.ports.len()
    }

    fn working(&self) -> usize {
        if has_native_multipath() { live() } else { live().min(active()) }
    }

    fn set_path(&self, path: usize, works: bool) {
        self.set_open(self.ports[path], works);
    }

    /// Takes everything away, except the images.
    fn stop(&self) {
        for port in &self.ports {
            let _ = fs::remove_file(self.port(*port).join("subsystems").join(&self.nqn));
        }
        for index in 0..self.images.len() {
            set(self.namespace(index).join("enable"), "0");
            fs::remove_dir(self.namespace(index)).unwrap();
        }
        fs::remove_dir(&self.subsystem).unwrap();
    }

    /// Makes the subsystem with its namespaces, and lets its ports answer.
    fn start(&self) {
        fs::create_dir(&self.subsystem).unwrap();
        set(self.subsystem.join("attr_allow_any_host"), "1");
        // A restart keeps it.
        set(self.subsystem.join("attr_serial"), "0123456789abcdef");
        for index in 0..self.images.len() {
            fs::create_dir(self.namespace(index)).unwrap();
            self.rename(index, index);
        }
        self.ports.iter().for_each(|port| self.set_open(*port, true));
    }

    fn disk_prefix(&self) -> &'static str {
        if has_native_multipath() { "/dev/nvme" } else { "/dev/dm-" }
    }

    /// The kernel shows all volumes of a subsystem, and multipathd makes their maps.
    fn assert_shows(&self, volumes: &[usize]) {
        assert_eq!(live(), if volumes.is_empty() { 0 } else { self.paths() });
    }

    fn left(&self) -> Vec<String> {
        let controllers = controllers().into_iter().map(|(name, state)| format!("{name} is {state}"));
        let disks = disks().into_iter().map(|disk| disk.display().to_string());
        let maps = if has_native_multipath() { Vec::new() } else { maps() };
        controllers.chain(disks).chain(maps.into_iter().map(|(name, _)| name)).collect()
    }
}

/// What a driver says about a namespace of the subsystem with this name.
pub(crate) fn namespace_of(subsystem: &str, index: usize, ports: &[u16]) -> NvmeTarget {
    let id = match index % 2 {
        0 => NamespaceId::nguid(&nguid(index)),
        _ => NamespaceId::uuid(&uuid(index)),
    };
    let over = if is_rdma() { NvmeTarget::rdma } else { NvmeTarget::tcp };
    let target = over(host(), &nqn(subsystem), id.unwrap()).unwrap();
    let target = target.reconnect_delay(Duration::from_secs(1)).wait_limit(Duration::from_secs(60));
    ports.iter().fold(target, |target, port| target.portal(address(*port)))
}

fn nqn(subsystem: &str) -> String {
    format!("nqn.2026-01.org.example:{subsystem}")
}

pub(crate) fn address(port: u16) -> SocketAddr {
    SocketAddr::from((if is_rdma() { RDMA_ADDRESS } else { [127, 0, 0, 1] }, port))
}

fn uuid(index: usize) -> String {
    format!("9f1b2c3d-0000-4000-8000-{index:012x}")
}

fn nguid(index: usize) -> String {
    format!("0123456789abcdef-0000-{index:012x}").replace('-', "")
}

impl Drop for Nvmet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?}", controllers());
            // The next test starts on a machine without connections.
            disconnect_by_hand();
        }
        for port in &self.ports {
            let _ = fs::remove_file(self.port(*port).join("subsystems").join(&self.nqn));
            let removed = fs::remove_dir(self.port(*port));
            assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        }
        if std::thread::panicking() {
            return;
        }
        let host = Path::new(CONFIG).join("hosts").join(HOST_NQN);
        let _ = fs::remove_file(self.subsystem.join("allowed_hosts").join(HOST_NQN));
        let _ = fs::remove_dir(host);
        self.stop();
    }
}
