//! One run of the emulated machine, from power on to power off or its limit.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::archive::Kernel;
use super::interrupt::Interrupt;
use super::outcome::{Run, Said};
use crate::{Failure, needs};

const QEMU: &str = "qemu-system-x86_64";

/// From power on to the first test, and between two words of the guest when nothing runs.
const SILENCE: Duration = Duration::from_secs(240);

/// How often it is looked whether somebody wants it to end.
const ROUND: Duration = Duration::from_millis(200);

/// How much of the console is told when the machine did not come to its end.
const CONSOLE_LINES: usize = 40;

/// Bytes of the disk under `/tmp`; what is not written takes no room.
const DISK: u64 = 8 << 30;

/// Emulation only: `/dev/kvm` may be there and the guest silent all the same. The kernel is not to test its timer, which it
/// finds broken when the machine below is busy. What a processor checks or walks at each access to memory costs a fifth of the
/// whole time, and no test asks for it.
const ARGUMENTS: &[&str] = &[
    "-accel",
    "tcg,thread=multi",
    "-M",
    "q35",
    "-cpu",
    "max,-la57,-smap,-smep",
    "-smp",
    "2",
    "-m",
    "2048",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
    "-append",
    "console=ttyS0 panic=-1 oops=panic no_timer_check mitigations=off nokaslr quiet",
    "-chardev",
    "stdio,id=report,signal=off",
];

/// Boots a kernel with a packed root; `folder` keeps the console's words.
pub(crate) fn run(
    kernel: &Kernel,
    initrd: &Path,
    folder: &Path,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<Run, Failure> {
    let console = folder.join(format!("console-{}.log", kernel.version));
    File::create(&console)?;
    let disk = Scratch(folder.join(format!("disk-{}.img", kernel.version)));
    make_disk(&disk.0)?;
    let mut machine = Machine(start(kernel, initrd, &console, &disk.0)?);
    let start = Instant::now();
    let report = machine.0.stdout.take().ok_or_else(|| Failure::new("no report"))?;
    let (sender, lines) = mpsc::channel();
    // It ends with the machine, which ends with this function.
    std::thread::spawn(move || {
        for line in BufReader::new(report).split(b'\n').map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    });
    let mut run = Run::new(kernel.clone());
    let mut why = listen(&mut run, &lines, start + limit, interrupt);
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

/// Takes in what the guest tells; gives back why that was not all, if so.
fn listen(
    run: &mut Run,
    lines: &Receiver<String>,
    deadline: Instant,
    interrupt: &Interrupt,
) -> Option<String> {
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
        if let Some(signal) = interrupt.came() {
            return Some(format!("ended by {signal}"));
        }
        if Instant::now() > deadline {
            return Some("the machine was not done in time".to_owned());
        }
        if heard.elapsed() > run.patience(SILENCE) {
            return Some("the machine fell silent".to_owned());
        }
    }
}

/// A file that is of no use later.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = fs::remove_file(&self.0);
    }
}

fn start(kernel: &Kernel, initrd: &Path, console: &Path, disk: &Path) -> Result<Child, Failure> {
    // The machine dies with this process, however that ends.
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", QEMU])
        .args(ARGUMENTS)
        .arg("-kernel")
        .arg(image_of(&kernel.root)?)
        .arg("-initrd")
        .arg(initrd)
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

/// An empty ext4, sparse.
fn make_disk(disk: &Path) -> Result<(), Failure> {
    File::create(disk)?.set_len(DISK)?;
    let program = needs::find("mkfs.ext4").ok_or_else(|| Failure::usage("mkfs.ext4 is missing"))?;
    let status = Command::new(program).args(["-q", "-F"]).arg(disk).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(format!("mkfs.ext4 {}: {status}", disk.display())))
    }
}

/// In `boot`, or with the modules in the newest releases.
fn image_of(root: &Path) -> Result<PathBuf, Failure> {
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

/// Ended when it goes out of use.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
