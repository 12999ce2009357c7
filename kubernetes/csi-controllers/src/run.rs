//! A driver's `main`, and the parts put together.

use std::process::ExitCode;
use std::sync::Arc;

use csi_core::internal::LocalCalls;
use csi_core::{DriverArgs, Mode, Plugin};
use csi_kube::{Client, Election, Leadership, Timing};
use csi_proto::ControllerCapability;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::args::ControllerArgs;
use crate::calls::Calls;
use crate::context::Context;
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::{attach, capacity, delete, health, keys, modify, provision, resize, snapshot};

/// The beginning of the holder in the other sidecars' leases. A host has no underscore in its name.
const FURTHER_LEASES: &str = "no-sidecars_";

/// Runs the whole `main` of a driver, as [`Plugin::run_with`] does. With the flag `--no-sidecars` and an instance that
/// serves the controller, it also does the sidecars' work.
///
/// ```no_run
/// use clap::Parser;
/// use csi_core::Plugin;
///
/// #[derive(Parser)]
/// struct Args {
///     #[command(flatten)]
///     driver: csi_core::DriverArgs,
///     #[command(flatten)]
///     controllers: csi_controllers::ControllerArgs,
/// }
///
/// # fn plugin() -> Plugin { Plugin::new("block.csi.example.org", "1") }
/// #[tokio::main]
/// async fn main() -> std::process::ExitCode {
///     let args = Args::parse();
///     csi_controllers::run(plugin(), &args.driver, &args.controllers).await
/// }
/// ```
///
/// All instances serve their socket. The one that holds the leases of the sidecars works: while a sidecar runs, it
/// waits. After SIGTERM it begins nothing more, lets running calls finish within the plugin's grace period, and gives
/// the leases up. An instance that loses a lease begins nothing more, and ends with status 1 before another one can
/// work.
///
/// The exit status is that of [`Plugin::run_with`], and 2 without a service account or a kubeconfig.
pub async fn run(plugin: Plugin, driver: &DriverArgs, args: &ControllerArgs) -> ExitCode {
    if !args.no_sidecars || driver.serves_nothing() || driver.mode == Mode::Node {
        return plugin.run_with(driver).await;
    }
    let client = match Client::try_default().await {
        Ok(client) => client,
        Err(error) => {
            eprintln!(
                "--no-sidecars needs Kubernetes' API, through a service account or a kubeconfig: {error}"
            );
            return ExitCode::from(2);
        }
    };
    let metrics = Metrics::new(plugin.name());
    let calls = Calls::new(csi_core::internal::local_calls(&plugin), metrics.clone());
    let plugin = plugin.metrics(move |out| metrics.write(out));
    let controllers = tokio::spawn(lead(client, calls, args.clone()));
    let code = plugin.run_with(driver).await;
    // Nothing runs any more. A task that has not ended got no signal: the plugin could not start.
    controllers.abort();
    for leadership in controllers.await.unwrap_or_default() {
        if let Err(error) = leadership.resign().await {
            tracing::info!("the leadership is not given up, so the next leader waits: {error}");
        }
    }
    code
}

/// Waits for the leases, and works until the process is told to stop. Returns what is to be given up.
async fn lead(client: Client, mut calls: Calls, args: ControllerArgs) -> Vec<Leadership> {
    let mut stop = std::pin::pin!(stop_signal());
    let leading = async {
        let driver = read_driver(&calls).await;
        let leaderships = lead_all(&client, &driver, &calls.metrics).await;
        (driver, leaderships)
    };
    let (driver, leaderships) = tokio::select! {
        leading = leading => leading,
        () = &mut stop => return Vec::new(),
    };
    calls.leaderships.clone_from(&leaderships);
    let context = Arc::new(Context::new(driver, calls, client, args));
    let all = leaderships.iter().cloned();
    let mut losses: JoinSet<()> = all.map(|one| async move { one.lost().await }).collect();
    let mut working = JoinSet::new();
    working.spawn(work(context));
    tokio::select! {
        // A panic. The process would lead and do nothing, so it ends as in a crash.
        _ = working.join_next() => std::process::exit(1),
        () = &mut stop => return leaderships,
        _ = losses.join_next() => {}
    }
    drop(working);
    // Nothing more is begun from here on. What runs in the driver has the time until another process can work.
    eprintln!("the leadership is lost: this process ends, so that another one can work");
    for leadership in &leaderships {
        sleep(leadership.time_to_finish()).await;
    }
    std::process::exit(1)
}

