//! The examples' drivers, each with the flags of its manifests.

use clap::{Args, Command, FromArgMatches, Parser};
use csi_core::mount::flow::fuse::FuseDaemon;
use csi_core::{DriverArgs, Plugin};
use csi_deploy::{Driver, Options};

/// A driver with the options of its manifests.
pub(crate) struct Example {
    pub(crate) name: &'static str,
    pub(crate) driver: Driver,
    pub(crate) options: Options,
}

pub(crate) fn all() -> [Example; 13] {
    [
        dirs(),
        block(),
        secrets(),
        fuse(),
        fuse_in_a_pod_of_each_node(),
        fuse_in_a_pod_of_each_volume(),
        nfs(),
        smb(),
        hostpath_with_everything(),
        hostpath_in_a_stateful_set(),
        hostpath_on_each_node(),
        hostpath_without_sidecars(),
        local(),
    ]
}

/// Reads `flags` as the command line does.
fn example(name: &'static str, driver: Driver, flags: &[&str]) -> Example {
    let command = Options::augment_args(Command::new("manifests"));
    let image = format!("--image=registry.example.org/{name}:0.1.0");
    let matches = command.get_matches_from(["manifests", &image].iter().chain(flags));
    Example { name, driver, options: Options::from_arg_matches(&matches).expect("flags") }
}

fn facts(plugin: Plugin) -> Driver {
    plugin.facts().expect("the plugin does not contradict itself")
}

fn driver_args(flags: &[&str]) -> DriverArgs {
    let command = DriverArgs::augment_args(Command::new("driver"));
    let matches = command.get_matches_from(std::iter::once(&"driver").chain(flags));
    DriverArgs::from_arg_matches(&matches).expect("flags")
}

fn hostpath(flags: &[&str]) -> Driver {
    let data = tempfile::tempdir().expect("a directory");
    let data = format!("--data={}", data.path().display());
    let base = ["hostpath", "--node-id=node-1", data.as_str()];
    let args = hostpath::Args::parse_from(base.iter().chain(flags));
    facts(hostpath::plugin(&args).expect("a plugin").with_args(&args.driver))
}

/// The short examples read no flags but CSI_ENDPOINT.
fn dirs() -> Example {
    let driver = facts(dirs::plugin("/var/lib/dirs".into()));
    let host = ["--controller-host-path=/var/lib/dirs", "--node-host-path=/var/lib/dirs"];
    example("dirs", driver, &[&["--classic", "--storage-class=dirs"], &host[..]].concat())
}

fn block() -> Example {
    let driver = facts(block::plugin("/var/lib/block".into()));
    let host = ["--controller-host-path=/var/lib/block", "--node-host-path=/var/lib/block"];
    let classes = ["--storage-class=block", "--storage-class=block-xfs,csi.storage.k8s.io/fstype=xfs"];
    let rest = ["--classic", "--devices", "--default-fstype=ext4"];
    example("block", driver, &[&rest[..], &host, &classes].concat())
}

fn secrets() -> Example {
    let driver = facts(secrets::plugin(&driver_args(&[])));
    let declared = ["--lifecycle=ephemeral", "--pod-info", "--requires-republish"];
    example("secrets", driver, &[&["--livenessprobe", "--namespace=secrets-csi"], &declared[..]].concat())
}

fn flat(args: &[&str]) -> Driver {
    let volumes = fuse::Volumes::Directory("/var/lib/flat".into());
    facts(fuse::plugin(volumes, FuseDaemon::new("/flatfs"), None, &driver_args(args)))
}

const FLAT: [&str; 3] = ["--livenessprobe", "--requires-republish", "--storage-class=flat"];

fn fuse() -> Example {
    let host = ["--controller-host-path=/var/lib/flat", "--node-host-path=/var/lib/flat"];
    example("fuse", flat(&[]), &[&FLAT[..], &host].concat())
}

fn fuse_in_a_pod_of_each_node() -> Example {
    let pods = ["--fuse-pods=per-node", "--fuse-image=registry.example.org/flatfs:1", "--fuse-memory=2Gi"];
    example("fuse-per-node", flat(&[]), &[&FLAT[..], &pods].concat())
}

fn fuse_in_a_pod_of_each_volume() -> Example {
    let flags = ["--fuse-pods=per-volume", "--fuse-memory=256Mi"];
    example("fuse-per-volume", flat(&["--fuse-pods=flat-fuse"]), &[&FLAT[..], &flags].concat())
}

fn nfs() -> Example {
    let driver = facts(nfs::plugin(&driver_args(&[]), &nfs::VolumeArgs::default()));
    let classes = [
        "--storage-class=nfs,server=nfs.example.org,share=/srv",
        "--snapshot-class=nfs",
        "--secret=provisioner=nfs-csi/nfs",
    ];
    let flags = ["--namespace=nfs-csi", "--host-network", "--privileged-controller"];
    example("nfs", driver, &[&flags[..], &classes].concat())
}

