#![doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

// How it works. A value that the server would refuse is replaced while it is read:
//
// - A non-empty value is replaced by one of the same length in which invalid characters are dashes. So an
//   entry of the dynamic table keeps its size, and a later reference to it finds the repaired value.
// - An empty value is left out. If the caller inserts it into the dynamic table, it is missing in the
//   server's table, and later references to older entries are renumbered. The server's table then contains
//   everything that the caller's does, and possibly entries that the caller's has evicted, to which
//   nothing refers.
//
// Bytes that can't be parsed are passed on unchanged: the server refuses them.
//
// | file | contains |
// |---|---|
// | `stream` | the connection's reader, which applies the repair |
// | `repair` | which bytes pass and which are replaced |
// | `frames` | frames, and the header block in one or more of them |
// | `hpack` | the fields of a header block, and the caller's dynamic table |
// | `reader` | the integers and strings of fields |
// | `huffman` | the Huffman code of strings |

mod frames;
mod hpack;
mod huffman;
#[cfg(test)]
mod property;
mod reader;
mod repair;
mod stream;

pub use stream::RepairedStream;

/// The bytes break the protocol, or exceed the server's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Malformed;
