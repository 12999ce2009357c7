//! What a driver says about a volume: which image of which cluster, and the user who maps it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::key::Key;
use crate::device::expected::ExpectedDevice;
use crate::error::{Error, ErrorKind, Result};

/// How long the kernel waits for the cluster before a read or write fails: as long as open-iscsi's default.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a map waits for the exclusive lock: longer than a cluster keeps that of a dead client (30 seconds).
const LOCK_TIMEOUT: Duration = Duration::from_secs(45);
/// Ceph's limit for the names of images.
const MAX_NAME: usize = 96;

/// An image as a record names it. The cluster, the pool's id and the image's id identify it; a new image with an
/// old name has another id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) struct RbdDisk {
    pub(in crate::remote) fsid: String,
    pub(in crate::remote) pool_id: u64,
    pub(in crate::remote) pool: String,
    pub(in crate::remote) namespace: String,
    pub(in crate::remote) image_id: String,
    pub(in crate::remote) image: String,
}

impl RbdDisk {
    /// Names can change while an image is mapped.
    pub(in crate::remote) fn is_same(&self, other: &Self) -> bool {
        self.fsid == other.fsid && self.pool_id == other.pool_id && self.image_id == other.image_id
    }
}

impl fmt::Display for RbdDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the image {}/{} with the id {}", self.pool, self.image, self.image_id)
    }
}

/// A pool of a Ceph cluster, or a namespace in it.
///
/// The ids are those that `ceph fsid` and `ceph osd pool ls detail` print.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct RbdPool {
    fsid: String,
    name: String,
    id: u64,
    namespace: String,
}

impl RbdPool {
    /// The pool with this name and this id in the cluster with this fsid.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if `fsid` is not a UUID, or `name` is empty or has a letter that the
    /// kernel's client does not accept.
    pub fn new(fsid: &str, name: &str, id: u64) -> Result<Self> {
        let is_part = |letter: u8| letter.is_ascii_hexdigit() || letter == b'-';
        if fsid.len() != 36 || !fsid.bytes().all(is_part) {
            return Err(invalid(format!("{fsid:?} is not the fsid of a cluster")));
        }
        let fsid = fsid.to_ascii_lowercase();
        let name = checked("a pool", name)?;
        Ok(Self { fsid, name, id, namespace: String::new() })
    }

    /// A namespace of the pool (Linux 4.19 and later).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) as for [`new`](Self::new).
    pub fn namespace(self, name: &str) -> Result<Self> {
        Ok(Self { namespace: checked("a namespace", name)?, ..self })
    }
}

/// An image of a Ceph cluster (RBD), which the kernel's client maps.
///
/// ```
/// use csi_mount::remote::{RbdPool, RbdTarget};
///
/// # fn main() -> csi_mount::Result<()> {
/// let pool = RbdPool::new("b2f9a0a4-5b1d-4a4b-8a5c-0d7e64ba9c7b", "volumes", 3)?;
/// let target = RbdTarget::new(pool, "csi-pvc-1", "10a36b8b4567")?
///     .user("csi-node", "AQBgmRxlAAAAABAAHf1YsTmDP7P5Q7kKzuxq9A==")?
///     .monitor("192.0.2.1:6789".parse().expect("an address"));
/// # drop(target);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RbdTarget {
    pub(in crate::remote) disk: RbdDisk,
    pub(in crate::remote) monitors: Vec<SocketAddr>,
    user: Option<(String, Key)>,
    pub(super) is_exclusive: bool,
    is_second_version: bool,
    request_timeout: Option<Duration>,
}

impl RbdTarget {
    /// The image with this name and this id (`rbd info --format json`, `id`). An image with another id is never
    /// returned: a new one can have an old name. It needs at least one [`monitor`](Self::monitor).
    ///
    /// The image must not have a feature that the kernel lacks: `layering` and `exclusive-lock` are in all.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if a name is empty, too long, or has a letter that the kernel's client
    /// does not accept.
    pub fn new(pool: RbdPool, image: &str, image_id: &str) -> Result<Self> {
        let RbdPool { fsid, name, id, namespace } = pool;
        let image = checked("an image", image)?;
        let image_id = checked("an image's id", image_id)?;
        let disk = RbdDisk { fsid, pool_id: id, pool: name, namespace, image_id, image };
        Ok(Self {
            disk,
            monitors: Vec::new(),
            user: None,
            is_exclusive: false,
            is_second_version: false,
            request_timeout: Some(REQUEST_TIMEOUT),
        })
    }

    /// Adds the address of a monitor: port 6789 for the first version of the protocol. One that answers is enough.
    pub fn monitor(mut self, address: SocketAddr) -> Self {
        if !self.monitors.contains(&address) {
            self.monitors.push(address);
        }
        self
    }

    /// Sets the user (without `client.`), and its key in base64. Only the kernel gets the key.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the name can't be one, or the key is not base64. The error does not
    /// have the key.
    pub fn user(mut self, id: &str, key: &str) -> Result<Self> {
        self.user = Some((checked("a user", id)?, Key::parse(key)?));
        Ok(self)
    }

    /// Keeps the image's exclusive lock from the attach to the detach: another node that attaches it so is refused, and
    /// the lock of a node that has died is taken over. By default the lock is given to whoever asks for it.
    ///
    /// The image must have the feature `exclusive-lock`. While this node has the lock, the cluster resizes the image
    /// and takes snapshots of it for nobody: `rbd resize` and `rbd snap create` fail.
    pub fn exclusive(mut self) -> Self {
        self.is_exclusive = true;
        self
    }

