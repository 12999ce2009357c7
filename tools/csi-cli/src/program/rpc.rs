//! The RPCs as commands; all 36 share this code.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use csi_proto::Rpc;
use prost_reflect::{DynamicMessage, Kind, Value};

use super::common::Common;
use super::output::{Format, Stop, print, print_json, print_json_line, refused};
use super::pages::Pages;
use super::table::Shown;
use super::{call, fields, rpcs, secrets, show, whole_request};
use csi_proto::internal::Redactor;

/// The token fields of paged requests and answers.
const TOKEN: &str = "starting_token";
const NEXT: &str = "next_token";

pub(crate) fn example(rpc: Rpc, group: &str) -> String {
    let (_, arguments) = rpcs::help(rpc);
    format!("csi {group} {} {arguments}", rpcs::subcommand(rpc)).trim_end().to_owned()
}

pub(crate) fn command(rpc: Rpc, group: &str) -> Command {
    let method = rpcs::method(rpc);
    let request = Arg::new("request")
        .long("request")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help("The request as protobuf JSON, - for standard input; flags override it");
    let dry_run = Arg::new("dry-run")
        .long("dry-run")
        .action(ArgAction::SetTrue)
        .help("Print the request as JSON and send nothing");
    let mut command = Command::new(rpcs::subcommand(rpc))
        .alias(rpc.name())
        .about(rpcs::help(rpc).0)
        .args(fields::arguments(&method.input()))
        .args([request, dry_run])
        .after_help(format!("Calls {}.{rpc}.\n\nExample:\n  {}", rpc.service(), example(rpc, group)));
    if is_paged(rpc) {
        let help = "Request all pages, and print each one when it arrives";
        command = command.arg(Arg::new("all").long("all").action(ArgAction::SetTrue).help(help));
    }
    command
}

fn is_paged(rpc: Rpc) -> bool {
    rpcs::method(rpc).input().get_field_by_name(TOKEN).is_some()
}

pub(crate) async fn run(rpc: Rpc, matches: &ArgMatches, common: &Common) -> Result<(), Stop> {
    let mut hidden = Redactor::default();
    let method = rpcs::method(rpc);
    secrets::check_standard_input(matches)?;
    let mut request = match matches.get_one::<PathBuf>("request") {
        Some(path) => whole_request::read(path, &method.input(), &mut hidden)?,
        None => DynamicMessage::new(method.input()),
    };
    fields::fill(rpc, &mut request, matches, &mut hidden)?;
    if matches.get_flag("dry-run") {
        show::redact(&mut request, &hidden);
        return print_json(&show::json(&request));
    }
    let client = common.client().await?;
    let is_all = is_paged(rpc) && matches.get_flag("all");
    let mut printer = Printer {
        rpc,
        hidden: &hidden,
        format: common.format,
        shown: Shown::default(),
        is_one: !is_all && !method.is_server_streaming(),
    };
    let start = request.get_field_by_name(TOKEN);
    let mut pages = Pages::after(start.as_ref().and_then(|token| token.as_str()).unwrap_or_default());
    drop(start);
    loop {
        let mut next = None;
        let answered = call::call(&client, rpc, request.clone(), common.limits(), |mut answer| {
            if is_all {
                next = take_next(&mut answer);
            }
            printer.print(answer)
        });
        match answered.await {
            Ok(()) => {}
            Err(call::CallError::Refused(status)) => return Err(refused(rpc, &status, &hidden)),
            Err(call::CallError::Stopped(stop)) => return Err(stop),
        }
        let Some((token, has_entries)) = next else { return Ok(()) };
        let Some(token) = pages.next(token, has_entries).map_err(|reason| Stop::failed(&reason))? else {
            return Ok(());
        };
        request.set_field_by_name(TOKEN, Value::String(token));
    }
}

/// Removes the token of the next page from an answer, and returns it with whether the answer has entries.
fn take_next(answer: &mut DynamicMessage) -> Option<(String, bool)> {
    let token = answer.get_field_by_name(NEXT)?.as_str().unwrap_or_default().to_owned();
    answer.clear_field_by_name(NEXT);
    let has_entries = answer.fields().any(|(_, value)| value.as_list().is_some_and(|all| !all.is_empty()));
    Some((token, has_entries))
}

struct Printer<'h> {
    rpc: Rpc,
    hidden: &'h Redactor,
    format: Format,
    shown: Shown,
    /// Whether exactly one answer is expected.
    is_one: bool,
}

impl Printer<'_> {
    fn print(&mut self, mut answer: DynamicMessage) -> Result<(), Stop> {
        show::redact(&mut answer, self.hidden);
        match self.format {
            Format::Json if self.is_one => print_json(&show::json(&answer)),
            Format::Json => print_json_line(&show::json(&answer)),
            Format::Table => {
                let lines = self.shown.lines(&answer);
                if lines.is_empty() && self.is_one {
                    return print(if self.is_list() { "none" } else { "done" });
                }
                lines.iter().try_for_each(|line| print(line))
            }
        }
    }

    fn is_list(&self) -> bool {
        let answer = rpcs::method(self.rpc).output();
        answer.fields().any(|field| field.is_list() && matches!(field.kind(), Kind::Message(_)))
    }
}
