//! The options of all commands: endpoint, output format, timeout.

use std::time::Duration;

use clap::{Arg, ArgMatches, ValueHint, builder::ValueParser};
use csi_proto::client::Client;
use csi_proto::{Endpoint, EndpointError};
use tokio::net::UnixStream;

use super::call::Limits;
use super::output::{Format, Stop, duration, print_error};
use super::{exit, values};
use crate::lifecycle::Sockets;

pub(crate) struct Common {
    endpoint: Option<String>,
    controller: Option<String>,
    pub(crate) format: Format,
    pub(crate) timeout: Duration,
    max_answer: usize,
}

pub(crate) fn arguments() -> [Arg; 4] {
    [
        Arg::new("endpoint")
            .long("endpoint")
            .global(true)
            .env("CSI_ENDPOINT")
            .value_name("unix://PATH")
            .value_hint(ValueHint::FilePath)
            .help_heading("Everywhere")
            .help("The driver's socket"),
        Arg::new("output")
            .long("output")
            .short('o')
            .global(true)
            .value_name("FORMAT")
            .value_parser(["table", "json"])
            .default_value("table")
            .help_heading("Everywhere")
            .help("The format of the results"),
        Arg::new("timeout")
            .long("timeout")
            .global(true)
            .value_name("TIME")
            .value_parser(ValueParser::from(duration))
            .default_value("2m")
            .help_heading("Everywhere")
            .help("The time limit for each answer: 500ms, 10s, 2m"),
        // gRPC's default in every language, and so the limit of the Kubernetes sidecars.
        Arg::new("max-answer")
            .long("max-answer")
            .global(true)
            .value_name("SIZE")
            .value_parser(ValueParser::from(values::size))
            .default_value("4Mi")
            .hide_short_help(true)
            .help_heading("Everywhere")
            .help(
                "The largest answer that is accepted for a single RPC; the callers in Kubernetes accept 4Mi",
            ),
    ]
}

/// The flag of commands that call several services.
pub(crate) fn controller_argument() -> Arg {
    Arg::new("controller-endpoint")
        .long("controller-endpoint")
        .value_name("unix://PATH")
        .value_hint(ValueHint::FilePath)
        .help("The controller's socket, if it has its own")
}

impl Common {
    pub(crate) fn read(matches: &ArgMatches) -> Result<Self, Stop> {
        let text = |name| matches.try_get_one::<String>(name).ok().flatten().cloned();
        Ok(Self {
            endpoint: text("endpoint").filter(|endpoint| !endpoint.is_empty()),
            controller: text("controller-endpoint"),
            format: if text("output").as_deref() == Some("json") { Format::Json } else { Format::Table },
            timeout: matches.get_one("timeout").copied().unwrap_or(Duration::from_secs(120)),
            max_answer: matches
                .get_one::<i64>("max-answer")
                .and_then(|size| usize::try_from(*size).ok())
                .unwrap_or(4 << 20),
        })
    }

    /// Connects to the driver.
    ///
    /// # Errors
    /// When the endpoint is missing or invalid, or nothing listens on it.
    pub(crate) async fn client(&self) -> Result<Client, Stop> {
        let Some(endpoint) = &self.endpoint else {
            let hint = "no endpoint: set CSI_ENDPOINT to the driver's socket, such as \
                        unix:///run/csi/csi.sock, or use --endpoint";
            return Err(Stop::Usage(hint.to_owned()));
        };
        self.connect(endpoint).await
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { timeout: self.timeout, size: self.max_answer }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone().unwrap_or_default()
    }

    /// Connects to the driver, and to its controller, which can have its own socket.
    ///
    /// # Errors
    /// As [`client`](Self::client).
    pub(crate) async fn sockets(&self) -> Result<Sockets, Stop> {
        let mut sockets = Sockets::new(self.client().await?);
        if let Some(endpoint) = &self.controller {
            sockets.controller = self.connect(endpoint).await?;
        }
        Ok(sockets)
    }

    async fn connect(&self, endpoint: &str) -> Result<Client, Stop> {
        let read: Endpoint = endpoint.parse().map_err(|error: EndpointError| {
            Stop::Usage(error.to_string().replacen("CSI_ENDPOINT", "the endpoint", 1))
        })?;
        if let Err(error) = UnixStream::connect(read.path()).await {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "is the driver running, and is this its socket?",
                std::io::ErrorKind::ConnectionRefused => {
                    "the driver of this socket has ended; start it again"
                }
                std::io::ErrorKind::PermissionDenied => {
                    "run this as root, or as a user of the socket's group"
                }
                std::io::ErrorKind::WouldBlock => {
                    "the driver does not accept connections: it hangs, or has too many callers"
                }
                _ => "is this the driver's socket?",
            };
            print_error(&format!("{read}: {error}: {hint}"));
            return Err(Stop::Exit(exit::UNREACHABLE));
        }
        Ok(Client::new(&read).deadline(self.timeout))
    }
}
