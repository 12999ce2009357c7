//! Repair of the `:authority` that callers send who dial a bare socket path.
//!
//! Clients in Go put the socket's path there, percent-encoded, or nothing at all; the kubelet's plugin watcher is
//! one of them. The HTTP/2 server below tonic takes that for a malformed request and resets the stream. A unix
//! socket has no authority worth the name, so what the server would refuse is replaced on its way in:
//!
//! - by a value of the same length whose odd characters are dashes, so that an entry of the dynamic table keeps its
//!   size, and a later reference to it finds the repaired value;
//! - an empty one is left out. Where the caller puts it into the dynamic table it is left out of the server's, and
//!   from then on references to what stands behind it are renumbered. The server's table then holds all that the
//!   caller's does, and maybe some that the caller's has evicted, which nobody refers to.
//!
//! What can't be read is passed on as it is: to refuse it is the server's business.
//!
//! | file | holds |
//! |---|---|
//! | `stream` | the connection's reader around it |
//! | `repair` | which bytes pass and which are replaced |
//! | `frames` | frames, and the header block that lies in one or more of them |
//! | `hpack` | the fields of a header block, and the caller's dynamic table |
//! | `reader` | the integers and strings that fields are made of |
//! | `huffman` | the code of strings |

mod frames;
mod hpack;
mod huffman;
#[cfg(test)]
mod property;
mod reader;
mod repair;
mod stream;

pub(super) use stream::Repaired;

/// Bytes that are not what the protocol allows, or not within the bounds that the server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Malformed;
