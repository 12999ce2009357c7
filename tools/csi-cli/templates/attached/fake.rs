//! The cloud in memory: its API on a local port, and its disks on a machine, simulated or real.

#![allow(dead_code, reason = "a module of each test file, which uses its part")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use clap::Parser as _;
use csi_core::Plugin;
use csi_core::mount::testing::SimulatedNode;
use csi_core::mount::{Host, LoopOptions};
use serde_json::{Value, json};

pub const TOKEN: &str = "canary";
pub const MACHINE: &str = "node-1";
/// How many volumes the machine takes.
const LIMIT: usize = 3;

/// The machine that the disks are attached to.
#[derive(Clone)]
pub enum Machine {
    Simulated(SimulatedNode),
    /// This one. A disk is an image in the directory, on a loop device. Its serial number is a file in sysfs, which
    /// only the mount namespace of the test has.
    Real(PathBuf),
}

impl Machine {
    pub fn host(&self) -> Host {
        match self {
            Self::Simulated(node) => node.host(),
            Self::Real(_) => Host::kernel(),
        }
    }

    /// Attaches the disk, or gives an attached one this size. Returns its device node.
    fn attach(&self, serial: &str, bytes: u64) -> PathBuf {
        let directory = match self {
            Self::Simulated(node) => return node.attach_disk(serial, bytes),
            Self::Real(directory) => directory,
        };
        let image = directory.join(serial);
        let file = File::options().create(true).truncate(false).write(true).open(&image).unwrap();
        file.set_len(bytes).unwrap();
        let host = self.host();
        if let Some(device) = host.devices().loop_devices(&image).unwrap().pop() {
            host.devices().loop_refresh(&image).unwrap();
            return device.path;
        }
        let device = host.devices().loop_attach(&image, &LoopOptions::new()).unwrap().path;
        let sysfs = in_sysfs(&device);
        let added = directory.join(format!("{serial}.sysfs"));
        fs::create_dir_all(&added).unwrap();
        fs::write(added.join("serial"), serial).unwrap();
        let layers = format!("lowerdir={}:{}", added.display(), sysfs.display());
        // The toolkit mounts nothing below /sys.
        run(Command::new("mount").args(["-t", "overlay", "-o", &layers, serial]).arg(sysfs));
        device
    }

    /// Detaches the disk, and returns whether anything was ever written to it.
    fn detach(&self, serial: &str, device: &Path) -> bool {
        match self {
            Self::Simulated(node) => {
                let is_written = !node.is_blank(device);
                node.remove_disk(device);
                is_written
            }
            Self::Real(directory) => {
                let image = directory.join(serial);
                run(Command::new("umount").arg(in_sysfs(device)));
                Host::kernel().devices().loop_detach(&image).unwrap();
                image.metadata().unwrap().blocks() > 0
            }
        }
    }
}

/// The disks on this machine whose images are in this directory. None stays attached, also if a test fails.
pub struct RealDisks<'d>(pub &'d Path);

impl Drop for RealDisks<'_> {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.0).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let _ = Host::kernel().devices().loop_detach(&entry.path());
            }
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn in_sysfs(device: &Path) -> PathBuf {
    fs::canonicalize(Path::new("/sys/block").join(device.file_name().unwrap())).unwrap()
}

#[derive(Default)]
struct Disk {
    bytes: u64,
    serial: String,
    written: bool,
    /// Its device node on the machine.
    attached: Option<PathBuf>,
}

/// A clone is the same cloud.
#[derive(Clone)]
pub struct FakeCloud {
    machine: Machine,
    disks: Arc<Mutex<BTreeMap<String, Disk>>>,
    token_file: PathBuf,
    address: String,
}

impl FakeCloud {
    /// Serves the API until the test's process ends, for this machine.
    pub fn start(machine: Machine, directory: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let token_file = directory.join("token");
        let address = format!("http://{}", listener.local_addr().unwrap());
        let cloud = Self { machine, disks: Arc::default(), token_file, address };
        cloud.set_token(TOKEN);
        let served = cloud.clone();
        thread::spawn(move || listener.incoming().for_each(|stream| served.answer(stream.unwrap())));
        cloud
    }

