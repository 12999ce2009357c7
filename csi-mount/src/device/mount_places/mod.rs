//! Where block devices are mounted, and where their nodes are bound, in the mount tables of all visible mount
//! namespaces.

mod own_mounts;
mod scan;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use self::scan::Scan;
use crate::device::sysfs::Sysfs;
use crate::error::Result;
use crate::sys::exec::program_name;
use crate::sys::ids::DeviceNumber;
use crate::table::mount_namespaces;

/// Where something is mounted: the path, and a process of its mount namespace if that is another one. Its text has
/// both, with the pod and the container of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPlace {
    /// The mount point, relative to the root of its mount namespace.
    pub(crate) path: PathBuf,
    /// A process in that mount namespace; none if it is the caller's own mount namespace.
    pub(crate) process: Option<NamespaceMember>,
}

/// A process, and the mount namespace that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceMember {
    /// The process's number in this process's pid namespace.
    pub(crate) id: u32,
    /// The name of its program, at most 15 bytes.
    name: String,
    /// The mount namespace's inode number, as `lsns(8)` shows it.
    namespace: u64,
    /// The UID of its pod, if its control group names one.
    pod_uid: Option<String>,
    /// The id of its container, if its control group names one.
    container_id: Option<String>,
}

impl NamespaceMember {
    fn new(id: u32, namespace: u64) -> Self {
        let groups = fs::read_to_string(format!("/proc/{id}/cgroup")).unwrap_or_default();
        let (pod_uid, container_id) = ids_in(&groups);
        Self { id, name: program_name(id), namespace, pod_uid, container_id }
    }
}

/// The UID of the pod and the id of the container in the paths of `/proc/PID/cgroup`.
fn ids_in(groups: &str) -> (Option<String>, Option<String>) {
    let mut components = groups.split(['/', ':', '\n']);
    match components.find_map(pod_uid) {
        // Inside the container there can be groups of its own, and outside of the pod a node that is a container.
        Some(uid) => (Some(uid), components.find_map(container_id)),
        None => (None, groups.split(['/', ':', '\n']).filter_map(container_id).next_back()),
    }
}

/// The UID in a control group's name: `podUID` (cgroupfs), or `kubepods-burstable-podUID.slice` with `_` in place of
/// `-` (systemd). A static pod has the hash of its configuration there.
fn pod_uid(component: &str) -> Option<String> {
    let name = match component.strip_suffix(".slice") {
        Some(slice) => slice.rsplit('-').next()?,
        None => component,
    };
    let uid = name.strip_prefix("pod")?.replace('_', "-");
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    (digits == 32 && uid.len() - digits == uid.matches('-').count()).then_some(uid)
}

/// The id in a control group's name: `ID` (cgroupfs), or `cri-containerd-ID.scope` and the like (systemd).
fn container_id(component: &str) -> Option<String> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let id = name.rsplit('-').next()?;
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}

impl fmt::Display for MountPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.process {
            Some(member) => {
                let NamespaceMember { id, name, namespace, .. } = member;
                write!(f, " in another mount namespace ({namespace}, of process {id}, {name}")?;
                if let Some(uid) = &member.pod_uid {
                    write!(f, ", pod {uid}")?;
                }
                if let Some(id) = &member.container_id {
                    write!(f, ", container {id}")?;
                }
                f.write_str(")")
            }
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UseKind {
    /// A filesystem on one of the devices.
    Filesystem,
    /// A bound node of this device.
    Node(DeviceNumber),
}

/// Where these devices, given with their kernel names, are mounted, and where nodes of them are bound.
pub(super) fn find(devices: &[(DeviceNumber, OsString)]) -> Result<Vec<(UseKind, MountPlace)>> {
    let mut scan = Scan::new(devices);
    let own = scan.in_own_namespace()?.into_iter();
    let mut found: Vec<_> = own.map(|(kind, path)| (kind, MountPlace { path, process: None })).collect();
    for namespace in mount_namespaces::others()? {
        let Some(table) = namespace.table() else { continue };
        let there = scan.in_namespace_of(table.process, &table.text);
        if !there.is_empty() {
            let member = NamespaceMember::new(table.process, namespace.id);
            let place = |path| MountPlace { path, process: Some(member.clone()) };
            found.extend(there.into_iter().map(|(kind, path)| (kind, place(path))));
        }
    }
    Ok(found)
}

/// A place where the node of a device is bound. Such a device belongs to its user, even if nobody has it
/// open: a bound node keeps nothing open, and would give access to the next volume that gets the number.
pub(crate) fn bound_at(number: DeviceNumber) -> Result<Option<MountPlace>> {
    let kernel_name = Sysfs::system().name(number).unwrap_or_default().into();
    let found = find(&[(number, kernel_name)])?;
    Ok(found.into_iter().find_map(|(kind, place)| matches!(kind, UseKind::Node(_)).then_some(place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_names_the_pod_and_the_container() {
        let uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        let hash = "0123456789abcdef0123456789abcdef";
        let systemd = uid.replace('-', "_");
        let id = "b".repeat(64);
        let both = (Some(uid.to_owned()), Some(id.clone()));
        for (groups, expected) in [
            (format!("0::/kubepods/burstable/pod{uid}/{id}\n"), both.clone()),
            (format!("12:cpu:/kubepods/pod{uid}/{id}\n1:name=systemd:/x\n0::/\n"), both.clone()),
            (
                format!("0::/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-{id}.scope\n"),
                both.clone(),
            ),
            (
                format!(
                    "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                     kubelet-kubepods-besteffort-pod{systemd}.slice/crio-{id}.scope/container/init.scope\n"
                ),
                both.clone(),
            ),
            (format!("0::/system.slice/kubepods-pod{systemd}.slice:cri-containerd:{id}\n"), both.clone()),
            (format!("0::/docker/{}/kubelet/kubepods/pod{uid}/{id}\n", "c".repeat(64)), both.clone()),
            (format!("0::/../../pod{uid}/{id}\n"), both.clone()),
            (format!("0::/../cri-containerd-{id}.scope\n"), (None, both.1.clone())),
            (format!("0::/kubepods/besteffort/pod{hash}/{id}\n"), (Some(hash.to_owned()), both.1.clone())),
            ("0::/user.slice/podman-1.scope\n".to_owned(), (None, None)),
            (String::new(), (None, None)),
        ] {
            assert_eq!(ids_in(&groups), expected, "{groups}");
        }
    }

    /// csi-kube finds the pod for its event by `pod UID` in the text.
    #[test]
    fn a_place_in_another_namespace_names_its_process_pod_and_container() {
        let process = NamespaceMember {
            id: 7,
            name: "backup".to_owned(),
            namespace: 9,
            pod_uid: Some("0f1e".to_owned()),
            container_id: Some("bb".to_owned()),
        };
        let place = MountPlace { path: "/staging".into(), process: Some(process) };
        let due = "/staging in another mount namespace (9, of process 7, backup, pod 0f1e, container bb)";
        assert_eq!(place.to_string(), due);
    }
}
