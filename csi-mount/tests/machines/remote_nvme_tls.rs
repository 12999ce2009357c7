//! NVMe over TCP with TLS, against the kernel's own target on this machine. Debian's newest `tlshd` makes the
//! handshakes of both sides, and its `nvme` is the oracle of the keys.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and these programs, and not with
//! `cargo test` alone.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use csi_mount::ErrorKind;
use csi_mount::remote::RemoteDisks;

use crate::devices::{MIB, eventually, run, start_daemon};
use crate::nvme_target::{HOST_NQN, Nvmet, PORTS, controllers, live};
use crate::remote_bed::Bed as _;

/// Two that `nvme gen-tls-key` made for each hash, and one that the node uses as it is.
const KEYS: [&str; 3] = [
    "NVMeTLSkey-1:01:qafd8jtV/ct6gx2twJJdkO1fFp1rSybL41+Sa/UODxRfzGi/:",
    "NVMeTLSkey-1:02:xg0UnirCH4pnFaPfkgLBKoNbj5I53zkbHpj4cqFyoiXpbFDNELMgg0ZGSXF9W9tW0Bv16Q==:",
    "NVMeTLSkey-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
];

/// A program of Debian's newest release, with its own loader and libraries.
fn newest(program: &str) -> Command {
    let mut command = Command::new("/newest/usr/lib64/ld-linux-x86-64.so.2");
    command.args(["--library-path", "/newest/usr/lib/x86_64-linux-gnu"]);
    command.arg(format!("/newest/usr/sbin/{program}"));
    command
}

/// Prints what `tlshd` logged if the test fails.
struct Log;

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("tlshd: {}", fs::read_to_string("/tmp/tlshd.log").unwrap_or_default());
            for (serial, name) in keys() {
                println!("{serial} {name}");
            }
        }
    }
}

fn start_tlshd() -> Log {
    fs::write("/etc/tlshd.conf", "[debug]\nloglevel=1\ntls=0\nnl=0\n[authenticate]\nkeyrings=.nvme\n")
        .unwrap();
    let log = File::create("/tmp/tlshd.log").unwrap();
    let mut command = newest("tlshd");
    command.args(["--stderr", "--config", "/etc/tlshd.conf"]);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    // It ends with the machine.
    std::mem::forget(start_daemon(command));
    let log = Log;
    eventually("tlshd hears the kernel", || {
        const GENERIC: &str = "16";
        let sockets = fs::read_to_string("/proc/net/netlink").unwrap();
        let mut words = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        words.any(|words| words[1] == GENERIC && words[2] != "0" && words[3] != "00000000").then_some(())
    });
    log
}

/// The kernel frees a key a moment after it was taken out of the keyring.
fn assert_nothing_left(nvmet: &Nvmet) {
    assert_eq!(controllers(), vec![]);
    let is_own = |(_, name): &(String, String)| name.contains(&nvmet.nqn);
    eventually("no key is left", || (!keys().iter().any(is_own)).then_some(()));
}

/// The keys in the kernel's keyring: serial numbers and names.
fn keys() -> Vec<(String, String)> {
    let all = fs::read_to_string("/proc/keys").unwrap();
    let psks = all.lines().filter(|line| line.split_whitespace().nth(7) == Some("psk"));
    let found = psks.map(|line| {
        let (serial, _) = line.split_once(' ').unwrap();
        let name = line.split_once("psk").unwrap().1.trim();
        (format!("0x{serial}"), name.rsplit_once(':').map_or(name, |(name, _)| name).to_owned())
    });
    found.collect()
}

/// The bytes of the only key, which the keyring gives to its owner.
fn only_key() -> (String, String) {
    run("keyctl", &["link", "%:.nvme", "@us"]);
    let [(serial, name)] = &keys()[..] else { panic!("{:?}", keys()) };
    let read = run("keyctl", &["read", serial]);
    (name.clone(), read)
}

#[test]
fn a_volume_lives_over_tls_and_its_key_goes_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let nvmet = Nvmet::new("tls", 2, 2);
    let node = RemoteDisks::new(directory.path().join("remote"));
    let _log = start_tlshd();
    PORTS.iter().for_each(|port| nvmet.set_open(*port, false));
    nvmet.require_tls();
    PORTS.iter().for_each(|port| nvmet.set_open(*port, true));
    let error = node.attach("pvc", nvmet.target(0)).unwrap_err();
    println!("without a key: {:?}: {error}", error.kind());
    assert_eq!(controllers(), vec![]);

    for (round, key) in KEYS.into_iter().enumerate() {
        let size = 300 + 100 * round as u64;
        let with_key = |index| nvmet.target(index).tls(key).unwrap();
        let device = node.attach("pvc", with_key(0)).unwrap();
        assert_eq!((live(), device.size().unwrap()), (2, size * MIB));
        for (name, _) in controllers() {
            let used = fs::read_to_string(format!("/sys/class/nvme/{name}/tls_key")).unwrap();
            assert_ne!(used.trim(), "00000000", "{name} has no TLS");
        }
        let file = File::options().write(true).open(device.path()).unwrap();
        file.write_all_at(b"over TLS", 4096 * round as u64).unwrap();
        file.sync_all().unwrap();
        drop(file);
        // Of the file: the loop device has its own memory, into which the target does not write.
        let mut stored = [0; 8];
        let image = File::open(nvmet.images[0].file()).unwrap();
        image.read_exact_at(&mut stored, 4096 * round as u64).unwrap();
        assert_eq!(&stored, b"over TLS");
        nvmet.grow(0, size + 100);
        assert_eq!(node.refresh("pvc").unwrap(), (size + 100) * MIB);
        // The kernel connects again by itself, with the same key.
        nvmet.set_open(PORTS[0], false);
        eventually("one path is left", || (live() == 1).then_some(()));
        nvmet.set_open(PORTS[0], true);
        eventually("it is back", || (live() == 2).then_some(()));
        // Another volume keeps the connections, and the key.
        drop(node.attach("other", with_key(1)).unwrap());
        let own = only_key();
        drop(device);
        assert!(node.detach("pvc").unwrap().kept.is_some());
        assert_eq!((live(), only_key()), (2, own.clone()));
        let record = fs::read_to_string(directory.path().join("remote/other.disk")).unwrap();
        assert!(record.contains(&own.0) && !record.contains("NVMeTLSkey"), "{record}");
        assert_eq!(node.detach("other").unwrap().disconnected.len(), 2);
        assert_nothing_left(&nvmet);

        // An administrator's key is the same one, is used, and stays.
        let words = ["check-tls-key", "--identity=1", "--insert", "--hostnqn", HOST_NQN, "--subsysnqn"];
        let made = newest("nvme").args(words).arg(&nvmet.nqn).args(["--keydata", key]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        assert_eq!(only_key(), own);
        drop(node.attach("pvc", with_key(0)).unwrap());
        node.detach("pvc").unwrap();
        assert_eq!(only_key(), own);
        run("keyctl", &["unlink", &keys()[0].0, "%:.nvme"]);
        assert_nothing_left(&nvmet);
    }
}

#[test]
fn without_tlshd_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let nvmet = Nvmet::new("alone", 1, 1);
    let node = RemoteDisks::new(directory.path().join("remote"));
    let start = std::time::Instant::now();
    let error = node.attach("pvc", nvmet.target(0).tls(KEYS[0]).unwrap()).unwrap_err();
    println!("{:?}: {:?}: {error}", start.elapsed(), error.kind());
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("tlshd"), "{error}");
    assert!(!format!("{error:?}").contains("NVMeTLSkey"), "{error}");
    assert_nothing_left(&nvmet);
}
