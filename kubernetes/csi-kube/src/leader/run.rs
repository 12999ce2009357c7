use std::process::ExitCode;

use csi_core::internal::{Ended, serve_until_ended};
use csi_core::server::ServeError;
use csi_core::{Endpoint, Plugin};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::{Election, Leadership};

impl Election {
    /// Runs the whole `main` of a driver's controller: waits until this process leads, then serves the plugin
    /// on the socket that `CSI_ENDPOINT` names.
    ///
    /// ```no_run
    /// use csi_core::Plugin;
    /// use csi_kube::{Client, Election};
    /// # fn plugin() -> Plugin { Plugin::new("block.csi.example.org", "1") }
    /// #[tokio::main]
    /// async fn main() -> std::process::ExitCode {
    ///     let client = Client::try_default().await.expect("a pod, or a kubeconfig");
    ///     Election::new(client, "block-csi-example-org").run(|_leadership| plugin()).await
    /// }
    /// ```
    ///
    /// A process that waits has no socket. Its sidecars wait for the socket before they do anything, so the
    /// sidecars that work are those next to the leader, and need no election of their own.
    ///
    /// When the leadership is lost, the plugin accepts no more calls. Calls that run can finish in half of the
    /// time that is left until another process can lead (2.5 s with the default [`Timing`](super::Timing));
    /// then this function ends the process with status 1. After SIGTERM or SIGINT they have the plugin's grace
    /// period, in which the Lease is renewed. If nothing runs any more, the leadership is given up, and
    /// another process leads at once.
    ///
    /// The exit status is 0 after a signal, 1 when the leadership was lost or serving failed, 2 when the
    /// plugin could not start.
    pub async fn run(self, plugin: impl FnOnce(&Leadership) -> Plugin) -> ExitCode {
        match Endpoint::from_env() {
            Ok(endpoint) => self.run_on(&endpoint, plugin).await,
            Err(error) => ExitCode::from(failure(&error.into())),
        }
    }

    /// Like [`run`](Self::run), on this endpoint. For a driver with csi-core's flags, whose pods get the socket as
    /// a flag and not in `CSI_ENDPOINT`.
    pub async fn run_on(self, endpoint: &Endpoint, plugin: impl FnOnce(&Leadership) -> Plugin) -> ExitCode {
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
            eprintln!("signals can't be received");
            return ExitCode::from(2);
        };
        let mut signalled = Box::pin(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        let leadership = tokio::select! {
            () = &mut signalled => return ExitCode::SUCCESS,
            leadership = self.lead() => leadership,
        };
        let plugin = leadership.guard(plugin(&leadership));
        let stopping = leadership.clone();
        let stop = async move {
            tokio::select! {
                () = signalled => {}
                () = stopping.lost() => {}
            }
        };
        let (ended, served) = tokio::select! {
            ended = serve_until_ended(plugin, endpoint, stop) => ended,
            () = out_of_time(&leadership) => {
                eprintln!("the leadership is lost, and calls still run");
                std::process::exit(1)
            }
        };
        let code = match served {
            Err(error) => failure(&error),
            Ok(()) => u8::from(!leadership.is_leader()),
        };
        match ended {
            Ended::Idle => {
                if let Err(error) = leadership.resign().await {
                    tracing::info!("the leadership is not given up, so the next leader waits: {error}");
                }
                ExitCode::from(code)
            }
            // The runtime would wait for work that might never end, and the next leader must not.
            Ended::Running => std::process::exit(code.into()),
        }
    }
}

/// Waits until the leadership is lost, and the time in which its work can finish is over.
async fn out_of_time(leadership: &Leadership) {
    leadership.lost().await;
    loop {
        let left = leadership.time_to_finish();
        if left.is_zero() {
            return;
        }
        sleep(left).await;
    }
}

/// Prints the error, and returns the matching exit status.
fn failure(error: &ServeError) -> u8 {
    eprintln!("{error}");
    if error.is_start_up() { 2 } else { 1 }
}
