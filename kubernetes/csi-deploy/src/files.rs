//! The files that are made, in their order, and each object as YAML.

use csi_proto::escape;
use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// The files by name, each with its objects.
#[derive(Debug, Default)]
pub(crate) struct Files(pub(crate) Vec<(&'static str, Vec<Document>)>);

#[derive(Debug)]
pub(crate) struct Document {
    api: &'static str,
    pub(crate) kind: &'static str,
    /// Lines of YAML.
    pub(crate) comments: String,
    /// Its other fields.
    pub(crate) object: Value,
    /// Lines of YAML after the object: fields that are YAML already.
    pub(crate) tail: String,
}

impl Files {
    /// Adds an object of this API and kind. Its fields that are null are left out.
    pub(crate) fn add(
        &mut self,
        file: &'static str,
        comments: Vec<String>,
        kind: (&'static str, &'static str),
        object: Value,
    ) {
        self.push(file, Document::new(comments, kind, object));
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
        comments: Vec<String>,
        (api, kind): (&'static str, &'static str),
        mut object: Value,
    ) -> Self {
        let comments = comments.iter().map(|line| format!("# {}\n", escape::terminal(line))).collect();
        leave_out_nulls(&mut object);
        Self { api, kind, comments, object, tail: String::new() }
    }

    pub(crate) fn text(&self) -> Result<String, Error> {
        let Self { api, kind, comments, object, tail } = self;
        let fields = yaml(kind, object)?;
        Ok(format!("{comments}apiVersion: {api}\nkind: {kind}\n{fields}{tail}"))
    }
}

fn leave_out_nulls(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(leave_out_nulls),
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(leave_out_nulls);
        }
        _ => {}
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
