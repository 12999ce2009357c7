//! `mount_setattr(2)`, `statmount(2)` and `listmount(2)`.

use std::ffi::{CStr, OsString, c_long};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::libc::{self, mount_attr};

use super::features::{MOUNT_SETATTR, STATMOUNT};
use crate::sys::attributes::{ATIME_MODE, MountAttributes};
use crate::sys::ids::{DeviceNumber, MountId};
use crate::sys::super_options::SuperOptions;

/// Whether a change applies to one mount or to its whole tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Single,
    Recursive,
}

/// Adds attributes to a mount, or to a whole tree of mounts. Linux 5.12.
pub(crate) fn mount_setattr(mount: impl AsFd, add: MountAttributes, depth: Depth) -> io::Result<()> {
    // The kernel sets an access time mode only if the field is cleared in the same call.
    let clear = if add.bits() & ATIME_MODE == 0 { 0 } else { ATIME_MODE };
    change(mount, add.bits(), clear, depth)
}

/// Takes a mount out of its propagation group. Linux 5.12.
pub(crate) fn make_private(mount: impl AsFd) -> io::Result<()> {
    let private = mount_attr { attr_set: 0, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    call(mount, &private, Depth::Single)
}

/// Sets the id map of a user namespace on a mount that was never attached. Linux 5.12.
pub(crate) fn set_id_map(mount: impl AsFd, namespace: impl AsFd, depth: Depth) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let namespace = u64::from(namespace.as_fd().as_raw_fd().cast_unsigned());
    call(mount, &mount_attr { attr_set: IDMAP, attr_clr: 0, propagation: 0, userns_fd: namespace }, depth)
}

/// Removes the read-only attribute from a mount. Linux 5.12.
pub(crate) fn make_writable(mount: impl AsFd) -> io::Result<()> {
    change(mount, 0, MountAttributes::RDONLY.bits(), Depth::Single)
}

fn change(mount: impl AsFd, set: u64, clear: u64, depth: Depth) -> io::Result<()> {
    call(mount, &mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 }, depth)
}

fn call(mount: impl AsFd, attr: &mount_attr, depth: Depth) -> io::Result<()> {
    let flags = match depth {
        Depth::Single => libc::AT_EMPTY_PATH,
        Depth::Recursive => libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
    };
    let fd = mount.as_fd().as_raw_fd();
    // SAFETY: the path is a C string and `attr` a live struct of the size that is passed; the kernel only
    // reads both. The descriptor is borrowed for the call.
    let result = unsafe {
        libc::syscall(
            MOUNT_SETATTR,
            fd,
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<mount_attr>(),
        )
    };
    Ok(Errno::result(result).map(drop)?)
}

/// `struct mnt_id_req`, first version.
#[repr(C)]
struct MountIdRequest {
    size: u32,
    spare: u32,
    id: u64,
    /// For statmount what is wanted, for listmount the last id of the list before.
    parameter: u64,
}

impl MountIdRequest {
    fn new(id: u64, parameter: u64) -> Self {
        Self { size: size_of::<Self>() as u32, spare: 0, id, parameter }
    }
}

/// `struct statmount` up to the strings that follow it.
#[repr(C)]
#[derive(Clone, Copy)]
struct StatMountHead {
    size: u32,
    options: u32,
    mask: u64,
    device_major: u32,
    device_minor: u32,
    magic: u64,
    super_flags: u32,
    fs_type: u32,
    id: u64,
    parent_id: u64,
    old_id: u32,
    old_parent_id: u32,
    attributes: u64,
    propagation: u64,
    peer_group: u64,
    master: u64,
    propagate_from: u64,
    root: u32,
    mount_point: u32,
    namespace: u64,
    fs_subtype: u32,
    source: u32,
    spare: [u64; 48],
}

impl StatMountHead {
    /// The id that mountinfo shows.
    fn id(&self) -> MountId {
        MountId(self.old_id.into())
    }

