//! The path that every unary RPC takes: path gate, parsing, admission, the driver's method, the check of
//! its answer.
//!
//! [`Call`] and [`StreamCall`] describe one RPC, [`CallPath`] is what all calls share. Typed requests, the
//! path gate and the counters are here too. The module imports admission, the offer, the spec's values and
//! errors; the server hands it a request's [`Arrival`].

mod arrival;
pub(crate) mod metrics;
mod path_gate;
pub(crate) mod request;
mod running;
mod stream;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csi_proto::internal::ClearSecrets;
use csi_proto::{Rpc, RpcRequest, escape};
use prost::Message;
use tokio::sync::watch;
use tonic::Status;
use tracing::Instrument;

use crate::admission::{Admission, Admitted, Claim};
use crate::blocking::{Kind, with_places};
use crate::error::{Error, Result, creates};
use crate::offer::Offer;

pub(crate) use arrival::Arrival;
use metrics::Metrics;
pub(crate) use path_gate::PathGate;
use request::{PluginContext, Received, Request};
use running::Running;
pub(crate) use stream::{Sent, StreamCall};

/// The longest message that gRPC's callers accept by default.
pub(crate) const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Describes an RPC: its types, its claims, and the rules for its answer.
pub(crate) trait Call: Request + Send + 'static {
    /// What the driver returns.
    type Answer: Send + 'static;

    /// Refuses fields that need a capability which the driver does not offer.
    fn permitted(&self, _offer: &Offer) -> Result<()> {
        Ok(())
    }

    /// The paths on this node that the request names, with their fields.
    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        Vec::new()
    }

    /// What the operation touches. Without claims the call is a query, which nothing excludes.
    fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// What the operation touches in a plugin with this offer.
    fn claims_in(&self, _offer: &Offer) -> Vec<Claim> {
        self.claims()
    }

    /// Turns an error that means "already done" into the answer.
    fn answer_to_error(error: Error) -> Result<Self::Answer> {
        Err(error)
    }

    /// Checks the driver's answer against the spec's rules for this request and returns it in the wire's
    /// form.
    fn reply(answer: Self::Answer, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>>;
}

/// The part of a call whose answer says only that it is done.
macro_rules! answers_nothing {
    () => {
        type Answer = ();

        fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<$crate::call::Reply<Self>> {
            Ok(Default::default())
        }
    };
}

pub(crate) use answers_nothing;

/// The answer on the wire, or one message of it.
pub(crate) type Reply<R> = <<R as Request>::Wire as RpcRequest>::Answer;

/// Whether two requests are equal apart from their secrets.
fn same_request<W: RpcRequest + ClearSecrets>(one: &W, other: &W) -> bool {
    let cleared = |request: &W| {
        let mut request = request.clone();
        request.clear_secrets();
        request
    };
    cleared(one) == cleared(other)
}

type Outcome<R> = Option<Result<R, Status>>;
/// Where an operation's outcome will arrive.
type Awaited<R> = watch::Receiver<Outcome<R>>;

/// What all calls share.
pub(crate) struct CallPath {
    admission: Arc<Admission>,
    offer: Arc<Offer>,
    gate: Arc<PathGate>,
    plugin: Arc<PluginContext>,
    next_request: AtomicU64,
    pub(crate) running: Arc<Running>,
    pub(crate) metrics: Arc<Metrics>,
}

