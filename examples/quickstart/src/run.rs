//! A whole run: the drivers, one after the other, and the clean-up, however the run ends.

use std::path::Path;

use csi_cli::lifecycle::internal::{Keep, Outcome, Report, Signal, Signals, Timing, UndoLog, run_recorded};
use csi_cli::lifecycle::{Content, Failure, Options, VolumeSpec};
use csi_core::proto::escape;
use csi_mount::Filesystem;

use crate::args::{Example, Run};
use crate::cleanup;
use crate::driver::{self, CALL_TIMEOUT, Driver};
use crate::namespace::Privileges;

const MIB: i64 = 1 << 20;
const OK: u8 = 0;
const FAILED: u8 = 1;

/// The plan of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    examples: Vec<Example>,
    filesystem: Filesystem,
    keep: Keep,
    privileges: Privileges,
    /// Why the block driver is left out, if it is.
    left_out: Option<&'static str>,
}

impl Plan {
    /// Chooses what can run here of what was asked for.
    ///
    /// # Errors
    /// When a driver that was asked for can't run here, or a program is missing.
    pub(crate) fn new(run: &Run, privileges: Privileges) -> Result<Self, String> {
        let filesystem = run.filesystem.unwrap_or(Filesystem::Ext4);
        let mut examples = run.only.map_or(vec![Example::Block, Example::Dirs], |only| vec![only]);
        let mut left_out = None;
        if let Privileges::User { reason } = privileges {
            if run.only == Some(Example::Block) {
                return Err(format!("the block driver can't run here: {reason}"));
            }
            if examples.contains(&Example::Block) {
                left_out = Some(reason);
                examples.retain(|example| *example != Example::Block);
            }
        }
        if examples.contains(&Example::Block) {
            look_up_tools(filesystem)?;
        }
        Ok(Self { examples, filesystem, keep: run.keep, privileges, left_out })
    }

    fn volumes(&self, example: Example) -> Vec<VolumeSpec> {
        let spec = |name: &str, what: &str, content, size, grown| {
            let spec = VolumeSpec::new(name, content, size * MIB, grown * MIB);
            spec.title(format!("{name}: {what}")).keep(self.keep)
        };
        match example {
            Example::Dirs => vec![spec("pvc-dirs", "a directory", Content::Files, 1, 1)],
            Example::Block => {
                let filesystem = self.filesystem.name();
                let files =
                    spec("pvc-files", &format!("a filesystem, {filesystem}"), Content::Files, 512, 1024);
                vec![files.fs_type(filesystem), spec("pvc-raw", "a raw device", Content::Device, 16, 32)]
            }
        }
    }
}

/// How the steps ended.
enum End {
    Well,
    Failed(Failure),
    Signal(Signal),
}

/// Checks for the programs that volumes with this filesystem on loop devices need.
///
/// # Errors
/// Names the missing program, and the Debian package that has it.
fn look_up_tools(filesystem: Filesystem) -> Result<(), String> {
    if let Err(missing) = filesystem.find_tools() {
        let package = filesystem.package();
        return Err(format!(
            "{missing} (`apt-get install {package}`), choose another filesystem with --fs, or run `--only dirs`"
        ));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("/dev/loop-control is missing: load the kernel module `loop` (a container needs the host's /dev), \
                    or run `--only dirs`"
            .to_owned());
    }
    Ok(())
}

/// Runs the plan, cleans up, and returns the exit status.
///
/// # Errors
/// When the run could not start. Nothing was done then.
pub(crate) async fn run(plan: &Plan) -> Result<u8, String> {
    // Signals are caught before anything exists that a signal would leave behind.
    let mut signals = Signals::install()?;
    let place = cleanup::make_place()?;
    let mut report = Report::new();
    let mut driver = None;
    let end = tokio::select! {
        biased;
        caught = signals.next() => End::Signal(caught),
        outcome = play_all(plan, &place, &mut driver, &mut report) => match outcome {
            Ok(()) => End::Well,
            // A signal can be the cause: a new process is still in our group when Ctrl-C comes.
            Err(failure) => signals.pending().await.map_or(End::Failed(failure), End::Signal),
        },
    };
    match &end {
        End::Well => {}
        End::Failed(failure) => report_failure(&mut report, failure, driver.as_mut()),
        End::Signal(caught) => report.left_out(caught.name, "stopped by this signal"),
    }
    // Successful steps have stopped their driver. A driver that died was reported already.
    let stopped = match driver.as_mut() {
        None => Ok(()),
        Some(driver) => stop(driver).await,
    };
    let left = match plan.keep {
        Keep::Nothing => clean_up(&place),
        Keep::Everything => keep(plan, &place, &report),
    };
    Ok(conclude(&report, &end, stopped, left))
}

async fn stop(driver: &mut Driver) -> Result<(), String> {
    if driver.ended().is_some() {
        return Ok(());
    }
    driver.stop().await.map_err(|reason| format!("the driver, process {}: {reason}", driver.id))
}

