//! Data that is sent and never shown: secrets, and mount flags, which can contain secrets. A request gets
//! them only when it is sent, so no trace, failure or journal contains them. If the driver's messages contain
//! them, reports hide them.

use csi_proto::Rpc;
use csi_proto::internal::Redactor;
use prost::Message;
use prost_reflect::{DynamicMessage, MapKey, Value};

use crate::context::TestContext;
use crate::settings::CANARY;

impl TestContext {
    pub(crate) fn hide(&self, text: &str) -> String {
        let flags = self.settings.mount.mount_flags.iter().flat_map(|flag| parts(flag));
        let values = self.settings.secrets.values().map(String::as_str).chain([CANARY]).chain(flags);
        let mut hidden = Redactor::default();
        hidden.add(values.filter(|value| value.len() > 3));
        hidden.scrub(text)
    }

    pub(crate) fn with_hidden_values(&self, rpc: Rpc, bytes: &[u8]) -> Vec<u8> {
        let secrets = self.settings.secrets.of(rpc);
        let flags = &self.settings.mount.mount_flags;
        if secrets.is_empty() && flags.is_empty() {
            return bytes.to_vec();
        }
        let Some(mut message) = self.judge.input(rpc, bytes) else { return bytes.to_vec() };
        if !message.has_field_by_name("secrets") {
            let pair = |(key, value)| (MapKey::String(key), Value::String(value));
            // Not every request has a `secrets` field.
            let _ =
                message.try_set_field_by_name("secrets", Value::Map(secrets.into_iter().map(pair).collect()));
        }
        for capability in capabilities(&mut message) {
            if let Some(Value::Message(mount)) = set(capability, "mount")
                && !mount.has_field_by_name("mount_flags")
            {
                let all = flags.iter().cloned().map(Value::String).collect();
                mount.set_field_by_name("mount_flags", Value::List(all));
            }
        }
        message.encode_to_vec()
    }
}

fn set<'a>(message: &'a mut DynamicMessage, name: &str) -> Option<&'a mut Value> {
    if message.has_field_by_name(name) { message.get_field_by_name_mut(name) } else { None }
}

fn capabilities(message: &mut DynamicMessage) -> Vec<&mut DynamicMessage> {
    let name = if message.has_field_by_name("volume_capability") {
        "volume_capability"
    } else {
        "volume_capabilities"
    };
    let all = match set(message, name) {
        Some(Value::List(list)) => list.iter_mut().collect(),
        Some(one) => vec![one],
        None => vec![],
    };
    all.into_iter().filter_map(Value::as_message_mut).collect()
}

/// A flag, and what an error message can contain of it: the parts between commas, and their values.
fn parts(flag: &str) -> Vec<&str> {
    let mut all = vec![flag];
    all.extend(flag.split(','));
    all.extend(flag.split(',').filter_map(|part| Some(part.split_once('=')?.1)));
    all
}

#[cfg(test)]
mod tests {
    use csi_proto::v1;
    use v1::volume_capability::AccessType;

    use super::*;
    use crate::content::Kind;
    use crate::ledger::Ledger;

    #[tokio::test]
    async fn flags_are_sent_and_not_shown() {
        let flag = "user=me,password=hunter2";
        let kit = crate::Kit::new("/csi.sock".parse().unwrap()).mount_flags([flag]);
        let ctx = TestContext::new(kit.0, Ledger::default());
        let request = v1::NodePublishVolumeRequest {
            volume_capability: Some(ctx.capability(Kind::Files)),
            ..Default::default()
        };
        let kept = request.encode_to_vec();
        let sent = ctx.with_hidden_values(Rpc::NodePublishVolume, &kept);
        let sent = v1::NodePublishVolumeRequest::decode(&*sent).unwrap();
        let Some(AccessType::Mount(mount)) = sent.volume_capability.unwrap().access_type else { panic!() };
        assert_eq!(mount.mount_flags, [flag]);
        assert!(!ctx.redacted_request(Rpc::NodePublishVolume, &kept).contains("hunter2"));
        assert_eq!(ctx.hide("no such user, or password: hunter2"), "no such user, or password: ***");
        assert_eq!(ctx.hide("user%3Dme,password=hunter2"), "***");
        // A list with a raw capability and a mount capability.
        let volume_capabilities = [Kind::Device, Kind::Files].map(|kind| ctx.capability(kind)).into();
        let request = v1::CreateVolumeRequest { volume_capabilities, ..Default::default() };
        let sent = ctx.with_hidden_values(Rpc::CreateVolume, &request.encode_to_vec());
        assert!(sent.windows(flag.len()).any(|part| part == flag.as_bytes()));
    }
}
