//! The mount options of a StorageClass, on the mount that a workload gets.

use std::path::Path;

use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome};
use crate::life::{VolumeLifecycle, text};

crate::test::tests! { "node-publish", "CreateVolume: MountVolume.mount_flags";
    Must "The mount at the target has the attributes of the mount flags", mount_flags, ["node-publish-volume.usable-as-described"], [Volume(Files), Mounts, MountFlags];
}

/// The flags that are attributes of a mount, not options of the filesystem. None of them is a secret.
const ATTRIBUTES: [&str; 8] =
    ["nosuid", "nodev", "noexec", "noatime", "nodiratime", "strictatime", "relatime", "nosymfollow"];

pub(crate) fn due(ctx: &TestContext) -> Vec<&'static str> {
    let given = &ctx.settings.mount.mount_flags;
    ATTRIBUTES.into_iter().filter(|word| given.iter().any(|flag| flag == word)).collect()
}

fn attributes_at(path: &Path) -> Outcome<Vec<String>> {
    #[cfg(target_os = "linux")]
    {
        let mounts = super::node_publish::mount_table(path)?;
        let found =
            mounts.last().ok_or_else(|| Failure::new(format!("a mount at {}", text(path)), "none"))?;
        let mut words: Vec<String> = found.attributes.to_string().split(',').map(str::to_owned).collect();
        // The kernel's default.
        if !words.iter().any(|word| word.ends_with("atime") && word != "nodiratime") {
            words.push("relatime".to_owned());
        }
        Ok(words)
    }
    #[cfg(not(target_os = "linux"))]
    Err(Box::new(Failure::new("a mount table", format!("none for {} on this system", text(path)))))
}

async fn mount_flags(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let found = attributes_at(&target)?;
    for word in due(ctx) {
        if !found.iter().any(|one| one == word) {
            return Err(ctx.failure(
                &life.node_publish_volume(&target),
                format!("a mount that is {}", found.join(",")),
                format!("one that is {word}"),
            ));
        }
    }
    life.end(&[&target]).await
}
