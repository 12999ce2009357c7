//! What `lvm fullreport` says about a volume group, read under one lock and so consistent.

use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::DeviceNumber;

/// The fields that are asked. lvm2 accepts each one only in its own part of the report.
const GROUP: &str =
    "vg_uuid,vg_extent_size,vg_free_count,vg_shared,vg_clustered,vg_partial,vg_exported,vg_mda_free,vg_seqno";
const DISK: &str = "pv_uuid,pv_name,pv_major,pv_minor,pv_free,pv_allocatable,pv_missing,pv_tags";
const VOLUME: &str = "lv_name,lv_uuid,lv_size,lv_tags,lv_layout,pool_lv,origin,data_percent,metadata_percent,\
     lv_when_full,lv_check_needed,lv_health_status,lv_active,lv_device_open,lv_time";
const SEGMENT: &str = "lv_uuid,zero,seg_pe_ranges,transaction_id,thin_id";

/// The arguments of the report of one volume group.
pub(super) fn arguments(group: &str) -> Vec<&str> {
    let mut arguments = vec!["fullreport", "-qq", "--reportformat", "json", "--units", "b", "--nosuffix"];
    for (part, fields) in [("vg", GROUP), ("pv", DISK), ("lv", VOLUME), ("pvseg", ","), ("seg", SEGMENT)] {
        arguments.extend(["--configreport", part, "-o", fields]);
    }
    arguments.push(group);
    arguments
}

/// A volume group.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) uuid: String,
    /// In bytes.
    pub(super) extent: u64,
    pub(super) free_extents: u64,
    /// What is left for its metadata on each disk, in bytes.
    pub(super) metadata_free: u64,
    /// By which lvm counts the changes of the group.
    pub(super) seqno: u64,
    /// Why it is not used as it is.
    pub(super) flaws: Vec<&'static str>,
    pub(super) disks: Vec<Disk>,
    pub(super) volumes: Vec<Found>,
}

/// A physical volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Disk {
    pub(super) uuid: String,
    /// As lvm2's commands name it now.
    pub(super) name: String,
    /// None if it is missing.
    pub(super) number: Option<DeviceNumber>,
    /// In bytes; none of it can be used if the disk is not allocatable.
    pub(super) free: u64,
    pub(super) tags: Vec<String>,
}

/// A logical volume, whoever made it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) bytes: u64,
    pub(super) tags: Vec<String>,
    /// What it is a snapshot of; empty if it is none.
    pub(super) origin: String,
    pub(super) kind: Kind,
    /// The extents of a thick one, as lvm2's commands take them: `/dev/sdb:0-9`.
    pub(super) extents: Vec<String>,
    pub(super) is_active: bool,
    /// None if it is not known.
    pub(super) is_open: Option<bool>,
    /// When it was made, in seconds since 1970.
    pub(super) time: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Thick,
    Thin {
        pool: String,
        /// By which the pool knows it.
        id: u64,
        /// The pool's transaction in which it was made.
        transaction: u64,
    },
    Pool(PoolFacts),
    /// Anything else, such as a RAID or a cache.
    Other,
}

/// What is said about a thin pool. While it is not active, its use is not known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PoolFacts {
    pub(super) data_percent: Option<f64>,
    pub(super) metadata_percent: Option<f64>,
    pub(super) needs_check: bool,
    pub(super) health: String,
    pub(super) fails_when_full: bool,
    pub(super) zeroes: bool,
    /// The last one, in which a volume was made or removed; in the kernel it can be the one before.
    pub(super) transaction: u64,
}

impl Report {
    /// # Errors
    /// [`ErrorKind::Unreadable`] if it is not the report of one volume group.
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        let parsed: Value = serde_json::from_slice(json).map_err(|error| unreadable(&error.to_string()))?;
        let Some([report]) = parsed["report"].as_array().map(Vec::as_slice) else {
            return Err(unreadable("it has not one volume group"));
        };
        let [group] = rows(report, "vg")? else { return Err(unreadable("it has not one volume group")) };
        let flaws = [
            ("vg_shared", "it is shared with other nodes (lvmlockd)"),
            ("vg_clustered", "it is clustered"),
            ("vg_partial", "some of its disks are missing"),
            ("vg_exported", "it is exported"),
        ];
        let mut found = Vec::new();
        for (field, flaw) in flaws {
            if !text(group, field)?.is_empty() {
                found.push(flaw);
            }
        }
        let segments = rows(report, "seg")?;
        let disks = rows(report, "pv")?.iter().map(disk).collect::<Result<Vec<_>>>()?;
        let volumes = rows(report, "lv")?.iter().map(|row| volume(row, segments));
        Ok(Self {
            uuid: text(group, "vg_uuid")?.to_owned(),
            extent: number(group, "vg_extent_size")?,
            free_extents: number(group, "vg_free_count")?,
            metadata_free: number(group, "vg_mda_free")?,
            seqno: number(group, "vg_seqno")?,
            flaws: found,
            volumes: volumes.collect::<Result<Vec<_>>>()?,
            disks,
        })
    }
}

