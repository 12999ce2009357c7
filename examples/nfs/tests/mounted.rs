//! The driver on real NFS mounts of the kernel's server, versions 3 and 4.2.
//!
//! Not run by `cargo test`: it needs a kernel with the NFS client and server, and a machine of its own,
//! which `cargo xtask test --kernels` provides.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use csi_conformance::{Kit, Pairs};
use csi_core::client::{Client, Target, VolumeUse};
use csi_core::mount::flow::shared::SharedSource;
use csi_core::mount::internal::flow::shared;
use csi_core::mount::{self, MountAttributes, MountOptions};
use csi_core::proto::v1;
use nfs::VolumeArgs;
use support::calls::*;
use support::nfsd::{Class, Nfsd};
use support::*;
use test_support::driver;
use test_support::tcp_gate::Gate;
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

fn with_driver(volumes: VolumeArgs, test: impl AsyncFnOnce(Client, &Places)) {
    let places = Places::new();
    with_plugin(places.driver(&volumes), &places, async |client| test(client, &places).await);
}

/// The kit writes through the node's mounts, and reads what restored and cloned volumes hold.
fn conforms(server: &Nfsd, class: &Class) {
    let mut parameters = vec!["[CreateVolume]".to_owned()];
    parameters.extend(class.parameters.iter().map(|(key, value)| format!("{key}={value}")));
    let parameters = Pairs::parse(&parameters.join("\n")).unwrap();
    with_driver(VolumeArgs::default(), async |_, places| {
        let settings = |kit: Kit| kit.parameters(parameters).mount_flags(class.mount_options.clone());
        driver::conforms(places.path(), settings, 50).await;
    });
    assert_eq!(driver::names(&server.export.join("share")), [".csi-nfs"]);
}

#[test]
fn the_driver_conforms_with_version_3() {
    let server = Nfsd::start();
    conforms(&server, &server.version_3());
}

#[test]
fn the_driver_conforms_with_version_4() {
    let server = Nfsd::start();
    conforms(&server, &server.version_4());
}

const SPARSE: u64 = 8 << 20;

fn tree(at: &Path) {
    fs::create_dir(at.join("inner")).unwrap();
    fs::write(at.join("inner/file"), vec![7; 1 << 20]).unwrap();
    fs::set_permissions(at.join("inner/file"), Permissions::from_mode(0o640)).unwrap();
    chown(at.join("inner"), Some(1234), Some(5678)).unwrap();
    fs::hard_link(at.join("inner/file"), at.join("same")).unwrap();
    symlink("/etc/passwd", at.join("link")).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", SPARSE / 2).unwrap();
    sparse.set_len(SPARSE).unwrap();
}

/// Checks on the server that a copy equals the original tree.
fn is_tree(at: &Path) {
    assert_eq!(fs::read(at.join("inner/file")).unwrap(), vec![7; 1 << 20], "{}", at.display());
    let of = |name: &str| fs::symlink_metadata(at.join(name)).unwrap();
    assert_eq!((of("inner").uid(), of("inner").gid()), (1234, 5678));
    assert_eq!((of("inner/file").mode() & 0o7777, of("inner/file").ino()), (0o640, of("same").ino()));
    assert_eq!(fs::read_link(at.join("link")).unwrap(), Path::new("/etc/passwd"));
    let mut middle = [0; 8];
    fs::File::open(at.join("sparse")).unwrap().read_exact_at(&mut middle, SPARSE / 2 - 1).unwrap();
    assert_eq!((&middle, of("sparse").size()), (b"\0middle\0", SPARSE));
}

