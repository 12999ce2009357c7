//! Work whose instructions are counted, under `valgrind --tool=callgrind`, and not timed: the count is the
//! same on a busy machine.
//!
//! Each work is counted for two different numbers of repetitions; the difference belongs to the work alone.

use csi_core::node::NodePublishVolumeRequest;
use csi_proto::v1;
use prost::Message as _;

use crate::rpc::{Call, Server, Servers, request};

/// Work that is repeated.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// Its name on the command line.
    pub name: &'static str,
    /// The number of repetitions for a useful count.
    pub times: u64,
    run: fn(u64),
}

/// All counted work.
pub const ALL: &[Counted] = &[
    Counted { name: "parse-1000-mounts", times: 5, run: mount_table },
    Counted { name: "parse-mount-options", times: 200, run: mount_options },
    Counted { name: "read-request", times: 100, run: read_request },
    Counted { name: "debug-request", times: 100, run: debug_request },
    Counted { name: "rpc-bare", times: 200, run: |times| rpc(Server::Bare, times) },
    Counted { name: "rpc-whole", times: 200, run: |times| rpc(Server::Whole, times) },
];

impl Counted {
    /// Does the work this number of times.
    pub fn run(&self, times: u64) {
        (self.run)(times);
    }
}

fn mount_table(times: u64) {
    let lines = (0..1000).map(|at| {
        format!(
            "{} 30 0:{} / /var/lib/kubelet/pods/0f3c3f0e-6c2c-4c8e-9d0a-{at:012}/volumes/kubernetes.io~csi/pvc-{at}/mount \
             rw,relatime shared:{at} - tmpfs volume rw,size=1024k,inode64\n",
            at + 40,
            at % 90,
        )
    });
    let text: String = lines.collect();
    for _ in 0..times {
        let entries =
            csi_mount::internal::parse_mountinfo(std::hint::black_box(text.as_bytes())).expect("a table");
        assert_eq!(entries.len(), 1000);
    }
}

fn mount_options(times: u64) {
    let options = ["ro", "noatime", "nosuid", "discard", "commit=30", "errors=remount-ro"];
    for _ in 0..times {
        drop(csi_mount::MountOptions::parse(std::hint::black_box(options)).expect("options"));
    }
}

fn read_request(times: u64) {
    let encoded = request(1, 1024).encode_to_vec();
    for _ in 0..times {
        let wire = v1::NodePublishVolumeRequest::decode(std::hint::black_box(encoded.as_slice()));
        drop(NodePublishVolumeRequest::try_from(wire.expect("decode")).expect("a valid request"));
    }
}

fn debug_request(times: u64) {
    let request = request(1, 1024);
    for _ in 0..times {
        drop(format!("{:?}", std::hint::black_box(&request)));
    }
}

/// Uses a plain directory, so counting needs no root.
fn rpc(server: Server, times: u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let servers = Servers::start_on(runtime, directory.path().to_owned());
    servers.clients(server, 1).run(Call::Publish { volumes: 1, parameters: 0 }, times);
}
