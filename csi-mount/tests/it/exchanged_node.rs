//! Programs get the open device. If the node leads to another disk when they run, this makes no difference.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use csi_mount::internal::{CheckPolicy, DeviceQuestions as _, Format, Probe, check, grow_unmounted};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, CheckLimits, Error, Filesystem, Luks, LuksKey, LuksPbkdf, Mount, Result, Target, unmount,
};

use crate::devices::{Image, put_node};

const JOB: &str = "CSI_MOUNT_EXCHANGE_JOB";

/// The job of a separate process, which runs the programs of another directory.
fn job(step: &str, node: &Path) -> Result<()> {
    let device = BlockDevice::open(node)?;
    let (step, of) = step.split_once(' ').unwrap();
    match step {
        "format" | "encrypt" => match (device.probe(), of) {
            (Probe::Blank(proof), "luks") => {
                let luks = Luks::new().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1000 });
                csi_mount::internal::encrypt(&luks, proof, &LuksKey::new("key").unwrap())
            }
            (Probe::Blank(proof), filesystem) => Format::new(filesystem.parse()?).run(proof),
            (other, _) => panic!("{other}"),
        },
        "check" => check(&device, of.parse()?, CheckPolicy::ReportOnly, CheckLimits::default()).map(drop),
        "preen" => check(&device, of.parse()?, CheckPolicy::Preen, CheckLimits::default()).map(drop),
        "grow" => grow_unmounted(&device, of.parse()?, CheckLimits::default()).map(drop),
        other => panic!("{other}"),
    }
}

/// Makes a directory of programs. Each program first replaces the node with one of another disk.
fn programs(directory: &Path, node: &Path, other: &Image) {
    fs::create_dir(directory).unwrap();
    let number = other.loop_device().number();
    for program in
        ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "e2fsck", "xfs_repair", "btrfs", "resize2fs", "cryptsetup"]
    {
        let place = directory.join(program);
        let node = node.display();
        let log = directory.join("exchanged");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = -V ] || {{ rm {node} && mknod {node} b {} {} && echo {program} >> {}; }}\n\
             for d in /usr/sbin /sbin /usr/bin; do [ -x $d/{program} ] && exec $d/{program} \"$@\"; done\n",
            number.major,
            number.minor,
            log.display()
        );
        fs::write(&place, script).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Runs a step while the node is exchanged. Returns the intended disk and the step's error.
fn exchange(step: &str, prepare: impl FnOnce(&Image)) -> (Image, Option<Error>) {
    let ours = Image::new(320);
    let other = Image::new(320);
    prepare(&ours);
    let place = Target::new(ours.directory().join("dev")).unwrap();
    place.create_dir().unwrap();
    // The directory of the image can be on a filesystem without device nodes.
    Mount::new("tmpfs", "dev").at(&place).unwrap();
    let node = place.path().join("disk");
    put_node(&node, ours.loop_device().number());
    let tools = ours.directory().join("tools");
    programs(&tools, &node, &other);
    other.write(0, &[0; 512]);
    let before = (ours.content(), other.content());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exchanged_node::no_foreign_disk_is_touched", "--nocapture", "--test-threads=1"])
        .env(JOB, format!("{step}\n{}", node.display()))
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools.display()))
        .output()
        .unwrap();
    assert_eq!(other.content(), before.1, "{step}: the other disk was written to");
    assert!(matches!(other.open().probe(), Probe::Blank(_)), "{step}");
    let exchanged = fs::read_to_string(tools.join("exchanged")).unwrap_or_default();
    assert!(!exchanged.is_empty(), "{step}: no program ran");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failure = text.split_once("failed: ").map(|(_, reason)| reason.to_owned());
    assert!(
        output.status.success() || failure.is_some(),
        "{step}: {text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    unmount(&place).unwrap();
    let failure = failure.map(|reason| Error::new(csi_mount::ErrorKind::WrongDevice, "do", reason));
    (ours, failure)
}

#[test]
fn no_foreign_disk_is_touched() {
    if let Some(job_text) = std::env::var_os(JOB) {
        let text = job_text.into_string().unwrap();
        let (step, node) = text.split_once('\n').unwrap();
        let failed = job(step, Path::new(node)).map_err(|error| println!("failed: {error}")).is_err();
        std::process::exit(i32::from(failed));
    }
    private_mount_namespace(|| {
        for made in ["ext4", "xfs", "btrfs", "luks"] {
            let (ours, failure) = exchange(&format!("format {made}"), |_| ());
            // It is noticed before anything is written.
            let failure = failure.unwrap_or_else(|| panic!("{made} was made")).to_string();
            assert!(failure.contains("another disk"), "{made}: {failure}");
            assert!(ours.is_zero(), "{made}");
        }
        let formatted = |filesystem: Filesystem| {
            move |image: &Image| {
                let device = image.open();
                let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
                Format::new(filesystem).run(proof).unwrap();
            }
        };
        for filesystem in Filesystem::ALL {
            // The disk that was checked is our own.
            let (_, failure) = exchange(&format!("check {filesystem}"), formatted(filesystem));
            assert!(failure.is_none(), "{failure:?}");
        }
        let (_, failure) = exchange("preen ext4", formatted(Filesystem::Ext4));
        assert!(failure.is_none(), "{failure:?}");
        let (ours, failure) = exchange("grow ext4", |image| {
            formatted(Filesystem::Ext4)(image);
            image.grow_to(400);
        });
        // Grow runs the check and then resize2fs. It is allowed to fail only because it notices that the path
        // leads to another disk.
        let failure = failure.map_or(String::new(), |failure| failure.to_string());
        assert!(failure.is_empty() || failure.contains("another disk"), "{failure}");
        drop(ours);
    });
}
