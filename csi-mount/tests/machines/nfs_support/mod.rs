//! A real NFS server: the kernel's own, and a connection to it that can be stopped.

pub(crate) mod nfsd;

use csi_mount::MountOptions;
use csi_mount::flow::shared::SharedSource;

use nfsd::{EXPORT, PORT};
use test_support::tcp_gate::Gate;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    V3,
    V4,
}

/// Whether a client ever gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Hard,
    /// After about two seconds.
    Soft,
}

/// A server that can be stopped.
pub(crate) struct Server {
    pub(crate) gate: Gate,
    port: u16,
    mount_port: u16,
}

impl Server {
    pub(crate) fn start() -> Self {
        nfsd::start();
        let gate = Gate::default();
        let port = gate.lead_to(PORT);
        let mount_port = gate.lead_to(nfsd::mountd());
        Self { gate, port, mount_port }
    }

    /// Returns its share. The client caches file attributes for one second.
    pub(crate) fn share(&self, protocol: Protocol, patience: Patience) -> SharedSource {
        let (path, version) = match protocol {
            Protocol::V3 => (format!("127.0.0.1:{EXPORT}/share"), "3"),
            Protocol::V4 => ("127.0.0.1:/share".to_owned(), "4.2"),
        };
        let mut options = vec![
            format!("vers={version}"),
            format!("port={}", self.port),
            "addr=127.0.0.1".to_owned(),
            "proto=tcp".to_owned(),
            "actimeo=1".to_owned(),
        ];
        if protocol == Protocol::V3 {
            let port = format!("mountport={}", self.mount_port);
            options.extend([port, "mountproto=tcp".to_owned(), "nolock".to_owned()]);
        } else {
            options.push("clientaddr=127.0.0.1".to_owned());
        }
        match patience {
            Patience::Hard => options.push("hard".to_owned()),
            Patience::Soft => options.extend(["soft", "timeo=10", "retrans=1"].map(str::to_owned)),
        }
        SharedSource::new("nfs", path).options(MountOptions::parse(options).unwrap())
    }
}
