//! The address of a server: the kernel has no resolver of its own.

use std::net::{IpAddr, ToSocketAddrs};

use crate::{Error, ErrorKind, Result};

/// Whether the text can be a server's name or address. An IPv6 address has no brackets here.
pub(super) fn is_host(text: &str) -> bool {
    let is_other = |c: char| c.is_whitespace() || c.is_control() || "/\\,[]".contains(c);
    !text.is_empty() && !text.contains(is_other)
}

/// The first address that the system's resolver returns: the resolver sorts them by how well they can be
/// reached. The resolver has its own time limits (`resolv.conf(5)`).
pub(super) fn address(operation: &'static str, server: &str) -> Result<IpAddr> {
    let unknown = |why: &str| {
        Error::new(ErrorKind::Unresponsive, operation, format!("its name could not be resolved: {why}"))
            .at(server)
            .hint("check the name resolution of this host, or use an address")
    };
    let found = (server, 0).to_socket_addrs().map_err(|error| unknown(&error.to_string()))?;
    found.map(|address| address.ip()).next().ok_or_else(|| unknown("no address"))
}
