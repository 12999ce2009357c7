//! For the other crates of the toolkit. It is not part of the API, and changes without notice.

use csi_proto::Endpoint;

use crate::plugin::Plugin;
use crate::server::ServeError;
#[cfg(feature = "http")]
pub use crate::server::exposition::code_name;
pub use crate::server::local::LocalCalls;
pub use crate::server::stop::Ended;

/// The plugin's calls for a caller in the same process, such as a controller of Kubernetes objects. They need no
/// socket, and take the same path as calls from it.
pub fn local_calls(plugin: &Plugin) -> LocalCalls {
    plugin.local_calls()
}

/// Like [`Plugin::serve_until`], and also returns whether methods of the driver still run: for programs that must know
/// this before they give something up, such as a leadership.
pub async fn serve_until_ended(
    plugin: Plugin,
    endpoint: &Endpoint,
    stop: impl Future<Output = ()> + Send + 'static,
) -> (Ended, Result<(), ServeError>) {
    plugin.serve_until_ended(endpoint, stop).await
}
