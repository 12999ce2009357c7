//! `csi capabilities`: a driver's capabilities on one page.

use clap::{ArgMatches, Command};
use csi_proto::Rpc;
use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};
use serde_json::json;
use tonic::Code;

use super::call::{self, CallError};
use super::common::{self, Common};
use super::meanings::{self, PARTS, Part};
use super::output::{Format, Stop, print, print_json, refused};
use super::{rpcs, show, table};
use crate::lifecycle::Sockets;
use csi_proto::internal::Redactor;

pub(crate) const NAME: &str = "capabilities";
/// The width of lines of names.
const WIDTH: usize = 96;

const EXAMPLES: &str = "\
Examples:
  csi capabilities
  csi capabilities --output json | jq -e '.controller | index(\"CLONE_VOLUME\")'";

pub(crate) fn command() -> Command {
    Command::new(NAME)
        .about("Show the driver's capabilities on one page")
        .arg(common::controller_argument())
        .after_help(EXAMPLES)
}

/// The answer of a service; `None` if it is not on this socket.
type Answer = Option<DynamicMessage>;

struct Overview {
    endpoint: String,
    info: DynamicMessage,
    health: Health,
    /// Indexed like [`PARTS`].
    capabilities: Vec<Answer>,
    node: Answer,
}

pub(crate) async fn run(_: &ArgMatches, common: &Common) -> Result<(), Stop> {
    let sockets = common.sockets().await?;
    let mut capabilities = Vec::new();
    let connection = Connection { sockets: &sockets, common };
    let info = connection.call(Rpc::GetPluginInfo).await?;
    let health = connection.probe().await?;
    for part in PARTS {
        capabilities.push(connection.call_if_served(part.rpc).await?);
    }
    let node = connection.call_if_served(Rpc::NodeGetInfo).await?;
    let overview = Overview { endpoint: common.endpoint(), info, health, capabilities, node };
    match common.format {
        Format::Json => print_json(&overview.json()),
        Format::Table => overview.lines().iter().try_for_each(|line| print(line)),
    }
}

enum Health {
    Ready,
    Starting,
    /// With the reason.
    Failed(String),
}

struct Connection<'c> {
    sockets: &'c Sockets,
    common: &'c Common,
}

impl Connection<'_> {
    async fn call(&self, rpc: Rpc) -> Result<DynamicMessage, Stop> {
        self.answer(rpc).await.map_err(|ended| end(rpc, ended))
    }

    async fn probe(&self) -> Result<Health, Stop> {
        match self.answer(Rpc::Probe).await {
            Ok(answer) if ready(&answer) == Some(false) => Ok(Health::Starting),
            Ok(_) => Ok(Health::Ready),
            Err(CallError::Refused(status)) if status.code() == Code::FailedPrecondition => {
                Ok(Health::Failed(status.message().to_owned()))
            }
            Err(ended) => Err(end(Rpc::Probe, ended)),
        }
    }

    async fn call_if_served(&self, rpc: Rpc) -> Result<Answer, Stop> {
        match self.answer(rpc).await {
            Ok(answer) => Ok(Some(answer)),
            Err(CallError::Refused(status)) if status.code() == Code::Unimplemented => Ok(None),
            Err(ended) => Err(end(rpc, ended)),
        }
    }

    async fn answer(&self, rpc: Rpc) -> Result<DynamicMessage, CallError> {
        let request = DynamicMessage::new(rpcs::method(rpc).input());
        let mut answer = DynamicMessage::new(rpcs::method(rpc).output());
        let taken = |found| {
            answer = found;
            Ok(())
        };
        let client = self.sockets.of(rpc.service());
        call::call(client, rpc, request, self.common.limits(), taken).await?;
        Ok(answer)
    }
}

fn ready(probed: &DynamicMessage) -> Option<bool> {
    let ready = probed.get_field_by_name("ready").filter(|_| probed.has_field_by_name("ready"))?;
    ready.as_message()?.get_field_by_name("value")?.as_bool()
}

fn end(rpc: Rpc, ended: CallError) -> Stop {
    match ended {
        CallError::Refused(status) => refused(rpc, &status, &Redactor::default()),
        CallError::Stopped(stop) => stop,
    }
}

