//! A connection to a server that can be stopped without a visible change: connections stay open, and nothing
//! passes through them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Whether the server is reachable. A stopped server behaves like a machine that hangs: what is sent in the
/// meantime is answered later.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn stop(&self) {
        *self.0.0.lock().unwrap() = true;
    }

    pub(crate) fn go_on(&self) {
        *self.0.0.lock().unwrap() = false;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let (is_stopped, changed) = &*self.0;
        drop(changed.wait_while(is_stopped.lock().unwrap(), |is_stopped| *is_stopped).unwrap());
    }
}

/// Opens a port of the loopback address that leads to another port, for the life of the process.
pub(crate) fn lead_to(server: u16, gate: &Gate) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let gate = gate.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            gate.pass();
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (from, to, gate) = (from.try_clone().unwrap(), to.try_clone().unwrap(), gate.clone());
                thread::spawn(move || carry(from, to, &gate));
            }
        }
    });
    port
}

fn carry(mut from: TcpStream, mut to: TcpStream, gate: &Gate) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        gate.pass();
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
