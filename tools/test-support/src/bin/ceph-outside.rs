//! A Ceph cluster next to an emulated machine: `ceph-outside QEMU ARGUMENTS…` starts both. In the guest, under the
//! name of one of Ceph's programs, it has that program run outside.

use std::path::Path;
use std::process::{Command, ExitCode};

use test_support::ceph::outside;

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let own = arguments.next().unwrap_or_default();
    let name = Path::new(&own).file_name().unwrap_or_default().to_string_lossy();
    let arguments: Vec<String> = arguments.collect();
    match arguments.split_first() {
        _ if outside::is_forwarded(&name) => outside::forward(&name, &arguments),
        Some((machine, arguments)) => outside::serve(Command::new(machine).args(arguments)),
        None => ExitCode::FAILURE,
    }
}
