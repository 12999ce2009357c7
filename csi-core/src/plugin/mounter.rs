//! What a driver's program does in the pods of its FUSE programs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csi_mount::flow::fuse::MounterServer;

use crate::server::{Ended, Failure, ServeError, Stop};

/// Starts FUSE programs until SIGTERM, and then until the last one has ended, for at most this long.
pub(crate) async fn serve_as_mounter(directory: &Path, limit: Duration) -> (Ended, Result<(), ServeError>) {
    (Ended::Idle, serve(directory, limit).await)
}

async fn serve(directory: &Path, limit: Duration) -> Result<(), ServeError> {
    let stop = Stop::signals()?;
    let server = MounterServer::bind(directory).map_err(|error| Failure::Plugin(error.to_string()))?;
    let serving = Arc::clone(&server);
    let serving = tokio::task::spawn_blocking(move || serving.serve());
    tracing::info!(directory = %directory.display(), "waiting for FUSE programs to start");
    stop.requested().await;
    let drained = tokio::task::spawn_blocking(move || server.drain(limit)).await;
    let served = drained.and(serving.await);
    served.map_err(|error| Failure::Plugin(format!("the mounter failed: {error}")).into())
}

/// Copies this program, which needs no other file if it is linked statically.
pub(crate) fn copy_program(to: &Path) -> (Ended, Result<(), ServeError>) {
    let copied = std::fs::copy("/proc/self/exe", to);
    let failed = |error| Failure::Plugin(format!("copy the program to {}: {error}", to.display()));
    (Ended::Idle, copied.map(drop).map_err(|error| failed(error).into()))
}
