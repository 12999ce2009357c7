//! How long the users of a volume wait for the next pod while the last one exists: a parameter of its class, which the
//! volume's context has for the nodes.

use std::time::Duration;

use csi_core::mount::flow::fuse::FuseDaemon;
use csi_core::types::StringMap;
use csi_core::{Result, prelude::*};

const KEY: &str = "waitSeconds";

fn of(map: &StringMap) -> Result<Option<Duration>> {
    let Some(text) = map.get(KEY) else { return Ok(None) };
    let seconds = text.parse().map_err(|_| {
        Error::invalid(format!("parameters[{KEY}]"), format!("{text:?} is no number of seconds"))
    })?;
    Ok(Some(Duration::from_secs(seconds)))
}

/// The volume, with what the parameters of its class say.
pub(crate) fn keep(parameters: &StringMap, volume: Volume) -> Result<Volume> {
    parameters.check_keys(&[KEY])?;
    Ok(match of(parameters)? {
        Some(wait) => volume.context(KEY, wait.as_secs().to_string()),
        None => volume,
    })
}

/// The daemon, with what the context of its volume says.
pub(crate) fn apply(context: &StringMap, daemon: FuseDaemon) -> Result<FuseDaemon> {
    Ok(match of(context)? {
        Some(wait) => daemon.continue_time_limit(wait),
        None => daemon,
    })
}