async fn read_driver(calls: &Calls) -> Driver {
    loop {
        match Driver::read(calls).await {
            Ok(driver) => return driver,
            Err(error) => tracing::warn!("the driver does not say what it can: {error}"),
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn stop_signal() {
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(mut terminate), Ok(mut interrupt)] = signals else {
        // The plugin reports it.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// The provisioner's lease is this crate's election. The other sidecars' are held too, so that none of them works
/// at the same time. They are renewed rarely: the next instance waits for the first lease only, and takes the others over
/// from its predecessor.
async fn lead_all(client: &Client, driver: &Driver, metrics: &Metrics) -> Vec<Leadership> {
    let [own, attacher, resizer, snapshotter] = keys::leases(&driver.name);
    let election = Election::new(client.clone(), &own);
    let mut leaderships = vec![hold(own, election, metrics.clone()).await];
    let others = [
        (attacher, driver.can(ControllerCapability::PublishUnpublishVolume)),
        (resizer, driver.expands || driver.modifies()),
        (snapshotter, driver.snapshots()),
    ];
    let rarely = Timing::new(Duration::from_secs(60), Duration::from_secs(45), Duration::from_secs(20));
    let mut waiting = JoinSet::new();
    for (name, _) in others.into_iter().filter(|(_, is_needed)| *is_needed) {
        let mut election = Election::new(client.clone(), &name).inherits_from(FURTHER_LEASES);
        if let Ok(timing) = rarely {
            election = election.timing(timing);
        }
        waiting.spawn(hold(name, election, metrics.clone()));
    }
    leaderships.extend(waiting.join_all().await);
    leaderships
}

/// Waits for a lease. The metrics say whether this process has it.
async fn hold(lease: String, election: Election, metrics: Metrics) -> Leadership {
    metrics.holds(&lease, false);
    let leadership = election.lead().await;
    metrics.holds(&lease, true);
    leadership
}

/// Does the sidecars' work, until the future is dropped.
pub(crate) async fn work(context: Arc<Context>) {
    let mut tasks = JoinSet::new();
    start(&context, &mut tasks);
    context.fill_caches(&mut tasks).await;
    tracing::info!(driver = context.driver.name, "works in place of the sidecars");
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Starts the parts that this driver needs. They work once the caches are complete.
fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    let driver = &context.driver;
    attach::start(context, tasks);
    if driver.can(ControllerCapability::CreateDeleteVolume) {
        let records = provision::start(context, tasks);
        delete::start(context, records, tasks);
        if driver.can(ControllerCapability::GetCapacity) {
            capacity::start(context, tasks);
        }
    }
    if driver.expands {
        resize::start(context, tasks);
    }
    if driver.modifies() {
        modify::start(context, tasks);
    }
    health::start(context, tasks);
    if driver.snapshots() {
        snapshot::start(context, tasks);
    }
}

/// For the tests of this crate: works for the driver behind these calls while it holds the leases.
pub async fn work_in_turn(client: Client, local: LocalCalls, args: ControllerArgs) {
    drop(lead(client, Calls::new(local, Metrics::new("tests")), args).await);
}

/// For the tests of this crate: works for the driver behind these calls until the future is dropped, without leases.
pub async fn work_alone(client: Client, local: LocalCalls, args: ControllerArgs) {
    let calls = Calls::new(local, Metrics::new("tests"));
    let driver = read_driver(&calls).await;
    work(Arc::new(Context::new(driver, calls, client, args))).await;
}
