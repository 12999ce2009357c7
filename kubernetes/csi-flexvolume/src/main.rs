//! `csi-flexvolume`: the FlexVolume executable of a CSI driver.
//!
//! The kubelet and the controller manager run it with a command and its arguments, and read one JSON object
//! from its output (`pkg/volume/flexvolume` of Kubernetes). `docs/flexvolume.md` has the table of commands.
//!
//! | module | has |
//! |---|---|
//! | `answer` | the JSON object |
//! | `config` | the file beside the executable |
//! | `options` | the options of a volume, and its secrets |
//! | `volumes` | what a later call does not receive again: records, and a lock for each volume |
//! | `driver` | calls to the driver |
//! | `attach` | the commands on volumes and nodes |
//! | `mount` | the commands on the node's directories |
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod answer;
mod attach;
mod config;
mod driver;
mod mount;
mod options;
mod volumes;

use std::io::Write as _;
use std::path::Path;

use answer::Answer;
use config::Config;
use driver::Driver;
use volumes::Volumes;

struct Arguments {
    command: String,
    rest: Vec<String>,
}

impl Arguments {
    /// The argument at this place, counted from 1.
    fn get(&self, at: usize, what: &str) -> Result<&str, String> {
        let found = self.rest.get(at - 1).map(String::as_str);
        found.ok_or_else(|| format!("argument {at} is missing: {what}"))
    }

    fn size(&self, at: usize) -> Result<i64, String> {
        let text = self.get(at, "the new size in bytes")?;
        let size = text.parse().ok().filter(|size| *size > 0);
        size.ok_or_else(|| format!("argument {at}: {text:?} is not a size in bytes"))
    }
}

struct Context {
    arguments: Arguments,
    config: Config,
    volumes: Volumes,
    driver: Driver,
}

/// Prints one JSON object, and nothing else. The callers read standard output and standard error as one text.
/// The exit status is 0 also for a failure: with another one the callers log the arguments, and with them the
/// secrets (`Run` in driver-call.go).
fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let answer = std::panic::catch_unwind(answer)
        .unwrap_or_else(|_| Answer::failure("a defect of csi-flexvolume: the command panicked"));
    let _ = writeln!(std::io::stdout(), "{}", answer.to_json());
    // A thread can still wait for a lock.
    std::process::exit(0);
}

fn answer() -> Answer {
    let mut words = std::env::args_os().map(|word| word.into_string().ok());
    let (Some(Some(program)), Some(words)) = (words.next(), words.collect::<Option<Vec<String>>>()) else {
        return Answer::failure("an argument is not UTF-8");
    };
    let Some((command, rest)) = words.split_first() else {
        return Answer::failure("no command: the kubelet runs this program, with a command such as init");
    };
    let arguments = Arguments { command: command.clone(), rest: rest.to_vec() };
    match run(Path::new(&program), arguments) {
        Ok(answer) => answer,
        Err(why) => Answer::failure(&format!("{command}: {why}")),
    }
}

fn run(program: &Path, arguments: Arguments) -> Result<Answer, String> {
    let config = Config::beside(program)?;
    if arguments.command == "init" {
        Volumes::open(&config)?.remove_unfinished()?;
        return Ok(Answer::capabilities(config.capabilities));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(async {
        let volumes = Volumes::open(&config)?;
        let driver = Driver::new(&config);
        let mut context = Context { arguments, config, volumes, driver };
        match &*context.arguments.command {
            "attach" => context.attach().await,
            "detach" => context.detach().await,
            "isattached" => context.is_attached().await,
            "expandvolume" => context.expand_volume().await,
            "mountdevice" => context.mount_device().await,
            "unmountdevice" => context.unmount_device().await,
            "mount" => context.mount().await,
            "unmount" => context.unmount().await,
            "expandfs" => context.expand_filesystem().await,
            // `getvolumename`: the callers use the name of the PersistentVolume, whatever the answer is.
            // `waitforattach`: they continue with the device of `attach`, and staging waits for the real one.
            _ => Ok(Answer::not_supported()),
        }
    })
}
