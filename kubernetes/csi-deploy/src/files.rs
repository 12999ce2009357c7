//! The files that are made, in their order, and each object as YAML.

use csi_proto::escape;
use k8s_openapi::Resource;
use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// The files by name, each with its objects.
#[derive(Debug, Default)]
pub(crate) struct Files(pub(crate) Vec<(&'static str, Vec<Document>)>);

#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) kind: &'static str,
    /// Lines of YAML.
    pub(crate) comments: String,
    /// The object as YAML, in the order of its type's fields.
    pub(crate) yaml: String,
    /// The same object.
    pub(crate) object: Value,
    /// Lines of YAML after it: fields that are YAML already.
    pub(crate) tail: String,
}

impl Files {
    pub(crate) fn add<T>(
        &mut self,
        file: &'static str,
        comments: Vec<String>,
        object: &T,
    ) -> Result<(), Error>
    where
        T: Resource + Serialize,
    {
        self.add_as(T::KIND, file, comments, object)
    }

    /// The same for an object of a type that is not one of Kubernetes.
    pub(crate) fn add_as(
        &mut self,
        kind: &'static str,
        file: &'static str,
        comments: Vec<String>,
        object: &impl Serialize,
    ) -> Result<(), Error> {
        let document = Document::new(kind, &comments, object)?;
        self.push(file, document);
        Ok(())
    }

    pub(crate) fn push(&mut self, file: &'static str, document: Document) {
        match self.0.iter_mut().find(|(name, _)| *name == file) {
            Some((_, documents)) => documents.push(document),
            None => self.0.push((file, vec![document])),
        }
    }
}

impl Document {
    pub(crate) fn new(
        kind: &'static str,
        comments: &[String],
        object: &impl Serialize,
    ) -> Result<Self, Error> {
        let comments = comments.iter().map(|line| format!("# {}\n", escape::terminal(line))).collect();
        let yaml = yaml(kind, object)?;
        let object =
            serde_json::to_value(object).map_err(|error| Error::Yaml { kind, reason: error.to_string() })?;
        Ok(Self { kind, comments, yaml, object, tail: String::new() })
    }
}

/// The marker between two objects of a file.
pub(crate) const MARKER: &str = "---\n";

pub(crate) fn yaml(kind: &'static str, object: &impl Serialize) -> Result<String, Error> {
    let mut options = serde_saphyr::SerializerOptions::default();
    options.compact_list_indent = true;
    // One line for each value, so that a change is one line of a diff.
    options.prefer_block_scalars = false;
    serde_saphyr::to_string_with_options(object, options)
        .map(|text| text.trim_end().to_owned() + "\n")
        .map_err(|error| Error::Yaml { kind, reason: error.to_string() })
}
