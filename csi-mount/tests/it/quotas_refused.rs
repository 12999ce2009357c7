//! A filesystem that can't enforce limits says why, and how to change it. Needs root.

use std::fs;

use csi_mount::internal::{Feature, without_features};
use csi_mount::{Mount, MountOptions, Target, unmount};

use crate::quota_support::{Disk, assert_refused, in_memory};

#[test]
fn what_cannot_enforce_says_why_and_how_to_change_it() {
    in_memory(|base| {
        assert_refused(base, &["tmpfs has no project quotas", "ext4, xfs or btrfs"]);

        let plain = Disk::format(base, "ext4", &["-q", "-O", "^quota,^project"]);
        plain.mount(&[]);
        assert_refused(&plain.at, &["tune2fs -O quota,project /dev/loop", "prjquota"]);
        let layers = ["lower", "upper", "work", "merged"].map(|name| plain.path(name));
        layers.iter().for_each(|layer| fs::create_dir(layer).unwrap());
        let [lower, upper, work, merged] = layers.each_ref().map(|layer| layer.display());
        let options = [format!("lowerdir={lower}"), format!("upperdir={upper}"), format!("workdir={work}")];
        let options = MountOptions::parse(options.each_ref().map(|option| &**option)).unwrap();
        let merged = Target::new(merged.to_string()).unwrap();
        Mount::new("overlay", "overlay").options(&options).at(&merged).unwrap();
        assert_refused(merged.path(), &["overlay has no project quotas"]);
        without_features(&[Feature::QuotaDescriptor], || assert_refused(merged.path(), &["overlay"]));
        unmount(&merged).unwrap();
        drop(merged);
        plain.unmount();

        let xfs = Disk::format(base, "xfs", &["-q"]);
        xfs.mount(&[]);
        assert_refused(&xfs.at, &["xfs enforces no project quotas", "prjquota", "CONFIG_XFS_QUOTA"]);
        xfs.unmount();
    });
}
