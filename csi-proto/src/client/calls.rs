//! Who makes the calls of a volume's life, and what their failures mean.

use tonic::{Code, Status};

use super::Client;
use crate::RpcRequest;

/// Something that makes calls to a driver, and says what a failed call is.
///
/// [`Client`] makes each call once. A test can repeat calls, and a tool can report them.
pub trait MakeCalls: Send {
    /// Why a call failed.
    type Error: Send;

    /// Makes a call, and returns its answer.
    fn make_call<R: RpcRequest>(
        &mut self,
        request: R,
    ) -> impl Future<Output = Result<R::Answer, Self::Error>> + Send;
}

impl MakeCalls for &Client {
    type Error = Status;

    async fn make_call<R: RpcRequest>(&mut self, request: R) -> Result<R::Answer, Status> {
        self.call(request).await
    }
}

impl<C: MakeCalls> MakeCalls for &mut C {
    type Error = C::Error;

    fn make_call<R: RpcRequest>(
        &mut self,
        request: R,
    ) -> impl Future<Output = Result<R::Answer, C::Error>> + Send {
        (**self).make_call(request)
    }
}

/// Whether a refusal with this code is final: the operation has ended and created nothing. After any other
/// code the operation can still be running, or can have left something; repeat the call, or undo it.
///
/// This is stricter than the callers of Kubernetes, which also take UNKNOWN, INTERNAL and DATA_LOSS as final:
/// drivers return these codes for errors in the middle of an operation. RESOURCE_EXHAUSTED is final here, as in
/// external-provisioner's `checkError` for CreateVolume; external-attacher (`isFinalError`), external-resizer,
/// external-snapshotter (`isCSIFinalError`) and the kubelet take it as not final, because gRPC itself can
/// return it. `docs/error-mapping.md` has the table of callers.
pub fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unavailable
            | Code::Aborted
            | Code::Unknown
            | Code::Internal
            | Code::DataLoss
    )
}
