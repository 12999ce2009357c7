//! The calls that wait for a target: each is made by a child process, with a limit.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;
use zeroize::Zeroizing;

use super::target::{NamespaceId, NvmeTarget, Transport};
use super::tls;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask::{ask, checked, number_of, write};
use crate::sys::device_call::{DeviceCall, options};

const FABRICS: &str = "/dev/nvme-fabrics";
const CONNECT: &str = "connect to an NVMe subsystem through";
const DISCONNECT: &str = "disconnect an NVMe controller through";
const SIZE: &str = "ask the target for the size of a namespace through";
const NAME: &str = "ask the target for the name of a namespace through";

/// The kernel's own limits are 3 seconds for the connection and 60 for each command.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// A try to connect again that is running must end first.
const DISCONNECT_LIMIT: Duration = Duration::from_secs(60);
const SIZE_LIMIT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Connects to one portal. A connection that exists is a success.
pub(super) fn connect(target: &NvmeTarget, portal: SocketAddr) -> Result<()> {
    let what = PathBuf::from(format!("{FABRICS} ({portal})"));
    // The kernel logs an option that it does not know, with its value: a key must not be among them.
    let listed = ask(CONNECT, &what, DeviceCall::NvmeOptions(open()?.as_fd()), CONNECT_LIMIT)?;
    let known = (number_of(&listed) == 0).then_some(listed.setting);
    if target.keys.host.is_some() && known.is_none_or(|known| known & options::DHCHAP == 0) {
        return Err(Error::new(ErrorKind::Unsupported, CONNECT, "this kernel has no DH-HMAC-CHAP")
            .at(what)
            .hint("use Linux 6.0 or later, with CONFIG_NVME_HOST_AUTH"));
    }
    if target.keys.tls.is_some() && known.is_none_or(|known| known & options::TLS == 0) {
        return Err(Error::new(ErrorKind::Unsupported, CONNECT, "this kernel has no TLS for NVMe")
            .at(what)
            .hint("use Linux 6.7 or later, with CONFIG_NVME_TCP_TLS"));
    }
    let tls_key = tls::provide(target)?;
    let is_listed = known.is_some_and(|known| known & options::FAST_IO_FAIL != 0);
    let with_fast_fail = target.fast_io_fail_tmo.is_some() && (known.is_none() || is_listed);
    let send = |with_fast_fail| {
        let text = option_string(target, portal, with_fast_fail, tls_key);
        let answer = ask(CONNECT, &what, DeviceCall::Write(open()?.as_fd(), text.as_bytes()), CONNECT_LIMIT)?;
        Ok::<i32, Error>(number_of(&answer))
    };
    let mut number = send(with_fast_fail)?;
    // Linux 5.10 does not know the option, and does not say so.
    if number == libc::EINVAL && with_fast_fail && known.is_none() {
        number = send(false)?;
    }
    match number {
        0 | libc::EALREADY => Ok(()),
        number => {
            let error = Error::os(CONNECT, what, std::io::Error::from_raw_os_error(number));
            Err(explain(error, target.transport))
        }
    }
}

/// Waits until no process of the node is connecting: the kernel connects one at a time, and a query waits for
/// that.
pub(super) fn settle() -> Result<()> {
    match open() {
        Ok(file) => {
            ask(CONNECT, Path::new(FABRICS), DeviceCall::NvmeOptions(file.as_fd()), CONNECT_LIMIT).map(drop)
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        Err(error) => Err(error),
    }
}

fn explain(error: Error, transport: Transport) -> Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) => error.hint(format!(
            "load the module nvme-{}; the kernel's log names the option that it refuses, such as a host id \
             that is in use with another host NQN",
            transport.name()
        )),
        Some(libc::EACCES | libc::EPERM | libc::EKEYREJECTED | libc::EKEYREVOKED | libc::ENOKEY) => error
            .with_kind(ErrorKind::PermissionDenied)
            .hint("check the keys, and that the target allows this host NQN; with TLS also that tlshd runs"),
        // The kernel asks nobody else for the handshake of TLS.
        Some(libc::ESRCH) => error
            .with_kind(ErrorKind::Unsupported)
            .hint("start tlshd (ktls-utils) on the node, for the handshake of TLS"),
        Some(libc::EIO) => error.hint(
            "check that the target has this subsystem and allows this host NQN, with these keys; the kernel's \
             log has the target's answer",
        ),
        _ => error,
    }
}

fn open() -> Result<File> {
    OpenOptions::new().read(true).write(true).open(FABRICS).map_err(|error| {
        let error = Error::os(CONNECT, FABRICS, error);
        match error.kind() {
            ErrorKind::NotFound => error
                .with_kind(ErrorKind::Unsupported)
                .hint("load the module nvme-tcp or nvme-rdma on the node; a container needs the host's /dev"),
            _ => error,
        }
    })
}

