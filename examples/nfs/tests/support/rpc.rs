//! Just enough of ONC RPC over TCP (RFC 5531) for the small services that the kernel's NFS server expects beside it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Answers calls on this port of the loopback address, for the life of the process: `answer` is given the procedure and
/// what it was called with. Gives back the port.
pub(crate) fn serve(port: u16, answer: fn(u32, &[u8]) -> Vec<u8>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for connection in listener.incoming() {
            // A caller that goes away is no concern of the others.
            let _ = connection.and_then(|connection| converse(connection, answer));
        }
    });
    port
}

fn converse(mut connection: TcpStream, answer: fn(u32, &[u8]) -> Vec<u8>) -> io::Result<()> {
    loop {
        let mut mark = [0; 4];
        if connection.read_exact(&mut mark).is_err() {
            return Ok(());
        }
        let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        connection.read_exact(&mut call)?;
        // Number, kind, version of RPC, program, its version, procedure; and who calls, twice.
        let arguments = opaque(&call[24..]).1;
        let arguments = opaque(arguments).1;
        // An answer to this number, taken, without a verifier, with success.
        let mut reply = [&call[..4], &words(&[1, 0, 0, 0, 0])].concat();
        reply.extend(answer(word(&call[20..]), arguments));
        let mark = (reply.len() as u32 | 0x8000_0000).to_be_bytes();
        connection.write_all(&[&mark[..], &reply].concat())?;
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A credential: its flavour, its length and its bytes; gives back these and what follows.
fn opaque(bytes: &[u8]) -> (&[u8], &[u8]) {
    text(&bytes[4..])
}

/// A length and so many bytes, filled up to whole words; gives back these and what follows.
pub(crate) fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let length = word(bytes) as usize;
    (&bytes[4..4 + length], &bytes[4 + length.next_multiple_of(4)..])
}
