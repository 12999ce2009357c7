use std::sync::Arc;

use csi_core::Plugin;
use csi_core::server::CallService;
use http::Request;
use kube::Client;
use tonic::Status;
use tonic::body::Body;
use tower::layer::layer_fn;
use tower::{ServiceExt as _, service_fn};

use super::leadership::Leadership;
use crate::error::Error;

/// The methods of these services are not refused: they say who the plugin is, and work on the own node.
const SERVED_BY_ALL: [&str; 2] = ["/csi.v1.Identity/", "/csi.v1.Node/"];

impl Leadership {
    /// Adds a layer to the plugin that refuses the calls of the services that only a leader serves, with UNAVAILABLE, once
    /// the leadership is over: Controller, GroupController and SnapshotMetadata. [`Election::run`](super::Election::run)
    /// adds it.
    #[must_use]
    pub fn guard(&self, plugin: Plugin) -> Plugin {
        // Not the leadership, which is renewed until its last clone is dropped.
        let state = Arc::clone(&self.state);
        plugin.layer(layer_fn(move |calls: CallService| {
            let state = Arc::clone(&state);
            service_fn(move |request: Request<Body>| {
                let calls = calls.clone();
                let path = request.uri().path();
                let is_for_leader = path.starts_with("/csi.v1.")
                    && !SERVED_BY_ALL.iter().any(|start| path.starts_with(start));
                // The last check before the driver: the clock is asked, so a process that was frozen finds out here.
                let is_refused = is_for_leader && !state.is_leader();
                async move {
                    if is_refused {
                        return Ok(Status::unavailable(Error::NotLeading.to_string()).into_http());
                    }
                    calls.oneshot(request).await
                }
            })
        }))
    }
}

/// A client that sends nothing once one of these leaderships is over. A process that was frozen has writes that are due
/// before it sees that another one leads.
#[must_use]
pub fn while_leading(client: &Client, leaderships: Vec<Leadership>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let guarded = service_fn(move |request: Request<kube::client::Body>| {
        let client = client.clone();
        let checked = leaderships.iter().try_for_each(Leadership::check);
        async move {
            checked?;
            client.send(request).await.map_err(tower::BoxError::from)
        }
    });
    Client::new(guarded, namespace)
}
