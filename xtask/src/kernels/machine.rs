//! One run of the emulated machine, from power on to power off or its time limit.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::archive::Kernel;
use super::outcome::{Run, Said};
use crate::hung::Killed;
use crate::{Failure, needs, step};

const QEMU: &str = "qemu-system-x86_64";

/// The longest silence of the guest: from power on to the first test, and while no test runs.
const SILENCE: Duration = Duration::from_secs(240);

/// The interval between checks of the time limits.
const ROUND: Duration = Duration::from_millis(200);

/// How many lines of the console are printed if the machine did not reach its end.
const CONSOLE_LINES: usize = 40;

/// The size of the disk under `/tmp` in bytes. The file is sparse.
const DISK: u64 = 8 << 30;

/// Emulation only, because with an existing `/dev/kvm` the guest can still hang. The kernel must not test its
/// timer, because on a busy host it finds the timer broken. The processor's checks and page walks at each
/// memory access cost a fifth of the time, and no test needs them.
const ARGUMENTS: &[&str] = &[
    "-accel",
    "tcg,thread=multi",
    "-M",
    "q35",
    "-cpu",
    "max,-la57,-smap,-smep",
    "-m",
    "2048",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
    "-chardev",
    "stdio,id=report,signal=off",
];

/// Whatever is started in these namespaces ends with this process, and uses no network of this machine.
const NAMESPACES: &[&str] =
    &["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// The guest's connections are those of the emulator's process, so the guest reaches what that process reaches.
const NETWORK: &[&str] = &["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"];

/// The kernel's command line. The second half costs less time.
const BOOT: &str = "console=ttyS0 panic=-1 oops=panic no_timer_check nokaslr quiet \
    mitigations=off init_on_alloc=0 audit=0 rcupdate.rcu_expedited=1";

/// What one machine boots.
pub(crate) struct Boot<'a> {
    /// Options of the kernel's command line in addition to [`BOOT`].
    pub(crate) options: &'a str,
    pub(crate) initrd: &'a Path,
    pub(crate) processors: u8,
    /// The program that starts a Ceph cluster and the machine next to it.
    pub(crate) ceph: Option<&'a Path>,
}

impl Boot<'_> {
    /// The machine and the kernel's command line, without the files.
    pub(crate) fn settings(&self) -> String {
        let Self { options, processors, .. } = self;
        format!("{QEMU} {} -smp {processors} -append {BOOT} {options}", ARGUMENTS.join(" "))
    }
}

/// Boots a kernel. The console's output is kept in `folder`.
pub(crate) fn run(kernel: &Kernel, boot: &Boot<'_>, folder: &Path, limit: Duration) -> Result<Run, Failure> {
    let console = folder.join(format!("console-{}.log", kernel.version));
    File::create(&console)?;
    let disk = Scratch(folder.join(format!("disk-{}.img", kernel.version)));
    make_disk(&disk.0)?;
    let mut machine = Killed(start(kernel, boot, &console, &disk.0)?);
    let start = Instant::now();
    let report = machine.0.stdout.take().ok_or_else(|| Failure::new("no report"))?;
    let (sender, lines) = mpsc::channel();
    // The thread ends with the machine, which ends with this function.
    std::thread::spawn(move || {
        for line in BufReader::new(report).split(b'\n').map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    });
    let mut run = Run::new(kernel.clone());
    let mut why = listen(&mut run, &lines, start + limit);
    drop(machine);
    if let Some(why) = &mut why {
        let text = String::from_utf8_lossy(&fs::read(&console)?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        why.push_str("; the console's last lines:\n");
        why.push_str(&lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n"));
    }
    run.finish(why, start.elapsed());
    Ok(run)
}

/// Reads the guest's report. Returns why the report is incomplete, if it is.
fn listen(run: &mut Run, lines: &Receiver<String>, deadline: Instant) -> Option<String> {
    let mut heard = Instant::now();
    loop {
        match lines.recv_timeout(ROUND) {
            Ok(line) => {
                heard = Instant::now();
                match run.hear(&line) {
                    Said::Test(test) => println!("    {:>6} {test}", run.kernel.version),
                    Said::End => return None,
                    Said::Other => {}
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Some("the machine stopped".to_owned()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if Instant::now() > deadline {
            return Some("the machine did not finish in time".to_owned());
        }
        if heard.elapsed() > run.patience(SILENCE) {
            return Some("the machine stopped printing".to_owned());
        }
    }
}

/// A file that is removed when the value is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It might never have been created.
        let _ = fs::remove_file(&self.0);
    }
}

fn start(kernel: &Kernel, boot: &Boot<'_>, console: &Path, disk: &Path) -> Result<Child, Failure> {
    // The machine is killed when this process dies, for whatever reason.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(program) = boot.ceph {
        command.args(NAMESPACES).arg(program);
    }
    command.arg(QEMU).args(ARGUMENTS);
    if boot.ceph.is_some() {
        command.args(NETWORK);
    }
    let child = command
        .arg("-kernel")
        .arg(image_of(&kernel.root)?)
        .arg("-append")
        .arg(format!("{BOOT} {}", boot.options))
        .arg("-initrd")
        .arg(boot.initrd)
        .arg("-smp")
        .arg(boot.processors.to_string())
        .arg("-drive")
        .arg(format!("if=virtio,format=raw,cache=unsafe,file={}", disk.display()))
        .arg("-chardev")
        .arg(format!("file,id=console,path={}", console.display()))
        .args(["-serial", "chardev:console", "-serial", "chardev:report"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    child.map_err(|error| Failure::new(format!("setpriv {QEMU}: {error}")))
}

/// Creates an empty, sparse ext4.
fn make_disk(disk: &Path) -> Result<(), Failure> {
    File::create(disk)?.set_len(DISK)?;
    let program = needs::find("mkfs.ext4").ok_or_else(|| Failure::usage("mkfs.ext4 is missing"))?;
    step::output(Command::new(program).args(["-q", "-F"]).arg(disk)).map(drop)
}

/// The kernel image: in `boot`, or in the newest releases next to the modules.
pub(crate) fn image_of(root: &Path) -> Result<PathBuf, Failure> {
    let mut folders = vec![root.join("boot")];
    if let Ok(entries) = fs::read_dir(root.join("usr/lib/modules")) {
        folders.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
    }
    let files =
        folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().filter_map(Result::ok);
    let image = files
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz")));
    image.ok_or_else(|| Failure::new(format!("no vmlinuz in {}", root.display())))
}
