//! The descriptor is the union of the two versions of the interface: every name, number, type and option of
//! both, and nothing else.
//!
//! `tests/wire/*.txt` contain the facts of the wire, one per line. A fact is compared together with the
//! heading above it: the service, message or enum.

use std::collections::BTreeSet;

use csi_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind,
    MessageDescriptor, ServiceDescriptor, Value,
};

const V1_13: &str = include_str!("wire/csi-v1.13.0.txt");
const V1_12: &str = include_str!("wire/csi-v1.12.0.txt");
const REGISTRATION: &str = include_str!("wire/pluginregistration-v1.txt");

/// The heading and the line below it. For a heading itself, the heading twice.
type Fact = (String, String);

#[derive(Default)]
struct Facts {
    all: BTreeSet<Fact>,
    deprecated: BTreeSet<Fact>,
    heading: String,
}

impl Facts {
    fn heading(&mut self, line: String, options: &Options) {
        self.heading.clone_from(&line);
        self.line(line, options);
    }

    fn line(&mut self, line: String, options: &Options) {
        let fact = (self.heading.clone(), format!("{line}{}", options.text));
        if options.deprecated {
            self.deprecated.insert(fact.clone());
        }
        assert!(self.all.insert(fact.clone()), "twice: {fact:?}");
    }
}

/// The options of an item, as the facts print them. Deprecation is separate, because the facts do not
/// contain it.
struct Options {
    text: String,
    deprecated: bool,
}

impl Options {
    fn none() -> Self {
        Self { text: String::new(), deprecated: false }
    }

    fn of(options: &DynamicMessage) -> Self {
        let mut names = Vec::new();
        let mut deprecated = false;
        for (field, value) in options.fields() {
            match field.name() {
                "deprecated" => deprecated = *value == Value::Bool(true),
                "map_entry" => {}
                other => names.push(format!("{other}={value}")),
            }
        }
        for (extension, value) in options.extensions() {
            match (extension.number(), value) {
                (1059, Value::Bool(true)) => names.push("csi_secret".to_owned()),
                (1060, Value::Bool(true)) => names.push("alpha".to_owned()),
                (number, value) => names.push(format!("{number}={value}")),
            }
        }
        let text = if names.is_empty() { String::new() } else { format!(" [{}]", names.join(", ")) };
        Self { text, deprecated }
    }
}

/// The facts of a file of our descriptor.
fn ours(file: &FileDescriptor) -> Facts {
    let mut facts = Facts::default();
    facts.heading(format!("package {}", file.package_name()), &Options::none());
    for extension in file.extensions() {
        let line = format!(
            "extend {} {} {}: {}",
            extension.containing_message().full_name(),
            extension.number(),
            extension.name(),
            kind(&extension.kind()),
        );
        facts.heading(line, &Options::none());
    }
    file.services().for_each(|s| service(&mut facts, &s));
    file.enums().for_each(|e| enumeration(&mut facts, &e));
    file.messages().for_each(|m| message(&mut facts, &m));
    facts
}

fn service(facts: &mut Facts, service: &ServiceDescriptor) {
    facts.heading(format!("service {}", service.name()), &Options::of(&service.options()));
    for method in service.methods() {
        assert!(!method.is_client_streaming(), "{}", method.full_name());
        let stream = if method.is_server_streaming() { "stream " } else { "" };
        let line =
            format!("rpc {}({}) -> {stream}{}", method.name(), method.input().name(), method.output().name());
        facts.line(line, &Options::of(&method.options()));
    }
}

fn enumeration(facts: &mut Facts, descriptor: &EnumDescriptor) {
    let name = within(descriptor.full_name(), descriptor.package_name());
    facts.heading(format!("enum {name}"), &Options::of(&descriptor.options()));
    for value in descriptor.values() {
        facts.line(format!("{} {}", value.number(), value.name()), &Options::of(&value.options()));
    }
}

fn message(facts: &mut Facts, descriptor: &MessageDescriptor) {
    let name = within(descriptor.full_name(), descriptor.package_name());
    facts.heading(format!("message {name}"), &Options::of(&descriptor.options()));
    for f in descriptor.fields() {
        facts.line(field(&f), &Options::of(&f.options()));
    }
    descriptor.child_enums().for_each(|e| enumeration(facts, &e));
    descriptor.child_messages().filter(|m| !m.is_map_entry()).for_each(|m| message(facts, &m));
}