/// The options, with the keys. The memory is wiped afterwards.
fn option_string(
    target: &NvmeTarget,
    portal: SocketAddr,
    with_fast_fail: bool,
    tls_key: Option<i32>,
) -> Zeroizing<String> {
    // Long enough that it is not moved, which would leave a copy of the keys.
    let mut text = Zeroizing::new(String::with_capacity(2048));
    let mut add = |name: &str, value: &str| {
        if !text.is_empty() {
            text.push(',');
        }
        text.extend([name, "=", value]);
    };
    add("transport", target.transport.name());
    add("traddr", &portal.ip().to_string());
    add("trsvcid", &portal.port().to_string());
    add("nqn", &target.nqn);
    add("hostnqn", &target.host.nqn);
    add("hostid", &target.host.id);
    let times = [
        ("ctrl_loss_tmo", target.ctrl_loss_tmo),
        ("reconnect_delay", target.reconnect_delay),
        ("fast_io_fail_tmo", target.fast_io_fail_tmo.filter(|_| with_fast_fail)),
    ];
    for (name, time) in times.iter().filter_map(|(name, time)| Some((name, (*time)?))) {
        // The kernel refuses a delay of 0.
        let seconds = time.as_secs().clamp(u64::from(*name == "reconnect_delay"), i32::MAX as u64);
        add(name, &seconds.to_string());
    }
    for (name, key) in [("dhchap_secret", &target.keys.host), ("dhchap_ctrl_secret", &target.keys.controller)]
    {
        if let Some(key) = key {
            add(name, key);
        }
    }
    if let Some(serial) = tls_key {
        text.push_str(&format!(",tls,tls_key={serial}"));
    }
    text
}

/// Disconnects a controller, and waits until it is gone. One that does not exist is a success.
pub(super) fn disconnect(sys: &Path, controller: &str) -> Result<()> {
    let directory = sys.join("class/nvme").join(controller);
    let switch = directory.join("delete_controller");
    let deadline = Instant::now() + DISCONNECT_LIMIT;
    write(DISCONNECT, &switch, b"1", DISCONNECT_LIMIT)?;
    while directory.exists() {
        if Instant::now() > deadline {
            let reason = format!("the controller still exists after {DISCONNECT_LIMIT:?}");
            return Err(Error::new(ErrorKind::Unresponsive, DISCONNECT, reason).at(switch));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The size of a namespace in bytes, as the target reports it through this controller.
pub(super) fn size(controller: &str, namespace: u32) -> Result<u64> {
    let path = Path::new("/dev").join(controller);
    let file = File::open(&path).map_err(|error| Error::os(SIZE, &path, error))?;
    let answer = ask(SIZE, &path, DeviceCall::NvmeSize(file.as_fd(), namespace), SIZE_LIMIT)?;
    checked(SIZE, &path, &answer)?;
    Ok(answer.blocks.saturating_mul(answer.block_size))
}

/// Asks the target through this controller whether the namespace with this number still has this name. The kernel
/// does not notice that the number was given to another volume if the target does not announce it.
///
/// # Errors
///
/// [`WrongDevice`](ErrorKind::WrongDevice) if it has another name.
pub(super) fn confirm(controller: &str, namespace: u32, id: &NamespaceId) -> Result<()> {
    let path = Path::new("/dev").join(controller);
    let file = File::open(&path).map_err(|error| Error::os(NAME, &path, error))?;
    let call = DeviceCall::NvmeName(file.as_fd(), namespace, id.bytes());
    let answer = ask(NAME, &path, call, SIZE_LIMIT)?;
    checked(NAME, &path, &answer)?;
    if answer.setting == 1 {
        return Ok(());
    }
    let reason = format!("the number {namespace} was given to another namespace than {id}");
    Err(Error::new(ErrorKind::WrongDevice, NAME, reason).at(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::NvmeHost;

    #[test]
    fn the_options_are_those_of_the_kernel() {
        let host = NvmeHost::new("nqn.h", "3f2504e0-4f89-41d3-9a0c-0305e82c3301").unwrap();
        let namespace = NamespaceId::eui64("0123456789abcdef").unwrap();
        let target = NvmeTarget::tcp(host, "nqn.s", namespace).unwrap();
        let text = |target: &NvmeTarget, portal: &str, fast| {
            option_string(target, portal.parse().unwrap(), fast, None).to_string()
        };
        let common = "nqn=nqn.s,hostnqn=nqn.h,hostid=3f2504e0-4f89-41d3-9a0c-0305e82c3301";
        assert_eq!(
            text(&target, "10.0.0.1:4420", true),
            format!("transport=tcp,traddr=10.0.0.1,trsvcid=4420,{common}")
        );
        let target = target
            .ctrl_loss_tmo(Duration::from_secs(30))
            .reconnect_delay(Duration::from_millis(900))
            .fast_io_fail_tmo(Duration::from_secs(5))
            .dhchap("DHHC-1:00:a:", Some("DHHC-1:00:b:"))
            .unwrap();
        let rest = |fast| {
            format!(
                "transport=tcp,traddr=fd00::1,trsvcid=4421,{common},ctrl_loss_tmo=30,reconnect_delay=1,{fast}\
                 dhchap_secret=DHHC-1:00:a:,dhchap_ctrl_secret=DHHC-1:00:b:"
            )
        };
        assert_eq!(text(&target, "[fd00::1]:4421", true), rest("fast_io_fail_tmo=5,"));
        assert_eq!(text(&target, "[fd00::1]:4421", false), rest(""));
        let with_tls = option_string(&target, "[fd00::1]:4421".parse().unwrap(), false, Some(-7)).to_string();
        assert_eq!(with_tls, rest("") + ",tls,tls_key=-7");
    }
}
