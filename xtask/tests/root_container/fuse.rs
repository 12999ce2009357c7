//! FUSE daemons in containers: which of them die with what, and how a volume comes back.
//!
//! docs/fuse.md says the same, in "In a container".

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;

use csi_core::mount::{Host, MountHealth};
use csi_core::proto::client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::container::{Container, Processes, Spec, USER};
use crate::life::{Kill, live};
use crate::node::{DATA, KUBELET, Node, eventually};
use crate::volume::{Step, Volume};

const NAME: &str = "flat.csi.example.org";

fn spec(processes: Processes) -> Spec {
    let args = [
        format!("--root={DATA}"),
        "--registration-dir=/registration".to_owned(),
        format!("--kubelet-socket-path={KUBELET}/plugins/{NAME}/csi.sock"),
    ];
    Spec { image: "fuse", plugin: NAME, args: args.to_vec(), env: Vec::new(), processes, restricted: None }
}

fn file() -> String {
    format!("{}/file", Volume::target("writer"))
}

fn is_served() -> bool {
    fs::read_to_string(file()).is_ok_and(|content| content == "data")
}

fn is_lost() -> bool {
    matches!(Host::kernel().mounts().health(Volume::target("writer").as_ref()).unwrap(), MountHealth::Dead(_))
}

/// Starts the container, registers it as the kubelet does, and publishes the volume.
async fn publish<'n>(node: &'n Node, spec: &Spec) -> (Container<'n>, Client) {
    Volume::make_directories();
    let (container, _) = spec.start(node).await;
    let client = container.register(NAME).await;
    Volume::served(node).steps(&client, &[Step::Create, Step::Stage, Step::PublishWriter]).await;
    fs::write(file(), "data").unwrap();
    assert_eq!(node.daemons().len(), 1);
    (container, client)
}

/// Starts a new container after the end of the last one, repeats the publish as `requiresRepublish` makes the
/// kubelet do it, and takes the volume down.
async fn republish_and_end(node: &Node, spec: &Spec) {
    let volume = Volume::served(node);
    let (container, client) = spec.start(node).await;
    volume.step(&client, Step::PublishWriter).await.unwrap();
    assert!(is_served());
    assert_eq!(node.daemons().len(), 1);
    volume.steps(&client, &[Step::UnpublishWriter, Step::Unstage, Step::Delete]).await;
    container.kill();
    Volume::remove_directories();
    node.assert_empty();
}

const STEPS: [Step; 7] = [
    Step::Create,
    Step::Stage,
    Step::PublishWriter,
    // The repetition that `requiresRepublish` asks for.
    Step::PublishWriter,
    Step::UnpublishWriter,
    Step::Unstage,
    Step::Delete,
];

#[test]
fn volumes_outlive_containers_that_are_killed_between_steps() {
    Node::run(async |node| {
        let mut published = 0;
        live(node, &spec(Processes::Own), &Volume::served(node), &STEPS, Kill::Between, |step| {
            if step == Step::PublishWriter {
                published += 1;
                match published {
                    1 => fs::write(file(), "data").unwrap(),
                    _ => assert!(is_served()),
                }
            }
        })
        .await;
    });
}

#[test]
fn a_daemon_dies_with_a_container_of_its_own_processes() {
    Node::run(async |node| {
        let spec = spec(Processes::Own);
        let (container, _) = publish(node, &spec).await;
        container.kill();
        eventually("the daemon is killed", || node.daemons().is_empty()).await;
        eventually("the volume is lost", is_lost).await;
        republish_and_end(node, &spec).await;
    });
}

/// The container's first process is the plugin, so its end is the container's end.
#[test]
fn a_daemon_dies_with_the_plugin_that_ends_in_order() {
    Node::run(async |node| {
        let spec = spec(Processes::Own);
        let (container, _) = publish(node, &spec).await;
        assert_eq!(container.stop(), Some(0));
        eventually("the daemon is killed", || node.daemons().is_empty()).await;
        republish_and_end(node, &spec).await;
    });
}

