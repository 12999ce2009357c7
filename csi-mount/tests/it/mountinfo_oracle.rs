//! Mount tables with any content are read correctly, and as the `procfs` crate reads them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use csi_mount::MountAttributes;
use csi_mount::internal::parse_mountinfo;
use procfs::process::{MountInfo, MountOptFields};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::measure;

/// A line of the table before it is written.
#[derive(Debug, Clone)]
struct Line {
    id: u32,
    parent: u32,
    device: (u16, u16),
    root: Vec<u8>,
    mount_point: Vec<u8>,
    attributes: MountAttributes,
    optional: Vec<Optional>,
    fs_type: String,
    source: Vec<u8>,
    super_options: String,
}

#[derive(Debug, Clone)]
enum Optional {
    Shared(u32),
    Master(u32),
    PropagateFrom(u32),
    Unbindable,
    Unknown(String),
}

impl Optional {
    fn text(&self) -> String {
        match self {
            Self::Shared(group) => format!("shared:{group}"),
            Self::Master(group) => format!("master:{group}"),
            Self::PropagateFrom(group) => format!("propagate_from:{group}"),
            Self::Unbindable => "unbindable".into(),
            Self::Unknown(text) => text.clone(),
        }
    }
}

/// Writes a path as the kernel does: a byte that would end the field becomes a backslash and octal digits.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    bytes.iter().flat_map(escape).collect()
}

impl Line {
    fn text(&self) -> Vec<u8> {
        let Self { id, parent, device: (major, minor), .. } = self;
        let mut text = format!("{id} {parent} {major}:{minor} ").into_bytes();
        text.extend(escaped(&self.root));
        text.push(b' ');
        text.extend(escaped(&self.mount_point));
        // mountinfo shows relatime, and does not show strictatime.
        let words = self.attributes.to_string().replace(",strictatime", "");
        let is_relatime =
            !self.attributes.intersects(MountAttributes::NOATIME | MountAttributes::STRICTATIME);
        text.extend(format!(" {words}{}", if is_relatime { ",relatime" } else { "" }).bytes());
        for optional in &self.optional {
            text.extend(format!(" {}", optional.text()).bytes());
        }
        text.extend(format!(" - {} ", self.fs_type).bytes());
        text.extend(escaped(&self.source));
        text.extend(format!(" {}\n", self.super_options).bytes());
        text
    }
}

/// Bytes of a path, with many that need an escape.
fn path() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => b'a'..=b'z',
        1 => Just(b'/'),
        2 => prop::sample::select(&b" \t\n\\#0178"[..]),
    ];
    // Any bytes except NUL. Most paths are UTF-8 text, because the other crate accepts nothing else.
    let paths = prop_oneof![9 => vec(byte, 0..24).boxed(), 1 => vec(1_u8..=255, 0..24).boxed()];
    paths.prop_map(|mut bytes| {
        bytes.insert(0, b'/');
        bytes
    })
}

fn attributes() -> impl Strategy<Value = MountAttributes> {
    any::<u64>().prop_map(|bits| {
        let found = MountAttributes::from_bits_truncate(bits);
        // A mount has only one access time mode.
        if found.contains(MountAttributes::NOATIME) { found - MountAttributes::STRICTATIME } else { found }
    })
}

fn optional() -> impl Strategy<Value = Optional> {
    prop_oneof![
        any::<u32>().prop_map(Optional::Shared),
        any::<u32>().prop_map(Optional::Master),
        any::<u32>().prop_map(Optional::PropagateFrom),
        Just(Optional::Unbindable),
        "[a-z_]{1,8}(:[a-z0-9:]{0,6})?"
            .prop_filter("a known one", |text| {
                let key = text.split(':').next().unwrap_or_default();
                !["shared", "master", "propagate_from", "unbindable"].contains(&key)
            })
            .prop_map(Optional::Unknown),
    ]
}

fn line() -> impl Strategy<Value = Line> {
    let numbers = (0..i32::MAX as u32, 0..i32::MAX as u32, any::<(u16, u16)>());
    let text = || vec(prop_oneof![b'!'..=b'~', Just(b' ')], 1..12).boxed();
    let source = prop_oneof![9 => text(), 1 => vec(128_u8..=255, 1..12).boxed()];
    let rest = (
        vec(optional(), 0..5),
        "[a-z0-9]{1,6}(\\.[a-z]{1,4})?",
        source,
        "r[ow](,[a-z]{1,5}(=[a-z0-9:/]{0,6})?){0,4}",
    );
    (numbers, path(), path(), attributes(), rest).prop_map(
        |(numbers, root, mount_point, attributes, rest)| {
            let ((id, parent, device), (optional, fs_type, source, super_options)) = (numbers, rest);
            Line {
                id,
                parent,
                device,
                root,
                mount_point,
                attributes,
                optional,
                fs_type,
                source,
                super_options,
            }
        },
    )
}

