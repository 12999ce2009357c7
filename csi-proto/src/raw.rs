//! Messages as raw bytes, for programs that forward them, or that send what no message type allows.

use prost::bytes::{Buf as _, BufMut as _};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A codec that does not encode or decode: a request or an answer is its encoded bytes.
///
/// ```no_run
/// use csi_proto::internal::RawCodec;
/// use tonic::Request;
///
/// # async fn ask(channel: tonic::transport::Channel) -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = tonic::client::Grpc::new(channel);
/// client.ready().await?;
/// let path = "/csi.v1.Identity/Probe".parse()?;
/// let answer: Vec<u8> = client.unary(Request::new(Vec::new()), path, RawCodec).await?.into_inner();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}