/// `shareProcessNamespace: true`. The other container stands for the pod's first one.
#[test]
fn a_daemon_dies_with_a_container_that_shares_the_pods_processes() {
    Node::run(async |node| {
        let (pod, _) = Spec { image: "dirs", plugin: "pod", ..spec_without_args() }.start(node).await;
        let spec = spec(Processes::Pod(pod.pid()));
        let (container, _) = publish(node, &spec).await;
        container.kill();
        eventually("the daemon is killed", || node.daemons().is_empty()).await;
        republish_and_end(node, &spec).await;
        pod.kill();
    });
}

fn spec_without_args() -> Spec {
    let env = vec![("DIRS_ROOT", DATA.to_owned())];
    Spec { args: Vec::new(), env, ..spec(Processes::Own) }
}

/// `hostPID: true`.
#[test]
fn a_daemon_dies_with_a_container_that_has_the_nodes_processes() {
    Node::run(async |node| {
        let spec = spec(Processes::Host);
        let (container, _) = publish(node, &spec).await;
        container.kill();
        eventually("the daemon is killed", || node.daemons().is_empty()).await;
        republish_and_end(node, &spec).await;
    });
}

/// With `hostPID: true` and a launcher that leaves the container's mount namespace and control group, as
/// `nsenter` with `systemd-run` does. A script stands for `systemd-run`, which needs a node with systemd.
#[test]
fn a_daemon_with_a_launcher_outlives_the_container() {
    Node::run(async |node| {
        let bin = node.place.join("bin");
        fs::create_dir(&bin).unwrap();
        fs::copy(node.image_file("fuse-tools", "usr/bin/flatfs"), bin.join("flatfs")).unwrap();
        let launch = bin.join("launch");
        fs::write(&launch, leave_control_groups()).unwrap();
        fs::set_permissions(&launch, fs::Permissions::from_mode(0o755)).unwrap();
        // The test's thread has the node's mount namespace.
        let namespace = fs::read_link("/proc/thread-self").unwrap();
        let launcher =
            format!("nsenter --mount=/proc/{}/ns/mnt -- {}", namespace.display(), launch.display());
        let mut spec = Spec { image: "fuse-tools", ..spec(Processes::Host) };
        spec.args.push(format!("--flatfs={}", bin.join("flatfs").display()));
        spec.args.push(format!("--launcher={launcher}"));
        let (container, _) = publish(node, &spec).await;
        let daemon = node.daemons();
        container.kill();
        assert_eq!(node.daemons(), daemon, "it lives on");
        assert!(is_served());
        // The next plugin knows the daemon, and ends it with the volume.
        republish_and_end(node, &spec).await;
    });
}

/// A daemon that dies alone comes back with the repeated publish.
#[test]
fn a_killed_daemon_is_replaced_by_the_next_publish() {
    Node::run(async |node| {
        let spec = spec(Processes::Own);
        let (container, client) = publish(node, &spec).await;
        kill(Pid::from_raw(node.daemons()[0]), Signal::SIGKILL).unwrap();
        eventually("the volume is lost", is_lost).await;
        Volume::served(node).step(&client, Step::PublishWriter).await.unwrap();
        assert!(is_served());
        container.kill();
        republish_and_end(node, &spec).await;
    });
}

/// While the old plugin lives, the new one uses its daemon, which it can't see.
#[test]
fn an_old_and_a_new_plugin_at_once() {
    Node::run(async |node| {
        let (old, _) = publish(node, &spec(Processes::Own)).await;
        let mut next = spec(Processes::Own);
        next.plugin = "flat-new";
        next.args.truncate(1);
        let (new, client) = next.start(node).await;
        let volume = Volume::served(node);
        volume.steps(&client, &[Step::Stage, Step::PublishWriter]).await;
        assert!(is_served());
        assert_eq!(old.stop(), Some(0));
        eventually("the volume is lost", is_lost).await;
        volume.step(&client, Step::PublishWriter).await.unwrap();
        assert!(is_served());
        volume.steps(&client, &[Step::UnpublishWriter, Step::Unstage, Step::Delete]).await;
        new.kill();
        Volume::remove_directories();
        node.assert_empty();
    });
}