impl Overview {
    fn names(&self) -> impl Iterator<Item = (&'static Part, Option<Vec<String>>)> {
        PARTS.iter().zip(&self.capabilities).map(|(part, answer)| (part, answer.as_ref().map(names)))
    }

    fn text(&self, name: &str) -> String {
        let value = self.info.get_field_by_name(name);
        value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    }

    fn json(&self) -> serde_json::Value {
        let info = show::json(&self.info);
        let mut all = json!({
            "endpoint": self.endpoint,
            "name": info["name"],
            "vendorVersion": info["vendorVersion"],
            "manifest": info["manifest"],
            "ready": matches!(self.health, Health::Ready),
            "nodeInfo": self.node.as_ref().map(show::json),
        });
        for (part, names) in self.names() {
            all[part.name] = json!(names);
        }
        all
    }

    fn lines(&self) -> Vec<String> {
        let ready = match &self.health {
            Health::Ready => "ready",
            Health::Starting => "still starting",
            Health::Failed(why) => &format!("not healthy: {why}"),
        };
        let mut lines = vec![format!(
            "{} {} at {}: {ready}",
            self.text("name"),
            self.text("vendor_version"),
            self.endpoint
        )];
        lines.extend(self.node.as_ref().map(node_line));
        for (part, names) in self.names() {
            lines.extend([String::new(), part.name.to_owned()]);
            match names {
                None => lines.push("  not available on this socket".to_owned()),
                Some(names) => lines.extend(part_lines(part, &names)),
            }
        }
        lines
    }
}

fn node_line(info: &DynamicMessage) -> String {
    let mut shown = Vec::new();
    for (field, value) in show::visible(info) {
        match (field.name(), &value) {
            ("node_id", _) => {
                shown.insert(0, format!("node {}", value.as_str().unwrap_or_default()));
            }
            (_, Value::I64(0)) => shown.push("any number of volumes".to_owned()),
            (_, Value::I64(most)) => shown.push(format!("at most {most} volumes")),
            _ => {
                let mut fields = Vec::new();
                show::flatten("", &field, &value, info, &mut fields);
                shown.extend(fields.into_iter().map(|(_, text)| text));
            }
        }
    }
    shown.join(", ")
}

/// The offered capabilities, each with its meaning, and the names of the others.
fn part_lines(part: &Part, names: &[String]) -> Vec<String> {
    let grid: Vec<Vec<String>> =
        names.iter().map(|name| vec![name.clone(), part.meaning(name).to_owned()]).collect();
    let mut lines: Vec<String> = table::aligned(&grid).iter().map(|line| format!("  {line}")).collect();
    let rest = part.meanings.iter().map(|row| row.0).filter(|known| !names.iter().any(|name| name == known));
    let mut rest = rest.peekable();
    if rest.peek().is_some() {
        lines.extend(wrapped("  not offered: ", rest));
    }
    lines
}

fn wrapped<'n>(start: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let mut lines = vec![start.to_owned()];
    for (at, name) in names.enumerate() {
        let line = lines.last_mut().unwrap_or_else(|| unreachable!("there is one"));
        if at > 0 {
            line.push_str(", ");
        }
        if line.len() + name.len() > WIDTH {
            line.truncate(line.trim_end().len());
            lines.push(format!("{:width$}{name}", "", width = start.len()));
        } else {
            line.push_str(name);
        }
    }
    lines
}

/// The names of the capabilities in an answer.
fn names(answer: &DynamicMessage) -> Vec<String> {
    let list = answer.get_field_by_name("capabilities");
    let all = list.as_deref().and_then(Value::as_list).unwrap_or_default();
    all.iter()
        .filter_map(Value::as_message)
        .map(|one| name(one).unwrap_or_else(|| "UNKNOWN".to_owned()))
        .collect()
}

/// The name of a capability's only number.
fn name(capability: &DynamicMessage) -> Option<String> {
    let (_, inner) = capability.fields().next()?;
    let inner = inner.as_message()?;
    let field = inner.descriptor().get_field_by_name("type")?;
    let number = inner.get_field(&field).as_enum_number()?;
    Some(meanings::name(&field, number))
}
