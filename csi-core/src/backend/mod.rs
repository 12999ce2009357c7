//! What a driver needs for a storage system that it reaches over the network: a cloud's API, an appliance.
//!
//! | a driver wants to | with |
//! |---|---|
//! | repeat what failed, keep to a rate limit, heed `Retry-After`, wait for an operation | [`Backend`] |
//! | give each failed request its condition, by the HTTP status | [`Failure`] |
//! | send one request for several calls | [`Batch`] |
//! | use credentials that rotate, and settings that change | [`WatchedFile`] |
//!
//! docs/backends.md says which condition to return when, and docs/error-mapping.md what the caller does.
//!
//! # After a restart
//! The caller repeats its call, and the driver must find what it began. The surest place to look is the backend: a disk
//! with the volume's name, or the same answer for the same idempotency key. For a backend that has neither, the driver
//! keeps a record from before the first request on: see [`CreateRecord::requested`].
//!
//! [`CreateRecord::requested`]: crate::controller::CreateRecord::requested

mod batch;
mod failure;
mod rate_limit;
mod requests;
mod watched_file;

pub use batch::Batch;
pub use failure::Failure;
pub use requests::Backend;
pub use watched_file::{SecretText, WatchedFile};
