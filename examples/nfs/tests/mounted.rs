//! The driver on real NFS mounts: of the program's own server, and of the kernel's server, versions 3
//! and 4.2.
//!
//! Not run by `cargo test`: it needs a kernel with the NFS client and server, and a machine of its own,
//! which `cargo xtask test --kernels` provides.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use csi_conformance::{Kit, Pairs};
use csi_core::client::Client;
use csi_core::proto::v1;
use nfs::VolumeArgs;
use nfs::try_out::{Class, Server, live};
use support::calls::*;
use support::nfsd::Nfsd;
use support::*;
use test_support::nfsd::raise_loopback;
use tonic::Code;

fn run<T>(test: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test())
}

async fn with_driver<T>(volumes: VolumeArgs, work: impl AsyncFnOnce(Client, &Places) -> T) -> T {
    let places = Places::new();
    with_plugin(places.driver(&volumes), &places, async |client| work(client, &places).await).await
}

/// A volume's life on this share.
async fn lives(class: &Class) {
    with_driver(VolumeArgs::default(), async |client, places| {
        let start = Instant::now();
        let tell = |step: &str| println!("{:6} ms  {step}", start.elapsed().as_millis());
        live(&client, class, places.path(), tell).await.unwrap();
    })
    .await;
}

#[test]
fn a_life_on_its_own_server() {
    raise_loopback();
    let ended = Command::new(env!("CARGO_BIN_EXE_nfs")).arg("--try").status().unwrap();
    assert!(ended.success(), "nfs --try: {ended}");
}

#[test]
fn a_life_on_the_kernels_server_version_3() {
    let server = Nfsd::start();
    run(async || lives(&server.version_3()).await);
}

#[test]
fn a_life_on_the_kernels_server_version_4() {
    let server = Nfsd::start();
    run(async || lives(&server.version_4()).await);
}

#[test]
fn the_driver_conforms_on_the_kernels_server() {
    let server = Nfsd::start();
    let parameters: Vec<String> =
        server.version_4().parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let parameters = Pairs::parse(&format!("[CreateVolume]\n{}", parameters.join("\n"))).unwrap();
    run(async || {
        with_driver(VolumeArgs::default(), async |_, places| {
            let kit = Kit::new(places.endpoint())
                .strict()
                .staging(places.of("staging"))
                .target(places.of("target"));
            let report = kit.parameters(parameters).run().await.unwrap();
            println!("{}", report.text());
            report.assert_ok();
            assert!(report.passed() >= 50, "{}", report.summary());
        })
        .await;
    });
    let left: Vec<_> =
        fs::read_dir(server.export.join("share")).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(left.iter().all(|entry| entry.file_name() == ".csi-nfs"), "{left:?}");
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
    run(async || {
        with_driver(VolumeArgs::default(), async |client, _| {
            for (version, class) in [("3", server.version_3()), ("4", server.version_4())] {
                let ask = |name: &str, sub_dir: String| {
                    let ask = Ask::new(name).parameters(&class.parameters).options(&class.mount_options);
                    ask.with("subDir", &sub_dir).with("mountPermissions", "0770")
                };
                let at = format!("v{version}/source");
                let source =
                    ask("source", at.clone()).with("onDelete", "archive").create(&client).await.unwrap();
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
                let mut left: Vec<_> = fs::read_dir(share.join(format!("v{version}")))
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name())
                    .collect();
                left.sort();
                assert_eq!(left, ["archived-source", "restored"], "version {version}");
            }
        })
        .await;
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
    raise_loopback();
    let server = Server::start().unwrap();
    let class = server.class();
    let volumes = VolumeArgs { server_patience: PATIENCE, ..VolumeArgs::default() };
    run(async || {
        with_driver(volumes, async |client, _| {
            let ask = |name: &str| Ask::new(name).parameters(&class.parameters).options(&class.mount_options);
            let mut given_up = 0;
            // The server stops answering during the mount, at the records, at the directory, and later.
            for questions in [1, 6, 15, 30, 45, 60] {
                let name = format!("pvc-{questions}");
                server.pause_after(questions);
                given_up += u32::from(timed(&mut async || ask(&name).create(&client).await).await.is_err());
                server.resume();
                let volume = until_done(async || ask(&name).create(&client).await).await;
                server.pause_after(questions);
                given_up += u32::from(timed(&mut async || delete(&client, &volume).await).await.is_err());
                server.resume();
                until_done(async || delete(&client, &volume).await).await;
            }
            assert!(given_up >= 6, "it was silent in the middle of {given_up} calls only");
        })
        .await;
    });
}

#[test]
fn a_volume_is_let_go_of_while_its_server_is_silent() {
    raise_loopback();
    let server = Server::start().unwrap();
    let class = server.class();
    run(async || {
        with_driver(VolumeArgs::default(), async |client, places| {
            let ask = Ask::new("pvc-1").parameters(&class.parameters).options(&class.mount_options);
            let capability = ask.0.volume_capabilities.first().cloned();
            let volume = ask.create(&client).await.unwrap();
            let (staging, target) = (places.of("staging/one"), places.of("target/one"));
            fs::create_dir(&staging).unwrap();
            let (staging, target) = (staging.display().to_string(), target.display().to_string());
            let stage = v1::NodeStageVolumeRequest {
                volume_id: volume.volume_id.clone(),
                volume_context: volume.volume_context.clone(),
                volume_capability: capability.clone(),
                staging_target_path: staging.clone(),
                ..Default::default()
            };
            client.node().node_stage_volume(stage).await.unwrap();
            let publish = v1::NodePublishVolumeRequest {
                volume_id: volume.volume_id.clone(),
                volume_context: volume.volume_context.clone(),
                volume_capability: capability,
                staging_target_path: staging.clone(),
                target_path: target.clone(),
                ..Default::default()
            };
            client.node().node_publish_volume(publish).await.unwrap();
            fs::write(places.of("target/one/file"), "data").unwrap();

            server.pause();
            let start = Instant::now();
            let stats = v1::NodeGetVolumeStatsRequest {
                volume_id: volume.volume_id.clone(),
                volume_path: target.clone(),
                ..Default::default()
            };
            let error = client.node().node_get_volume_stats(stats).await.unwrap_err();
            println!("{:?}  stats: {error}", start.elapsed());
            let unpublish =
                v1::NodeUnpublishVolumeRequest { volume_id: volume.volume_id.clone(), target_path: target };
            client.node().node_unpublish_volume(unpublish).await.unwrap();
            println!("{:?}  unpublished", start.elapsed());
            let unstage = v1::NodeUnstageVolumeRequest {
                volume_id: volume.volume_id.clone(),
                staging_target_path: staging,
            };
            client.node().node_unstage_volume(unstage).await.unwrap();
            println!("{:?}  unstaged", start.elapsed());
            assert!(start.elapsed() < Duration::from_secs(60) + SLACK);
            let left = csi_mount::mounts().unwrap();
            assert!(left.iter().all(|entry| !entry.mount_point.starts_with(places.path())));
            server.resume();
            until_done(async || delete(&client, &volume).await).await;
        })
        .await;
    });
}
