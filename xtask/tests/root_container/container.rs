//! A driver's image run by `runc` as a kubelet's runtime runs a privileged container of a node plugin, or one without
//! any privilege.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use csi_core::proto::client::Client;
use csi_core::proto::pluginregistration as registration;
use registration::registration_client::RegistrationClient;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::node::{DATA, KUBELET, LIMIT, Node, eventually};

/// The folder of the images, which `cargo xtask container` builds.
const IMAGES: &str = "CSI_IMAGES";

/// Capabilities in the order of their numbers (capabilities(7)).
const CAPABILITIES: &str = "\
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO \
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG \
    MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM \
    BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";

/// The process namespace of a container.
#[derive(Clone)]
pub(crate) enum Processes {
    /// Its own, as usual.
    Own,
    /// That of the pod: of the container with this first process (`shareProcessNamespace: true`).
    Pod(i32),
    /// That of the node (`hostPID: true`).
    Host,
}

/// The user of a container without privilege.
pub(crate) const USER: u32 = 65532;

/// What a pod's specification says of a container.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) image: &'static str,
    /// The directory of the socket below the kubelet's `plugins`.
    pub(crate) plugin: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) processes: Processes,
    /// The node's directory of its only volume, if the container has no privilege and nothing else of the node.
    pub(crate) restricted: Option<PathBuf>,
}

pub(crate) struct Container<'n> {
    node: &'n Node,
    id: String,
    run: Child,
    log: PathBuf,
    plugin: &'static str,
}

impl Spec {
    /// Starts the container and waits until its plugin answers.
    pub(crate) async fn start<'n>(&self, node: &'n Node) -> (Container<'n>, Client) {
        let mut container = self.start_only(node);
        let client = Client::new(&container.socket().parse().unwrap());
        let ready = client.ready(LIMIT).await;
        assert!(
            ready.is_ok() && container.run.try_wait().unwrap().is_none(),
            "{ready:?}: {}",
            container.log()
        );
        (container, client)
    }

    pub(crate) fn start_only<'n>(&self, node: &'n Node) -> Container<'n> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = format!("csi-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        fs::create_dir_all(format!("{KUBELET}/plugins/{}", self.plugin)).unwrap();
        let (rootfs, config) = unpack(node, self.image);
        let bundle = node.place.join(&id);
        fs::create_dir(&bundle).unwrap();
        let logs = node.place.join("logs");
        let mut config = self.config(&id, &rootfs, &config, &logs);
        if let Some(volume) = &self.restricted {
            restrict(&mut config, volume);
        }
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let log = bundle.join("log");
        let output = File::create(&log).unwrap();
        let run = runc(node)
            .args(["run", "--bundle"])
            .arg(&bundle)
            .arg(&id)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            // A signal for the test's process group is not for the container.
            .process_group(0)
            .spawn()
            .unwrap();
        Container { node, id, run, log, plugin: self.plugin }
    }

    /// As containerd writes it for a privileged container with a read-only root and these hostPath volumes.
    fn config(&self, id: &str, rootfs: &Path, image: &Value, logs: &Path) -> Value {
        let words = |name: &str| image[name].as_array().cloned().unwrap_or_default();
        let args: Vec<Value> =
            words("Entrypoint").into_iter().chain(self.args.iter().map(|arg| json!(arg))).collect();
        let own = [("CSI_ENDPOINT", "unix:///csi/csi.sock".to_owned()), ("NODE_ID", "node-1".to_owned())];
        let env: Vec<Value> = words("Env")
            .into_iter()
            .chain(own.iter().chain(&self.env).map(|(name, value)| json!(format!("{name}={value}"))))
            .collect();
        let bind = |from: &str, to: &str, how: &str| json!({ "destination": to, "type": "bind", "source": from, "options": ["rbind", how, "rw"] });
        let mut namespaces =
            vec![json!({ "type": "mount" }), json!({ "type": "ipc" }), json!({ "type": "uts" })];
        match self.processes {
            Processes::Own => namespaces.push(json!({ "type": "pid" })),
            Processes::Pod(first) => {
                namespaces.push(json!({ "type": "pid", "path": format!("/proc/{first}/ns/pid") }));
            }
            Processes::Host => {}
        }
        let capabilities = capabilities();
        json!({
            "ociVersion": "1.0.2",
            "hostname": "pod",
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "args": args,
                "env": env,
                "cwd": "/",
                "noNewPrivileges": false,
                "capabilities":
                    { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            },
            "root": { "path": rootfs, "readonly": true },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev"] },
                bind("/dev", "/dev", "rprivate"),
                bind(KUBELET, KUBELET, "rshared"),
                bind(&format!("{KUBELET}/plugins/{}", self.plugin), "/csi", "rprivate"),
                bind(&format!("{KUBELET}/plugins_registry"), "/registration", "rprivate"),
                bind(DATA, DATA, "rprivate"),
                bind(&logs.display().to_string(), "/var/log/pods", "rprivate"),
            ],
            "linux": {
                // A name of one level: runc removes it, and would leave a parent.
                "cgroupsPath": format!("/{id}"),
                "resources": { "devices": [{ "allow": true, "access": "rwm" }] },
                "rootfsPropagation": "rshared",
                "namespaces": namespaces,
            },
        })
    }
}