/// The programs in a pod of their own, as `--fuse-pods` of the manifests makes it: its container has another user than
/// root, no capability, no device, and a process namespace of its own.
#[test]
fn a_volume_outlives_the_containers_of_the_driver_and_of_the_mounter() {
    Node::run(async |node| {
        const UID: &str = "4cfa1f4c-93a9-4a9c-a60a-25f0ed1aa8a6";
        let pod = PathBuf::from(format!("{KUBELET}/pods/{UID}"));
        let comm = pod.join("volumes/kubernetes.io~empty-dir/mounter");
        fs::create_dir_all(&comm).unwrap();
        chown(&comm, Some(USER), Some(USER)).unwrap();
        fs::create_dir(node.place.join(format!("logs/flat-fuse_flat-x7k2p_{UID}"))).unwrap();
        let mut of_mounter = Spec { plugin: "mounter", ..spec(Processes::Own) };
        of_mounter.args = vec!["--fuse-mounter=/mounter".to_owned(), "--grace=60s".to_owned()];
        of_mounter.restricted = Some(comm.clone());
        let mut of_driver = spec(Processes::Own);
        of_driver.args.push("--fuse-pods=flat-fuse/flat".to_owned());
        let mounter = of_mounter.start_only(node);
        eventually("the mounter serves", || mounter.log().contains("waiting for FUSE programs")).await;
        Volume::make_directories();
        let volume = Volume::served(node);
        let (driver, client) = of_driver.start(node).await;
        volume.step(&client, Step::Create).await.unwrap();
        chown(format!("{DATA}/{}", node.volume), Some(USER), Some(USER)).unwrap();
        volume.steps(&client, &[Step::Stage, Step::PublishWriter]).await;
        fs::write(file(), "data").unwrap();
        let first = node.daemons();
        assert_eq!(first.len(), 1);
        let status = fs::read_to_string(format!("/proc/{}/status", first[0])).unwrap();
        for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", &format!("Uid:\t{USER}\t{USER}\t{USER}")]
        {
            assert!(status.contains(line), "{line}: {status}");
        }

        driver.kill();
        assert!(is_served(), "the driver's container does not matter");
        let (driver, client) = of_driver.start(node).await;
        kill(Pid::from_raw(first[0]), Signal::SIGKILL).unwrap();
        // What was read can be in the page cache, so the write shows that somebody serves.
        let is_written = |text: &str| fs::write(file(), text).is_ok();
        let is_other = |last: &[i32]| node.daemons().len() == 1 && node.daemons() != last;
        eventually("the next program runs", || is_other(&first)).await;
        let second = node.daemons();
        assert!(is_written("more"), "it continues the mount");
        mounter.kill();
        let mounter = of_mounter.start_only(node);
        eventually("the next mounter's program runs", || is_other(&second)).await;
        assert!(is_written("data") && is_served(), "it continues the mount");
        assert!(driver.log().contains("the next one continues its mount"), "{}", driver.log());

        volume.steps(&client, &[Step::UnpublishWriter, Step::Unstage, Step::Delete]).await;
        assert_eq!(node.daemons(), [0; 0]);
        assert_eq!(mounter.stop(), Some(0));
        driver.kill();
        fs::remove_file(comm.join("mounter.sock")).unwrap();
        for directory in comm.ancestors().take(4) {
            fs::remove_dir(directory).unwrap();
        }
        Volume::remove_directories();
        node.assert_empty();
    });
}

/// A script that leaves the container's control groups for those at the top, and runs a program.
fn leave_control_groups() -> String {
    let root = std::path::Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let hierarchies = below.filter(|path| path.is_dir() && !path.is_symlink());
    let all = hierarchies.chain([root.to_owned()]).map(|path| path.join("cgroup.procs"));
    // With one hierarchy, the directories below are groups.
    let is_one = root.join("cgroup.procs").exists();
    let tops = all.filter(|path| path.exists() && (!is_one || path.parent() == Some(root)));
    let moves: String = tops.map(|top| format!("echo $$ > {}\n", top.display())).collect();
    format!("#!/bin/sh\n{moves}exec \"$@\"\n")
}
