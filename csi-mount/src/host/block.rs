//! Block devices, and volumes that are block devices.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{OwnedPath, steps};
use crate::device::block_device::{BlockDevice, DeviceAccess, DeviceUse};
use crate::device::expected::ExpectedDevice;
use crate::device::loop_device::node::LoopPath;
use crate::device::loop_device::{LoopDevice, LoopOptions};
use crate::device::sysfs::Rescan;
use crate::error::Result;
use crate::filesystem::grow::Grown;
use crate::flow::block::{self, MountCopies, StagePlan, Staged, VolumeUsage};
use crate::mounting::attach::Outcome;
use crate::mounting::id_map::IdMap;
use crate::mounting::unmount::Unmounted;
use crate::place::target::Removed;
#[cfg(feature = "remote")]
use crate::reservation::{Reservation, ReservationKey, WriteRight};
use crate::sys::attributes::MountAttributes;
use crate::sys::ids::DeviceNumber;

steps! {
    /// What a node plugin does with block devices before they are a volume.
    Devices as devices;

    /// Waits for the disk with these properties, wherever its node is, and returns the path of the node. It waits as
    /// [`wait_at`](Self::wait_at) does.
    ///
    /// # Errors
    ///
    /// As for [`wait_at`](Self::wait_at), and [`InvalidInput`](crate::ErrorKind::InvalidInput) if nothing
    /// identifies the disk.
    ///
    /// ```
    /// use csi_mount::testing::SimulatedNode;
    /// use csi_mount::{ExpectedDevice, Host, Result};
    ///
    /// /// The device of a volume that the cloud has attached to this node.
    /// fn device(host: &Host, serial: &str) -> Result<std::path::PathBuf> {
    ///     host.devices().wait(&ExpectedDevice::new().serial(serial))
    /// }
    ///
    /// // In a test, as the cloud does:
    /// let node = SimulatedNode::new();
    /// let attached = node.attach_disk("disk-1", 1 << 30);
    /// assert_eq!(device(&node.host(), "disk-1")?, attached);
    /// # Ok::<(), csi_mount::Error>(())
    /// ```
    pub fn wait(expected: &ExpectedDevice) -> Result<PathBuf> {
        Ok(expected.wait()?.path().to_owned())
    }

    /// Waits until the disk at this path exists, has a size and is the expected one, and returns the path of its node.
    ///
    /// If the path leads to another disk or nowhere, the disk with the wanted properties is searched in
    /// sysfs, and that one is used: a stale link does no harm. The checks repeat at growing intervals of up
    /// to half a second. udev is not needed.
    ///
    /// # Errors
    ///
    /// After [`wait_limit`](ExpectedDevice::wait_limit), the last problem: [`NotFound`](crate::ErrorKind::NotFound);
    /// [`WrongDevice`](crate::ErrorKind::WrongDevice) if the path leads to another disk;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) if the disk is too small.
    ///
    /// At once, what waiting can't fix: [`WrongDevice`](crate::ErrorKind::WrongDevice) if the path is a device's
    /// node, not a link, and the device has another serial number, name or place;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the kernel has no driver for the node's number; and other
    /// errors of [`BlockDevice::open`].
    pub fn wait_at(expected: &ExpectedDevice, path: &Path) -> Result<PathBuf> {
        Ok(expected.wait_at(path)?.path().to_owned())
    }

    /// Finds the disk in sysfs; none if it does not exist yet.
    ///
    /// For a disk with several paths this is the multipath device. While that does not exist, several paths
    /// are an error, and a single path is the disk.
    ///
    /// # Errors
    ///
    /// Those of [`BlockDevice::open`], and [`OutOfRange`](crate::ErrorKind::OutOfRange) if it is too small.
    pub fn find(expected: &ExpectedDevice) -> Result<Option<PathBuf>> {
        Ok(expected.find()?.map(|device| device.path().to_owned()))
    }

    /// The size of a block device in bytes; see [`BlockDevice::size`].
    pub fn size(device: &Path) -> Result<u64> {
        BlockDevice::open(device)?.size()
    }

    /// Makes a SCSI or NVMe disk, or every path of a multipath device, report its size again, for example
    /// after an expansion.
    ///
    /// The multipath daemon must be informed separately (`multipathd resize map`). The call can wait for a
    /// disk that does not answer.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if the device went away,
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied) or [`ReadOnly`](crate::ErrorKind::ReadOnly) if sysfs
    /// can't be written, as in a container that is not privileged,
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if a path of SCSI is in standby or unavailable (ALUA). The
    /// kernel would give such a path the size 0.
    pub fn rescan(device: &Path) -> Result<Rescan> {
        BlockDevice::open(device)?.rescan()
    }

    /// The number of the block device at a path; see [`BlockDevice::open`].
    pub fn number(device: &Path) -> Result<DeviceNumber> {
        Ok(BlockDevice::open(device)?.number())
    }

    /// Returns whether a mount in any namespace, or another user in the kernel, holds the device.
    ///
    /// It tests this with an exclusive open (`O_EXCL`). The process's own mount table is not enough: a
    /// mount in another mount namespace holds the device too. Opens without `O_EXCL` don't count.
    ///
    /// # Errors
    ///
    /// [`WrongDevice`](crate::ErrorKind::WrongDevice) if the path leads to another device meanwhile,
    /// [`NotFound`](crate::ErrorKind::NotFound) if it leads nowhere.
    pub fn in_use(device: &Path) -> Result<DeviceUse> {
        BlockDevice::open(device)?.in_use()
    }

    /// Returns the users of the device that are visible from here, each as text for a message: `it is mounted at
    /// /mnt`, `the device dm-0 is built on it`. None if nothing uses it.
    ///
    /// The device's partitions count as the device; for a partition, so does its part of the disk. The
    /// sources are: an exclusive open (`O_EXCL`), `holders` in sysfs, `/proc/swaps`, all attached loop
    /// devices, and mount tables: that of the caller's mount namespace and those of all namespaces of
    /// processes in `/proc`. The mount tables show filesystems on the device and bound nodes of it. Opens
    /// without `O_EXCL` do not count.
    ///
    /// A raw publication in a mount namespace that `/proc` does not show is not found, because a bound node
    /// does not hold the device. (A driver without `hostPID` sees only its own namespace.) A filesystem
    /// mounted there does hold the device, and its user is said to be unknown.
    ///
    /// ```no_run
    /// let device = std::path::Path::new("/dev/vdb");
    /// for user in csi_mount::Host::kernel().devices().users(device)? {
    ///     println!("{}: {user}", device.display());
    /// }
    /// # Ok::<(), csi_mount::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`in_use`](Self::in_use), and [`Unresponsive`](crate::ErrorKind::Unresponsive) if a loop device that
    /// could be over this device does not answer.
    pub fn users(device: &Path) -> Result<Vec<String>> {
        Ok(BlockDevice::open(device)?.users()?.iter().map(ToString::to_string).collect())
    }

    /// The number that no other disk gets until the next boot (`BLKGETDISKSEQ`), unlike the device's number. None
    /// before Linux 5.15.
    pub fn disk_sequence(device: &Path) -> Result<Option<u64>> {
        Ok(BlockDevice::open(device)?.disk_sequence())
    }

    /// Returns the loop device that is attached to this file with the same access, or attaches a new one.
    ///
    /// A device that was detached while a program had it open is waited for until it is gone, for up to 10
    /// seconds. Several processes can call this at the same time and get the same device: the file's lock
    /// (`flock`) is held during the call. Options other than access apply only to a new device.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](crate::ErrorKind::NotFound): the file does not exist.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): it is neither a file nor a block device, or is a file
    ///   of less than 512 bytes, or the sector size is invalid.
    /// - [`ReadOnly`](crate::ErrorKind::ReadOnly): write access is requested, and it can't be written to.
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): no `CAP_SYS_ADMIN`.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the kernel has no loop devices.
    /// - [`Busy`](crate::ErrorKind::Busy): another program holds the file's lock, or does not close the detached
    ///   device.
    pub fn loop_attach(backing: &Path, options: &LoopOptions) -> Result<LoopPath> {
        let device = LoopDevice::attach_or_find(backing, options)?;
        Ok(LoopPath::new(device.path(), device.number()))
    }

    /// Returns every loop device that is attached to this file or block device, found by the file itself
    /// and not by its name.
    ///
    /// A file that was renamed is found under its new name. A file that was deleted is found under its old
    /// name.
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io) if the kernel's list can't be read. Devices that go away in the meantime are
    /// left out. So is a loop device over a file on a filesystem that does not answer, unless that file
    /// could be this one: then [`Unresponsive`](crate::ErrorKind::Unresponsive).
    pub fn loop_devices(backing: &Path) -> Result<Vec<LoopPath>> {
        let found = LoopDevice::find(backing)?;
        Ok(found.iter().map(|device| LoopPath::new(device.path(), device.number())).collect())
    }

    /// Reads the backing file's size again, after the file grew.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if the device was detached in the meantime.
    pub fn loop_refresh(backing: &Path) -> Result<()> {
        LoopDevice::find(backing)?.iter().try_for_each(LoopDevice::refresh_size)
    }

    /// Detaches every loop device that is attached to this file or block device, and returns how many there
    /// were.
    ///
    /// # Errors
    ///
    /// As for [`loop_devices`](Self::loop_devices), and [`Busy`](crate::ErrorKind::Busy) if a device is mounted in
    /// any namespace, or otherwise held: it and the devices after it stay attached. Also
    /// [`Busy`](crate::ErrorKind::Busy) if another program keeps it open; it goes away when that program closes it.
    pub fn loop_detach(backing: &Path) -> Result<usize> {
        LoopDevice::detach_all(backing)
    }
}

