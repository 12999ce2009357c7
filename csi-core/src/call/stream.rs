//! The path of a call that is answered with a stream: the same gate, parsing, log and errors. Then messages
//! follow until the driver's stream ends, an error occurs, or the caller leaves.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use csi_proto::escape;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument;

use super::request::{Received, Request};
use super::{Arrival, CallPath, Caught, Reply, panicked, refused};
use crate::error::Result;

/// Describes a streaming RPC: its types, and the rules for its messages. It claims nothing, so nothing
/// excludes it.
pub(crate) trait StreamCall: Request + Send + 'static {
    /// What the driver returns.
    type Answer: Send + 'static;
    /// The driver's answer while it is read, message by message.
    type Messages: Send + 'static;

    /// Checks the driver's answer against the spec's rules for this request and starts to read it.
    fn open(answer: Self::Answer, request: &Self::Wire) -> Result<Self::Messages>;

    /// The next message, `None` after the last. It is not called again after an error.
    fn next(messages: &mut Self::Messages) -> impl Future<Output = Result<Option<Reply<Self>>>> + Send;
}

/// The messages that are being sent to the caller.
pub(crate) type Sent<T> = ReceiverStream<Result<T, Status>>;

impl CallPath {
    /// Takes one call through the path. An error before the first message is the answer; a later error ends
    /// the stream.
    pub(crate) async fn stream<C, F>(
        &self,
        request: tonic::Request<C::Wire>,
        handler: Result<impl FnOnce(C) -> F + Send + 'static>,
    ) -> Result<tonic::Response<Sent<Reply<C>>>, Status>
    where
        C: StreamCall,
        F: Future<Output = Result<C::Answer>> + Send,
    {
        let running = Arrival::of(&request);
        let deadline = Arrival::deadline_of(&request);
        let wire = Arc::new(Received::new(request.into_inner(), Some(Arc::clone(&self.plugin))));
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let span =
            tracing::info_span!("csi", rpc = C::RPC.name(), request = id, subject = tracing::field::Empty);
        let open = async {
            tracing::debug!(request = ?**wire, "called");
            let handler = handler?;
            let request = C::read(&wire)?;
            tracing::Span::current().record("subject", &*escape::terminal(request.subject()));
            let entered = self.running.enter(id, C::RPC, request.subject());
            let answer = handler(request).await?;
            Ok((C::open(answer, &wire)?, entered))
        };
        let measured = self.metrics.begin(C::RPC, deadline);
        let opened = Caught(AssertUnwindSafe(Box::pin(open))).instrument(span.clone()).await;
        let opened = opened.unwrap_or_else(|| Err(panicked()));
        let opened = opened.map_err(|error| span.in_scope(|| refused(&error, C::RPC)));
        let (messages, entered) = match opened {
            Ok(opened) => opened,
            Err(status) => {
                let refused = Err(status);
                measured.end(&refused);
                return refused;
            }
        };
        let (sender, receiver) = mpsc::channel(1);
        let sending = async move {
            // A caller that leaves is counted as one that cancelled.
            if let Some(outcome) = send::<C>(messages, sender).await {
                measured.end(&outcome);
            }
            drop((running, entered));
        };
        tokio::spawn(sending.instrument(span));
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

/// Sends the messages as fast as the caller takes them. Returns how the stream ended; `None` if the caller
/// left first.
// spec: snapshot-metadata.ends-when-all-is-sent, snapshot-metadata.failure-ends-the-stream
// spec: snapshot-metadata.interruption-ends-the-work
async fn send<C: StreamCall>(
    mut messages: C::Messages,
    sender: mpsc::Sender<Result<Reply<C>, Status>>,
) -> Option<Result<(), Status>> {
    loop {
        let next = Caught(AssertUnwindSafe(Box::pin(C::next(&mut messages))));
        let next = tokio::select! {
            next = next => next,
            () = sender.closed() => {
                tracing::debug!("the caller left before the end");
                return None;
            }
        };
        match next.unwrap_or_else(|| Err(panicked())) {
            Ok(None) => return Some(Ok(())),
            Ok(Some(item)) => sender.send(Ok(item)).await.ok()?,
            Err(error) => {
                let status = refused(&error, C::RPC);
                // Sending fails only if the caller has left.
                let _ = sender.send(Err(status.clone())).await;
                return Some(Err(status));
            }
        }
    }
}
