//! No secret shows in `Debug` output, in any message: walks over every message of the descriptor.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::LazyLock;

use csi_proto::internal::{ClearSecrets, TOKENS_KEY};
use csi_proto::{FILE_DESCRIPTOR_SET, for_each_message, for_each_request};
use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

const CANARY: &str = "canary-7f3a";
const SECRET_KEY: &str = "key-of-a-secret";
const FLAG_KEY: &str = "key-of-a-flag";

fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the descriptor decodes"));
    &POOL
}

fn is_secret(field: &FieldDescriptor) -> bool {
    let extension = pool().get_extension_by_name("csi.v1.csi_secret").expect("the option exists");
    *field.options().get_extension(&extension) == Value::Bool(true)
}

fn is_string_map(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(entry) if entry.is_map_entry()
        && entry.map_entry_value_field().kind() == Kind::String)
}

fn map(entries: &[(&str, &str)]) -> Value {
    let entry = |(k, v): &(&str, &str)| (MapKey::String((*k).to_owned()), Value::String((*v).to_owned()));
    Value::Map(entries.iter().map(entry).collect::<HashMap<_, _>>())
}

/// What was put into a message, so that the text can be checked for it.
#[derive(Default)]
struct Filled {
    secrets: usize,
    tokens: usize,
    flags: usize,
}

/// A message with every field set, and a canary in every field that can be a secret. In each oneof the
/// `choice`th field is set.
fn fill(descriptor: &MessageDescriptor, choice: usize, filled: &mut Filled) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if let Some(oneof) = field.containing_oneof()
            && oneof.fields().nth(choice % oneof.fields().len()) != Some(field.clone())
        {
            continue;
        }
        let value = if is_secret(&field) {
            filled.secrets += 1;
            map(&[(SECRET_KEY, CANARY)])
        } else if is_string_map(&field) {
            filled.tokens += 1;
            map(&[(TOKENS_KEY, CANARY), ("harmless-key", "harmless-value")])
        } else if field.name() == "mount_flags" {
            filled.flags += 1;
            let flags =
                [format!("{FLAG_KEY}={CANARY}"), format!("ro,p={CANARY}"), format!("vers=4,p={CANARY}")];
            Value::List(flags.map(Value::String).to_vec())
        } else {
            match field.kind() {
                Kind::Message(nested) if field.is_list() => {
                    Value::List(vec![Value::Message(fill(&nested, choice, filled))])
                }
                Kind::Message(nested) => Value::Message(fill(&nested, choice, filled)),
                _ => continue,
            }
        };
        message.set_field(&field, value);
    }
    message
}

fn shows_no_canary<M: Message + Name + Default + Debug>(name: &str) {
    assert_eq!(M::full_name(), name);
    let descriptor = pool().get_message_by_name(name).expect("a message of the descriptor");
    for choice in 0..3 {
        let mut filled = Filled::default();
        let bytes = fill(&descriptor, choice, &mut filled).encode_to_vec();
        let message = M::decode(bytes.as_slice()).expect("it decodes");
        let lossless = DynamicMessage::decode(descriptor.clone(), message.encode_to_vec().as_slice());
        assert_eq!(lossless, DynamicMessage::decode(descriptor.clone(), bytes.as_slice()), "{name}");

        for text in [format!("{message:?}"), format!("{message:#?}")] {
            assert!(!text.contains(CANARY), "{name} shows a secret: {text}");
            assert_eq!(text.matches(SECRET_KEY).count(), filled.secrets, "{name}: {text}");
            assert_eq!(text.matches(TOKENS_KEY).count(), filled.tokens, "{name}: {text}");
            assert_eq!(text.matches("harmless-value").count(), filled.tokens, "{name}: {text}");
            assert_eq!(text.matches(FLAG_KEY).count(), filled.flags, "{name}: {text}");
        }
    }
}

macro_rules! show_no_canary {
    ($(($name:literal, $message:ty),)*) => {{
        $(shows_no_canary::<$message>($name);)*
        BTreeSet::from([$($name.to_owned()),*])
    }};
}

// spec: secrets.not-leaked
#[test]
fn no_message_shows_a_secret() {
    let walked: BTreeSet<String> = for_each_message!(show_no_canary);
    let all: BTreeSet<String> = pool()
        .all_messages()
        .filter(|m| !m.is_map_entry() && !m.package_name().starts_with("google."))
        .map(|m| m.full_name().to_owned())
        .collect();
    assert_eq!(walked, all);
}

#[test]
fn the_descriptor_has_every_secret_field() {
    let count = |facts: &str| facts.lines().filter(|line| line.contains("[csi_secret")).count();
    let ours = pool().all_messages().flat_map(|m| m.fields().collect::<Vec<_>>()).filter(is_secret).count();
    assert_eq!(count(include_str!("wire/csi-v1.13.0.txt")), 22);
    assert_eq!(count(include_str!("wire/csi-v1.12.0.txt")), 19);
    assert_eq!(ours, 22, "v1.13.0 kept all secret fields of v1.12.0");
}

fn clears<M: Message + Name + Default + PartialEq + Debug + ClearSecrets>(name: &str) {
    let descriptor = pool().get_message_by_name(name).expect("a message of the descriptor");
    let mut dirty = DynamicMessage::new(descriptor.clone());
    let mut clean = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if is_secret(&field) {
            dirty.set_field(&field, map(&[(SECRET_KEY, CANARY)]));
        } else if is_string_map(&field) {
            dirty.set_field(&field, map(&[(TOKENS_KEY, CANARY), ("harmless-key", "harmless-value")]));
            clean.set_field(&field, map(&[("harmless-key", "harmless-value")]));
        } else if field.kind() == Kind::String && !field.is_list() {
            dirty.set_field(&field, Value::String("kept".to_owned()));
            clean.set_field(&field, Value::String("kept".to_owned()));
        }
    }
    let mut message = M::decode(dirty.encode_to_vec().as_slice()).expect("it decodes");
    message.clear_secrets();
    assert!(!String::from_utf8_lossy(&message.encode_to_vec()).contains(CANARY), "{name} keeps a secret");
    assert_eq!(message, M::decode(clean.encode_to_vec().as_slice()).expect("it decodes"), "{name}");
}

macro_rules! clear {
    ($(($name:literal, $message:ty),)*) => {{
        $(clears::<$message>($name);)*
        BTreeSet::from([$($name.to_owned()),*])
    }};
}

#[test]
fn every_request_clears_its_secrets_and_nothing_else() {
    let cleared: BTreeSet<String> = for_each_request!(clear);
    let requests: BTreeSet<String> = pool()
        .services()
        .flat_map(|s| s.methods().map(|m| m.input().full_name().to_owned()).collect::<Vec<_>>())
        .collect();
    assert_eq!(cleared, requests);
    assert_eq!(requests.len(), 36 + 2, "five services and the kubelet's registration");
}