    /// Speaks the second version of the protocol with checksums (`ms_mode=prefer-crc`, port 3300; Linux 5.11).
    pub fn second_version(mut self) -> Self {
        self.is_second_version = true;
        self
    }

    /// Sets how long a read or write waits for the cluster before it fails. The default is two minutes. With none it
    /// waits until the cluster is back, and a dead cluster's image can't be detached.
    pub fn request_timeout(mut self, limit: Option<Duration>) -> Self {
        self.request_timeout = limit;
        self
    }

    /// What identifies the disk, for [`StagePlan::expect`](crate::flow::block::StagePlan::expect): the stage
    /// then asks the device again who it is.
    pub fn expected(&self) -> ExpectedDevice {
        let RbdDisk { fsid, pool_id, image_id, .. } = &self.disk;
        ExpectedDevice::new().wwn(format!("rbd.{fsid}.{pool_id}.{image_id}"))
    }

    pub(super) fn key(&self) -> Option<&Key> {
        self.user.as_ref().map(|(_, key)| key)
    }

    /// The line for `/sys/bus/rbd/add`. The key is named in it, and not contained: the kernel shows this line later.
    pub(super) fn order(&self, key_name: &str, mount_timeout: Duration) -> String {
        let monitors: Vec<String> = self.monitors.iter().map(SocketAddr::to_string).collect();
        let mut options = vec![format!("mount_timeout={}", mount_timeout.as_secs())];
        if let Some((id, _)) = &self.user {
            options.push(format!("name={id},key={key_name}"));
        }
        if let Some(limit) = self.request_timeout {
            options.push(format!("osd_request_timeout={}", limit.as_secs().max(1)));
        }
        if !self.disk.namespace.is_empty() {
            options.push(format!("_pool_ns={}", self.disk.namespace));
        }
        if self.is_exclusive {
            options.push(format!("exclusive,lock_timeout={}", LOCK_TIMEOUT.as_secs()));
        }
        if self.is_second_version {
            options.push("ms_mode=prefer-crc".to_owned());
        }
        format!("{} {} {} {} -", monitors.join(","), options.join(","), self.disk.pool, self.disk.image)
    }
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "read an RBD image", reason)
}

/// A name in the line for the kernel, whose parts are separated by spaces and commas.
fn checked(what: &str, name: &str) -> Result<String> {
    let is_letter = |letter: char| letter.is_alphanumeric() || "-_.:+".contains(letter);
    let is_valid = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_letter) && name != "-";
    is_valid.then(|| name.to_owned()).ok_or_else(|| invalid(format!("{name:?} is not the name of {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSID: &str = "b2f9a0a4-5b1d-4a4b-8a5c-0d7e64ba9c7b";
    const KEY: &str = "AQBgmRxlAAAAABAAHf1YsTmDP7P5Q7kKzuxq9A==";

    #[test]
    fn the_line_for_the_kernel_names_the_key_and_does_not_contain_it() {
        let pool = RbdPool::new(FSID, "p", 3).unwrap();
        let target = RbdTarget::new(pool.clone(), "i", "10a3").unwrap();
        let target = ["192.0.2.1:6789", "[2001:db8::1]:6789", "192.0.2.1:6789"]
            .iter()
            .fold(target, |target, monitor| target.monitor(monitor.parse().unwrap()));
        let with_user = target.clone().user("node", KEY).unwrap().exclusive();
        let order = with_user.order("csi", Duration::from_secs(30));
        assert_eq!(
            order,
            "192.0.2.1:6789,[2001:db8::1]:6789 \
             mount_timeout=30,name=node,key=csi,osd_request_timeout=120,exclusive,lock_timeout=45 p i -"
        );
        assert!(!format!("{with_user:?}").contains("AQBg"));
        let in_namespace = RbdTarget::new(pool.namespace("n").unwrap(), "i", "10a3").unwrap();
        let order = in_namespace.second_version().request_timeout(None);
        let order = order.order("csi", Duration::from_secs(30));
        assert_eq!(order, " mount_timeout=30,_pool_ns=n,ms_mode=prefer-crc p i -");
    }

    #[test]
    fn names_that_would_be_other_words_for_the_kernel_are_refused() {
        for (fsid, pool, image, id) in [
            ("b2f9", "p", "i", "1"),
            (FSID, "", "i", "1"),
            (FSID, "p q", "i", "1"),
            (FSID, "p", "i,exclusive", "1"),
            (FSID, "p", "i@s", "1"),
            (FSID, "p", "-", "1"),
            (FSID, "p", "i\n", "1"),
            (FSID, "p", "i", ""),
            (FSID, "p", &"i".repeat(97), "1"),
        ] {
            let target = RbdPool::new(fsid, pool, 1).and_then(|pool| RbdTarget::new(pool, image, id));
            assert_eq!(
                target.unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{fsid} {pool:?} {image:?} {id:?}"
            );
        }
        let target = RbdTarget::new(RbdPool::new(FSID, "p", 1).unwrap(), "i", "1").unwrap();
        assert!(target.clone().user("a=b", KEY).is_err());
        assert!(!target.user("a", "geheim").unwrap_err().to_string().contains("geheim"));
    }
}
