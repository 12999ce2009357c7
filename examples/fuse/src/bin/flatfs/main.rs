//! `flatfs STORE MOUNTPOINT`: serves the files of one directory as a filesystem, without a FUSE library.
//!
//! The filesystem has no subdirectories and is small enough to read. It speaks the kernel's protocol
//! (`fuse(4)`, `linux/fuse.h`, version 7.31) over `/dev/fuse`, one request at a time. The only state in
//! memory is the table of node numbers and names, so it can be killed and started again without losing
//! written data. The numbers are the same in each process: with `/dev/fd/N` as MOUNTPOINT, an open device that it
//! inherits, it can continue the mount of another process.

mod answer;
mod store;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use answer::{Answer, Errno, Request};
use clap::Parser;
use csi_core::mount::{Mount, MountOptions, Target};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use store::Store;

/// Serves the files of a directory as a filesystem, until it is unmounted
#[derive(Parser)]
struct Args {
    /// The directory with the files
    store: PathBuf,
    /// The mount point, or `/dev/fd/N` for the device of a filesystem that is mounted already
    mountpoint: PathBuf,
}

/// The largest data of one request, and a page for its header.
const LARGEST: usize = (128 << 10) + 4096;

fn main() -> ExitCode {
    let args = Args::parse();
    match device(&args) {
        Ok((device, store)) => {
            serve(device, store);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("flatfs: {error}");
            ExitCode::FAILURE
        }
    }
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn device(args: &Args) -> Result<(File, Store)> {
    let mut store = Store::new(args.store.clone());
    let inherited =
        args.mountpoint.strip_prefix("/dev/fd").ok().and_then(|number| number.to_str()?.parse().ok());
    let Some(number) = inherited else { return Ok((mount(args)?, store)) };
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let device = pidfd_getfd(own, number, PidfdGetfdFlags::empty())?;
    if std::env::var_os("CSI_MOUNT_FUSE_CONTINUES").is_some() {
        // The kernel knows the files by the numbers that the earlier process gave.
        store.number_all().map_err(|_| format!("{} can't be read", args.store.display()))?;
    }
    Ok((device.into(), store))
}

fn mount(args: &Args) -> Result<File> {
    if !args.store.is_dir() {
        return Err(format!("{} is not a directory: create it first", args.store.display()).into());
    }
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    // Workloads run as other users than this program, and the kernel compares those with the files' owners.
    let options = ["rootmode=40000", "user_id=0", "group_id=0", "allow_other", "default_permissions"];
    let options = MountOptions::parse(options)?.with_option("fd", &device.as_raw_fd().to_string())?;
    Mount::new("fuse", "flatfs").options(&options).at(&Target::new(&args.mountpoint)?)?;
    Ok(device)
}

/// Serves requests until the device reports that the filesystem is unmounted.
fn serve(mut device: File, mut store: Store) {
    let mut buffer = vec![0; LARGEST];
    loop {
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            // The caller gave up before its request was read.
            Err(error) if error.raw_os_error() == Some(Errno::INTERRUPTED) => continue,
            Err(_) => return,
        };
        let Some(request) = Request::new(&buffer[..length]) else { continue };
        if let Some(answer) = answer(&request, &mut store) {
            // The caller can be gone already.
            let _ = device.write_all(&request.reply(answer));
        }
    }
}

/// Returns the reply, or `None` if the kernel expects none.
fn answer(request: &Request<'_>, store: &mut Store) -> Option<std::result::Result<Answer, Errno>> {
    let node = request.node;
    Some(match request.operation {
        // FORGET, INTERRUPT, BATCH_FORGET: names keep their node numbers.
        2 | 36 | 42 => return None,
        // LOOKUP
        1 => store.look_up(request.name(0)).map(Answer::entry),
        // GETATTR
        3 => store.attributes(node).map(Answer::attributes),
        // SETATTR: only the size is changed.
        4 => {
            let what = request.word(0);
            let size = request.long(16);
            store.resize(node, (what & 8 != 0).then_some(size)).map(Answer::attributes)
        }
        // MKNOD; the kernel uses it in place of CREATE
        8 => store.create(request.name(16)).map(Answer::entry),
        // UNLINK
        10 => store.remove(request.name(0)).map(|()| Answer::empty()),
        // READ
        15 => store.read(node, request.long(8), request.word(16) as usize).map(Answer::bytes),
        // WRITE
        16 => {
            let written = store.write(node, request.long(8), request.rest(40));
            written.map(Answer::written)
        }
        // STATFS
        17 => store.usage().map(Answer::usage),
        // FSYNC
        20 => store.sync(node).map(|()| Answer::empty()),
        // INIT
        26 => Ok(Answer::init(request.word(4), LARGEST - 4096)),
        // OPENDIR, RELEASEDIR
        27 | 29 => Ok(Answer::opened()),
        // READDIR
        28 => store.list().map(|names| Answer::names(&names, request.long(8), request.word(16) as usize)),
        // This includes OPEN: after ENOSYS the kernel opens files without a request.
        _ => Err(Errno::NOT_THERE),
    })
}