fn disk(row: &Value) -> Result<Disk> {
    let is_usable = !text(row, "pv_allocatable")?.is_empty() && text(row, "pv_missing")?.is_empty();
    let free = number(row, "pv_free")?;
    let device = format!("{}:{}", text(row, "pv_major")?, text(row, "pv_minor")?);
    Ok(Disk {
        uuid: text(row, "pv_uuid")?.to_owned(),
        name: text(row, "pv_name")?.to_owned(),
        number: DeviceNumber::parse(&device),
        free: if is_usable { free } else { 0 },
        tags: tags(text(row, "pv_tags")?),
    })
}

fn volume(row: &Value, segments: &[Value]) -> Result<Found> {
    let uuid = text(row, "lv_uuid")?;
    let layout: Vec<&str> = text(row, "lv_layout")?.split(',').collect();
    let kind = match layout.as_slice() {
        ["linear"] => Kind::Thick,
        layout if layout.contains(&"thin") && layout.contains(&"pool") => Kind::Pool(pool(row, segments)?),
        layout if layout.contains(&"thin") => {
            let [segment] = segments_of(uuid, segments)?[..] else {
                return Err(unreadable("a thin volume has other than one segment"));
            };
            Kind::Thin {
                pool: text(row, "pool_lv")?.to_owned(),
                id: number(segment, "thin_id")?,
                transaction: number(segment, "transaction_id")?,
            }
        }
        _ => Kind::Other,
    };
    let mut extents = Vec::new();
    if kind == Kind::Thick {
        for segment in segments_of(uuid, segments)? {
            extents.extend(text(segment, "seg_pe_ranges")?.split_whitespace().map(str::to_owned));
        }
    }
    let is_open = match text(row, "lv_device_open")? {
        "open" => Some(true),
        "" => Some(false),
        _ => None,
    };
    Ok(Found {
        name: text(row, "lv_name")?.to_owned(),
        uuid: uuid.to_owned(),
        bytes: number(row, "lv_size")?,
        tags: tags(text(row, "lv_tags")?),
        origin: text(row, "origin")?.to_owned(),
        kind,
        extents,
        is_active: !text(row, "lv_active")?.is_empty(),
        is_open,
        time: number(row, "lv_time")?,
    })
}

fn pool(row: &Value, segments: &[Value]) -> Result<PoolFacts> {
    let [segment] = segments_of(text(row, "lv_uuid")?, segments)?[..] else {
        return Err(unreadable("a pool has other than one segment"));
    };
    Ok(PoolFacts {
        data_percent: text(row, "data_percent")?.parse().ok(),
        metadata_percent: text(row, "metadata_percent")?.parse().ok(),
        needs_check: text(row, "lv_check_needed")? == "check needed",
        health: text(row, "lv_health_status")?.to_owned(),
        fails_when_full: text(row, "lv_when_full")? == "error",
        zeroes: text(segment, "zero")? == "zero",
        transaction: number(segment, "transaction_id")?,
    })
}

fn segments_of<'a>(uuid: &str, segments: &'a [Value]) -> Result<Vec<&'a Value>> {
    let mut found = Vec::new();
    for segment in segments {
        if text(segment, "lv_uuid")? == uuid {
            found.push(segment);
        }
    }
    Ok(found)
}

/// A part of the report; an empty one is left out of it.
fn rows<'a>(report: &'a Value, part: &str) -> Result<&'a [Value]> {
    match &report[part] {
        Value::Null => Ok(&[]),
        Value::Array(rows) => Ok(rows),
        _ => Err(unreadable(&format!("its {part} is no list"))),
    }
}

/// A field. The format `json` quotes all of them.
fn text<'a>(row: &'a Value, field: &str) -> Result<&'a str> {
    row[field].as_str().ok_or_else(|| unreadable(&format!("it has no {field}")))
}

fn number(row: &Value, field: &str) -> Result<u64> {
    let text = text(row, field)?;
    text.parse().map_err(|_| unreadable(&format!("its {field} is {text:?}, not a number")))
}

fn tags(text: &str) -> Vec<String> {
    text.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

fn unreadable(reason: &str) -> Error {
    Error::new(ErrorKind::Unreadable, "read lvm's report", reason)
}
