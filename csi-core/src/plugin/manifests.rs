//! The driver's Kubernetes manifests, from what the plugin offers. No socket is needed.

use std::io;
use std::process::ExitCode;

use csi_deploy::{Driver, Options, Output, manifests};
use csi_proto::escape;

use super::Plugin;
use crate::server::{Failure, ServeError};

#[cfg(all(feature = "mount", target_os = "linux"))]
const NO_FUSE_PODS: &str = "fuse-pods: the driver would start its FUSE programs, if it has any, as its children: return \
                            DriverArgs::mounter() from FuseFilesystems::mounter()";

/// What a driver can do instead of serving.
#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum DriverCommand {
    /// Make the driver's Kubernetes manifests
    Manifests(ManifestArgs),
}

/// The flags of the command `manifests`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ManifestArgs {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    output: Output,
}

impl ManifestArgs {
    /// The driver's mounter in the pods of these manifests. Nobody connects to it.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) fn mounter(&self) -> Option<csi_mount::flow::fuse::Mounter> {
        use csi_mount::flow::fuse::Mounter;
        Some(match self.options.fuse_pods? {
            csi_deploy::FusePods::PerVolume => Mounter::in_pod_of_volume("manifests"),
            _ => Mounter::in_pods("manifests", "manifests"),
        })
    }
}

/// A change of the options by the driver.
pub(super) type Declare = Box<dyn FnOnce(&mut Options) + Send>;

impl Plugin {
    /// Declares what Kubernetes has to know about the driver and no capability says: the kinds of its volumes,
    /// whether it needs the pod's name or tokens, its classes. The command `manifests` applies it after its
    /// flags.
    ///
    /// ```
    /// use csi_core::{Plugin, deploy::Lifecycle};
    ///
    /// let plugin = Plugin::new("secrets.csi.example.org", "1").declare(|options| {
    ///     options.lifecycle = Lifecycle::Ephemeral;
    ///     options.pod_info = true;
    /// });
    /// ```
    #[must_use]
    pub fn declare(mut self, change: impl FnOnce(&mut Options) + Send + 'static) -> Self {
        self.declare = Some(Box::new(change));
        self
    }

    /// Returns the facts about the driver from which [`csi_deploy`] makes manifests.
    ///
    /// # Errors
    /// [`ServeError`] when the plugin contradicts itself.
    pub fn facts(mut self) -> Result<Driver, ServeError> {
        self.mode = crate::Mode::All;
        let offer = self.offer().map_err(Failure::Plugin)?;
        let mut driver = Driver::new(&self.name).with_plugin(&offer.plugin_wire());
        if !offer.controller.is_empty() {
            driver = driver.with_controller(offer.controller);
        }
        Ok(if self.node.is_some() { driver.with_node(offer.node) } else { driver })
    }

    /// Writes the manifests, or prints what is wrong. `args` are flags that the driver's pods get first.
    pub(crate) fn print_manifests(mut self, command: &ManifestArgs, args: Vec<String>) -> ExitCode {
        let name = self.name.clone();
        let mut options = command.options.clone();
        options.arg.splice(0..0, args);
        options.livenessprobe |= !cfg!(feature = "http") && !options.classic;
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if let Some(fitness) = self.node.as_ref().and_then(|node| node.fitness.as_ref()) {
            options.devices |= fitness.needs_block_devices();
            if options.fuse_pods.is_some() && fitness.lacks_fuse_pods() {
                return refused(&name, NO_FUSE_PODS);
            }
        }
        if let Some(declare) = self.declare.take() {
            declare(&mut options);
        }
        let made = self.facts().map_err(|error| error.to_string()).and_then(|driver| {
            let manifests = manifests(&driver, &options).map_err(|error| error.to_string())?;
            let written = command.output.write(&manifests, &mut io::stdout(), &mut io::stderr());
            written.map_err(|error| error.to_string())
        });
        match made {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refused(&name, &error),
        }
    }
}

fn refused(name: &str, error: &str) -> ExitCode {
    eprintln!("{}", escape::message(&format!("{name}: {error}")));
    ExitCode::from(2)
}
