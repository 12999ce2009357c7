//! The server around a driver: its sockets, connections and services.

#[path = "../common/mod.rs"]
mod common;
#[path = "../driver/mod.rs"]
mod driver;
#[path = "../raw/mod.rs"]
mod raw;

mod client;
mod connections;
mod extension;
mod http;
mod local;
mod reflection;
mod refused_below;
mod registration;
mod socket;
