//! Blocking work, kept off the threads that serve calls.

use crate::{Error, Result};

/// Runs `work`, which is allowed to block, on a separate thread, and waits for it.
///
/// Use it for system calls, programs and files, and for everything in `csi-mount`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> csi_core::Result<()> {
/// let here = csi_core::blocking(|| Ok(std::env::current_dir()?)).await?;
/// # drop(here);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of `work`, and [`Error::Internal`] when it panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let span = tracing::Span::current();
    #[cfg(all(feature = "mount", target_os = "linux"))]
    let work = {
        let machine = crate::machine();
        move || crate::machine::with_machine(machine, work)
    };
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(error)),
    }
}