    /// The driver on this cloud.
    pub fn plugin(&self) -> Plugin {
        let root = self.token_file.with_file_name("root");
        let args = {{crate_name}}::Args::parse_from([
            "{{name}}".to_owned(),
            format!("--node-id={MACHINE}"),
            format!("--api={}", self.address),
            format!("--token-file={}", self.token_file.display()),
            format!("--root={}", root.display()),
            format!("--machine-disks={}", LIMIT + 1),
            "--other-disks=1".to_owned(),
        ]);
        {{crate_name}}::plugin(&args).host(self.machine.host())
    }

    /// Replaces the driver's token.
    pub fn set_token(&self, token: &str) {
        fs::write(&self.token_file, token).unwrap();
    }

    /// Whether every disk was deleted, which only a detached one can be.
    pub fn is_empty(&self) -> bool {
        self.disks.lock().unwrap().is_empty()
    }

    /// Gives the volume the serial number of a new disk, as if the cloud had lost its disk.
    pub fn lose_disk(&self, name: &str) {
        self.disks.lock().unwrap().get_mut(name).unwrap().serial.push('x');
    }

    fn answer(&self, stream: TcpStream) {
        let mut reader = BufReader::new(&stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap() <= 2 {
                break;
            }
            head.push(line.trim_end().to_lowercase());
        }
        let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let mut body = vec![0; header("content-length: ").parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let action = head[0].trim_start_matches("post /disks/").split(' ').next().unwrap();
        let (status, answer) = if header("authorization: bearer ") == TOKEN {
            self.act(action, &serde_json::from_slice(&body).unwrap())
        } else {
            (401, Value::Null)
        };
        let answer = answer.to_string();
        let length = answer.len();
        let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        (&stream).write_all((head + &answer).as_bytes()).unwrap();
    }

    /// The API.
    fn act(&self, action: &str, request: &Value) -> (u16, Value) {
        let mut disks = self.disks.lock().unwrap();
        let name = request["disk"].as_str().unwrap();
        let bytes = request["bytes"].as_u64();
        let is_full = disks.values().filter(|disk| disk.attached.is_some()).count() >= LIMIT;
        if action == "create" && !disks.contains_key(name) {
            static CREATED: AtomicU32 = AtomicU32::new(0);
            let serial = format!("vol-{}", CREATED.fetch_add(1, Ordering::Relaxed));
            disks.insert(name.to_owned(), Disk { bytes: bytes.unwrap(), serial, ..Disk::default() });
        }
        let Some(disk) = disks.get_mut(name) else { return (404, Value::Null) };
        match action {
            "create" | "get" => {}
            "delete" if disk.attached.is_some() => return (409, Value::Null),
            "delete" => {
                disks.remove(name);
                return (200, json!({ "bytes": 0, "serial": "", "written": false, "machine": null }));
            }
            "attach" if request["machine"] != MACHINE => return (404, Value::Null),
            "attach" if is_full && disk.attached.is_none() => return (422, Value::Null),
            "attach" => disk.attached = Some(self.machine.attach(&disk.serial, disk.bytes)),
            "detach" => {
                if let Some(device) = disk.attached.take() {
                    disk.written |= self.machine.detach(&disk.serial, &device);
                }
            }
{% if expand %}
            "grow" => {
                disk.bytes = bytes.unwrap();
                if disk.attached.is_some() {
                    self.machine.attach(&disk.serial, disk.bytes);
                }
            }
{% endif %}
            other => panic!("the API has no {other}"),
        }
        let machine = disk.attached.as_ref().map(|_| MACHINE);
        let Disk { bytes, serial, written, .. } = disk;
        (200, json!({ "bytes": bytes, "serial": serial, "written": written, "machine": machine }))
    }
}
