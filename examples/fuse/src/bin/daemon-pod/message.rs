//! What `start` sends to `serve`: the words of a command, the standard streams, and the device.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::Result;

/// How an argument names an open file.
const OPEN_FILE: &str = "/dev/fd/";
/// A message comes whole within this time, or its sender does not hold up others.
const TIME_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Start {
    pub(super) command: Vec<String>,
    pub(super) streams: [OwnedFd; 3],
    /// The program inherits it: it stays open until the program runs.
    _device: Option<OwnedFd>,
}

impl Start {
    pub(super) fn send(mut connection: &UnixStream, command: &[String]) -> Result<()> {
        let device = command.iter().find_map(|word| word.strip_prefix(OPEN_FILE));
        let device = device.map(|number| number.parse().map_err(|_| "the number of an open file is wrong"));
        let device = device.transpose()?.map(inherited).transpose()?;
        let input = std::io::stdin();
        let output = std::io::stdout();
        let errors = std::io::stderr();
        let mut files = vec![input.as_fd(), output.as_fd(), errors.as_fd()];
        files.extend(device.as_ref().map(|device| device.as_fd()));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        if !attached.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err("no space for the open files".into());
        }
        // The files come with the first byte.
        sendmsg(connection, &[IoSlice::new(b"\0")], &mut attached, SendFlags::empty())?;
        connection.write_all(command.join("\0").as_bytes())?;
        Ok(connection.shutdown(Shutdown::Write)?)
    }

    pub(super) fn receive(mut connection: &UnixStream) -> Result<Self> {
        connection.set_read_timeout(Some(TIME_LIMIT))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut attached = RecvAncillaryBuffer::new(&mut space);
        let mut first = [0];
        recvmsg(connection, &mut [IoSliceMut::new(&mut first)], &mut attached, RecvFlags::CMSG_CLOEXEC)?;
        let mut files = attached.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let streams = [files.next(), files.next(), files.next()];
        let [Some(input), Some(output), Some(errors)] = streams else {
            return Err("the standard streams are missing".into());
        };
        let device = files.next();
        let mut words = String::new();
        connection.read_to_string(&mut words)?;
        let mut command: Vec<String> = words.split('\0').map(str::to_owned).collect();
        if let Some(device) = &device {
            fcntl_setfd(device, FdFlags::empty())?;
            for word in command.iter_mut().filter(|word| word.starts_with(OPEN_FILE)) {
                *word = format!("{OPEN_FILE}{}", device.as_raw_fd());
            }
        }
        Ok(Self { command, streams: [input, output, errors], _device: device })
    }
}

/// A copy of an open file that this process has inherited.
fn inherited(number: i32) -> Result<OwnedFd> {
    Ok(pidfd_getfd(pidfd_open(getpid(), PidfdFlags::empty())?, number, PidfdGetfdFlags::empty())?)
}
