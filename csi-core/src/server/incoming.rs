//! Connections as they come. A failure to accept one, for want of file descriptors say, does not end the server.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;

use super::authority::Repaired;

/// How long to leave a failed accept alone: the kernel would report it again at once.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Incoming {
    listener: UnixListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(super) fn new(listener: UnixListener) -> Self {
        Self { listener, pause: None }
    }
}

impl Stream for Incoming {
    type Item = std::io::Result<Repaired<UnixStream>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => return Poll::Ready(Some(Ok(Repaired::new(stream)))),
                Err(error) => {
                    tracing::warn!("can't accept a connection: {error}");
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}