#[test]
fn copies_archives_and_what_is_retained_lie_on_the_server_as_they_should() {
    let server = Nfsd::start();
    let share = server.export.join("share");
    with_driver(VolumeArgs::default(), async |client, _| {
        for (version, class) in [("3", server.version_3()), ("4", server.version_4())] {
            let ask = |name: &str, sub_dir: String| {
                let ask = Ask::new(name).parameters(&class.parameters).options(&class.mount_options);
                ask.with("subDir", &sub_dir).with("mountPermissions", "0770")
            };
            let at = format!("v{version}/source");
            let source = ask("source", at.clone()).with("onDelete", "archive").create(&client).await.unwrap();
            tree(&share.join(&at));
            assert_eq!(fs::metadata(share.join(&at)).unwrap().mode() & 0o7777, 0o770);
            let cut = snapshot(&client, "cut", &source.volume_id).await.unwrap();
            fs::write(share.join(&at).join("inner/later"), "").unwrap();
            let restored = ask("restored", format!("v{version}/restored")).with("onDelete", "retain");
            let restored = restored.of_snapshot(&cut.snapshot_id).create(&client).await.unwrap();
            let cloned = ask("cloned", format!("v{version}/cloned")).of_volume(&source.volume_id);
            let cloned = cloned.create(&client).await.unwrap();
            for name in ["restored", "cloned"] {
                is_tree(&share.join(format!("v{version}/{name}")));
            }
            let later = |name: &str| share.join(format!("v{version}/{name}/inner/later")).exists();
            assert!(later("cloned") && !later("restored"));
            for volume in [&source, &restored, &cloned] {
                delete(&client, volume).await.unwrap();
            }
            delete_snapshot(&client, &cut.snapshot_id).await.unwrap();
            let left = driver::names(&share.join(format!("v{version}")));
            assert_eq!(left, ["archived-source", "restored"], "version {version}");
        }
    });
}

/// How long a call is allowed to take on an emulated machine, in addition to the time it waits for
/// the server.
const SLACK: Duration = Duration::from_secs(40);

const PATIENCE: u64 = 4;

