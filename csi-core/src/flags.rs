//! The flags that every driver has, and their environment variables.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use csi_proto::Endpoint;

use crate::error::Result;
use crate::mode::Mode;
use crate::node::NodeInfo;
use crate::plugin::{Plugin, exit_code};
#[cfg(all(feature = "mount", target_os = "linux"))]
use crate::plugin::{copy_program, serve_as_mounter};
use crate::server::{Registration, SocketRemoval};
use crate::spec::Spec;
use crate::types::NodeId;

/// Flags of a driver, to flatten into the vendor's own flags; [`Plugin::run_with`] applies them.
///
/// Each flag can also be set by an environment variable. Only the endpoint's variable begins with `CSI_`,
/// because the spec reserves that prefix.
///
/// ```
/// use clap::Parser;
/// use csi_core::{DriverArgs, Mode};
///
/// #[derive(Parser)]
/// struct Args {
///     /// The pool that volumes are made in.
///     #[arg(long)]
///     pool: String,
///     #[command(flatten)]
///     driver: DriverArgs,
/// }
///
/// let args = Args::parse_from(["driver", "--pool=fast", "--endpoint=unix:///run/csi/csi.sock", "--mode=node"]);
/// assert_eq!(args.driver.mode, Mode::Node);
/// ```
///
/// - spec: `environment.prefix`
// Without `about` and `long_about` the help of a driver would begin with the text above.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Driver", about = None, long_about = None)]
#[non_exhaustive]
pub struct DriverArgs {
    /// The unix socket on which the plugin serves; required to serve
    #[arg(long, env = "CSI_ENDPOINT", value_name = "unix://PATH")]
    pub(crate) endpoint: Option<Endpoint>,

    /// Which services this instance serves: all, controller or node
    #[arg(long, env = "DRIVER_MODE", value_name = "MODE", default_value_t)]
    pub mode: Mode,

    /// The version of the spec that callers see: v1.12 or v1.13
    #[arg(long, env = "DRIVER_SPEC", value_name = "VERSION", default_value_t)]
    pub(crate) spec: Spec,

    /// The id of this node [default: the host's name]
    #[arg(long, env = "NODE_ID", value_name = "ID", value_parser = node_id)]
    pub(crate) node_id: Option<NodeId>,

    /// The address for /healthz, /readyz and /metrics: 0.0.0.0:9808, or :9808 for all addresses
    #[cfg(feature = "http")]
    #[arg(long, env = "METRICS_ADDRESS", value_name = "ADDRESS", value_parser = address)]
    pub(crate) metrics_address: Option<std::net::SocketAddr>,

    /// The kubelet's plugins_registry directory, where the plugin registers; for instances that serve the node
    #[arg(long, env = "REGISTRATION_DIR", value_name = "PATH")]
    pub(crate) registration_dir: Option<PathBuf>,

    /// The path of the socket on the host, for the kubelet [default: the endpoint's path]
    #[arg(long, env = "KUBELET_SOCKET_PATH", value_name = "PATH")]
    pub(crate) kubelet_socket_path: Option<PathBuf>,

    /// The directories of the orchestrator's target and staging paths, separated by colons. Mounts of a volume
    /// that the driver no longer knows are unmounted only below them [default: the kubelet's directory, as the
    /// two flags above show it, else /var/lib/kubelet]
    #[arg(long, env = "VOLUME_ROOTS", value_name = "PATH", value_delimiter = ':')]
    pub(crate) volume_roots: Vec<PathBuf>,

    /// What the plugin does if its socket is removed: recreate it, or stop, so that its container is restarted
    #[arg(long, env = "SOCKET_REMOVAL", value_name = "ACTION", default_value_t)]
    pub(crate) socket_removal: SocketRemoval,

    /// The maximum number of connections [default: a quarter of the limit of open files, at most 1024]
    #[arg(long, env = "MAX_CONNECTIONS", value_name = "NUMBER")]
    pub(crate) max_connections: Option<usize>,

