//! The manifests of every example, compared with the files in `golden/`. `UPDATE_GOLDEN=1` writes the files;
//! read the difference before you commit it.

mod support;

use std::path::{Path, PathBuf};

use clap::{Args, Command, FromArgMatches, Parser};
use csi_core::mount::flow::fuse::FuseDaemon;
use csi_core::{DriverArgs, Plugin};
use csi_deploy::{Driver, Options, manifests};

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

/// Compares the manifests with a file. `flags` are those of the command line.
#[track_caller]
fn golden(name: &str, driver: &Driver, flags: &[&str]) {
    let command = Options::augment_args(Command::new("manifests"));
    let image = format!("--image=registry.example.org/{name}:0.1.0");
    let matches = command.get_matches_from(["manifests", &image].iter().chain(flags));
    let options = Options::from_arg_matches(&matches).expect("flags");
    let text = manifests(driver, &options).unwrap_or_else(|error| panic!("{error}")).single();
    support::objects(&text);
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "tests/golden", &format!("{name}.yaml")].iter().collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).expect("a file that can be written");
    }
    let due = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == due, "{} differs: UPDATE_GOLDEN=1, then git diff. It would be:\n{text}", path.display());
}

/// The short examples read no flags but CSI_ENDPOINT.
#[test]
fn dirs() {
    let driver = facts(dirs::plugin("/var/lib/dirs".into()));
    let host = ["--controller-host-path=/var/lib/dirs", "--node-host-path=/var/lib/dirs"];
    golden("dirs", &driver, &[&["--classic", "--storage-class=dirs"], &host[..]].concat());
}

#[test]
fn block() {
    let driver = facts(block::plugin("/var/lib/block".into()));
    let host = ["--controller-host-path=/var/lib/block", "--node-host-path=/var/lib/block"];
    let classes = ["--storage-class=block", "--storage-class=block-xfs,csi.storage.k8s.io/fstype=xfs"];
    let rest = ["--classic", "--devices", "--default-fstype=ext4"];
    golden("block", &driver, &[&rest[..], &host, &classes].concat());
}

#[test]
fn secrets() {
    let driver = facts(secrets::plugin(&driver_args(&[])));
    let declared = ["--lifecycle=ephemeral", "--pod-info", "--requires-republish"];
    golden("secrets", &driver, &[&["--livenessprobe", "--namespace=secrets-csi"], &declared[..]].concat());
}

#[test]
fn fuse() {
    let driver =
        facts(fuse::plugin("/var/lib/flat".into(), FuseDaemon::new("/flatfs"), None, &driver_args(&[])));
    let host = ["--controller-host-path=/var/lib/flat", "--node-host-path=/var/lib/flat"];
    let flags = ["--livenessprobe", "--requires-republish", "--storage-class=flat"];
    golden("fuse", &driver, &[&flags[..], &host].concat());
}

#[test]
fn nfs() {
    let driver = facts(nfs::plugin(&driver_args(&[]), &nfs::VolumeArgs::default()));
    let classes = [
        "--storage-class=nfs,server=nfs.example.org,share=/srv",
        "--snapshot-class=nfs",
        "--secret=provisioner=nfs-csi/nfs",
    ];
    let flags = ["--namespace=nfs-csi", "--host-network", "--privileged-controller"];
    golden("nfs", &driver, &[&flags[..], &classes].concat());
}

#[test]
fn smb() {
    let driver = facts(smb::plugin(&driver_args(&[])));
    let classes = [
        "--storage-class=smb,source=//smb.example.org/share",
        "--secret=provisioner=smb-csi/smb",
        "--secret=node-stage=smb-csi/smb",
    ];
    let flags = ["--namespace=smb-csi", "--host-network", "--privileged-controller"];
    golden("smb", &driver, &[&flags[..], &classes].concat());
}

const HOSTPATH: [&str; 3] =
    ["--arg=--data=/var/lib/hostpath", "--devices", "--node-host-path=/var/lib/hostpath"];

/// Every capability of spec v1.13.
#[test]
fn hostpath_with_everything() {
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
        "--node-allocatable-update-period=60",
    ];
    let rest = [
        "--namespace=hostpath-csi",
        "--replicas=2",
        "--snapshot-metadata-secret=snapshot-metadata",
        "--controller-host-path=/var/lib/hostpath",
        "--privileged-controller",
        "--image-pull-secret=registry",
        "--arg=--spec=v1.13",
        "--controller-arg=--node-id=node-1",
        "--controller-rule=nodes:get,list",
        "--controller-rule=coordination.k8s.io/leases:get,create@namespace",
        "--node-rule=storage.k8s.io/csinodes:get",
    ];
    golden("hostpath-everything", &driver, &[&HOSTPATH[..], &rest, &classes, &declared].concat());
}

/// Spec v1.12, one controller in a StatefulSet.
#[test]
fn hostpath_in_a_stateful_set() {
    let rest = [
        "--controller=stateful-set",
        "--controller-host-path=/var/lib/hostpath",
        "--privileged-controller",
        // The node whose disk it uses.
        "--controller-arg=--node-id=node-1",
    ];
    golden("hostpath-stateful-set", &hostpath(&[]), &[&HOSTPATH[..], &rest].concat());
}

/// Each node provisions its own volumes.
#[test]
fn hostpath_on_each_node() {
    let driver = hostpath(&["--without=attach,expand,modify"]);
    let rest = [
        "--controller=node-local",
        "--storage-class=hostpath",
        "--env=DRIVER_NAME=hostpath.csi.example.org",
        "--arg=--without=attach,expand,modify",
    ];
    golden("hostpath-node-local", &driver, &[&HOSTPATH[..], &rest].concat());
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let driver = hostpath(&["--spec=v1.13"]);
    let options = Options::new("registry.example.org/hostpath:0.1.0");
    let [one, other] = [(); 2].map(|()| manifests(&driver, &options).expect("manifests"));
    assert_eq!(one, other);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    assert_eq!(std::fs::read_dir(golden).expect("the files").count(), 9, "one file for each test above");
}
