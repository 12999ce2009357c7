//! The 36 RPCs of the five services, by name.

use std::fmt;

macro_rules! rpcs {
    ($($service:ident { $($rpc:ident),+ $(,)? })+) => {
        /// A CSI service. Its `Display` is the spec's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Service { $(#[doc = concat!("`csi.v1.", stringify!($service), "`")] $service),+ }

        /// An RPC of the spec. Its `Display` is the spec's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Rpc { $($(#[doc = concat!("`", stringify!($service), ".", stringify!($rpc), "`")] $rpc),+),+ }

        impl Rpc {
            /// Every RPC, in the spec's order of services.
            pub const ALL: &'static [Rpc] = &[$($(Rpc::$rpc),+),+];

            /// Returns the spec's name, for example `CreateVolume`.
            pub const fn name(self) -> &'static str {
                match self { $($(Rpc::$rpc => stringify!($rpc)),+),+ }
            }

            /// Returns the service that the RPC belongs to.
            pub const fn service(self) -> Service {
                match self { $($(Rpc::$rpc)|+ => Service::$service),+ }
            }
        }
    };
}

rpcs! {
    Identity { GetPluginInfo, GetPluginCapabilities, Probe }
    Controller {
        CreateVolume, DeleteVolume, ControllerPublishVolume, ControllerUnpublishVolume,
        ValidateVolumeCapabilities, ListVolumes, ControllerListVolumeHealth, ControllerGetVolumeHealth,
        GetCapacity, ControllerGetCapabilities, CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot,
        ControllerExpandVolume, ControllerGetVolume, ControllerModifyVolume,
    }
    GroupController {
        GroupControllerGetCapabilities, CreateVolumeGroupSnapshot, DeleteVolumeGroupSnapshot,
        GetVolumeGroupSnapshot,
    }
    SnapshotMetadata { GetMetadataAllocated, GetMetadataDelta }
    Node {
        NodeStageVolume, NodeUnstageVolume, NodePublishVolume, NodeUnpublishVolume, NodeGetVolumeStats,
        NodeGetVolumeHealth, NodeGetStorageHealth, NodeExpandVolume, NodeGetCapabilities, NodeGetInfo,
    }
}

impl Rpc {
    /// Returns the RPC of a gRPC request's path, for example `/csi.v1.Identity/Probe`; `None` for the path of
    /// another service.
    pub fn from_path(path: &str) -> Option<Self> {
        let (service, name) = path.strip_prefix("/csi.v1.")?.split_once('/')?;
        let is_it = |rpc: &Self| rpc.name() == name && rpc.service().to_string() == service;
        Self::ALL.iter().copied().find(is_it)
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_rpc() {
        assert_eq!(Rpc::from_path("/csi.v1.Identity/Probe"), Some(Rpc::Probe));
        for other in ["/csi.v1.Node/Probe", "/csi.v1.Identity/probe", "csi.v1.Identity/Probe", "/x/Probe", ""]
        {
            assert_eq!(Rpc::from_path(other), None, "{other}");
        }
    }

    #[test]
    fn every_rpc_of_the_descriptor_is_listed() {
        use prost::Message;
        let set = prost_types::FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap();
        let mut due: Vec<(String, String)> = set
            .file
            .iter()
            .filter(|file| file.package() == "csi.v1")
            .flat_map(|file| &file.service)
            .flat_map(|service| {
                service.method.iter().map(|method| (service.name().to_owned(), method.name().to_owned()))
            })
            .collect();
        let mut have: Vec<(String, String)> =
            Rpc::ALL.iter().map(|rpc| (rpc.service().to_string(), rpc.to_string())).collect();
        due.sort();
        have.sort();
        assert_eq!(have.len(), 36);
        assert_eq!(have, due);
    }
}