/// Repeats the call until it succeeds, as an orchestrator does. Each answer must arrive in time, and each
/// error must be one that an orchestrator retries.
async fn until_done<T>(mut call: impl AsyncFnMut() -> Answer<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60) + SLACK;
    loop {
        match timed(&mut call).await {
            Ok(answer) => return answer,
            Err(status) => assert!(Instant::now() < end, "still: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn timed<T>(call: &mut impl AsyncFnMut() -> Answer<T>) -> Answer<T> {
    let start = Instant::now();
    let answer = call().await;
    let took = start.elapsed();
    assert!(took < 2 * Duration::from_secs(PATIENCE) + SLACK, "it took {took:?}");
    if let Err(status) = &answer {
        // INTERNAL: for a volume or snapshot of which nothing exists yet.
        assert!(matches!(status.code(), Code::Unavailable | Code::Aborted | Code::Internal), "{status}");
    }
    answer
}

#[test]
fn a_server_that_falls_silent_is_given_up_in_time_and_taken_up_again() {
    let server = Nfsd::start();
    let gate = Gate::default();
    let class = server.behind(&gate);
    let volumes = VolumeArgs { server_patience: PATIENCE, ..VolumeArgs::default() };
    with_driver(volumes, async |client, _| {
        let ask = |name: &str| Ask::new(name).parameters(&class.parameters).options(&class.mount_options);
        let mut given_up = 0;
        // The server stops answering during the mount, at the records, at the directory, and later.
        for requests in [1, 6, 15, 30, 45, 60] {
            let name = format!("pvc-{requests}");
            gate.stop_after(requests);
            given_up += u32::from(timed(&mut async || ask(&name).create(&client).await).await.is_err());
            gate.go_on();
            let volume = until_done(async || ask(&name).create(&client).await).await;
            gate.stop_after(requests);
            given_up += u32::from(timed(&mut async || delete(&client, &volume).await).await.is_err());
            gate.go_on();
            until_done(async || delete(&client, &volume).await).await;
        }
        assert!(given_up >= 6, "it was silent in the middle of {given_up} calls only");
    });
}

#[test]
fn a_volume_is_let_go_of_while_its_server_is_silent() {
    let server = Nfsd::start();
    let gate = Gate::default();
    let class = server.behind(&gate);
    with_driver(VolumeArgs::default(), async |client, places| {
        let ask = Ask::new("pvc-1").parameters(&class.parameters).options(&class.mount_options);
        let capability = ask.0.volume_capabilities[0].clone();
        let created = ask.create(&client).await.unwrap();
        let staging = places.of("staging/one");
        fs::create_dir(&staging).unwrap();
        let targets = [Target::new(places.of("target/one"))];
        let mut volume = VolumeUse::new(&created.volume_id, capability).staged_at(staging);
        volume.volume_context = created.volume_context.clone();
        volume.attach_stage_publish(&client, &targets).await.unwrap();
        fs::write(places.of("target/one/file"), "data").unwrap();

        gate.stop();
        let start = Instant::now();
        let error = client.call(volume.node_get_volume_stats(&targets[0].path)).await.unwrap_err();
        println!("{:?}  stats: {error}", start.elapsed());
        volume.unpublish(&client, &targets).await.unwrap();
        println!("{:?}  unpublished", start.elapsed());
        volume.unstage(&client).await.unwrap();
        println!("{:?}  unstaged", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(60) + SLACK);
        let left = csi_mount::mounts().unwrap();
        assert!(left.iter().all(|entry| !entry.mount_point.starts_with(places.path())));
        gate.go_on();
        until_done(async || delete(&client, &created).await).await;
    });
}

/// csi-driver-nfs mounts at the target, and the kubelet writes down for which driver and volume.
#[test]
fn a_volume_of_csi_driver_nfs_is_taken_over() {
    const GO: &str = "nfs.csi.k8s.io";
    let server = Nfsd::start();
    let class = server.version_4();
    let data = server.export.join("share/pvc-1");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "data").unwrap();
    let address = &class.parameters["server"];
    let share = &class.parameters["share"];
    let volume_id = format!("{address}#{}#pvc-1##", share.trim_start_matches('/'));
    let places = Places::new();
    let directory = places.of("pods/1/volumes/kubernetes.io~csi/pvc-1");
    let target = directory.join("mount");
    fs::create_dir_all(&target).unwrap();
    let record = format!(r#"{{"driverName":"{GO}","volumeHandle":"{volume_id}"}}"#);
    fs::write(directory.join("vol_data.json"), record).unwrap();
    let source = SharedSource::nfs(address, &format!("{share}/pvc-1")).unwrap();
    let source = source.options(MountOptions::parse(class.mount_options.iter().map(String::as_str)).unwrap());
    shared::publish_directly(&mount::Target::new(&target).unwrap(), &source, MountAttributes::empty())
        .unwrap();

    let volumes = VolumeArgs { driver_name: GO.to_owned(), ..VolumeArgs::default() };
    let plugin = places.driver(&volumes).volume_roots([places.path()]);
    with_plugin(plugin, &places, async |client| {
        let mount = v1::volume_capability::MountVolume {
            mount_flags: class.mount_options.clone(),
            ..Default::default()
        };
        let mut capability = v1::VolumeCapability::mount(Mode::MultiNodeMultiWriter);
        capability.access_type = Some(v1::volume_capability::AccessType::Mount(mount));
        let mut volume = VolumeUse::new(&volume_id, capability).staged_at(places.of("staging"));
        volume.volume_context = [("server", address.as_str()), ("share", share), ("subdir", "pvc-1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        client.call(volume.node_get_volume_stats(&target)).await.unwrap();
        let next = [Target::new(places.of("target/next"))];
        volume.attach_stage_publish(&client, &next).await.unwrap();
        assert_eq!(fs::read_to_string(next[0].path.join("file")).unwrap(), "data");
        client.call(volume.node_unpublish_volume(&target)).await.unwrap();
        volume.unpublish(&client, &next).await.unwrap();
        volume.unstage(&client).await.unwrap();
        client.call(v1::DeleteVolumeRequest { volume_id, ..Default::default() }).await.unwrap();
    });
    assert!(!target.exists() && !data.exists());
}