    fn parent(&self) -> MountId {
        MountId(self.old_parent_id.into())
    }

    fn device(&self) -> DeviceNumber {
        DeviceNumber { major: self.device_major, minor: self.device_minor }
    }

    fn attributes(&self) -> MountAttributes {
        MountAttributes::from_bits_truncate(self.attributes)
    }
}

const LISTMOUNT: c_long = 458;

const HEAD: usize = 512;
const _: () = assert!(size_of::<StatMountHead>() == HEAD, "the strings start at byte 512");

/// Room for the requested strings: a path each, a name, and one or two pages of options.
const BUFFER: usize = HEAD + 5 * 4096;

const SB_BASIC: u64 = 0x1;
const MNT_BASIC: u64 = 0x2;
const MNT_ROOT: u64 = 0x8;
const MNT_POINT: u64 = 0x10;
const FS_TYPE: u64 = 0x20;
const MNT_OPTS: u64 = 0x80;
const FS_SUBTYPE: u64 = 0x100;
const SB_SOURCE: u64 = 0x200;

/// The superblock's read-only flag, with the same value as `MS_RDONLY`.
const SUPER_READ_ONLY: u32 = 1;

/// Which mount it is, where, and its attributes: what `statmount(2)` reports at no extra cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatMountBasic {
    pub(crate) id: MountId,
    pub(crate) parent: MountId,
    pub(crate) unique_parent: u64,
    pub(crate) attributes: MountAttributes,
    pub(crate) device: DeviceNumber,
    /// The number of the filesystem's type, as in `statfs(2)`.
    pub(crate) magic: u64,
}

/// Reads the basics of the mount with this unique id. Linux 6.8.
pub(crate) fn statmount_basic(unique_id: u64) -> io::Result<StatMountBasic> {
    let mut buffer = [0_u64; HEAD / size_of::<u64>()];
    let head = call_statmount(unique_id, SB_BASIC | MNT_BASIC, &mut buffer)?;
    Ok(StatMountBasic {
        id: head.id(),
        parent: head.parent(),
        unique_parent: head.parent_id,
        attributes: head.attributes(),
        device: head.device(),
        magic: head.magic,
    })
}

fn call_statmount(unique_id: u64, wanted: u64, buffer: &mut [u64]) -> io::Result<StatMountHead> {
    assert!(size_of_val(buffer) >= HEAD, "room for the struct");
    let request = MountIdRequest::new(unique_id, wanted);
    // SAFETY: the request is live and contains its own size; the buffer is live, writable and as long as the
    // passed size.
    let result = unsafe {
        libc::syscall(STATMOUNT, &raw const request, buffer.as_mut_ptr(), size_of_val(buffer), 0_u32)
    };
    Errno::result(result)?;
    // SAFETY: the buffer is at least as long as the struct, and aligned like it; any bytes are a valid value
    // of it.
    Ok(unsafe { buffer.as_ptr().cast::<StatMountHead>().read() })
}

/// What `statmount(2)` reports about a mount.
#[derive(Debug)]
pub(crate) struct StatMount {
    pub(crate) id: MountId,
    pub(crate) device: DeviceNumber,
    pub(crate) parent: MountId,
    pub(crate) attributes: MountAttributes,
    pub(crate) is_super_read_only: bool,
    pub(crate) fs_type: Vec<u8>,
    pub(crate) fs_subtype: Option<Vec<u8>>,
    pub(crate) source: OsString,
    /// The filesystem's options, which can contain secrets.
    pub(crate) options: SuperOptions,
}

