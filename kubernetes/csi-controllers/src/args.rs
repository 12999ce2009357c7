//! The flags that a driver adds to its own.

/// Flags of a driver that can do its sidecars' work, to flatten into the vendor's own flags next to csi-core's.
/// [`run`](crate::run) takes them.
// Without `about` and `long_about` the help of a driver would begin with the text above.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Kubernetes", about = None, long_about = None)]
#[non_exhaustive]
pub struct ControllerArgs {
    /// Do the work of the controller's sidecars in this process: create, attach, expand and snapshot volumes for
    /// Kubernetes' objects
    #[arg(long, env = "NO_SIDECARS")]
    pub no_sidecars: bool,

    /// The filesystem of volumes whose class names none [default: the driver's choice]
    #[arg(
        long,
        env = "DEFAULT_FSTYPE",
        value_name = "FSTYPE",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) default_fstype: String,

    /// Ask for a volume in the segment of the node that the scheduler chose, and in no other
    #[arg(long, env = "STRICT_TOPOLOGY")]
    pub(crate) strict_topology: bool,

    /// Ask for no segment when a class names none and no node was chosen
    #[arg(long, env = "NO_IMMEDIATE_TOPOLOGY")]
    pub(crate) no_immediate_topology: bool,

    /// Allow claims to be made from objects of other namespaces, where a ReferenceGrant allows it
    #[arg(long, env = "CROSS_NAMESPACE_DATA_SOURCES")]
    pub(crate) cross_namespace_data_sources: bool,

    /// The requests per second that each sidecar's work can send to the API server
    #[arg(long, env = "KUBE_API_QPS", value_name = "COUNT", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) kube_api_qps: u32,

    /// How many more of these requests can be sent at once
    #[arg(long, env = "KUBE_API_BURST", value_name = "COUNT", default_value_t = 30)]
    pub(crate) kube_api_burst: u32,

    /// The name of this pod, through which the capacity objects find their owner
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,
}

impl ControllerArgs {
    /// The pod, as the source of events.
    pub(crate) fn instance(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.pod_name.clone().unwrap_or_else(|| host().trim().to_owned())
    }
}
