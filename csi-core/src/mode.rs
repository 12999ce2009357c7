//! Which of the plugin's services one instance serves.

use std::fmt;
use std::str::FromStr;

use csi_proto::Service;

use crate::error::{Error, Result};

/// Which services an instance serves. The plugin capabilities are those of the whole plugin in every mode,
/// as the spec requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// All services of the plugin.
    #[default]
    All,
    /// Identity and the controller's services.
    Controller,
    /// Identity and Node.
    Node,
}

impl Mode {
    // spec: process.knows-its-mode
    pub(crate) fn serves(self, service: Service) -> bool {
        match service {
            Service::Identity => true,
            Service::Node => self != Self::Controller,
            _ => self != Self::Node,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Controller => "controller",
            Self::Node => "node",
        })
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::All, Self::Controller, Self::Node]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| Error::invalid("mode", format!("{text:?} is not one of all, controller, node")))
    }
}
