//! Turns `csi-proto/proto` into `csi-proto/src/generated`, without protoc.
//!
//! The generated code is checked in, so that users of csi-proto need neither a build script nor this program.

mod tables;

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use prost::Message;
use prost_reflect::DescriptorPool;
use protox::Compiler;

use crate::Result;

const PROTO_DIR: &str = "csi-proto/proto";
const PROTO_FILES: [&str; 2] = ["csi.proto", "pluginregistration.proto"];
const OUT_DIR: &str = "csi-proto/src/generated";

/// The generated files: name to contents. All are generated in memory first, so a failed run changes nothing.
type Files = BTreeMap<String, Vec<u8>>;

fn generate(root: &Path) -> Result<Files> {
    let mut compiler = Compiler::new([root.join(PROTO_DIR)])?;
    compiler.include_imports(true).include_source_info(true);
    for file in PROTO_FILES {
        compiler.open_file(file).map_err(|e| format!("{PROTO_DIR}/{file}: {e:?}"))?;
    }
    let with_comments =
        prost_types::FileDescriptorSet::decode(compiler.encode_file_descriptor_set().as_slice())?;
    // The custom options, including csi_secret, are only in the encoded form: prost_types drops extensions.
    let encoded = compiler.include_source_info(false).encode_file_descriptor_set();
    let pool = DescriptorPool::decode(encoded.as_slice())?;

    let mut files = rust_from_descriptors(with_comments, &tables::redacted_messages(&pool)?)?;
    files.insert("csi.fds".into(), encoded);
    files.insert("redaction.rs".into(), tables::redaction(&pool)?.into_bytes());
    files.insert("messages.rs".into(), tables::messages(&pool).into_bytes());
    Ok(files)
}

fn rust_from_descriptors(fds: prost_types::FileDescriptorSet, redacted: &[String]) -> Result<Files> {
    let scratch = tempfile::tempdir()?;
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        // Sorted maps encode equal contents to equal bytes; the comparison of requests relies on this.
        .btree_map(".")
        .skip_debug(redacted)
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .out_dir(scratch.path())
        .compile_fds_with_config(fds, config)?;

    let mut files = Files::new();
    for entry in fs::read_dir(scratch.path())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The well-known types come from prost-types; prost-build writes an empty file for their package.
        if !name.starts_with("google.") {
            files.insert(name, fs::read(entry.path())?);
        }
    }
    Ok(files)
}

/// Writes the files that differ from a new run.
pub(crate) fn write(root: &Path) -> Result<()> {
    let fresh = generate(root)?;
    let out = &root.join(OUT_DIR);
    fs::create_dir_all(out)?;
    for name in checked_in(out)? {
        if !fresh.contains_key(&name) {
            fs::remove_file(out.join(&name))?;
            println!("removed {OUT_DIR}/{name}");
        }
    }
    for (name, contents) in &fresh {
        let path = out.join(name);
        // An unchanged file is not written, so that cargo does not rebuild.
        if fs::read(&path).ok().as_ref() != Some(contents) {
            fs::write(&path, contents)?;
            println!("wrote {OUT_DIR}/{name}");
        }
    }
    Ok(())
}

/// Fails with a list of the files that differ from a new run.
pub(crate) fn check(root: &Path) -> Result<()> {
    let fresh = generate(root)?;
    let out = &root.join(OUT_DIR);
    let mut wrong = Vec::new();
    for (name, contents) in &fresh {
        match fs::read(out.join(name)) {
            Ok(old) if old == *contents => {}
            Ok(_) => wrong.push(format!("{OUT_DIR}/{name} differs from a new run")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                wrong.push(format!("{OUT_DIR}/{name} is missing"));
            }
            Err(e) => wrong.push(format!("{OUT_DIR}/{name}: {e}")),
        }
    }
    for name in checked_in(out)? {
        if !fresh.contains_key(&name) {
            wrong.push(format!("{OUT_DIR}/{name} is not created by a new run"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    wrong.push("run `cargo xtask codegen` and commit the changes".into());
    Err(wrong.join("\n").into())
}

fn checked_in(out: &Path) -> Result<Vec<String>> {
    match fs::read_dir(out) {
        Ok(entries) => Ok(entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<_>>()?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(format!("{}: {e}", out.display()).into()),
    }
}