steps! {
    /// Volumes that are block devices: the steps of [`flow::block`](crate::flow::block).
    BlockVolumes as block;

    /// Returns the block device of a volume: the one under the filesystem mounted at this path, or the one
    /// whose node is bound there.
    ///
    /// It does not ask the filesystem, so it also returns if the filesystem hangs.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted there,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the filesystem there has no block device.
    pub fn device_of(path: &Path) -> Result<DeviceNumber> {
        block::device_of(path)
    }

    /// Frees on its device what the filesystem mounted at this path does not use of these bytes of it (`FITRIM`), and
    /// returns how many bytes it freed. A process can hold the mount busy meanwhile.
    ///
    /// The range limits how long the device works for one call: after half a minute the kernel is told to stop. A start
    /// beyond the filesystem's size is an error. btrfs frees what no chunk uses in each call, so give it all bytes at
    /// once. Source: `ioctl_fitrim(2)`, or `fstrim(8)`.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted there;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a raw device, and if the filesystem or its device does not
    /// support it; [`PermissionDenied`](crate::ErrorKind::PermissionDenied) without `CAP_SYS_ADMIN`;
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if it was told to stop.
    pub fn trim(path: &Path, bytes: Range<u64>) -> Result<u64> {
        block::trim(path, bytes)
    }

    /// Returns the device inside an encrypted device, the one with the volume's content.
    ///
    /// [`stage`](Self::stage) or `stage_device` has opened it. None if the device is not encrypted, or not
    /// open. The kernel is asked, so the answer is right in any process.
    ///
    /// # Errors
    /// Those of [`BlockDevice::open`].
    pub fn opened_device(device: &Path) -> Result<Option<PathBuf>> {
        block::opened_device(device)
    }

    /// Mounts the filesystem of a device at the staging directory, and makes the filesystem first if the device
    /// is blank.
    ///
    /// It waits for the device ([`StagePlan::wait_for_device`], [`StagePlan::expect`]). Existing content is
    /// kept. The device is formatted only if it is proven blank, or holds nothing but an
    /// interrupted format of this crate. It is mounted only if it
    /// holds the filesystem of the plan. An ext4 with errors is checked first ([`StagePlan::check`]). A volume
    /// that is known to have content is never formatted ([`StagePlan::never_format`]). A filesystem smaller
    /// than its device grows: ext4 before it is mounted, XFS and btrfs after. The XFS clone of a mounted
    /// filesystem is mounted with `nouuid` if its origin is visibly mounted and is not on the same disk. A
    /// btrfs clone is mounted next to its origin from Linux 6.7 on. On failure, what this call mounted is unmounted, and a directory that it made
    /// is removed.
    ///
    /// For a plan that is `encrypted` (feature `luks`) all this holds for the device inside. A blank device is
    /// encrypted first, and the device inside is formatted only if nothing was ever written to it. The mapping
    /// is named after the staging directory. A mapping that a killed call left is removed and made again. On
    /// failure, a device that this call opened is closed.
    ///
    /// # Errors
    /// - [`NotBlank`](crate::ErrorKind::NotBlank): the device holds something else, and the message says what
    ///   and where. Nothing was written to it.
    /// - [`Unreadable`](crate::ErrorKind::Unreadable): the device can't be read. Nothing was written to it.
    /// - [`OutOfRange`](crate::ErrorKind::OutOfRange): the size of the device is not a multiple of its sectors.
    /// - [`InvalidOption`](crate::ErrorKind::InvalidOption): the filesystem does not accept a mount option or
    ///   its value.
    /// - [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted): another device is mounted there, or the same
    ///   with other options.
    /// - [`Busy`](crate::ErrorKind::Busy): the device is published raw for writing, or a loop device or another
    ///   device is over it ([`Devices::users`]); or the disk is already mounted
    ///   through another of its devices (XFS, btrfs).
    /// - [`ReadOnly`](crate::ErrorKind::ReadOnly): the device refuses writes and the plan needs them; or the
    ///   device is blank, or the log of its filesystem must be replayed, and the plan allows no writes; or it
    ///   is mounted there, and the kernel made it read-only after an error.
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): it is mounted there, and has shut down after an
    ///   error.
    /// - [`WrongDevice`](crate::ErrorKind::WrongDevice): the disk at the path is not the expected one.
    /// - [`Damaged`](crate::ErrorKind::Damaged): the check found errors that it can't repair; or the device is
    ///   shorter than the filesystem on it; or the device is blank and the plan [never
    ///   formats](StagePlan::never_format) it.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the filesystem has a feature that this kernel does not
    ///   know.
    /// - For an encrypted plan: `WrongKey` if the key is not the device's;
    ///   [`NotBlank`](crate::ErrorKind::NotBlank) if the device holds content that is not encrypted;
    ///   [`WrongDevice`](crate::ErrorKind::WrongDevice) if the mapping is over another device;
    ///   [`Busy`](crate::ErrorKind::Busy) if the mapping, or a device that had its number before, is published
    ///   raw; [`Unsupported`](crate::ErrorKind::Unsupported) without a device mapper; and those of
    ///   `Luks::format`.
    /// - [`MissingTool`](crate::ErrorKind::MissingTool), [`ToolFailed`](crate::ErrorKind::ToolFailed),
    ///   [`Unresponsive`](crate::ErrorKind::Unresponsive), [`OutOfMemory`](crate::ErrorKind::OutOfMemory): a program
    ///   of the filesystem is missing, fails, or exceeds a limit.
    /// - Those of [`BlockDevice::open`], [`expand`](Self::expand) and [`Mount::at`](crate::Mount::at).
    pub fn stage(device: &Path, staging: &OwnedPath, plan: &StagePlan) -> Result<Staged> {
        block::stage(device, &staging.target()?, plan)
    }

    /// Reserves the device for this node: the step before a raw volume is published. [`stage`](Self::stage) does it by
    /// itself ([`StagePlan::reserve`]). Repeated, it finds its work done. Nothing undoes it when the volume is unstaged: see
    /// [`reservation`](crate::reservation).
    ///
    /// # Errors
    /// [`Reserved`](crate::ErrorKind::Reserved) if another node, program or cluster has it; nothing is changed then.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if it is required and the device has no reservations, or forgets
    /// them.
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the storage does not answer.
    #[cfg(feature = "remote")]
    pub fn reserve(device: &Path, reservation: &Reservation) -> Result<()> {
        block::reserve(device, reservation)
    }

    /// Asks the device whether it is reserved for the node with this key. It changes nothing.
    ///
    /// # Errors
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the storage does not answer, and those of
    /// [`BlockDevice::open`].
    #[cfg(feature = "remote")]
    pub fn write_right(device: &Path, key: ReservationKey) -> Result<WriteRight> {
        block::write_right(device, key)
    }

    /// Opens an encrypted device for raw use. [`opened_device`](Self::opened_device) then returns the device
    /// inside.
    ///
    /// Give that one to [`publish_device`](Self::publish_device). A blank device is encrypted first.
    /// [`unstage`](Self::unstage) closes the device.
    ///
    /// Nothing is mounted at the staging path: the path only identifies the volume that the device belongs to.
    /// The inside of a newly encrypted device reads as zeros at both ends, where programs look for content, and
    /// as noise elsewhere. A device that is already published stays as it is, and its key is not checked. A
    /// device that is already open stays as it is if this is its key.
    ///
    /// # Errors
    /// As for [`stage`](Self::stage) of an encrypted device, without those of filesystems; and
    /// [`Busy`](crate::ErrorKind::Busy) if the opened device got the number of a device that is still
    /// published. Somebody else has closed that device, and a workload that has its node would access this
    /// volume.
    #[cfg(feature = "luks")]
    pub fn stage_device(
        device: &Path,
        staging: &OwnedPath,
        luks: &crate::Luks,
        key: &crate::LuksKey,
        access: DeviceAccess,
    ) -> Result<()> {
        block::stage_device(device, &staging.target()?, luks, key, access).map(drop)
    }

    /// Unmounts every layer at the staging directory, and makes sure that the device is free in every mount
    /// namespace. [`MountCopies`] says what happens to copies of the mount in other mount namespaces.
    ///
    /// An encrypted device that was opened for the volume is closed, also if it was only half opened or the
    /// device is gone. The directory stays: it belongs to the orchestrator. Pass the device if it is known:
    /// when the call is repeated after [`Busy`](crate::ErrorKind::Busy), nothing is mounted any more that
    /// identifies the device. A device that is gone is free.
    ///
    /// # Errors
    /// - [`Busy`](crate::ErrorKind::Busy): the staged filesystem is in use, or the device, or the one inside an
    ///   encrypted one, has another user ([`Devices::users`]): it is mounted
    ///   elsewhere, is still published raw, or another device is built on it. The message names up to three
    ///   users. A frozen filesystem is Busy too, and stays mounted.
    /// - [`WrongDevice`](crate::ErrorKind::WrongDevice): a device other than the given one is mounted there; it
    ///   stays mounted.
    pub fn unstage(
        staging: &OwnedPath,
        device: Option<&Path>,
        copies: MountCopies,
    ) -> Result<Unmounted> {
        block::unstage(&staging.target()?, device, copies)
    }

    /// As [`unstage`](Self::unstage), for a volume whose device the caller looked for and did not find: its file was moved
    /// or removed. A loop device that was mounted there is detached, because nobody could do this later.
    ///
    /// # Errors
    /// Those of [`unstage`](Self::unstage) and [`Devices::loop_detach`].
    pub fn unstage_lost(staging: &OwnedPath, copies: MountCopies) -> Result<Unmounted> {
        block::unstage_lost(&staging.target()?, copies)
    }

    /// Binds the staged filesystem to the target directory, with these attributes added to those of the staged
    /// mount, and file owners as the id map shows them ([`Bind::id_map`](crate::Bind::id_map)).
    ///
    /// The directory is made if it does not exist. If the bind fails, a directory that this call made is
    /// removed again.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) if the directory has content and nothing is mounted there.
    /// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted at the staging directory.
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if its filesystem has shut down.
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly) if an error made it read-only and these attributes allow
    /// writing. [`Unsupported`](crate::ErrorKind::Unsupported) where owners can't be mapped. Those of
    /// [`Bind::at`](crate::Bind::at) and [`Target::create_dir`](crate::Target::create_dir).
    pub fn publish(
        staging: &Path,
        target: &OwnedPath,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome> {
        block::publish(staging, &target.target()?, attributes, id_map)
    }

    /// Binds a block device's node onto the target file.
    ///
    /// A read-only bind does not stop writes to a device. So for [`ReadOnly`](DeviceAccess::ReadOnly) the node
    /// of a read-only loop device over the device is bound, which refuses writes from every opener. Other
    /// targets of the device stay writable. A device that refuses writes itself is bound directly. The loop
    /// device has its own cache: while the device is written to elsewhere, a reader gets the old content of
    /// places that it has read before, unless it reads with `O_DIRECT`.
    ///
    /// Before a device is published for writing, the record of an interrupted format is removed. The device is
    /// then blank, or, if it holds anything else, without the record that would allow formatting it.
    ///
    /// # Errors
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly) if write access is requested and the device refuses writes.
    /// [`Busy`](crate::ErrorKind::Busy) if the record of an interrupted format can't be removed because
    /// somebody holds the device, or if the target file is not empty.
    /// [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted) if another device is bound there, or the same one
    /// with other access. Those of [`BlockDevice::open`],
    /// [`Devices::loop_attach`], [`Bind::at`](crate::Bind::at) and
    /// [`Target::create_file`](crate::Target::create_file).
    pub fn publish_device(device: &Path, target: &OwnedPath, access: DeviceAccess) -> Result<Outcome> {
        block::publish_device(device, &target.target()?, access)
    }

    /// Undoes [`publish`](Self::publish) and [`publish_device`](Self::publish_device): unmounts every layer and
    /// removes the directory or file, which must be empty.
    ///
    /// # Errors
    /// Those of [`unmount`](crate::unmount()) and [`Target::remove`](crate::Target::remove).
    pub fn unpublish(target: &OwnedPath) -> Result<Removed> {
        block::unpublish(&target.target()?)
    }

    /// Returns how full the volume at a staging or target path is, and the number of its device.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted there,
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the filesystem does not answer, and those of
    /// [`Mounts::stats`](crate::Mounts::stats).
    pub fn usage(path: &Path) -> Result<(VolumeUsage, Option<DeviceNumber>)> {
        block::usage(path)
    }

    /// Returns the size in bytes of the device of the volume at a staging or target path.
    ///
    /// For a volume inside an encrypted device it is the size of the encrypted device with its headers, so the
    /// size that the storage gave it. For a device that is published read-only it is that of the device, not of
    /// the loop device over it.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted there, or if the device is not present.
    pub fn device_size(path: &Path) -> Result<u64> {
        block::device_size(path)
    }

    /// Grows the volume at a staging or target path to the whole size of its device, which has grown.
    ///
    /// A filesystem grows while it is mounted. A published raw device has its new size already, except one that
    /// is published read-only: its loop device is made to read the size again.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted there.
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the filesystem is dead, or does not answer.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a filesystem other than ext4, XFS and btrfs. [`PermissionDenied`](crate::ErrorKind::PermissionDenied) for
    /// ext4 without `CAP_SYS_RESOURCE`: the filesystem grows the next time it is staged.
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly) if the mount is read-only.
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for btrfs on a device of less than 256 MiB, to which the kernel does
    /// not resize. With the feature `luks`, [`WrongKey`](crate::ErrorKind::WrongKey) if the volume is inside an
    /// encrypted device that has grown: see `expand_encrypted`.
    pub fn expand(path: &Path) -> Result<Grown> {
        block::expand(path)
    }

    /// As [`expand`](Self::expand), for a volume that can be inside an encrypted device, which grows first.
    ///
    /// # Errors
    /// As for [`expand`](Self::expand), and [`WrongKey`](crate::ErrorKind::WrongKey) if the key is not the
    /// device's.
    #[cfg(feature = "luks")]
    pub fn expand_encrypted(path: &Path, key: &crate::LuksKey) -> Result<Grown> {
        block::expand_encrypted(path, key)
    }
}
