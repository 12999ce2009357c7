//! The server around a driver: its sockets, connections and services.

mod client;
mod connections;
mod extension;
mod http;
mod local;
mod reflection;
mod refused_below;
mod registration;
mod socket;
