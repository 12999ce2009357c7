//! An NFSv3 server in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use nfs3_server::tcp::{NFSTcp as _, NFSTcpListener};
use tokio::sync::oneshot;

use super::life::Class;
use super::memory::{Gate, Memory};

/// A server of one share, `/`, in memory. It listens on the loopback address only, and dropping it stops it.
#[derive(Debug)]
pub struct Server {
    port: u16,
    gate: Arc<Gate>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server on a thread of its own.
    ///
    /// # Errors
    /// Those of opening its port.
    pub fn start() -> std::io::Result<Self> {
        let gate = Arc::new(Gate::new());
        let memory = Memory::new(Arc::clone(&gate));
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let serve = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error))),
            };
            runtime.block_on(async {
                match NFSTcpListener::bind("127.0.0.1:0", memory).await {
                    Ok(listener) => {
                        let _ = ready.send(Ok(listener.get_listen_port()));
                        tokio::select! {
                            _ = listener.handle_forever() => {}
                            _ = stopped => {}
                        }
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            });
        };
        let thread = std::thread::Builder::new().name("nfs-server".to_owned()).spawn(serve)?;
        let port = started.recv().map_err(std::io::Error::other)??;
        Ok(Self { port, gate, stop: Some(stop), thread: Some(thread) })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// The settings for volumes on this server. It has no port mapper and no lock manager.
    pub fn class(&self) -> Class {
        let port = self.port;
        let options = ["nfsvers=3", "proto=tcp", "mountproto=tcp", "nolock"];
        let ports = [format!("port={port}"), format!("mountport={port}")];
        let parameters = [("server", "127.0.0.1"), ("share", "/")];
        Class {
            parameters: parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            mount_options: options.into_iter().map(str::to_owned).chain(ports).collect(),
        }
    }

    /// Stops answering, with the connections left open, as a hanging machine does.
    pub fn pause(&self) {
        self.gate.close();
    }

    /// Answers this number of further requests, and then stops answering.
    pub fn pause_after(&self, questions: u32) {
        self.gate.close_after(questions);
    }

    /// Answers again, including the requests that are waiting.
    pub fn resume(&self) {
        self.gate.close_after(0);
        self.gate.open();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the NFS server panicked");
        }
    }
}