/// Reads all about the mount with this unique id. None if the kernel cannot report all of it (before Linux
/// 6.13).
pub(crate) fn statmount(unique_id: u64) -> io::Result<Option<StatMount>> {
    // The kernel reports no options if there are none, as on a plain tmpfs. A kernel that reports the source
    // also reports options.
    let needed = SB_BASIC | MNT_BASIC | FS_TYPE | SB_SOURCE;
    let found = Answer::of(unique_id, needed | FS_SUBTYPE | MNT_OPTS)?;
    let head = found.head;
    if head.mask & needed != needed {
        return Ok(None);
    }
    Ok(Some(StatMount {
        id: head.id(),
        device: head.device(),
        parent: head.parent(),
        attributes: head.attributes(),
        is_super_read_only: head.super_flags & SUPER_READ_ONLY != 0,
        fs_type: found.text(FS_TYPE, head.fs_type).unwrap_or_default(),
        fs_subtype: found.text(FS_SUBTYPE, head.fs_subtype),
        source: OsString::from_vec(found.text(SB_SOURCE, head.source).unwrap_or_default()),
        options: SuperOptions::new(found.text(MNT_OPTS, head.options).unwrap_or_default()),
    }))
}

/// The part of a filesystem that a mount shows, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MountedPart {
    pub(crate) id: MountId,
    pub(crate) device: DeviceNumber,
    pub(crate) fs_type: String,
    pub(crate) source: OsString,
    /// The directory or file of the filesystem at the mount point.
    pub(crate) root: PathBuf,
    /// Relative to this process's root.
    pub(crate) mount_point: PathBuf,
}

/// Reads what the mount with this unique id shows, and where. None if the kernel cannot report all of it
/// (before Linux 6.13).
pub(crate) fn statmount_place(unique_id: u64) -> io::Result<Option<MountedPart>> {
    let needed = SB_BASIC | MNT_BASIC | FS_TYPE | SB_SOURCE | MNT_ROOT | MNT_POINT;
    let found = Answer::of(unique_id, needed)?;
    let head = found.head;
    if head.mask & needed != needed {
        return Ok(None);
    }
    let text = |what, offset| OsString::from_vec(found.text(what, offset).unwrap_or_default());
    Ok(Some(MountedPart {
        id: head.id(),
        device: head.device(),
        fs_type: text(FS_TYPE, head.fs_type).to_string_lossy().into_owned(),
        source: text(SB_SOURCE, head.source),
        root: text(MNT_ROOT, head.root).into(),
        mount_point: text(MNT_POINT, head.mount_point).into(),
    }))
}

/// What `statmount(2)` wrote.
struct Answer {
    head: StatMountHead,
    /// Of u64, so that it is aligned for the struct at its start.
    buffer: Vec<u64>,
}

impl Answer {
    fn of(unique_id: u64, wanted: u64) -> io::Result<Self> {
        let mut buffer = vec![0_u64; BUFFER / size_of::<u64>()];
        Ok(Self { head: call_statmount(unique_id, wanted, &mut buffer)?, buffer })
    }

    /// A text, if the kernel reports it.
    fn text(&self, what: u64, offset: u32) -> Option<Vec<u8>> {
        // SAFETY: the same live allocation, viewed as bytes, which have no alignment and no invalid values.
        let bytes = unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast::<u8>(), BUFFER) };
        let text = bytes.get(HEAD + offset as usize..).and_then(|text| CStr::from_bytes_until_nul(text).ok());
        (self.head.mask & what != 0).then(|| text.map(|text| text.to_bytes().to_vec()).unwrap_or_default())
    }
}

/// In place of a mount's id: the root of this thread's mount namespace.
pub(crate) const NAMESPACE_ROOT: u64 = u64::MAX;

/// Writes the unique ids of mounts below a mount into `ids`, those that are larger than `after`, and returns
/// how many there are. Only mounts that are reachable from this process's root are listed. Linux 6.8.
pub(crate) fn listmount(below: u64, after: u64, ids: &mut [u64]) -> io::Result<usize> {
    let request = MountIdRequest::new(below, after);
    // SAFETY: the request is live and contains its own size; the slice is live, writable and as long as the
    // passed size.
    let result = unsafe { libc::syscall(LISTMOUNT, &raw const request, ids.as_mut_ptr(), ids.len(), 0_u32) };
    Ok(usize::try_from(Errno::result(result)?).unwrap_or(0))
}