fn smb() -> Example {
    let driver = facts(smb::plugin(&driver_args(&[])));
    let classes = [
        "--storage-class=smb,source=//smb.example.org/share",
        "--secret=provisioner=smb-csi/smb",
        "--secret=node-stage=smb-csi/smb",
    ];
    let flags = ["--namespace=smb-csi", "--host-network", "--privileged-controller", "--replicas=2"];
    example("smb", driver, &[&flags[..], &classes].concat())
}

fn local() -> Example {
    let args = local::Args::parse_from(["local", "--node-id=node-1"]);
    let classes = [
        "--storage-class=local,erase=zero",
        "--storage-class=local-thin,pool=pool",
        "--snapshot-class=local",
    ];
    let flags =
        ["--controller=node-local", "--devices", "--host-pid", "--arg=--host-lvm", "--default-fstype=ext4"];
    example("local", facts(local::plugin(&args)), &[&flags[..], &classes].concat())
}

const HOSTPATH: [&str; 3] =
    ["--arg=--data=/var/lib/hostpath", "--devices", "--node-host-path=/var/lib/hostpath"];

/// Every capability of spec v1.13.
fn hostpath_with_everything() -> Example {
    let driver = hostpath(&["--spec=v1.13"]);
    let classes = [
        "--storage-class=hostpath,pool=fast",
        "--attributes-class=thick,provisioning=thick",
        "--snapshot-class=hostpath",
        "--group-snapshot-class=hostpath",
        "--secret=controller-publish=hostpath-csi/attach",
        "--secret=node-stage=${pvc.namespace}/${pvc.name}",
        "--secret=provisioner=${pvc.namespace}/${pvc.name}",
    ];
    let declared = [
        "--lifecycle=both",
        "--selinux-mount",
        "--token=",
        "--token=vault=3600",
        "--service-account-token-in-secrets",
        "--prevent-pod-scheduling-if-missing",
        "--node-allocatable-update-period=60",
    ];
    let rest = [
        "--namespace=hostpath-csi",
        "--controller-sees-mounts",
        "--metrics-from=monitoring",
        "--service-monitor",
        "--prometheus-rule",
        "--snapshot-metadata-secret=snapshot-metadata",
        concat!("--snapshot-metadata-ca=", env!("CARGO_MANIFEST_DIR"), "/tests/support/ca.pem"),
        "--cross-namespace-data-sources",
        "--controller-host-path=/var/lib/hostpath",
        "--privileged-controller",
        "--image-pull-secret=registry",
        "--arg=--spec=v1.13",
        "--controller-arg=--node-id=node-1",
        "--controller-rule=nodes:get,list",
        "--controller-rule=coordination.k8s.io/leases:get,create@namespace",
        "--node-rule=storage.k8s.io/csinodes:get",
    ];
    example("hostpath-everything", driver, &[&HOSTPATH[..], &rest, &classes, &declared].concat())
}

/// Spec v1.12, one controller in a StatefulSet.
fn hostpath_in_a_stateful_set() -> Example {
    let rest = [
        "--controller=stateful-set",
        "--controller-sees-mounts",
        "--controller-host-path=/var/lib/hostpath",
        "--privileged-controller",
        // The node whose disk it uses.
        "--controller-arg=--node-id=node-1",
    ];
    example("hostpath-stateful-set", hostpath(&[]), &[&HOSTPATH[..], &rest].concat())
}

/// Each node provisions its own volumes.
fn hostpath_on_each_node() -> Example {
    let driver = hostpath(&["--without=attach,expand,modify"]);
    let rest = [
        "--controller=node-local",
        "--storage-class=hostpath",
        "--env=DRIVER_NAME=hostpath.csi.example.org",
        "--arg=--without=attach,expand,modify",
    ];
    example("hostpath-node-local", driver, &[&HOSTPATH[..], &rest].concat())
}

/// One process, with the work of its sidecars.
fn hostpath_without_sidecars() -> Example {
    let driver = hostpath(&["--spec=v1.13", "--expansion=offline"]);
    let rest = [
        "--no-sidecars",
        "--storage-class=hostpath",
        "--snapshot-class=hostpath",
        "--secret=provisioner=hostpath-csi/create",
        "--namespace=hostpath-csi",
        "--cross-namespace-data-sources",
        "--controller-sees-mounts",
        "--controller-host-path=/var/lib/hostpath",
        "--privileged-controller",
        "--arg=--spec=v1.13",
        "--arg=--expansion=offline",
        "--controller-arg=--node-id=node-1",
    ];
    example("hostpath-no-sidecars", driver, &[&HOSTPATH[..], &rest].concat())
}
