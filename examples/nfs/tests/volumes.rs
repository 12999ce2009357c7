//! What the controller does on a share (here a local directory) for the calls of an orchestrator.

mod support;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use csi_core::client::Client;
use csi_core::mount::{Mount, MountOptions, Target, unmount};
use csi_core::proto::v1;
use csi_mount::testing::private_mount_namespace;
use nfs::VolumeArgs;
use support::calls::*;
use support::*;
use test_support::driver::names;
use tonic::Code;

/// Runs a test against the driver, with a client and the share.
fn on_share(test: impl AsyncFnOnce(Client, &Path)) {
    let places = Places::new();
    let share = places.of("share");
    let plugin = places.controller(&VolumeArgs::default());
    with_plugin(plugin, &places, async |client| test(client, &share).await);
}

/// The entries of the share, without the driver's own directory.
fn entries(share: &Path) -> Vec<String> {
    names(share).into_iter().filter(|name| name != ".csi-nfs").collect()
}

/// The driver's own files, without the empty directories that contain them.
fn own(share: &Path) -> Vec<PathBuf> {
    let parts = fs::read_dir(share.join(".csi-nfs")).unwrap().map(|part| part.unwrap().path());
    let all = parts.flat_map(|part| fs::read_dir(part).unwrap().map(|entry| entry.unwrap().path()));
    // The reserve of the records stays.
    all.filter(|path| !path.ends_with(".spare")).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_volume_is_a_directory_named_as_its_class_says() {
    on_share(async |client, share| {
        let plain = Ask::new("pvc-1").bytes(1 << 30).create(&client).await.unwrap();
        assert_eq!(mode(&share.join("pvc-1")), 0o755);
        assert_eq!(plain.capacity_bytes, 1 << 30);
        let due = [("server", "192.0.2.7"), ("share", "/export"), ("subDir", "pvc-1")];
        assert_eq!(plain.volume_context, due.map(|(key, value)| (key.to_owned(), value.to_owned())).into());

        let named = Ask::new("pvc-2")
            .with("subDir", "teams/${pvc.metadata.namespace}/${pvc.metadata.name}-${pv.metadata.name}")
            .with("csi.storage.k8s.io/pvc/name", "claim")
            .with("csi.storage.k8s.io/pvc/namespace", "red")
            .with("csi.storage.k8s.io/pv/name", "pvc-2")
            .with("mountPermissions", "01777");
        let named = named.create(&client).await.unwrap();
        assert_eq!(named.volume_context["subDir"], "teams/red/claim-pvc-2");
        assert_eq!(mode(&share.join("teams/red/claim-pvc-2")), 0o1777, "whatever the umask");
        assert_eq!(mode(&share.join("teams")), 0o755);
        assert_eq!(mode(&share.join(".csi-nfs")), 0o700);

        for volume in [&plain, &named] {
            delete(&client, volume).await.unwrap();
            delete(&client, volume).await.unwrap();
        }
        assert_eq!(entries(share), ["teams"]);
        assert!(!share.join("teams/red/claim-pvc-2").exists());
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}

#[test]
fn what_becomes_of_a_directory_is_as_its_class_says() {
    on_share(async |client, share| {
        for (round, policy) in ["delete", "retain", "archive", "archive"].into_iter().enumerate() {
            let ask = Ask::new("pvc-1").with("onDelete", policy).with("subDir", &format!("{policy}/data"));
            let volume = ask.create(&client).await.unwrap();
            fs::write(share.join(policy).join("data/file"), format!("{round}")).unwrap();
            delete(&client, &volume).await.unwrap();
        }
        let read = |path: &str| fs::read_to_string(share.join(path)).ok();
        assert_eq!(entries(&share.join("delete")), Vec::<String>::new());
        assert_eq!(read("retain/data/file").as_deref(), Some("1"));
        assert_eq!(entries(&share.join("archive")), ["archived-data", "archived-data-2"]);
        assert_eq!(read("archive/archived-data/file").as_deref(), Some("2"));
        assert_eq!(read("archive/archived-data-2/file").as_deref(), Some("3"));

        // The next volume finds the retained directory. Deleting that volume does not remove it.
        let ask = Ask::new("pvc-2").with("onDelete", "delete").with("subDir", "retain/data");
        let volume = ask.create(&client).await.unwrap();
        assert_eq!(read("retain/data/file").as_deref(), Some("1"));
        delete(&client, &volume).await.unwrap();
        assert_eq!(read("retain/data/file").as_deref(), Some("1"));
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}

/// Also where two volumes have one directory, and the first deletion of all. Needs root.
#[test]
fn on_a_full_share_volumes_are_deleted() {
    private_mount_namespace(|| {
        on_share(async |client, share| {
            let disk = Target::new(share).unwrap();
            let options = MountOptions::parse(["size=256k"]).unwrap();
            Mount::new("tmpfs", "share").options(&options).at(&disk).unwrap();
            let mut volumes = Vec::new();
            for (number, sub_dir) in ["common", "common", "own", "archived"].into_iter().enumerate() {
                let policy = if sub_dir == "archived" { "archive" } else { "delete" };
                let ask = Ask::new(&format!("pvc-{number}")).with("subDir", sub_dir);
                volumes.push(ask.with("onDelete", policy).create(&client).await.unwrap());
            }
            for volume in &volumes {
                let mut filler =
                    File::options().append(true).create(true).open(share.join("filler")).unwrap();
                while filler.write_all(&[1; 4096]).is_ok() {}
                delete(&client, volume).await.unwrap();
                delete(&client, volume).await.unwrap();
            }
            assert_eq!(entries(share), ["archived-archived", "filler"]);
            assert_eq!(own(share), Vec::<PathBuf>::new());
            unmount(&disk).unwrap();
        });
    });
}

#[test]
fn a_directory_goes_with_the_last_of_its_volumes() {
    on_share(async |client, share| {
        let first = Ask::new("pvc-1").with("subDir", "common").create(&client).await.unwrap();
        let second = Ask::new("pvc-2").with("subDir", "common").create(&client).await.unwrap();
        fs::write(share.join("common/file"), "data").unwrap();
        delete(&client, &first).await.unwrap();
        assert!(share.join("common/file").exists());
        delete(&client, &second).await.unwrap();
        assert_eq!(entries(share), Vec::<String>::new());
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}

/// Otherwise deleting or archiving one volume would include the other. And a workload on the outer volume
/// could redirect a node with a symbolic link.
#[test]
fn no_volumes_directory_lies_within_anothers() {
    on_share(async |client, share| {
        let ask = |name: &str, sub_dir: &str| Ask::new(name).with("subDir", sub_dir);
        for policy in ["delete", "archive", "retain"] {
            let outer = ask("outer", "te%am").with("onDelete", policy).create(&client).await.unwrap();
            for sub_dir in ["te%am/b", "te%am/b/c"] {
                let (code, text) = ask("inner", sub_dir).refused(&client).await;
                assert_eq!(code, Code::FailedPrecondition, "{sub_dir}: {text}");
                assert!(text.contains("lies within te%am,"), "{text}");
                let clone = ask("inner", sub_dir).of_volume(&outer.volume_id).refused(&client).await;
                assert_eq!(clone.0, Code::FailedPrecondition, "{}", clone.1);
            }
            let beside = ask("beside", "te%am-b").create(&client).await.unwrap();
            delete(&client, &beside).await.unwrap();
            delete(&client, &outer).await.unwrap();
            assert_eq!(own(share), Vec::<PathBuf>::new());
        }

        let inner = ask("inner", "x/y/.z").create(&client).await.unwrap();
        for sub_dir in ["x", "x/y"] {
            let (code, text) = ask("outer", sub_dir).with("onDelete", "archive").refused(&client).await;
            assert_eq!(code, Code::FailedPrecondition, "{sub_dir}: {text}");
            assert!(text.contains("holds x/y/.z,"), "{text}");
        }
        delete(&client, &inner).await.unwrap();
        // It contains no volume any more, so it can become one.
        let outer = ask("outer", "x").create(&client).await.unwrap();
        delete(&client, &outer).await.unwrap();
        assert_eq!(entries(share), ["archived-te%am", "te%am", "x"]);
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}

#[test]
fn permissions_are_given_to_a_directory_that_is_made_and_to_no_other() {
    on_share(async |client, share| {
        let ask = |name: &str, sub_dir: &str| {
            Ask::new(name).with("subDir", sub_dir).with("mountPermissions", "0777").create(&client)
        };
        fs::create_dir(share.join("found")).unwrap();
        fs::set_permissions(share.join("found"), fs::Permissions::from_mode(0o700)).unwrap();
        let found = ask("pvc-1", "found").await.unwrap();
        assert_eq!(mode(&share.join("found")), 0o700);
        let made = ask("pvc-2", "made").await.unwrap();
        assert_eq!(mode(&share.join("made")), 0o777);
        fs::set_permissions(share.join("made"), fs::Permissions::from_mode(0o2770)).unwrap();
        let other = ask("pvc-3", "made").await.unwrap();
        assert_eq!(mode(&share.join("made")), 0o2770, "as its first volume's owner has it");
        for volume in [&found, &made, &other] {
            delete(&client, volume).await.unwrap();
        }
        assert_eq!(entries(share), ["found"]);
    });
}

#[test]
fn an_archive_takes_no_volumes_place() {
    on_share(async |client, share| {
        let ask = |sub_dir: &str| Ask::new(sub_dir).with("subDir", sub_dir).with("onDelete", "archive");
        let other = ask("archived-data").create(&client).await.unwrap();
        // The directory of the other volume does not exist: it was deleted, or is not created yet.
        fs::remove_dir(share.join("archived-data")).unwrap();
        let volume = ask("data").create(&client).await.unwrap();
        delete(&client, &volume).await.unwrap();
        assert_eq!(entries(share), ["archived-data-2"]);
        delete(&client, &other).await.unwrap();
    });
}

#[test]
fn snapshots_and_clones_are_copies() {
    on_share(async |client, share| {
        let source = Ask::new("pvc-1").with("mountPermissions", "0770").create(&client).await.unwrap();
        let at = share.join("pvc-1");
        fs::create_dir(at.join("inner")).unwrap();
        fs::write(at.join("inner/file"), "first").unwrap();
        symlink("/etc/passwd", at.join("link")).unwrap();
        fs::hard_link(at.join("inner/file"), at.join("same")).unwrap();

        let cut = snapshot(&client, "snap-1", &source.volume_id).await.unwrap();
        assert!(cut.ready_to_use && cut.size_bytes == 5, "{cut:?}");
        assert_eq!(snapshot(&client, "snap-1", &source.volume_id).await.unwrap(), cut, "a retry finds it");
        let cloned = Ask::new("pvc-2").of_volume(&source.volume_id).create(&client).await.unwrap();
        fs::write(at.join("inner/file"), "second").unwrap();
        delete(&client, &source).await.unwrap();

        // The snapshot outlives its volume.
        let restored = Ask::new("pvc-3").with("subDir", "deep/down").of_snapshot(&cut.snapshot_id);
        let restored = restored.create(&client).await.unwrap();
        for copy in ["pvc-2", "deep/down"] {
            let copy = share.join(copy);
            assert_eq!(fs::read_to_string(copy.join("same")).unwrap(), "first", "{}", copy.display());
            assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("/etc/passwd"));
            let links = ["same", "inner/file"].map(|name| fs::metadata(copy.join(name)).unwrap().ino());
            assert_eq!(links[0], links[1]);
            assert_eq!(mode(&copy), 0o770);
        }

        let again = Ask::new("pvc-3").with("subDir", "deep/down").refused(&client).await;
        assert_eq!(again.0, Code::AlreadyExists, "made from a snapshot, asked for without: {}", again.1);
        let there =
            Ask::new("pvc-4").with("subDir", "pvc-2").of_snapshot(&cut.snapshot_id).refused(&client).await;
        assert_eq!(there.0, Code::AlreadyExists, "{}", there.1);
        let other = snapshot(&client, "snap-1", &cloned.volume_id).await.unwrap_err();
        assert_eq!(other.code(), Code::AlreadyExists, "{other}");

        delete_snapshot(&client, &cut.snapshot_id).await.unwrap();
        delete_snapshot(&client, &cut.snapshot_id).await.unwrap();
        for missing in
            [Ask::new("pvc-5").of_snapshot(&cut.snapshot_id), Ask::new("pvc-5").of_volume(&source.volume_id)]
        {
            let (code, text) = missing.refused(&client).await;
            assert_eq!(code, Code::NotFound, "{text}");
        }
        let missing = snapshot(&client, "snap-2", &source.volume_id).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound);
        for volume in [&cloned, &restored] {
            delete(&client, volume).await.unwrap();
        }
        assert_eq!(entries(share), ["deep"]);
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}

#[test]
fn no_name_leads_out_of_the_share() {
    on_share(async |client, share| {
        let outside = share.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "data").unwrap();
        symlink(&outside, share.join("link")).unwrap();
        symlink("..", share.join("up")).unwrap();
        for sub_dir in [
            "..",
            "../outside",
            "a/../../outside",
            "/outside",
            "link",
            "link/inner",
            "up/outside",
            "",
            ".",
            ".csi-nfs/volumes",
            "./.csi-nfs/x",
            "a\nb",
            "a\0b",
            &"x".repeat(241),
            "${pvc.metadata.name}",
            "${node}",
            "a${",
        ] {
            let (code, text) = Ask::new("pvc-1").with("subDir", sub_dir).refused(&client).await;
            assert_eq!(code, Code::InvalidArgument, "{sub_dir:?}: {text}");
        }
        for (key, value) in [("pvc/name", ".."), ("pvc/name", "a/b"), ("pvc/name", ".csi-nfs")] {
            let ask = Ask::new("pvc-1").with("subDir", "${pvc.metadata.name}");
            let (code, text) = ask.with(&format!("csi.storage.k8s.io/{key}"), value).refused(&client).await;
            assert_eq!(code, Code::InvalidArgument, "{value}: {text}");
        }
        for (key, value) in
            [("onDelete", "keep"), ("mountPermissions", "9"), ("sharee", "/x"), ("server", "a b")]
        {
            let (code, text) = Ask::new("pvc-1").with(key, value).refused(&client).await;
            assert!(
                code == Code::InvalidArgument && text.contains("parameters") | text.contains(key),
                "{text}"
            );
        }
        assert_eq!(entries(share), ["link", "up"]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);

        // A record forged by somebody who can write to the whole share.
        let volume = Ask::new("pvc-1").create(&client).await.unwrap();
        let record = share.join(".csi-nfs/volumes/pvc-1.json");
        let text = fs::read_to_string(&record).unwrap();
        fs::write(&record, text.replace("\"sub_dir\": \"pvc-1\"", "\"sub_dir\": \"../outside\"")).unwrap();
        delete(&client, &volume).await.unwrap_err();
        fs::write(&record, text.replace("\"sub_dir\": \"pvc-1\"", "\"sub_dir\": \"link\"")).unwrap();
        let _ = delete(&client, &volume).await;
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "data");
    });
}

#[test]
fn a_retry_goes_on_where_an_attempt_ended() {
    on_share(async |client, share| {
        let source = Ask::new("source").create(&client).await.unwrap();
        fs::write(share.join("source/file"), "data").unwrap();
        let ask = Ask::new("pvc-1").of_volume(&source.volume_id);
        let volume = ask.clone().create(&client).await.unwrap();
        let own_of = |part: &str| share.join(".csi-nfs").join(part).join("pvc-1");
        let record = &own_of("volumes").with_extension("json");
        let put_back = |state: &str| {
            let text = fs::read_to_string(record).unwrap();
            let from = "\"state\": \"ready\"";
            let to = format!("\"state\": \"{state}\"");
            assert!(text.contains(from), "{text}");
            fs::write(record, text.replace(from, &to)).unwrap();
        };
        let is_whole = || fs::read_to_string(share.join("pvc-1/file")).is_ok_and(|text| text == "data");

        // Killed before the record was set to "ready".
        put_back("copied");
        assert_eq!(ask.clone().create(&client).await.unwrap(), volume);
        assert!(is_whole());
        // Killed in the middle of the copy: the incomplete copy does not block the retry.
        put_back("making");
        fs::rename(share.join("pvc-1"), own_of("unfinished")).unwrap();
        fs::write(own_of("unfinished").join("half"), "").unwrap();
        assert_eq!(ask.clone().create(&client).await.unwrap(), volume);
        assert!(is_whole() && !share.join("pvc-1/half").exists() && !own_of("unfinished").exists());
        // The record is lost. The retry creates the volume again.
        fs::remove_file(record).unwrap();
        fs::rename(share.join("pvc-1"), share.join("gone")).unwrap();
        assert_eq!(ask.create(&client).await.unwrap(), volume);
        assert!(is_whole());
        // Killed while the trash was emptied.
        fs::create_dir_all(own_of("trash").join("rest")).unwrap();
        fs::remove_dir_all(share.join("pvc-1")).unwrap();
        delete(&client, &volume).await.unwrap();
        assert!(!own_of("trash").exists() && !record.exists());
        delete(&client, &source).await.unwrap();
        assert_eq!(entries(share), ["gone"]);
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}

#[test]
fn many_at_once_and_each_of_them_twice() {
    on_share(async |client, share| {
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..32 {
            for _ in 0..3 {
                let client = client.clone();
                // Half of the volumes share one directory.
                let sub_dir = if number % 2 == 0 { "common".to_owned() } else { format!("own/{number}") };
                let ask = Ask::new(&format!("pvc-{number}")).with("subDir", &sub_dir);
                calls.spawn(async move { ask.create(&client).await.unwrap() });
            }
        }
        let mut volumes: Vec<_> = calls.join_all().await.into_iter().map(|volume| volume.volume_id).collect();
        volumes.sort();
        volumes.dedup();
        assert_eq!(volumes.len(), 32);
        assert_eq!(fs::read_dir(share.join("own")).unwrap().count(), 16);
        let mut calls = tokio::task::JoinSet::new();
        for volume_id in volumes.iter().flat_map(|id| [id.clone(), id.clone()]) {
            let client = client.clone();
            let volume = csi_core::proto::v1::Volume { volume_id, ..Default::default() };
            calls.spawn(async move { delete(&client, &volume).await.unwrap() });
        }
        calls.join_all().await;
        assert_eq!(entries(share), ["own"]);
        assert_eq!(fs::read_dir(share.join("own")).unwrap().count(), 0);
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}

#[test]
fn an_id_says_how_its_share_is_reached_and_anothers_is_no_volume() {
    on_share(async |client, _| {
        let options = ["nfsvers=4.1", "noatime", "port=2050", "hard"].map(str::to_owned);
        let volume = Ask::new("pvc-1").options(&options).create(&client).await.unwrap();
        assert_eq!(volume.volume_id, "v1:192.0.2.7:%2Fexport:pvc-1:nfsvers=4.1,port=2050");
        for foreign in ["anything", "v1:h:%2Fe:..:", "v1:h:relative:pvc-1:", "v1:h:%2Fe:pvc-1:soft"] {
            let volume = csi_core::proto::v1::Volume { volume_id: foreign.to_owned(), ..Default::default() };
            delete(&client, &volume).await.unwrap();
            let error = snapshot(&client, "snap", foreign).await.unwrap_err();
            assert_eq!(error.code(), Code::NotFound, "{foreign}: {error}");
        }
        let long = format!("{}.example.org", "x".repeat(100));
        let (code, text) = Ask::new("pvc-1").with("server", &long).refused(&client).await;
        assert!(code == Code::InvalidArgument && text.contains("128"), "{text}");
        delete(&client, &volume).await.unwrap();
    });
}

#[test]
fn a_volume_of_csi_driver_nfs_is_deleted_as_its_id_says() {
    on_share(async |client, share| {
        let volume = |sub_dir: &str, rest: &str| v1::Volume {
            volume_id: format!("192.0.2.7#export#{sub_dir}#{rest}"),
            ..Default::default()
        };
        for name in ["gone", "archived", "retained"] {
            fs::create_dir(share.join(name)).unwrap();
            fs::write(share.join(name).join("file"), "data").unwrap();
        }
        for _ in 0..2 {
            delete(&client, &volume("gone", "")).await.unwrap();
            delete(&client, &volume("archived", "#archive")).await.unwrap();
            delete(&client, &volume("retained", "pvc-1#retain")).await.unwrap();
        }
        let ours = Ask::new("pvc-1").with("subDir", "ours/data").create(&client).await.unwrap();
        fs::create_dir(share.join("ours/data/inner")).unwrap();
        for sub_dir in ["ours", "ours/data", "ours/data/inner"] {
            let refused = delete(&client, &volume(sub_dir, "")).await.expect_err(sub_dir);
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        }
        assert!(share.join("ours/data/inner").exists());
        delete(&client, &ours).await.unwrap();
        assert_eq!(entries(share), ["archived-archived", "ours", "retained"]);
        assert_eq!(own(share), Vec::<PathBuf>::new());
    });
}
