//! Which of the plugin's services one instance serves.

use csi_proto::Service;

use crate::choice::choice;
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

choice!(Mode of "mode": All = "all", Controller = "controller", Node = "node");
