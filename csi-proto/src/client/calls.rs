//! Who makes the calls of a volume's life.

use tonic::Status;

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
