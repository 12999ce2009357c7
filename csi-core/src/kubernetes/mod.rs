//! What Kubernetes adds to the spec: the claim and the pod of a request ([`ClaimNames`], [`PodInfo`]),
//! service account tokens ([`ServiceAccountTokens`]), and sizes in its notation ([`Quantity`]).
//!
//! It imports the spec's values and errors. Nothing else in this crate imports it.

mod metadata;
mod quantity;

/// The key of a publish context that names the pod of a volume's FUSE program.
pub const FUSE_POD_KEY: &str = "fuse-pod";

pub use metadata::{ClaimNames, PodInfo, ServiceAccountToken, ServiceAccountTokens};
pub use quantity::Quantity;