    /// The format of the log: text or json
    #[cfg(feature = "log")]
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", default_value_t)]
    pub log_format: crate::LogFormat,

    /// The log level: error, warn, info, debug or trace, also by module: info,csi_core=debug
    #[cfg(feature = "log")]
    #[arg(long, env = "RUST_LOG", value_name = "LEVELS", default_value = "info", value_parser = log_levels)]
    pub log_level: String,

    /// The time that running operations have to end after SIGTERM: 30s, 2m
    #[arg(long, env = "GRACE_PERIOD", value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) grace: Duration,

    /// The DaemonSet in whose pods the FUSE programs run, or the namespace in which each volume has a pod; for drivers
    /// with such programs [default: they are children of the driver]
    #[cfg(all(feature = "mount", target_os = "linux"))]
    #[arg(long, env = "FUSE_PODS", value_name = "NAMESPACE[/NAME]", value_parser = fuse_pods)]
    pub(crate) fuse_pods: Option<csi_mount::flow::fuse::Mounter>,

    /// Start the FUSE programs of the driver in another pod instead of serving, with a socket in this directory
    #[cfg(all(feature = "mount", target_os = "linux"))]
    #[arg(long, env = "FUSE_MOUNTER", value_name = "PATH")]
    pub(crate) fuse_mounter: Option<PathBuf>,

    /// Copy this program to a file instead of serving: for a pod with the image of a FUSE program
    #[cfg(all(feature = "mount", target_os = "linux"))]
    #[arg(long, env = "COPY_PROGRAM_TO", value_name = "PATH")]
    pub(crate) copy_program_to: Option<PathBuf>,

    /// What to do instead of serving.
    #[cfg(feature = "manifests")]
    #[command(subcommand)]
    pub(crate) command: Option<crate::plugin::DriverCommand>,
}

impl DriverArgs {
    /// Returns the socket on which the plugin serves.
    ///
    /// # Errors
    /// [`ServeError`](crate::server::ServeError) when neither the flag nor the variable
    /// is set.
    pub fn endpoint(&self) -> Result<Endpoint, crate::server::ServeError> {
        Ok(self.endpoint.clone().map_or_else(Endpoint::from_env, Ok)?)
    }

    /// The node's id from the flags, for a driver that otherwise asks its cloud instead of
    /// [`node_info`](Self::node_info).
    pub fn node_id(&self) -> Option<&NodeId> {
        self.node_id.as_ref()
    }

    /// Returns this node's information: with the id from the flags, else with the host name.
    ///
    /// # Errors
    /// [`Error::Internal`](crate::Error::Internal) when neither is available.
    pub fn node_info(&self) -> Result<NodeInfo> {
        match &self.node_id {
            Some(id) => NodeInfo::new(id.as_str()),
            None => NodeInfo::from_host_name(),
        }
    }

    /// Where the driver's FUSE programs run, if the flags say that they have pods of their own: for
    /// [`FuseFilesystems::mounter`](crate::FuseFilesystems::mounter). With the command `manifests` its flag
    /// `--fuse-pods` counts instead, so that the driver offers what it will offer there.
    ///
    /// Call it once, when the driver is made: the value knows the programs that this process follows.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub fn mounter(&self) -> Option<csi_mount::flow::fuse::Mounter> {
        #[cfg(feature = "manifests")]
        if let Some(crate::plugin::DriverCommand::Manifests(command)) = &self.command {
            return command.mounter();
        }
        let mounter = self.fuse_pods.clone()?;
        let settings = Plugin::new("", "").with_args(self).settings;
        Some(match settings.volume_roots().first() {
            Some(kubelet) => mounter.kubelet_dir(kubelet),
            None => mounter,
        })
    }

    /// Whether the process does something else than to serve, such as to write the driver's manifests. Then there may
    /// be no cluster and no storage to connect to.
    pub fn serves_nothing(&self) -> bool {
        #[cfg(feature = "manifests")]
        if self.command.is_some() {
            return true;
        }
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if self.fuse_mounter.is_some() || self.copy_program_to.is_some() {
            return true;
        }
        false
    }

    /// The flags that the driver's pods need as well, because they change what it offers or how it logs.
    #[cfg(feature = "manifests")]
    fn for_pods(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if self.spec != Spec::default() {
            flags.push(format!("--spec={}", self.spec));
        }
        #[cfg(feature = "log")]
        if self.log_format != crate::LogFormat::default() {
            flags.push(format!("--log-format={}", self.log_format));
        }
        flags
    }
}