/// Takes from a configuration what the level `restricted` of the Pod Security Standards forbids: another user than root, no
/// capability, no device, no directory of the node but `volume`, at `/mounter`. The directory of the volumes stands for
/// the storage on the network.
fn restrict(config: &mut Value, volume: &Path) {
    let process = &mut config["process"];
    process["user"] = json!({ "uid": USER, "gid": USER });
    process["noNewPrivileges"] = json!(true);
    process["capabilities"] = json!({});
    let bind = |from: &str, to: &str| json!({ "destination": to, "type": "bind", "source": from, "options": ["rbind", "rprivate", "rw"] });
    let tmpfs = |to: &str| json!({ "destination": to, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"] });
    config["mounts"] = json!([
        { "destination": "/proc", "type": "proc", "source": "proc" },
        { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
        tmpfs("/tmp"),
        bind(&volume.display().to_string(), "/mounter"),
        bind(DATA, DATA),
    ]);
    let linux = &mut config["linux"];
    // The devices that each container has: null, zero, full, random and urandom.
    let device =
        |minor: u32| json!({ "allow": true, "type": "c", "major": 1, "minor": minor, "access": "rwm" });
    let mut devices = vec![json!({ "allow": false, "access": "rwm" })];
    devices.extend([3, 5, 7, 8, 9].map(device));
    linux["resources"] = json!({ "devices": devices });
    linux["rootfsPropagation"] = json!("rprivate");
    linux["seccomp"] = runtime_default();
}

/// `seccompProfile: RuntimeDefault` of a container without capabilities, on x86_64. The system calls that containerd 1.6
/// allows are in the file; newer ones allow more.
fn runtime_default() -> Value {
    const NAMESPACES: u32 = 0x7e02_0000;
    let allowed: Vec<&str> = include_str!("runtime_default.txt").split_whitespace().collect();
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [
            { "names": allowed, "action": "SCMP_ACT_ALLOW" },
            { "names": ["clone"], "action": "SCMP_ACT_ALLOW",
              "args": [{ "index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }] },
            // So that a C library uses clone instead.
            { "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": nix::libc::ENOSYS },
        ],
    })
}

impl Container<'_> {
    pub(crate) fn socket(&self) -> String {
        format!("unix://{KUBELET}/plugins/{}/csi.sock", self.plugin)
    }

    /// The first process, by its number on the node.
    pub(crate) fn pid(&self) -> i32 {
        let state = runc(self.node).args(["state", &self.id]).output().unwrap();
        let state: Value = serde_json::from_slice(&state.stdout).unwrap();
        state["pid"].as_i64().unwrap() as i32
    }

    /// Kills the container, as at the end of its grace period.
    pub(crate) fn kill(mut self) {
        self.end("KILL");
    }

    /// Asks the container to end, and returns its exit status.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.end("TERM")
    }

    fn end(&mut self, signal: &str) -> Option<i32> {
        // It can have ended by itself.
        drop(runc(self.node).args(["kill", &self.id, signal]).output());
        let status = self.run.wait().unwrap();
        // With the container's own process namespace nothing is left to delete.
        drop(runc(self.node).args(["delete", "--force", &self.id]).output());
        status.code()
    }

    /// Waits for the end of a container that ends by itself.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let status = self.run.wait().unwrap();
        (status.code(), self.log())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Registers the plugin as the kubelet does, and returns a client of the socket that it names.
    pub(crate) async fn register(&self, name: &str) -> Client {
        let socket = format!("{KUBELET}/plugins_registry/{name}-reg.sock");
        eventually("the plugin registers", || Path::new(&socket).exists()).await;
        let channel =
            tonic::transport::Endpoint::from_shared(format!("unix://{socket}")).unwrap().connect_lazy();
        let mut kubelet = RegistrationClient::new(channel);
        let info = kubelet.get_info(registration::InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", name));
        let status = registration::RegistrationStatus { plugin_registered: true, error: String::new() };
        kubelet.notify_registration_status(status).await.unwrap();
        Client::new(&format!("unix://{}", info.endpoint).parse().unwrap())
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if matches!(self.run.try_wait(), Ok(None)) {
            self.end("KILL");
        }
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.id, self.log());
        }
    }
}

fn runc(node: &Node) -> Command {
    let mut runc = Command::new("runc");
    runc.arg("--root").arg(node.place.join("runc"));
    runc
}

/// All capabilities that this process can give.
fn capabilities() -> Vec<String> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
    let bounding = u64::from_str_radix(bounding.trim(), 16).unwrap();
    let all = CAPABILITIES.split_whitespace().enumerate();
    all.filter(|(bit, _)| bounding & (1 << bit) != 0).map(|(_, name)| format!("CAP_{name}")).collect()
}

impl Node {
    /// The path of a file of an image, on the node.
    pub(crate) fn image_file(&self, image: &str, path: &str) -> PathBuf {
        unpack(self, image).0.join(path)
    }
}

/// Unpacks an image as a runtime does, once, and returns its root and its configuration.
fn unpack(node: &Node, image: &str) -> (PathBuf, Value) {
    let images = std::env::var_os(IMAGES).expect("run this test with `cargo xtask container`");
    let layout = Path::new(&images).join(image);
    let blob = |descriptor: &Value| {
        let (_, digest) = descriptor["digest"].as_str().unwrap().split_once(':').unwrap();
        let content = fs::read(layout.join("blobs/sha256").join(digest)).unwrap();
        let found: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, digest);
        content
    };
    let json = |content: &[u8]| serde_json::from_slice::<Value>(content).unwrap();
    let index = json(&fs::read(layout.join("index.json")).unwrap());
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]))["config"].clone();
    let root = node.place.join(image);
    if !root.exists() {
        fs::create_dir(&root).unwrap();
        for layer in manifest["layers"].as_array().unwrap() {
            tar::Archive::new(blob(layer).as_slice()).unpack(&root).unwrap();
        }
    }
    (root, config)
}
