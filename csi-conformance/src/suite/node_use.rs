//! A published volume in use: read and write, read-only, usage, growth.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_core::ControllerCapability::ExpandVolume as ControllerExpandVolume;
use csi_core::NodeCapability::{ExpandVolume, GetVolumeStats};
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::{Failure, Outcome, check};
use crate::life::{Life, text};
use crate::test::Kind;

crate::test::tests! { "node-use", "Node Service RPC: NodePublishVolume, NodeGetVolumeStats, NodeExpandVolume";
    "What is written is read after unpublish and unstage", data_stays, ["node-publish-volume.usable-as-described"], [Volume(Files), Mounts];
    "What is written to a raw device is read after unpublish and unstage", device_data_stays, ["node-publish-volume.usable-as-described"], [Volume(Device), Mounts];
    "A read-only target takes no writes", read_only, ["node-publish-volume.readonly"], [Volume(Files), Mounts];
    "A read-only raw device takes no writes, or is refused", device_read_only, ["node-publish-volume.readonly"], [Volume(Device), Mounts];
    "Usage is told of a published volume, and NOT_FOUND of what is not there", stats, ["node-get-volume-stats.usage", "node-get-volume-stats.missing"], [Volume(Files), Node(GetVolumeStats)];
    "A published volume grows, as the resizer and the kubelet grow it", grows, ["volume-expansion.online-grows-published", "node-expand-volume.grows", "node-expand-volume.large-enough-is-ok"], [Volume(Files), Node(ExpandVolume), Controller(ControllerExpandVolume)];
}

const WORDS: [u8; 4096] = [b'w'; 4096];

/// Does what may block where it does no harm, and gives it up in time: a volume may be dead.
async fn io<T: Send + 'static>(
    what: &str,
    path: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Outcome<T> {
    let owned = path.to_owned();
    let done =
        tokio::time::timeout(Duration::from_secs(30), tokio::task::spawn_blocking(move || work(&owned)))
            .await;
    let failed = |came: String| Box::new(Failure::new(what, format!("{}: {came}", path.display())));
    match done {
        Ok(Ok(result)) => result.map_err(|error| failed(error.to_string())),
        Ok(Err(_)) => Err(failed("the work panicked".into())),
        Err(_) => Err(failed("no answer in 30 s".into())),
    }
}

fn place(target: &Path, kind: Kind) -> PathBuf {
    if kind == Kind::Files { target.join("file") } else { target.to_owned() }
}

fn write(path: &Path) -> std::io::Result<()> {
    // A device that lost its place must not become a file.
    let is_device = path.exists();
    let mut file = File::options().write(true).create(!is_device).truncate(false).open(path)?;
    file.write_all(&WORDS)?;
    file.sync_all()
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut words = vec![0; WORDS.len()];
    File::open(path)?.read_exact(&mut words)?;
    Ok(words)
}

async fn stays(cx: &Cx, kind: Kind) -> Outcome {
    let mut life = Life::staged(cx, kind).await?;
    let target = life.target();
    for round in 0..2 {
        if round > 0 {
            life.prepare().await?;
        }
        cx.ok(life.publishing(&target)).await?;
        if round == 0 {
            io("a write through the target", &place(&target, kind), write).await?;
        }
        let back = io("what was written", &place(&target, kind), read).await?;
        check(back == WORDS, "what was written", || "something else".into())?;
        cx.ok(life.unpublishing(&target)).await?;
        if life.stages() {
            cx.ok(life.unstaging()).await?;
        }
    }
    life.end(&[]).await
}

async fn data_stays(cx: &Cx) -> Outcome {
    stays(cx, Kind::Files).await
}

async fn device_data_stays(cx: &Cx) -> Outcome {
    stays(cx, Kind::Device).await
}

async fn takes_no_writes(cx: &Cx, kind: Kind) -> Outcome {
    let life = Life::staged(cx, kind).await?;
    let target = life.target();
    let request = v1::NodePublishVolumeRequest { readonly: true, ..life.publishing(&target) };
    match cx.call(request.clone()).await {
        // Better refused than not kept.
        Err(refusal) if kind == Kind::Device && refusal.code == Code::InvalidArgument => return Ok(()),
        Err(refusal) => return Err(cx.failure(&request, cx.told(&refusal), "OK")),
        Ok(_) => {}
    }
    let wrote = io("a write, which fails", &place(&target, kind), |path| Ok(write(path).is_ok())).await?;
    cx.ok(life.unpublishing(&target)).await?;
    if wrote {
        Err(cx.failure(&request, "a write through the target went well", "a target that takes no writes"))
    } else {
        Ok(())
    }
}

async fn read_only(cx: &Cx) -> Outcome {
    takes_no_writes(cx, Kind::Files).await
}

async fn device_read_only(cx: &Cx) -> Outcome {
    takes_no_writes(cx, Kind::Device).await
}

async fn stats(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    let target = life.target();
    cx.ok(life.publishing(&target)).await?;
    let request = life.stats(&target);
    let answer = cx.ok(request.clone()).await?;
    let good = |usage: &v1::VolumeUsage| {
        usage.total > 0 && usage.used >= 0 && usage.available >= 0 && usage.unit != 0
    };
    let bytes = answer.usage.iter().any(|usage| usage.unit() == v1::volume_usage::Unit::Bytes);
    if !bytes || !answer.usage.iter().all(good) {
        return Err(cx.failure(
            &request,
            format!("{answer:?}"),
            "usage in bytes, with a total, and nothing negative",
        ));
    }
    let elsewhere = v1::NodeGetVolumeStatsRequest { volume_path: text(&life.target()), ..request.clone() };
    cx.refused(elsewhere, &[Code::NotFound], "the volume is not at that path").await?;
    let unknown = v1::NodeGetVolumeStatsRequest { volume_id: cx.name(), ..request };
    cx.refused(unknown, &[Code::NotFound], "there is no such volume").await?;
    life.end(&[&target]).await
}

async fn grows(cx: &Cx) -> Outcome {
    use v1::plugin_capability::volume_expansion::Type::Online;
    let life = Life::staged(cx, Kind::Files).await?;
    let target = life.target();
    let wanted = cx.settings.size * 2;
    let capacity_range = Some(v1::CapacityRange { required_bytes: wanted, limit_bytes: 0 });
    let larger = v1::ControllerExpandVolumeRequest {
        volume_id: life.id.clone(),
        capacity_range,
        volume_capability: Some(life.capability.clone()),
        ..Default::default()
    };
    let online = cx.offers.expands(Online);
    if online {
        cx.ok(life.publishing(&target)).await?;
    } else {
        life.end_here().await?;
    }
    let answer = cx.ok(larger.clone()).await?;
    if answer.capacity_bytes < wanted {
        return Err(cx.failure(
            &larger,
            format!("{} bytes", answer.capacity_bytes),
            format!("at least {wanted}"),
        ));
    }
    if !online {
        let mut again = life.clone();
        again.prepare().await?;
        cx.ok(life.publishing(&target)).await?;
    }
    if answer.node_expansion_required {
        let request = v1::NodeExpandVolumeRequest {
            volume_id: life.id.clone(),
            volume_path: text(&target),
            capacity_range,
            staging_target_path: if life.stages() { text(life.staging_path()) } else { String::new() },
            volume_capability: Some(life.capability.clone()),
            ..Default::default()
        };
        cx.ok(request.clone()).await?;
        cx.ok(request).await?;
    }
    life.end(&[&target]).await
}