impl Plugin {
    /// Runs a driver's whole `main` by its flags: sets up the log, unless the process has one, then does the same as
    /// [`run`](Self::run), on the endpoint and with all other settings in `args`. With the feature `manifests`
    /// and the command `manifests`, it writes the driver's manifests instead. With `--fuse-mounter` it starts the driver's
    /// FUSE programs, in a pod of their own.
    ///
    /// A driver with flags calls it, and not [`serve`](Self::serve): in a workspace another package can switch these
    /// features on, and then `args` has what this function alone reads.
    pub async fn run_with(self, args: &DriverArgs) -> ExitCode {
        let name = self.name.clone();
        #[cfg(feature = "manifests")]
        if let Some(crate::plugin::DriverCommand::Manifests(command)) = &args.command {
            return self.with_args(args).print_manifests(command, args.for_pods());
        }
        #[cfg(feature = "log")]
        if !tracing::dispatcher::has_been_set()
            && let Err(error) = crate::init_log(args.log_format, &args.log_level)
        {
            return exit_code(&name, self.failed(error).await);
        }
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if let Some(file) = &args.copy_program_to {
            return exit_code(&name, copy_program(file));
        }
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if let Some(directory) = &args.fuse_mounter {
            return exit_code(&name, serve_as_mounter(directory, args.grace).await);
        }
        let served = match args.endpoint() {
            Ok(endpoint) => self.with_args(args).serve_signals(&endpoint).await,
            Err(error) => self.failed(error).await,
        };
        exit_code(&name, served)
    }

    /// Applies `args` to the plugin, except the endpoint, which is for [`serve`](Self::serve).
    #[must_use]
    pub fn with_args(self, args: &DriverArgs) -> Self {
        let mut plugin = self.mode(args.mode).grace(args.grace).spec(args.spec);
        plugin = plugin.socket_removal(args.socket_removal);
        if !args.volume_roots.is_empty() {
            plugin = plugin.volume_roots(&args.volume_roots);
        }
        if let Some(most) = args.max_connections {
            plugin = plugin.max_connections(most);
        }
        if let Some(directory) = &args.registration_dir {
            let mut registration = Registration::new(directory);
            if let Some(path) = &args.kubelet_socket_path {
                registration = registration.kubelet_socket_path(path);
            }
            plugin = plugin.register(registration);
        }
        #[cfg(feature = "http")]
        if let Some(address) = args.metrics_address {
            plugin = plugin.http(address);
        }
        plugin
    }
}

#[cfg(all(feature = "mount", target_os = "linux"))]
fn fuse_pods(text: &str) -> Result<csi_mount::flow::fuse::Mounter, String> {
    use csi_mount::flow::fuse::Mounter;
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
            Ok(Mounter::in_pods(namespace, name))
        }
        ["per-node" | "per-volume"] => Err(format!("{text} is for --fuse-pods after the command manifests")),
        [namespace] if !namespace.is_empty() => Ok(Mounter::in_pod_of_volume(namespace)),
        _ => Err("give NAMESPACE/NAME or NAMESPACE".to_owned()),
    }
}

fn node_id(text: &str) -> Result<NodeId> {
    NodeId::new(text)
}

#[cfg(feature = "log")]
fn log_levels(text: &str) -> Result<String, String> {
    crate::log::targets(text).map(|_| text.to_owned())
}