fn compare_with_truth(line: &Line) {
    let text = line.text();
    let entries = parse_mountinfo(&text).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    let [entry] = &entries[..] else { panic!("{} entries of {line:?}", entries.len()) };
    assert_eq!(entry.id.to_string(), line.id.to_string());
    assert_eq!(entry.parent.to_string(), line.parent.to_string());
    assert_eq!((entry.device.major, entry.device.minor), (line.device.0.into(), line.device.1.into()));
    assert_eq!(entry.root.as_os_str().as_bytes(), line.root);
    assert_eq!(entry.mount_point.as_os_str().as_bytes(), line.mount_point);
    assert_eq!(entry.attributes, line.attributes, "{line:?}");
    let last = |pick: fn(&Optional) -> Option<u32>| line.optional.iter().filter_map(pick).next_back();
    let shared = last(|field| if let Optional::Shared(group) = field { Some(*group) } else { None });
    let master = last(|field| if let Optional::Master(group) = field { Some(*group) } else { None });
    assert_eq!((entry.peer_group, entry.master), (shared.map(u64::from), master.map(u64::from)));
    assert_eq!((&entry.fs_type, entry.source.as_bytes()), (&line.fs_type, &line.source[..]));
    for option in line.super_options.split(',') {
        match option.split_once('=') {
            Some((key, _)) => assert!(entry.super_options.value(key).is_some(), "{option}"),
            None => assert!(entry.super_options.has_flag(option), "{option}"),
        }
    }
}

/// Compares with what the other crate reads from the same line. That crate does not decode escapes, and
/// accepts only UTF-8.
fn compare_with_procfs(line: &Line) -> bool {
    let text = line.text();
    let Ok(text) = std::str::from_utf8(text.trim_ascii_end()) else { return false };
    let theirs = MountInfo::from_line(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let ours = parse_mountinfo(text.as_bytes()).unwrap().remove(0);
    let written = |path: &OsStr| String::from_utf8(escaped(path.as_bytes())).unwrap();
    assert_eq!(ours.id.to_string(), theirs.mnt_id.to_string());
    assert_eq!(ours.parent.to_string(), theirs.pid.to_string());
    assert_eq!(ours.device.to_string(), theirs.majmin);
    assert_eq!(written(ours.root.as_os_str()), theirs.root);
    assert_eq!(written(ours.mount_point.as_os_str()), theirs.mount_point.to_str().unwrap());
    assert_eq!(ours.fs_type, theirs.fs_type);
    assert_eq!(Some(written(&ours.source)), theirs.mount_source);
    for (word, attribute) in [
        ("ro", MountAttributes::RDONLY),
        ("nosuid", MountAttributes::NOSUID),
        ("nodev", MountAttributes::NODEV),
        ("noexec", MountAttributes::NOEXEC),
        ("noatime", MountAttributes::NOATIME),
        ("nodiratime", MountAttributes::NODIRATIME),
        ("nosymfollow", MountAttributes::NOSYMFOLLOW),
    ] {
        assert_eq!(theirs.mount_options.contains_key(word), ours.attributes.contains(attribute), "{word}");
    }
    let groups = theirs.opt_fields.iter().fold((None, None), |(shared, master), field| match field {
        MountOptFields::Shared(group) => (Some(u64::from(*group)), master),
        MountOptFields::Master(group) => (shared, Some(u64::from(*group))),
        _ => (shared, master),
    });
    assert_eq!(groups, (ours.peer_group, ours.master));
    for (key, value) in &theirs.super_options {
        match value {
            // If a key appears twice, the other crate keeps the last value.
            Some(_) => assert!(ours.super_options.value(key).is_some(), "{key}"),
            None => assert!(ours.super_options.has_flag(key), "{key}"),
        }
    }
    true
}

/// Checks a read that ended in the middle: complete lines are unchanged; half a line is an error or a line.
fn tear(lines: &[Line], at: prop::sample::Index) {
    let text: Vec<u8> = lines.iter().flat_map(Line::text).collect();
    let whole = parse_mountinfo(&text).unwrap();
    let torn = &text[..at.index(text.len())];
    let ended = torn.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")).count();
    match parse_mountinfo(torn) {
        Ok(entries) => assert_eq!(entries[..ended], whole[..ended]),
        Err(error) => assert!(error.to_string().contains(&format!("line {} is not", ended + 1)), "{error}"),
    }
}

#[test]
fn parsed_lines_equal_their_meaning() {
    let cases = measure::rounds(3000);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let compared = std::cell::Cell::new(0);
    let property = |(lines, at): (Vec<Line>, prop::sample::Index)| {
        for line in &lines {
            compare_with_truth(line);
            compared.set(compared.get() + u32::from(compare_with_procfs(line)));
        }
        tear(&lines, at);
        Ok(())
    };
    if let Err(error) = runner.run(&(vec(line(), 1..3), any::<prop::sample::Index>()), property) {
        panic!("{error}");
    }
    println!("{cases} tables; {} lines compared with procfs", compared.get());
    assert!(compared.get() > cases / 4, "too few lines were of UTF-8");
}

#[test]
fn any_bytes_are_an_error_or_a_table() {
    let cases = measure::rounds(3000);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let bytes =
        vec(prop_oneof![prop::sample::select(&b" \n\\-:,0123456789shared:master:"[..]), any::<u8>()], 0..80);
    let property = |bytes: Vec<u8>| {
        let _: csi_mount::Result<_> = parse_mountinfo(&bytes);
        Ok(())
    };
    if let Err(error) = runner.run(&bytes, property) {
        panic!("{error}");
    }
}