impl CallPath {
    pub(crate) fn new(
        offer: Arc<Offer>,
        gate: PathGate,
        plugin: PluginContext,
        admission: Arc<Admission>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            admission,
            offer,
            gate: Arc::new(gate),
            plugin: Arc::new(plugin),
            next_request: AtomicU64::new(1),
            running: Arc::default(),
            metrics,
        }
    }

    /// The version of the spec that is served.
    #[cfg(feature = "grpc-reflection")]
    pub(crate) fn spec(&self) -> crate::Spec {
        self.offer.spec
    }

    /// How many calls have come.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) fn calls(&self) -> u64 {
        self.next_request.load(Ordering::Relaxed)
    }

    /// What the plugin offers.
    pub(crate) fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Completes when no operation is running.
    pub(crate) async fn idle(&self) {
        self.admission.idle().await;
    }

    /// Takes one call through the path. `handler` runs the driver's method, or is the error that it is not
    /// offered.
    pub(crate) async fn call<C, F>(
        &self,
        request: tonic::Request<C::Wire>,
        handler: Result<impl FnOnce(C) -> F + Send + 'static>,
    ) -> Result<tonic::Response<Reply<C>>, Status>
    where
        C: Call,
        F: Future<Output = Result<C::Answer>> + Send,
    {
        let _running = Arrival::of(&request);
        // A plugin that stood still finds calls and what their callers sent afterwards all at once. Here the server
        // drops those that were given up: begun now, they could come after the opposite call.
        tokio::task::yield_now().await;
        let deadline = Arrival::deadline_of(&request);
        let measured = self.metrics.begin(C::RPC, deadline);
        let wire = Arc::new(Received::new(request.into_inner(), Some(Arc::clone(&self.plugin))));
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let span =
            tracing::info_span!("csi", rpc = C::RPC.name(), request = id, subject = tracing::field::Empty);
        let prepared = span.in_scope(|| {
            tracing::debug!(request = ?**wire, "called");
            self.prepare::<C, _, _>(&wire, handler)
        });
        let outcome = match prepared {
            Err(error) => Err(span.in_scope(|| refused(&error, C::RPC))),
            Ok((request, handler)) => {
                span.record("subject", &*escape::terminal(request.subject()));
                let run: Pin<Box<dyn Future<Output = _> + Send + '_>> =
                    Box::pin(self.run(id, request, wire, handler));
                // The driver is asked for a volume's id here.
                let outcome = Caught(AssertUnwindSafe(run)).instrument(span.clone()).await;
                outcome.unwrap_or_else(|| Err(span.in_scope(|| unusable(&panicked(), C::RPC))))
            }
        };
        measured.end(&outcome);
        outcome.map(tonic::Response::new)
    }

    /// The checks that can refuse a request before anything is done for it.
    fn prepare<C: Call, H, F>(&self, wire: &Arc<Received<C::Wire>>, handler: Result<H>) -> Result<(C, H)>
    where
        H: FnOnce(C) -> F,
    {
        let handler = handler?;
        let request = C::read(wire)?;
        request.permitted(&self.offer)?;
        self.gate.check_text(&request.paths())?;
        Ok((request, handler))
    }

    /// Whether this request can run, or the outcome that it must wait for. `None` for a query.
    // spec: concurrency.simultaneous-calls, concurrency.pending-is-aborted, timeouts.retry-continues
    fn admit<C: Call>(
        &self,
        request: &C,
        wire: &Arc<Received<C::Wire>>,
        outcome: &Awaited<Reply<C>>,
    ) -> Result<Option<Admitted<Awaited<Reply<C>>>>, Status> {
        let claims = request.claims_in(&self.offer);
        if claims.is_empty() {
            return Ok(None);
        }
        let running_request = RunningRequest { wire: Arc::clone(wire), outcome: outcome.clone() };
        // A wire type belongs to one RPC, so only flights of the same RPC have this type.
        self.admission
            .admit(C::RPC, claims, Box::new(running_request), |running| {
                let running = running.downcast_ref::<RunningRequest<C::Wire, Reply<C>>>()?;
                same_request::<C::Wire>(&running.wire, wire).then(|| running.outcome.clone())
            })
            .map(Some)
            .map_err(|error| refused(&error, C::RPC))
    }

    // spec: timeouts.only-the-opposite-cancels, errors.failure-is-an-error
    async fn run<C, F>(
        &self,
        id: u64,
        request: C,
        wire: Arc<Received<C::Wire>>,
        handler: impl FnOnce(C) -> F + Send + 'static,
    ) -> Result<Reply<C>, Status>
    where
        C: Call,
        F: Future<Output = Result<C::Answer>> + Send,
    {
        let (sender, receiver) = watch::channel::<Outcome<Reply<C>>>(None);
        let permit = match self.admit(&request, &wire, &receiver)? {
            None => None,
            Some(Admitted::Run(permit)) => Some(permit),
            Some(Admitted::Join(outcome)) => {
                tracing::debug!("joins the same request, which is running");
                return wait(outcome).await;
            }
        };
        let entered = self.running.enter(id, C::RPC, request.subject());
        let kind = if permit.is_some() { Kind::Operation } else { Kind::Query };
        let offer = Arc::clone(&self.offer);
        let gate = Arc::clone(&self.gate);
        let plugin = Arc::clone(&self.plugin);
        let work = async move {
            // The panic is caught here and not by the task's handle, because joined callers must get the
            // error too.
            let answer = Caught(AssertUnwindSafe(Box::pin(async move {
                gate.check_identity(&plugin, request.paths()).await?;
                handler(request).await
            })))
            .await;
            let reply = match answer {
                None => Err(unusable(&panicked(), C::RPC)),
                Some(answer) => match answer.or_else(C::answer_to_error) {
                    Ok(answer) => C::reply(answer, &wire, &offer)
                        .and_then(refuse_too_long)
                        .map_err(|error| unusable(&error, C::RPC)),
                    Err(error) => Err(refused(&error, C::RPC)),
                },
            };
            // The claims are released before the answer is sent: a caller with an answer can continue at
            // once.
            drop((permit, entered));
            sender.send_replace(Some(reply));
        };
        // One boxed type for all RPCs: otherwise the code that tokio and tracing generate per future would
        // exist 36 times.
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        let work = with_places(kind, work);
        tokio::spawn(work.in_current_span());
        wait(receiver).await
    }
}

