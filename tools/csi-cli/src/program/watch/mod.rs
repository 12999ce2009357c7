//! `csi watch`: problems, when they begin and end.

mod changes;
mod sources;

use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use tokio::time::{MissedTickBehavior, interval};

use super::common::{self, Common};
use super::output::{Format, Stop, duration, print, print_error, print_json_line};
use super::{exit, secrets};
use crate::lifecycle::Sockets;
use crate::lifecycle::internal::Signals;
use crate::secrets::hidden;
use changes::{CurrentProblems, Event};
use sources::{Source, Watched};

pub(crate) const NAME: &str = "watch";

const HELP: &str = "\
Checks the plugin's readiness, the health of its storage and the health of volumes at regular intervals.
Prints a line when a problem begins (+), changes (~) or ends (-). The driver's capabilities decide which calls
are made; a driver of CSI 1.12 reports the condition of volumes instead of their health. If the driver does
not list health, only the volumes given with --volume-id are checked. A call that fails is reported as a
problem too; the earlier result of that call stays valid.";

const EXAMPLES: &str = "\
Examples:
  csi watch
  csi watch --interval 2s --output json | tee health.jsonl
  csi watch --volume-id pvc-1 --volume-path /mnt/pod
  csi watch --once && echo healthy";

pub(crate) fn command() -> Command {
    Command::new(NAME)
        .about("Watch the driver's health: print problems when they begin and end")
        .long_about(HELP)
        .args([
            Arg::new("interval")
                .long("interval")
                .value_name("TIME")
                .value_parser(ValueParser::from(duration))
                .default_value("10s")
                .help("The time between two checks"),
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print the current problems once, and exit with 1 if there are any"),
            Arg::new("volume-id")
                .long("volume-id")
                .value_name("ID")
                .action(ArgAction::Append)
                .help("Watch the health of this volume (repeatable)"),
            Arg::new("volume-path")
                .long("volume-path")
                .value_name("PATH")
                .value_hint(ValueHint::DirPath)
                .requires("volume-id")
                .help("The path at which the volume is published on this node"),
            common::controller_argument(),
        ])
        .args(secrets::arguments())
        .after_help(EXAMPLES)
}

pub(crate) async fn run(matches: &ArgMatches, common: &Common) -> Result<(), Stop> {
    let watched = Watched {
        volumes: matches.get_many::<String>("volume-id").into_iter().flatten().cloned().collect(),
        path: matches.get_one::<String>("volume-path").cloned(),
        secrets: secrets::read(matches)?,
    };
    if watched.path.is_some() && watched.volumes.len() != 1 {
        return Err(Stop::Usage("--volume-path needs exactly one --volume-id".to_owned()));
    }
    let mut signals = Signals::install().map_err(Stop::Usage)?;
    let sockets = common.sockets().await?;
    let mut watch = Watch { known: CurrentProblems::default(), format: common.format, watched };
    let once = matches.get_flag("once");
    let every = matches.get_one::<Duration>("interval").copied().unwrap_or(Duration::from_secs(10));
    let watching = async {
        let sources = watch.watched.sources(&sockets).await?;
        if !once {
            let names: Vec<_> = sources.iter().map(Source::to_string).collect();
            print_error(&format!("checking every {every:?}: {}", names.join(", ")));
        }
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            watch.round(&sources, &sockets).await?;
            if once {
                return Ok(watch.known.has_none());
            }
        }
    };
    let ended = tokio::select! {
        biased;
        caught = signals.next() => return Err(Stop::Exit(caught.status())),
        ended = watching => ended,
    };
    match ended {
        Ok(true) => Ok(()),
        Ok(false) => Err(Stop::Exit(exit::FAILED)),
        Err(stop) => Err(stop),
    }
}

struct Watch {
    watched: Watched,
    known: CurrentProblems,
    format: Format,
}

impl Watch {
    async fn round(&mut self, sources: &[Source], sockets: &Sockets) -> Result<(), Stop> {
        for source in sources {
            let answer = source.ask(sockets, &self.watched).await;
            for event in self.known.update(source, answer) {
                self.print_event(&event)?;
            }
        }
        self.known.end_round().map_or(Ok(()), |event| self.print_event(&event))
    }

    fn print_event(&self, event: &Event) -> Result<(), Stop> {
        let event = event.scrubbed(&hidden(&self.watched.secrets));
        let now = changes::now();
        match self.format {
            Format::Json => print_json_line(&event.json(&now)),
            Format::Table => print(&event.line(&now)),
        }
    }
}