#[cfg(feature = "http")]
fn address(text: &str) -> Result<std::net::SocketAddr, String> {
    let all = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    all.as_deref().unwrap_or(text).parse().map_err(|_| "give 0.0.0.0:9808 or :9808".to_owned())
}

/// Parses a time such as `30s` or `1m30s`; a number without a unit is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    seconds.or_else(|| with_units(text)).ok_or_else(|| "give 30s, 2m, 1m30s".to_owned())
}

/// The sum of numbers with units.
fn with_units(text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    let mut rest = text;
    loop {
        let (number, after) = rest.split_at(rest.find(|letter: char| !letter.is_ascii_digit())?);
        let after = after.trim_start();
        let end = after.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(after.len());
        let one = match &after[..end] {
            "ms" | "msec" | "millis" => Duration::from_millis(1),
            "s" | "sec" | "secs" | "second" | "seconds" => Duration::from_secs(1),
            "m" | "min" | "mins" | "minute" | "minutes" => Duration::from_secs(60),
            "h" | "hr" | "hrs" | "hour" | "hours" => Duration::from_secs(3600),
            "d" | "day" | "days" => Duration::from_secs(24 * 3600),
            _ => return None,
        };
        sum = sum.checked_add(one.checked_mul(number.parse().ok()?)?)?;
        rest = after[end..].trim_start();
        if rest.is_empty() {
            return Some(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn parse(args: &[&str]) -> Result<DriverArgs, clap::Error> {
        let command = DriverArgs::augment_args(Command::new("driver"));
        let matches = command.try_get_matches_from(std::iter::once(&"driver").chain(args))?;
        DriverArgs::from_arg_matches(&matches)
    }

    // spec: environment.prefix
    #[test]
    fn variables_leave_the_spec_its_prefix() {
        let command = DriverArgs::augment_args(Command::new("driver"));
        command.clone().debug_assert();
        for arg in command.get_arguments() {
            let variable = arg.get_env().expect("every flag has a variable").to_str().unwrap();
            assert_eq!(variable.starts_with("CSI_"), variable == "CSI_ENDPOINT", "{variable}");
            assert!(arg.get_help().is_some(), "{variable}");
        }
    }

    #[test]
    fn a_driver_sees_whether_the_flags_name_its_node() {
        let id = |args: &[&str]| parse(args).unwrap().node_id().map(ToString::to_string);
        assert_eq!(id(&["--endpoint=/csi.sock", "--node-id=n-1"]).as_deref(), Some("n-1"));
    }

    #[cfg(feature = "manifests")]
    #[test]
    fn a_driver_sees_that_it_serves_nothing() {
        assert!(parse(&["manifests", "--image=a/b:1", "--single"]).unwrap().serves_nothing());
        assert!(!parse(&["--endpoint=/csi.sock"]).unwrap().serves_nothing());
    }

    #[cfg(all(feature = "mount", target_os = "linux"))]
    #[test]
    fn the_flags_say_where_fuse_programs_run() {
        assert!(parse(&["--fuse-mounter=/comm"]).unwrap().serves_nothing());
        assert_eq!(parse(&["--endpoint=/csi.sock"]).unwrap().mounter(), None);
        let args = parse(&["--fuse-pods=flat-fuse/flat", "--volume-roots=/data/kubelet"]).unwrap();
        let pods = csi_mount::flow::fuse::Mounter::in_pods("flat-fuse", "flat");
        assert_eq!(args.mounter(), Some(pods.kubelet_dir("/data/kubelet")));
        let args = parse(&["--fuse-pods=flat-fuse"]).unwrap();
        let pods = csi_mount::flow::fuse::Mounter::in_pod_of_volume("flat-fuse");
        assert_eq!(args.mounter(), Some(pods.kubelet_dir("/var/lib/kubelet")));
        for bad in ["", "/flat", "flat/", "a/b/c", "per-node"] {
            parse(&[&format!("--fuse-pods={bad}")]).unwrap_err();
        }
    }

    #[test]
    fn an_error_says_what_is_wrong_and_how_to_fix_it() {
        for (bad, mend) in [
            ("--endpoint=tcp://1.2.3.4:5", "unix:///run/csi/csi.sock"),
            ("--mode=both", "all, controller, node"),
            ("--spec=1.12", "v1.12, v1.13"),
            ("--grace=soon", "30s, 2m"),
            ("--socket-removal=ignore", "recreate, stop"),
            ("--node-id=", "node_id"),
        ] {
            let error = parse(&["--endpoint=/csi.sock", bad]).unwrap_err().to_string();
            let error = if bad.contains("endpoint") { parse(&[bad]).unwrap_err().to_string() } else { error };
            assert!(error.contains(mend), "{bad}: {error}");
        }
    }

    #[test]
    fn all_of_it_reaches_the_plugin() {
        let args = parse(&[
            "--endpoint=/csi.sock",
            "--grace=2m",
            "--spec=v1.13",
            "--socket-removal=stop",
            "--max-connections=7",
            "--node-id=n1",
            "--registration-dir=/registration",
            "--kubelet-socket-path=/var/lib/kubelet/plugins/x/csi.sock",
            "--volume-roots=/data/kubelet:/opt/volumes",
        ])
        .unwrap();
        assert_eq!(args.node_info().unwrap().node_id.as_str(), "n1");
        let plugin = Plugin::new("a.b", "1").with_args(&args);
        assert_eq!(plugin.declared.spec, Spec::V1_13);
        let settings = plugin.settings;
        assert_eq!(settings.grace, Duration::from_secs(120));
        assert_eq!(settings.volume_roots(), [Path::new("/data/kubelet"), Path::new("/opt/volumes")]);
        assert_eq!((settings.socket_removal, settings.max_connections), (SocketRemoval::Stop, Some(7)));
        let due =
            Registration::new("/registration").kubelet_socket_path("/var/lib/kubelet/plugins/x/csi.sock");
        assert_eq!(settings.registration, Some(due));
    }

    #[test]
    fn the_volume_roots_follow_the_kubelets_paths() {
        for (flags, root) in [
            (&[][..], "/var/lib/kubelet"),
            (&["--registration-dir=/registration"], "/var/lib/kubelet"),
            (&["--registration-dir=/plugins_registry"], "/var/lib/kubelet"),
            (&["--registration-dir=/data/kubelet/plugins_registry"], "/data/kubelet"),
            (
                &["--registration-dir=/registration", "--kubelet-socket-path=/data/k/plugins/x/csi.sock"],
                "/data/k",
            ),
            (&["--registration-dir=/data/kubelet/plugins_registry", "--volume-roots=/opt/v"], "/opt/v"),
        ] {
            let args = parse(&[&["--endpoint=/csi.sock"], flags].concat()).unwrap();
            let settings = Plugin::new("a.b", "1").with_args(&args).settings;
            assert_eq!(settings.volume_roots(), [Path::new(root)], "{flags:?}");
        }
    }

    #[test]
    fn a_time_has_units_or_is_seconds() {
        for (text, seconds) in [
            ("30", 30.0),
            ("90s", 90.0),
            ("2m", 120.0),
            ("1m30s", 90.0),
            ("1h 30min", 5400.0),
            ("2 days", 172_800.0),
            ("1500ms", 1.5),
        ] {
            assert_eq!(duration(text).map(|time| time.as_secs_f64()), Ok(seconds), "{text}");
        }
        for bad in ["", "s", "-1s", "1.5s", "1x", "1m30", "1m s", "99999999999s", "4294967295d4294967295dé"]
        {
            assert!(duration(bad).unwrap_err().contains("30s, 2m"), "{bad}");
        }
    }

    #[cfg(feature = "http")]
    #[test]
    fn a_bare_port_is_all_addresses() {
        assert_eq!(address(":9808").unwrap().to_string(), "[::]:9808");
        assert_eq!(address("127.0.0.1:1").unwrap().to_string(), "127.0.0.1:1");
        assert!(address("9808").is_err());
    }
}
