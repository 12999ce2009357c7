//! The calls of the driver: what is asked, and what is answered in the place of the driver's own answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use csi_core::server::CallService;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::Value;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::{Code, Status};
use tower::ServiceExt as _;

static MESSAGES: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap());

/// What happens to a call of the driver.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The driver does nothing, and this is the answer.
    Refused(Code),
    /// The driver does its work, and this is the answer.
    Lost(Code),
    /// The driver does nothing, and never answers.
    Hangs,
    /// The driver does nothing, and this message is the answer.
    Instead(Value),
}

/// A message, `hangs`, the name of a code, or `lost` and the name of a code.
impl From<&Value> for Fault {
    fn from(value: &Value) -> Self {
        let Some(text) = value.as_str() else { return Self::Instead(value.clone()) };
        let code = |name: &str| (0..17).map(Code::from).find(|code| format!("{code:?}") == name).unwrap();
        match text.strip_prefix("lost ") {
            Some(name) => Self::Lost(code(name)),
            None if text == "hangs" => Self::Hangs,
            None => Self::Refused(code(text)),
        }
    }
}

/// The calls of the driver: those that came, and the faults of those to come.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    seen: Vec<(String, Value)>,
    /// Of the next call of an RPC.
    next: Vec<(String, Fault)>,
    /// Of all calls of an RPC.
    all: BTreeMap<String, Fault>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Whether the driver and all that calls it have ended.
    pub(crate) fn are_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// The next call of this RPC has this fault.
    pub(crate) fn fail(&self, rpc: &str, fault: Fault) {
        self.state().next.push((rpc.to_owned(), fault));
    }

    /// All calls of these RPCs have these faults, and no others.
    pub(crate) fn fail_all(&self, faults: BTreeMap<String, Fault>) {
        self.state().all = faults;
    }

    /// How often this RPC was called.
    pub(crate) fn count(&self, rpc: &str) -> usize {
        self.requests(rpc, 0).len()
    }

    /// The number of calls until now, for [`requests`](Self::requests).
    pub(crate) fn mark(&self) -> usize {
        self.state().seen.len()
    }

    /// The requests for this RPC after the first so many calls, as JSON.
    pub(crate) fn requests(&self, rpc: &str, mark: usize) -> Vec<Value> {
        let state = self.state();
        state.seen[mark..].iter().filter(|(one, _)| one == rpc).map(|(_, request)| request.clone()).collect()
    }

    fn arrives(&self, rpc: &str, frame: &[u8]) -> Option<Fault> {
        let request = message(rpc, "Request").zip(frame.get(5..));
        let request = request.map(|(message, bytes)| DynamicMessage::decode(message, bytes).unwrap());
        let mut state = self.state();
        state.seen.push((rpc.to_owned(), serde_json::to_value(request).unwrap()));
        let place = state.next.iter().position(|(one, _)| one == rpc);
        place.map(|place| state.next.remove(place).1).or_else(|| state.all.get(rpc).cloned())
    }

    pub(crate) async fn answer(
        self,
        driver: CallService,
        request: Request<Body>,
    ) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        let rpc = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let frame = body.collect().await.unwrap().to_bytes();
        let fault = self.arrives(&rpc, &frame);
        let request = Request::from_parts(head, Body::new(Full::new(frame)));
        let refusal = |code| Ok(Status::new(code, "injected").into_http());
        match fault {
            None => driver.oneshot(request).await,
            Some(Fault::Refused(code)) => refusal(code),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Instead(answer)) => Ok(answered(&rpc, answer)),
            Some(Fault::Lost(code)) => {
                driver.oneshot(request).await?;
                refusal(code)
            }
        }
    }
}

fn message(rpc: &str, side: &str) -> Option<MessageDescriptor> {
    MESSAGES.get_message_by_name(&format!("csi.v1.{rpc}{side}"))
}

/// The answer of gRPC with this message.
fn answered(rpc: &str, answer: Value) -> Response<Body> {
    let message = DynamicMessage::deserialize(message(rpc, "Response").unwrap(), answer).unwrap();
    let message = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    let status = Status::ok("").into_http::<Body>().into_parts().0.headers;
    let body = Full::new(Bytes::from(frame)).with_trailers(async { Some(Ok(status)) });
    let answer = Response::builder().header("content-type", "application/grpc");
    answer.body(Body::new(body)).unwrap()
}
