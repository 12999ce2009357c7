//! Work that blocks, kept off the threads that serve calls.

use crate::{Error, Result};

/// Runs `work`, which may block, on a thread where blocking does no harm, and waits for it.
///
/// System calls, programs and files belong in here; everything in `csi-mount` does.
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
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(error)),
    }
}
