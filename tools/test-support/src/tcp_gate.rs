//! A connection to a server that can be stopped without a visible change: connections stay open, and nothing
//! passes through them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Whether the server is reachable. A stopped server behaves like a machine that hangs: what is sent in the
/// meantime is answered later.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    /// After how many more requests the server stops.
    stops_after: Option<u32>,
}

impl Gate {
    /// Stops the server.
    pub fn stop(&self) {
        self.0.0.lock().unwrap().is_stopped = true;
    }

    /// Stops the server after this number of further requests.
    pub fn stop_after(&self, requests: u32) {
        self.0.0.lock().unwrap().stops_after = Some(requests);
    }

    /// Lets everything pass again, including what waits.
    pub fn go_on(&self) {
        *self.0.0.lock().unwrap() = State::default();
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let (state, changed) = &*self.0;
        drop(changed.wait_while(state.lock().unwrap(), |state| state.is_stopped).unwrap());
    }

    fn count_request(&self) {
        let mut state = self.0.0.lock().unwrap();
        match &mut state.stops_after {
            None => {}
            Some(0) => state.is_stopped = true,
            Some(left) => *left -= 1,
        }
    }

    /// Opens a port of the loopback address that leads to another port, for the life of the process.
    pub fn lead_to(&self, server: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = self.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                gate.pass();
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                gate.carry(&client, &server, true);
                gate.carry(&server, &client, false);
            }
        });
        port
    }

    fn carry(&self, from: &TcpStream, to: &TcpStream, are_requests: bool) {
        let gate = self.clone();
        let mut from = from.try_clone().unwrap();
        let mut to = to.try_clone().unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                if are_requests {
                    gate.count_request();
                }
                gate.pass();
                if to.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