/// Refuses an answer that the caller would refuse: its error would not say whose answer is too long.
fn refuse_too_long<R: Message>(reply: R) -> Result<R> {
    match reply.encoded_len() {
        0..=MAX_ANSWER_BYTES => Ok(reply),
        bytes => Err(Error::Internal(
            format!("the answer has {bytes} bytes, and callers accept {MAX_ANSWER_BYTES}").into(),
        )),
    }
}

/// What a running operation keeps for callers that join it.
struct RunningRequest<W: ClearSecrets, R> {
    wire: Arc<Received<W>>,
    outcome: Awaited<R>,
}

/// Waits for an operation's outcome. Dropping this future, as a deadline does, leaves the operation
/// running.
async fn wait<R: Clone>(mut outcome: Awaited<R>) -> Result<R, Status> {
    match outcome.wait_for(Option::is_some).await {
        Ok(outcome) => {
            (*outcome).clone().unwrap_or_else(|| Err(Status::internal("the operation has no outcome")))
        }
        Err(_) => Err(Status::unavailable("the driver is stopping; the operation was cut short")),
    }
}

/// Returns the status for the caller, and logs the error with its causes.
fn refused(error: &Error, rpc: Rpc) -> Status {
    logged(error, error.status(rpc))
}

/// Like [`refused`], for a method that panicked or whose answer the caller can't get. What an RPC has created
/// then exists, and nobody knows its id. After INTERNAL its caller would forget it; after UNAVAILABLE the caller
/// repeats the call until it gets the answer, and can delete the object.
fn unusable(error: &Error, rpc: Rpc) -> Status {
    let status = error.status(rpc);
    match status.code() {
        tonic::Code::Internal if creates(rpc) => logged(error, Status::unavailable(status.message())),
        _ => logged(error, status),
    }
}

fn logged(error: &Error, status: Status) -> Status {
    let text = error.with_causes(status.message());
    let is_fault = matches!(error, Error::Internal(_)) || status.code() == tonic::Code::Internal;
    if is_fault {
        tracing::error!(code = ?status.code(), "{text}");
    } else {
        tracing::info!(code = ?status.code(), "{text}");
    }
    status
}

fn panicked() -> Error {
    Error::Internal("the driver panicked; its log has the place".into())
}

/// A future that ends with `None` after a panic.
struct Caught<F>(AssertUnwindSafe<F>);

impl<F: Future + Unpin> Future for Caught<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        let poll = AssertUnwindSafe(|| Pin::new(&mut self.0.0).poll(context).map(Some));
        std::panic::catch_unwind(poll).unwrap_or(std::task::Poll::Ready(None))
    }
}
