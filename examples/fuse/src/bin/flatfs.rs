//! `flatfs STORE MOUNTPOINT`: serves the files of one volume as a filesystem.
//!
//! With `/dev/fd/N` as MOUNTPOINT, an open device that it inherits, it serves what another process has mounted, and can
//! continue it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use csi_core::mount::flow::fuse::inherited_device;
use csi_core::mount::{Mount, MountOptions, Target};
use fuse::flatfs::{self, LARGEST, Store, Wish};
use rustix::io::Errno;

/// Serves the files of a volume as a filesystem, until it is unmounted
#[derive(Parser)]
struct Args {
    /// The directory with the files, or `flat://HOST:PORT/VOLUME` for a volume of flat-store
    store: PathBuf,
    /// The mount point, or `/dev/fd/N` for the device of a filesystem that is mounted already
    mountpoint: PathBuf,
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flatfs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let continues = std::env::var_os("CSI_MOUNT_FUSE_CONTINUES").is_some();
    let remote = args.store.to_str().and_then(|store| store.strip_prefix("flat://")?.split_once('/'));
    if let Some((server, volume)) = remote {
        let connection = connect(server, volume, continues)?;
        return forward(device(&args.mountpoint)?, connection);
    }
    let store = &args.store;
    if !store.is_dir() {
        return Err(format!("{} is not a directory: create it first", store.display()).into());
    }
    let store = if continues { Store::continued(store.clone())? } else { Store::new(store.clone()) };
    serve(device(&args.mountpoint)?, store);
    Ok(())
}

fn device(mountpoint: &Path) -> Result<File> {
    if mountpoint.starts_with("/dev/fd") {
        return Ok(inherited_device(mountpoint)?.into());
    }
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    // Workloads run as other users than this program, and the kernel compares those with the files' owners.
    let options = ["rootmode=40000", "user_id=0", "group_id=0", "allow_other", "default_permissions"];
    let options = MountOptions::parse(options)?.with_option("fd", &device.as_raw_fd().to_string())?;
    Mount::new("fuse", "flatfs").options(&options).at(&Target::new(mountpoint)?)?;
    Ok(device)
}

/// The kernel's next request, or `None` if the filesystem is unmounted.
fn next<'b>(mut device: &File, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    loop {
        match device.read(buffer) {
            Ok(length) => return Some(&buffer[..length]),
            // The caller gave up before its request was read.
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(_) => return None,
        }
    }
}

fn serve(mut device: File, mut store: Store) {
    let mut buffer = vec![0; LARGEST];
    while let Some(request) = next(&device, &mut buffer) {
        if let Some(reply) = flatfs::reply(request, &mut store) {
            // The caller can be gone already.
            let _ = device.write_all(&reply);
        }
    }
}

/// A server that is not there is waited for, and longer if the users of the filesystem wait already.
fn connect(server: &str, volume: &str, continues: bool) -> io::Result<TcpStream> {
    let (wish, limit) = if continues { (Wish::Continue, 60) } else { (Wish::Serve, 10) };
    let begun = Instant::now();
    loop {
        match flatfs::ask(server, wish, volume) {
            Err(error)
                if error.kind() != io::ErrorKind::NotFound
                    && begun.elapsed() < Duration::from_secs(limit) =>
            {
                thread::sleep(Duration::from_millis(500));
            }
            asked => return asked,
        }
    }
}

/// Lets a server reply. When the connection ends, so does this process: the kernel gives what has no reply to the next one.
fn forward(device: File, mut connection: TcpStream) -> Result<()> {
    let mut replies = connection.try_clone()?;
    let mut kernel = device.try_clone()?;
    thread::spawn(move || {
        let mut buffer = vec![0; LARGEST];
        while let Ok(Some(reply)) = flatfs::receive(&mut replies, &mut buffer) {
            // The caller can be gone already.
            let _ = kernel.write_all(reply);
        }
        eprintln!("flatfs: the connection to the store has ended");
        std::process::exit(1);
    });
    let mut buffer = vec![0; LARGEST];
    while let Some(request) = next(&device, &mut buffer) {
        connection.write_all(request)?;
    }
    Ok(())
}
