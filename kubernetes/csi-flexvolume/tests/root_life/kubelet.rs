//! The executable as the kubelet runs it, with the arguments of `golden/vectors.json`, and drivers for it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use csi_core::Plugin;
use csi_core::client::Client;
use csi_proto::{RpcRequest, v1};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use v1::volume_capability::access_mode::Mode;

/// The arguments of the kubelet's own code (`golden/main.go`).
const VECTORS: &str = include_str!("../golden/vectors.json");
const ROOT: &str = "/var/lib/kubelet";
pub(crate) const NODE: &str = "node-1";

/// A driver that serves in this process, with real mounts in the namespace of the test.
pub(crate) struct Driver {
    folder: tempfile::TempDir,
    runtime: Runtime,
}

impl Driver {
    pub(crate) fn new(plugin: impl FnOnce(PathBuf) -> Plugin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("volumes")).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let plugin = plugin(folder.path().join("volumes"));
        runtime.block_on(async { drop(csi_core::testing::serve(plugin, folder.path()).await) });
        Self { folder, runtime }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("csi.sock")
    }

    pub(crate) fn client(&self) -> Client {
        let _entered = self.runtime.enter();
        Client::new(&self.socket().to_str().unwrap().parse().unwrap())
    }

    pub(crate) fn call<R: RpcRequest>(&self, request: R) -> R::Answer {
        let client = self.client();
        self.runtime.block_on(client.call(request)).unwrap()
    }

    pub(crate) fn create(&self, name: &str, fs_type: &str, bytes: i64) -> String {
        let mut capability = v1::VolumeCapability::mount(Mode::SingleNodeMultiWriter);
        if let Some(v1::volume_capability::AccessType::Mount(mount)) = &mut capability.access_type {
            mount.fs_type = fs_type.to_owned();
        }
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        self.call(request).volume.unwrap().volume_id
    }

    pub(crate) fn delete(&self, id: &str) {
        self.call(v1::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() });
    }
}

/// The kubelet and the controller manager of one machine.
pub(crate) struct Kubelet {
    folder: tempfile::TempDir,
    /// Options of the volume, in addition to those of the vector.
    options: Value,
}

impl Kubelet {
    pub(crate) fn new(socket: &Path, lines: &str, options: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        for name in ["exec/example.org~disk", "root"] {
            std::fs::create_dir_all(here.join(name)).unwrap();
        }
        let executable = here.join("exec/example.org~disk/disk");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_csi-flexvolume"), executable).unwrap();
        let socket = socket.display();
        let records = here.join("records");
        let staging = here.join("root/plugins/staging");
        let text = format!(
            "socket={socket}\nrecords={}\nstaging={}\ntimeout=30\n{lines}\n",
            records.display(),
            staging.display()
        );
        std::fs::write(here.join("exec/example.org~disk/disk.conf"), text).unwrap();
        Self { folder, options }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The arguments of a vector, with the directories of this test, in which `change` replaces one more text.
    fn arguments(&self, vector: &str, change: (&str, &str)) -> Vec<String> {
        let vectors: Value = serde_json::from_str(VECTORS).unwrap();
        let arguments = vectors[vector].as_array().unwrap_or_else(|| panic!("no vector {vector}"));
        let root = self.path("root");
        let argument = |one: &Value| {
            let text =
                one.as_str().unwrap().replace(ROOT, root.to_str().unwrap()).replace(change.0, change.1);
            match serde_json::from_str::<Value>(&text) {
                Ok(Value::Object(mut options)) => {
                    options.extend(self.options.as_object().unwrap().clone());
                    Value::Object(options).to_string()
                }
                _ => text,
            }
        };
        arguments.iter().map(argument).collect()
    }

    fn command(&self, vector: &str, change: (&str, &str)) -> Command {
        let mut command = Command::new(self.path("exec/example.org~disk/disk"));
        command.args(self.arguments(vector, change)).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, vector: &str) -> Child {
        self.command(vector, ("", "")).spawn().unwrap()
    }

    pub(crate) fn run(&self, vector: &str) -> Value {
        self.run_with(vector, ("", ""))
    }

    /// The same, after the kubelet's steps before it: it creates the directory for `mount`.
    pub(crate) fn run_with(&self, vector: &str, change: (&str, &str)) -> Value {
        if vector.starts_with("mount") {
            std::fs::create_dir_all(&self.arguments(vector, change)[1]).unwrap();
        }
        let output = self.command(vector, change).output().unwrap();
        // The kubelet reads both as one text, and logs the arguments with another status.
        assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]), "{vector}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn succeeds(&self, vector: &str) -> Value {
        let answer = self.run(vector);
        assert_eq!(answer["status"], "Success", "{vector}: {answer}");
        answer
    }

    pub(crate) fn target(&self, vector: &str) -> PathBuf {
        PathBuf::from(&self.arguments(vector, ("", ""))[1])
    }

    pub(crate) fn mounts(&self) -> usize {
        csi_mount::mounts()
            .unwrap()
            .iter()
            .filter(|one| one.mount_point.starts_with(self.folder.path()))
            .count()
    }

    /// No mount, no record, no staging directory.
    pub(crate) fn assert_clean(&self) {
        let list = |name: &str| {
            let entries = std::fs::read_dir(self.path(name)).into_iter().flatten();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| !name.starts_with('.')).collect::<Vec<_>>()
        };
        assert_eq!((list("records"), list("root/plugins/staging"), self.mounts()), (vec![], vec![], 0));
    }

    pub(crate) fn options(id: &str, fs_type: &str) -> Value {
        json!({ "volumeHandle": id, "kubernetes.io/fsType": fs_type })
    }
}
