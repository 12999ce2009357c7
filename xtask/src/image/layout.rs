//! An OCI image layout: blobs named by their digests, and an index. The media types and fields are those of the
//! OCI image specification 1.1 (`image-layout.md`, `manifest.md`, `config.md`).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::root::Root;
use crate::Failure;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
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

/// The image for one architecture.
pub(crate) struct Image {
    /// In Go's words.
    pub(crate) architecture: &'static str,
    pub(crate) layers: Vec<Layer>,
    pub(crate) config: Value,
}

/// Writes the layout into a folder, which must be empty, absent, or a layout, which is replaced. Returns the
/// digest of the manifest; with several images that of the index, from which each node takes its own image.
pub(crate) fn write(to: &Path, images: &[Image]) -> Result<String, Failure> {
    let blobs = to.join("blobs/sha256");
    if to.join("oci-layout").is_file() {
        fs::remove_dir_all(to)?;
    } else if to.is_dir() && fs::read_dir(to)?.next().is_some() {
        return Err(Failure::usage(format!("{} is not empty, and not an OCI layout", to.display())));
    }
    fs::create_dir_all(&blobs)?;
    let mut manifests = images.iter().map(|image| manifest(&blobs, image)).collect::<Result<Vec<_>, _>>()?;
    let mut top = match manifests.as_mut_slice() {
        [manifest] => manifest.take(),
        _ => {
            let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
            blob(&blobs, INDEX, index.to_string().as_bytes())?
        }
    };
    let digest = top["digest"].as_str().unwrap_or_default().to_owned();
    top["annotations"] = json!({ "org.opencontainers.image.ref.name": "latest" });
    let index = json!({ "schemaVersion": 2, "manifests": [top] });
    fs::write(to.join("index.json"), index.to_string())?;
    fs::write(to.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(digest)
}

/// Writes a blob, and returns its descriptor.
fn blob(blobs: &Path, media_type: &str, content: &[u8]) -> Result<Value, Failure> {
    let digest = digest(content);
    fs::write(blobs.join(&digest), content)?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len() }))
}

/// Writes the blobs of an image, and returns the descriptor of its manifest.
fn manifest(blobs: &Path, image: &Image) -> Result<Value, Failure> {
    let layers =
        image.layers.iter().map(|layer| blob(blobs, LAYER, &layer.0)).collect::<Result<Vec<_>, _>>()?;
    let digests: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
    let platform = json!({ "architecture": image.architecture, "os": "linux" });
    let config = json!({
        "architecture": platform["architecture"],
        "os": platform["os"],
        "config": image.config,
        "rootfs": { "type": "layers", "diff_ids": digests },
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(blobs, CONFIG, config.to_string().as_bytes())?,
        "layers": layers,
    });
    let mut manifest = blob(blobs, MANIFEST, manifest.to_string().as_bytes())?;
    manifest["platform"] = platform;
    Ok(manifest)
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(architecture: &'static str) -> Image {
        let mut root = Root::default();
        root.file("etc/a", architecture.as_bytes().to_vec());
        Image { architecture, layers: vec![Layer::of(&root).expect("a layer")], config: json!({}) }
    }

    /// The content of a blob, whose descriptor is right, as JSON.
    fn read(to: &Path, descriptor: &Value) -> Value {
        let name = descriptor["digest"].as_str().and_then(|it| it.strip_prefix("sha256:")).expect("a digest");
        let content = fs::read(to.join("blobs/sha256").join(name)).expect("a blob");
        assert_eq!(descriptor["size"], content.len());
        assert_eq!(digest(&content), name);
        serde_json::from_slice(&content).unwrap_or(Value::Null)
    }

    fn index(to: &Path) -> Value {
        serde_json::from_slice(&fs::read(to.join("index.json")).expect("an index")).expect("JSON")
    }

    /// Checks the blobs of a manifest, and returns the architecture in its configuration.
    fn architecture(to: &Path, manifest: &Value) -> Value {
        let of_node = manifest["platform"]["architecture"].clone();
        let manifest = read(to, manifest);
        let config = read(to, &manifest["config"]);
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        read(to, &manifest["layers"][0]);
        assert_eq!(config["architecture"], of_node);
        of_node
    }

    #[test]
    fn every_blob_has_the_digest_and_size_by_which_it_is_named() {
        let place = tempfile::tempdir().expect("a folder");
        let to = place.path().join("image");
        let first = write(&to, &[image("amd64")]).expect("an image");
        assert_eq!(write(&to, &[image("amd64")]).expect("the same again"), first);
        let manifest = &index(&to)["manifests"][0];
        assert_eq!(manifest["digest"], first);
        assert_eq!(architecture(&to, manifest), "amd64");
        assert_eq!(fs::read_dir(to.join("blobs/sha256")).expect("blobs").count(), 3);
    }

    #[test]
    fn several_architectures_are_one_index_with_one_name() {
        let place = tempfile::tempdir().expect("a folder");
        let to = place.path().join("image");
        let digest = write(&to, &[image("amd64"), image("arm64")]).expect("an image");
        let named = index(&to)["manifests"].as_array().expect("manifests").clone();
        assert_eq!(named.len(), 1, "a name is for one of them");
        assert_eq!(named[0]["digest"], digest);
        assert_eq!(named[0]["mediaType"], INDEX);
        let manifests = read(&to, &named[0])["manifests"].as_array().expect("manifests").clone();
        let architectures: Vec<Value> =
            manifests.iter().map(|manifest| architecture(&to, manifest)).collect();
        assert_eq!(architectures, ["amd64", "arm64"]);
        assert_eq!(fs::read_dir(to.join("blobs/sha256")).expect("blobs").count(), 7);
    }

    #[test]
    fn a_folder_with_other_files_is_not_replaced() {
        let place = tempfile::tempdir().expect("a folder");
        fs::write(place.path().join("work"), "").expect("a file");
        assert!(write(place.path(), &[image("amd64")]).is_err());
        assert!(place.path().join("work").exists());
    }

    /// FIPS 180-2, appendix B.1.
    #[test]
    fn the_digest_is_sha_256() {
        assert_eq!(digest(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