/// Prints how the run ended, and returns the exit status.
fn conclude(report: &Report, end: &End, stopped: Result<(), String>, left: Result<String, String>) -> u8 {
    let is_clean = stopped.is_ok() && left.is_ok();
    let (Ok(left) | Err(left)) = left;
    let status = match end {
        End::Well if is_clean => {
            report.all_well(&left);
            OK
        }
        End::Well => {
            report.ended("the steps succeeded, but the clean-up failed", &left);
            FAILED
        }
        End::Failed(failure) => {
            report.ended(&format!("{} failed", failure.step.trim()), &left);
            FAILED
        }
        End::Signal(caught) => {
            report.ended(&format!("stopped by {}", caught.name), &left);
            if is_clean { caught.status() } else { FAILED }
        }
    };
    if let Err(reason) = stopped {
        report.detail(&reason);
    }
    status
}

async fn play_all(
    plan: &Plan,
    place: &Path,
    driver: &mut Option<Driver>,
    report: &mut Report,
) -> Outcome<()> {
    for example in &plan.examples {
        report.heading(&title(*example, plan));
        let folder = driver::folder(place, *example);
        play(plan, *example, place, &folder, driver, report).await?;
    }
    if let Some(why) = plan.left_out {
        report.heading("block: image files on loop devices");
        report.left_out("left out", why);
    }
    Ok(())
}

fn title(example: Example, plan: &Plan) -> String {
    let namespace = match (&plan.privileges, plan.keep) {
        (Privileges::Root, Keep::Nothing) => "as root, in a private mount namespace",
        (Privileges::Root, Keep::Everything) => "as root, in the current mount namespace",
        (Privileges::User { .. }, _) => "in its own user and mount namespace",
    };
    match example {
        Example::Block => format!("block: image files on loop devices, {} ({namespace})", plan.filesystem),
        Example::Dirs => format!("dirs: directories ({namespace})"),
    }
}

/// Runs the steps of one driver, from its start to its end.
async fn play(
    plan: &Plan,
    example: Example,
    place: &Path,
    folder: &Path,
    slot: &mut Option<Driver>,
    report: &mut Report,
) -> Outcome<()> {
    let start = std::time::Instant::now();
    let failed = |reason: String| Failure::new("start the driver", reason);
    let driver =
        slot.insert(Driver::start(example, place, plan.keep).map_err(|error| failed(error.to_string()))?);
    let client = driver.connect().await.map_err(failed)?;
    let timing = Timing { first: start.elapsed(), again: None };
    report.ok("  start the driver", &format!("process {}", driver.id), timing);

    let mut options = Options::new(client).timeout(CALL_TIMEOUT).places(folder, folder);
    for volume in plan.volumes(example) {
        options = options.volume(volume);
    }
    // If the steps end early, the clean-up finds what is left by asking the kernel, not the driver.
    run_recorded(&options, report, &mut UndoLog::default()).await?;
    // A stopping driver waits until its callers close their connections.
    drop(options);
    let start = std::time::Instant::now();
    driver.stop().await.map_err(|reason| Failure::new("stop the driver", reason))?;
    let timing = Timing { first: start.elapsed(), again: None };
    report.ok("  stop the driver", "SIGTERM, exit status 0, socket removed", timing);
    *slot = None;
    Ok(())
}

fn report_failure(report: &mut Report, failure: &Failure, driver: Option<&mut Driver>) {
    let Some(driver) = driver else { return report.failed(&failure.step, &failure.reason, &[]) };
    let mut log = driver.log_tail();
    if let Some(status) = driver.ended() {
        log.push(format!("it ended, {status}"));
    }
    report.failed(&failure.step, &failure.reason, &log);
}

/// Removes everything, and says what it removed.
fn clean_up(place: &Path) -> Result<String, String> {
    let swept = cleanup::sweep(place)?;
    let mut what = Vec::new();
    for (count, name) in [(swept.mounts, "mount"), (swept.loop_devices, "loop device")] {
        match count {
            0 => {}
            1 => what.push(format!("1 {name}")),
            more => what.push(format!("{more} {name}s")),
        }
    }
    if what.is_empty() {
        return Ok("nothing is left".to_owned());
    }
    Ok(format!("cleaned up {}; nothing is left", what.join(" and ")))
}

/// Keeps everything, and prints the commands that remove it.
fn keep(plan: &Plan, place: &Path, report: &Report) -> Result<String, String> {
    report.heading("kept; these commands remove it:");
    let quoted = |path: &Path| escape::shell_word(&path.display().to_string()).unwrap_or_default();
    if plan.privileges == Privileges::Root {
        let mounts = cleanup::mounts_below(place).map_err(|error| error.to_string())?;
        for mount in mounts.iter().rev() {
            report.command(&format!("umount {}", quoted(&mount.mount_point)));
        }
        for device in cleanup::loop_devices(place)? {
            report.command(&format!("losetup -d {}", device.path.display()));
        }
    }
    report.command(&format!("rm -r {}", quoted(place)));
    let what = match plan.privileges {
        Privileges::Root => "kept",
        Privileges::User { .. } => "kept, except the mounts, which end with their namespace",
    };
    Ok(format!("{} is {what}", place.display()))
}
