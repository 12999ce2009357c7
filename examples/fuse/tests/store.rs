//! The server of the volumes, without a kernel: what it refuses, and what it replies to another process.

use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use fuse::flatfs::{LARGEST, Wish, ask, receive, serve};

/// Starts the server for a directory, and returns its address.
fn start(directory: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let directory = directory.to_owned();
    std::thread::spawn(move || serve(&listener, &directory));
    address
}

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;

/// Sends a request of the kernel, and returns the error number and the body of the reply.
fn request(connection: &mut TcpStream, operation: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
    let length = 40 + body.len() as u32;
    let mut request = [length.to_ne_bytes(), operation.to_ne_bytes()].concat();
    request.extend(7_u64.to_ne_bytes());
    request.extend(node.to_ne_bytes());
    request.resize(40, 0);
    request.extend(body);
    connection.write_all(&request).unwrap();
    let mut buffer = vec![0; LARGEST];
    let reply = receive(connection, &mut buffer).unwrap().unwrap();
    (i32::from_ne_bytes(reply[4..8].try_into().unwrap()), reply[16..].to_vec())
}

#[test]
fn volumes_are_made_found_and_removed_any_number_of_times() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    let missing = |wish| ask(&server, wish, "v").unwrap_err().kind() == ErrorKind::NotFound;
    assert!(missing(Wish::Find) && missing(Wish::Serve) && missing(Wish::Continue));
    for _ in 0..2 {
        ask(&server, Wish::Make, "v").unwrap();
        ask(&server, Wish::Find, "v").unwrap();
        assert!(directory.path().join("v").is_dir());
    }
    for _ in 0..2 {
        ask(&server, Wish::Remove, "v").unwrap();
        assert!(missing(Wish::Find));
    }
}

#[test]
fn what_is_no_name_of_a_volume_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::create_dir(root.join("v")).unwrap();
    let server = start(&root);
    for name in ["", "..", ".", "/etc", "v/../../root", "v\nremove v"] {
        let error = ask(&server, Wish::Remove, name).unwrap_err();
        assert!(error.to_string().contains("is no name of a volume"), "{name:?}: {error}");
    }
    assert!(root.join("v").is_dir());
}

/// The kernel still uses the numbers that an earlier process gave.
#[test]
fn the_next_process_knows_the_files_by_their_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    ask(&server, Wish::Make, "v").unwrap();
    std::fs::write(directory.path().join("v/file"), "data").unwrap();
    let mut first = ask(&server, Wish::Serve, "v").unwrap();
    let (error, entry) = request(&mut first, LOOKUP, 1, b"file\0");
    assert_eq!(error, 0);
    let node = u64::from_ne_bytes(entry[..8].try_into().unwrap());
    drop(first);
    let mut unaware = ask(&server, Wish::Serve, "v").unwrap();
    assert_eq!(request(&mut unaware, GETATTR, node, &[]).0, -2, "it gave no numbers yet");
    let mut next = ask(&server, Wish::Continue, "v").unwrap();
    let (error, attributes) = request(&mut next, GETATTR, node, &[]);
    assert_eq!((error, &attributes[24..32]), (0, &4_u64.to_ne_bytes()[..]), "its size");
}