fn field(field: &FieldDescriptor) -> String {
    let of = match field.kind() {
        Kind::Message(entry) if entry.is_map_entry() => {
            let key = entry.map_entry_key_field();
            let value = entry.map_entry_value_field();
            format!("map<{},{}>", kind(&key.kind()), kind(&value.kind()))
        }
        other if field.cardinality() == Cardinality::Repeated => format!("repeated {}", kind(&other)),
        other => kind(&other),
    };
    let oneof = field.containing_oneof().map(|o| format!(" oneof {}", o.name())).unwrap_or_default();
    format!("{} {}: {of}{oneof}", field.number(), field.name())
}

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(enumeration) => enumeration.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

fn within<'a>(full_name: &'a str, package: &str) -> &'a str {
    full_name.strip_prefix(package).and_then(|n| n.strip_prefix('.')).expect("a name in its package")
}

fn written(text: &str) -> BTreeSet<Fact> {
    let mut heading = String::new();
    let mut facts = BTreeSet::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        if line.is_empty() {
            continue;
        }
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if !line.starts_with(' ') {
            heading = words.split(" [").next().unwrap_or_default().to_owned();
        }
        facts.insert((heading.clone(), words));
    }
    facts
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the descriptor decodes")
}

fn file(name: &str) -> FileDescriptor {
    pool().get_file_by_name(name).expect("the file is in the descriptor")
}

/// Compares both ways, so that a failure names what differs.
fn assert_same(ours: &BTreeSet<Fact>, theirs: &BTreeSet<Fact>) {
    let missing: Vec<_> = theirs.difference(ours).collect();
    let extra: Vec<_> = ours.difference(theirs).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:#?}\nnot in the facts: {extra:#?}");
}

#[test]
fn csi_is_the_union_of_both_versions() {
    let union: BTreeSet<Fact> = written(V1_13).union(&written(V1_12)).cloned().collect();
    assert!(union.len() > 400, "the facts were read");
    assert_same(&ours(&file("csi.proto")).all, &union);
}

#[test]
fn what_only_the_older_version_has_is_deprecated_and_nothing_else() {
    let newer = written(V1_13);
    let older = written(V1_12);
    let gone: BTreeSet<Fact> = older.difference(&newer).cloned().collect();
    let headings_gone: BTreeSet<&String> =
        gone.iter().filter(|(h, line)| line.starts_with(h.as_str())).map(|(h, _)| h).collect();
    // If a whole message was removed, the message is deprecated, and not each of its fields.
    let expected: BTreeSet<Fact> = gone
        .iter()
        .filter(|(h, line)| line.starts_with(h.as_str()) || !headings_gone.contains(h))
        .cloned()
        .collect();
    assert_eq!(expected.len(), 6, "{expected:#?}");
    assert_same(&ours(&file("csi.proto")).deprecated, &expected);
}

#[test]
fn registration_is_as_the_kubelet_has_it() {
    let facts = ours(&file("pluginregistration.proto"));
    assert_same(&facts.all, &written(REGISTRATION));
    assert!(facts.deprecated.is_empty());
}

/// Parts that the facts do not mention: the descriptor has none of them.
#[test]
fn nothing_else_is_in_the_files() {
    let pool = pool();
    for file in pool.files().filter(|f| !f.package_name().starts_with("google.")) {
        let proto: &FileDescriptorProto = file.file_descriptor_proto();
        assert_eq!(proto.syntax(), "proto3");
        assert_eq!(proto.options, None);
        assert_eq!(proto.source_code_info, None, "comments belong into the code, not into every binary");
        for message in pool.all_messages().filter(|m| m.parent_file() == file) {
            assert_eq!(message.reserved_ranges().count() + message.reserved_names().count(), 0);
            assert!(message.fields().all(|f| !f.field_descriptor_proto().proto3_optional()));
        }
    }
    let names: Vec<_> = pool.files().map(|f| f.name().to_owned()).collect();
    assert!(names.iter().all(|n| n.starts_with("google/protobuf/") || !n.contains('/')), "{names:?}");
}

/// Reflection clients decode the descriptor with any protobuf library, also with plain prost.
#[test]
fn the_descriptor_holds_its_imports() {
    let set = prost_reflect::prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("it decodes");
    let names: BTreeSet<&str> = set.file.iter().map(FileDescriptorProto::name).collect();
    for file in &set.file {
        for import in &file.dependency {
            assert!(names.contains(import.as_str()), "{} imports {import}", file.name());
        }
    }
}
