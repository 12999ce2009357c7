//! The driver on real SMB mounts, of Samba's server on this machine.
//!
//! Not run by `cargo test`: it needs a kernel with the SMB client, and a machine of its own, which
//! `cargo xtask test --kernels` provides.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_conformance::{Kit, Pairs};
use csi_core::Spec;
use csi_core::client::Client;
use csi_core::testing::serve;
use support::*;
use test_support::driver::{conforms, names};
use test_support::nfsd::raise_loopback;
use test_support::smbd::{PORT, SHARE, Smbd, USER};
use tonic::Code;

const PASSWORD: &str = "nie zeigen";

/// How long a call is allowed to take on an emulated machine.
const BOUND: Duration = Duration::from_secs(60);

fn secrets(password: &str) -> BTreeMap<String, String> {
    map(&[("username", USER), ("password", password)])
}

fn port() -> String {
    format!("port={PORT}")
}

/// Runs a test with a server and a served driver.
fn with_server(test: impl AsyncFnOnce(&Smbd, &Client, &Path)) {
    raise_loopback();
    // Not deleted as a tree: a failed test can leave mounts.
    let directory = tempfile::tempdir().unwrap().keep();
    for name in ["server", "node"] {
        fs::create_dir(directory.join(name)).unwrap();
    }
    let server = Smbd::start(&directory.join("server"), PASSWORD);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let node = directory.join("node");
    runtime.block_on(async {
        let client = serve(driver().spec(Spec::V1_13), &directory).await;
        test(&server, &client, &node).await;
    });
    let table = csi_mount::mounts().unwrap();
    let left: Vec<_> = table.iter().filter(|entry| entry.mount_point.starts_with(&node)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_driver_conforms_and_nothing_is_left() {
    with_server(async |server, _, node| {
        let pairs = |text: &str| Pairs::parse(text).unwrap();
        let settings = |kit: Kit| {
            kit.parameters(pairs(&format!("[CreateVolume]\nsource={SHARE}")))
                .secrets(pairs(&format!("username={USER}\npassword={PASSWORD}")))
                .mount_flags([port()])
        };
        conforms(node.parent().unwrap(), settings, 50).await;
        assert_eq!(names(&server.share()), [""; 0]);
    });
}

/// The options that the kernel shows for the mount at the path.
fn shown(at: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(PASSWORD) && !table.contains("zeigen"), "{table}");
    let at = format!(" {} ", at.display());
    let line = table.lines().find(|line| line.contains(&at)).unwrap_or_else(|| panic!("{at}: {table}"));
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn a_volume_lives_with_a_group_and_the_options_reach_the_kernel() {
    with_server(async |server, client, node| {
        let port = port();
        let flags = [&*port, "vers=3.0", "multichannel", "max_channels=2", "noatime"];
        let volume = create(client, "pvc-1", SHARE, &flags, &secrets(PASSWORD)).await.unwrap();
        assert_eq!(volume.volume_id, "v1:%2F%2F127.0.0.1%2Fshare:pvc-1:port=4450,vers=3.0");
        let again = create(client, "pvc-1", SHARE, &flags, &secrets(PASSWORD)).await.unwrap();
        assert_eq!(again, volume);
        let context = volume.volume_context.clone();
        let used = Use::new(&volume.volume_id, context, capability(&flags, "4321"), node, &secrets(PASSWORD));
        for _ in 0..2 {
            used.stage(client).await.unwrap();
            used.publish(client).await.unwrap();
        }
        let options = shown(&used.staging());
        for due in
            ["vers=3.0", "gid=4321", "file_mode=0770", "dir_mode=0770", "multichannel", "max_channels=2"]
        {
            assert!(options.split(',').any(|option| option == due), "{due}: {options}");
        }
        let channels = fs::read_to_string("/proc/fs/cifs/DebugData").unwrap();
        let is_shown = |line: &&str| ["Dialect", "hannel"].iter().any(|word| line.contains(word));
        channels.lines().filter(is_shown).for_each(|line| println!("channels: {}", line.trim()));
        // The server offers a second channel, and the kernel uses it.
        assert!(channels.contains("Extra Channels: 1"), "{channels}");
        let file = used.target.join("file");
        fs::write(&file, "data").unwrap();
        for (path, mode) in [(&file, 0o770), (&used.target, 0o770)] {
            let found = fs::metadata(path).unwrap();
            assert_eq!((found.gid(), found.mode() & 0o777), (4321, mode), "{}", path.display());
        }
        assert_eq!(fs::read(server.share().join("pvc-1/file")).unwrap(), b"data");
        assert!(used.stats(client).await.unwrap().usage[0].total > 0);
        used.take_off(client).await.unwrap();
        for _ in 0..2 {
            delete(client, &volume.volume_id, &secrets(PASSWORD)).await.unwrap();
        }
        assert_eq!(names(&server.share()), [""; 0]);
    });
}

#[test]
fn what_the_server_refuses_is_named_and_the_secret_is_not() {
    with_server(async |server, client, node| {
        fs::create_dir(server.share().join("there")).unwrap();
        let staged = |source: &str, flags: &[&str], password: &str| {
            let context = map(&[("source", source)]);
            let port = port();
            let flags = [flags, &[&*port]].concat();
            Use::new("static", context, capability(&flags, ""), node, &secrets(password))
        };
        let there = format!("{SHARE}/there");
        let long = "x=".repeat(200);
        for (source, flags, password, code, part) in [
            (&*there, &[][..], "wrong-canary", Code::Unauthenticated, "STATUS_LOGON_FAILURE"),
            (&there, &[], &long, Code::FailedPrecondition, "option password"),
            ("//127.0.0.1/nothing", &[], PASSWORD, Code::Unavailable, "this share"),
            (&format!("{SHARE}/nothing"), &[], PASSWORD, Code::Unavailable, "this directory"),
            (&there, &["vers=9"], PASSWORD, Code::FailedPrecondition, "vers"),
            (&there, &["nonsense"], PASSWORD, Code::FailedPrecondition, "nonsense"),
            (&there, &["credentials=/x"], PASSWORD, Code::FailedPrecondition, "credentials"),
            ("//nothing.invalid/share", &[], PASSWORD, Code::Unavailable, "could not be resolved"),
        ] {
            let error = staged(source, flags, password).stage(client).await.unwrap_err();
            println!("{source} {flags:?}: {error}");
            let text = format!("{error:?}");
            assert!(error.code() == code && error.message().contains(part), "{source} {flags:?}: {error}");
            assert!(!text.contains(password) && !text.contains("zeigen"), "{text}");
        }
        let error = create(client, "pvc-1", SHARE, &[&port()], &secrets("wrong-canary")).await.unwrap_err();
        assert!(error.code() == Code::Unauthenticated && !error.message().contains("canary"), "{error}");
        server.kill();
        let error = staged(&there, &[], PASSWORD).stage(client).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
    });
}

/// `fsconfig` passes each option by itself since Linux 5.11 (cifs); older kernels join them with commas.
#[test]
fn a_password_with_a_comma_is_used_or_refused_by_name() {
    const COMMA: &str = "komma,nie zeigen";
    with_server(async |server, client, node| {
        server.set_password(COMMA);
        let context = map(&[("source", SHARE)]);
        let used = Use::new("static", context, capability(&[&port()], ""), node, &secrets(COMMA));
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        let is_new = (numbers.next().unwrap(), numbers.next().unwrap()) >= (5, 11);
        match used.stage(client).await {
            Ok(()) => {
                assert!(is_new, "{release}");
                used.take_off(client).await.unwrap();
            }
            Err(error) => {
                let text = error.message();
                assert!(!is_new && text.contains("option password") && !text.contains("komma"), "{error}");
            }
        }
    });
}

/// The server comes back, and nothing else is done: open files and the mount work again. Meanwhile no call waits for
/// the server, also not after a name in the root was removed: then the client asks it at each `statx`.
#[test]
fn a_server_that_was_stopped_or_killed_is_used_again() {
    with_server(async |server, client, node| {
        type Step = fn(&Smbd);
        let kinds: [(&str, &str, Step, Step); 3] = [
            ("stopped", "soft", Smbd::stop, Smbd::go_on),
            ("stopped", "hard", Smbd::stop, Smbd::go_on),
            ("killed", "soft", Smbd::kill, Smbd::start_again),
        ];
        for (kind, flag, fail, go_on) in kinds {
            let context = map(&[("source", SHARE)]);
            let flags = capability(&[&port(), flag], "");
            let used = Use::new("static", context, flags, node, &secrets(PASSWORD));
            let remove_a_name = || {
                fs::write(used.target.join("gone"), kind).unwrap();
                fs::remove_file(used.target.join("gone")).unwrap();
            };
            used.stage(client).await.unwrap();
            used.publish(client).await.unwrap();
            fs::write(used.target.join("file"), kind).unwrap();

            remove_a_name();
            fail(server);
            // The first call marks the attributes as old, so the second one tests that too.
            for _ in 0..2 {
                let start = Instant::now();
                let error = used.stats(client).await.unwrap_err();
                println!("{kind}, {flag}: {:?}  stats: {error}", start.elapsed());
                assert!(error.code() == Code::Unavailable && start.elapsed() < BOUND, "{error}");
            }
            go_on(server);
            let start = Instant::now();
            while let Err(error) = used.stats(client).await {
                assert!(start.elapsed() < BOUND, "{kind}: {error}");
            }
            println!("{kind}, {flag}: used again after {:?}", start.elapsed());
            assert_eq!(fs::read_to_string(used.target.join("file")).unwrap(), kind);

            remove_a_name();
            fail(server);
            let start = Instant::now();
            used.take_off(client).await.unwrap();
            println!("{kind}, {flag}: {:?}  taken off", start.elapsed());
            assert!(start.elapsed() < BOUND);
            go_on(server);
        }
    });
}

/// Every step ends while the server is silent, and the volume is used afterwards. Prints the rows of
/// docs/hang-table.md.
async fn each_step_ends(server: &Smbd, client: &Client, node: &Path, kind: &str, flag: &str) {
    let places = |name: &str| {
        let directory = node.join(name);
        fs::create_dir_all(&directory).unwrap();
        directory
    };
    let volume = |source: &str, name: &str| {
        let flags = capability(&[&port(), flag], "");
        Use::new(name, map(&[("source", source)]), flags, &places(name), &secrets(PASSWORD))
    };
    fs::create_dir_all(server.share().join("there")).unwrap();
    let used = volume(SHARE, "first");
    let other = volume(&format!("{SHARE}/there"), "other");
    used.stage(client).await.unwrap();
    used.publish(client).await.unwrap();
    fs::write(used.target.join("file"), kind).unwrap();
    let second = Use { target: places("first").join("second"), ..used.clone() };
    match kind {
        "stopped" => server.stop(),
        _ => server.kill(),
    }
    let file = used.target.join("new");
    let workload = std::thread::spawn(move || {
        let start = Instant::now();
        let result = fs::File::create(file).and_then(|mut file| {
            file.write_all(b"new")?;
            file.sync_all()
        });
        format!(
            "{} after {:.1?}",
            result.err().map_or("ok".to_owned(), |error| error.to_string()),
            start.elapsed()
        )
    });
    std::thread::sleep(Duration::from_secs(1));
    let rows = [
        ("stats", bounded(used.stats(client)).await),
        ("health", bounded(used.health(client)).await),
        ("publish again", bounded(second.publish(client)).await),
        ("unpublish it", bounded(second.unpublish(client)).await),
        ("stage again", bounded(used.stage(client)).await),
        ("stage another", bounded(other.stage(client)).await),
        ("unstage another", bounded(other.unstage(client)).await),
        ("unpublish", bounded(used.unpublish(client)).await),
        ("unstage", bounded(used.unstage(client)).await),
    ];
    match kind {
        "stopped" => server.go_on(),
        _ => server.start_again(),
    }
    rows.iter().for_each(|(what, found)| println!("{kind}, {flag} | {what} | {found}"));
    println!("{kind}, {flag} | the workload | {}", workload.join().unwrap());
    let start = Instant::now();
    // What was refused while a process used it is done now.
    for volume in [&used, &other] {
        while let Err(error) = volume.take_off(client).await {
            assert!(start.elapsed() < BOUND, "{error}");
        }
    }
    while let Err(error) = used.stage(client).await {
        assert!(start.elapsed() < BOUND, "{error}");
    }
    println!("{kind}, {flag} | staged after its return | ok {:.1?}", start.elapsed());
    used.publish(client).await.unwrap();
    assert_eq!(fs::read_to_string(used.target.join("file")).unwrap(), kind);
    used.take_off(client).await.unwrap();
}

/// Does a step, and says how and when it ended.
async fn bounded<T>(step: impl Future<Output = Answer<T>>) -> String {
    let start = Instant::now();
    let said = match step.await {
        Ok(_) => "ok".to_owned(),
        Err(status) if matches!(status.code(), Code::Unknown | Code::Unimplemented) => panic!("{status}"),
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    };
    // A mount is given up after a minute.
    assert!(start.elapsed() < 2 * BOUND, "{said}");
    format!("{:.1?} {said}", start.elapsed())
}

#[test]
fn each_step_ends_while_the_server_is_stopped() {
    with_server(async |server, client, node| {
        for flag in ["soft", "hard"] {
            each_step_ends(server, client, node, "stopped", flag).await;
        }
    });
}

#[test]
fn each_step_ends_while_the_server_is_gone() {
    with_server(async |server, client, node| {
        for flag in ["soft", "hard"] {
            each_step_ends(server, client, node, "killed", flag).await;
        }
    });
}
