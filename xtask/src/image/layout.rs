//! An OCI image layout: blobs named by their digests, and an index. The media types and fields are those of the
//! OCI image specification 1.1 (`image-layout.md`, `manifest.md`, `config.md`).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::root::Root;
use crate::Failure;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Not compressed: what a compressor writes depends on its version, and registries' clients compress on push.
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The archive of a layer.
pub(crate) struct Layer(Vec<u8>);

impl Layer {
    pub(crate) fn of(root: &Root) -> Result<Self, Failure> {
        Ok(Self(root.archive()?))
    }
}

/// Writes the layout into a folder, which must be empty, absent, or a layout, which is replaced. Returns the
/// digest of the manifest.
pub(crate) fn write(to: &Path, layers: &[Layer], config: &Value) -> Result<String, Failure> {
    let blobs = to.join("blobs/sha256");
    if to.join("oci-layout").is_file() {
        fs::remove_dir_all(to)?;
    } else if to.is_dir() && fs::read_dir(to)?.next().is_some() {
        return Err(Failure::usage(format!("{} is not empty, and not an OCI layout", to.display())));
    }
    fs::create_dir_all(&blobs)?;
    let blob = |media_type: &str, content: &[u8]| -> Result<Value, Failure> {
        let digest = digest(content);
        fs::write(blobs.join(&digest), content)?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len() }))
    };
    let described = layers.iter().map(|layer| blob(LAYER, &layer.0)).collect::<Result<Vec<_>, _>>()?;
    let digests: Vec<&Value> = described.iter().map(|layer| &layer["digest"]).collect();
    let (architecture, system) = (architecture(), "linux");
    let image = json!({
        "architecture": architecture,
        "os": system,
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": digests },
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(CONFIG, image.to_string().as_bytes())?,
        "layers": described,
    });
    let mut manifest = blob(MANIFEST, manifest.to_string().as_bytes())?;
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["platform"] = json!({ "architecture": architecture, "os": system });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "latest" });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(to.join("index.json"), index.to_string())?;
    fs::write(to.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(digest)
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// The architecture in Go's words, which the specification uses.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_blob_has_the_digest_and_size_by_which_it_is_named() {
        let place = tempfile::tempdir().expect("a folder");
        let to = place.path().join("image");
        let mut root = Root::default();
        root.file("etc/a", b"content".to_vec());
        let layers = [Layer::of(&root).expect("a layer")];
        let first = write(&to, &layers, &json!({})).expect("an image");
        assert_eq!(write(&to, &layers, &json!({})).expect("the same again"), first);
        let blob = |descriptor: &Value| {
            let name =
                descriptor["digest"].as_str().and_then(|it| it.strip_prefix("sha256:")).expect("a digest");
            let content = fs::read(to.join("blobs/sha256").join(name)).expect("a blob");
            assert_eq!(descriptor["size"], content.len());
            assert_eq!(digest(&content), name);
            content
        };
        let json = |content: Vec<u8>| serde_json::from_slice::<Value>(&content).expect("JSON");
        let index = json(fs::read(to.join("index.json")).expect("an index"));
        assert_eq!(index["manifests"][0]["digest"], first);
        let manifest = json(blob(&index["manifests"][0]));
        let config = json(blob(&manifest["config"]));
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        assert_eq!(blob(&manifest["layers"][0]), layers[0].0);
        assert_eq!(fs::read_dir(to.join("blobs/sha256")).expect("blobs").count(), 3);
    }

    #[test]
    fn a_folder_with_other_files_is_not_replaced() {
        let place = tempfile::tempdir().expect("a folder");
        fs::write(place.path().join("work"), "").expect("a file");
        assert!(write(place.path(), &[], &json!({})).is_err());
        assert!(place.path().join("work").exists());
    }

    /// FIPS 180-2, appendix B.1.
    #[test]
    fn the_digest_is_sha_256() {
        assert_eq!(digest(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
