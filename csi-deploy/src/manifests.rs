//! All objects of a driver, as files or as one text.

use std::fs;
use std::path::Path;

use k8s_openapi::Resource;
use serde::Serialize;

use crate::plan::Plan;
use crate::{Driver, Error, Options, classes, csi_driver, extras, pods, rbac};

/// Makes the manifests of a driver.
///
/// # Errors
/// [`Error::Invalid`] for an option that Kubernetes refuses, or that contradicts a capability of the driver or
/// another option. The error names the option.
pub fn manifests(driver: &Driver, options: &Options) -> Result<Manifests, Error> {
    let plan = Plan::new(driver, options)?;
    let mut files = Files::default();
    extras::namespace(&plan, &mut files)?;
    csi_driver::add(&plan, &mut files)?;
    rbac::add(&plan, &mut files)?;
    pods::add(&plan, &mut files)?;
    extras::disruption_budget(&plan, &mut files)?;
    extras::snapshot_metadata(&plan, &mut files)?;
    classes::add(&plan, &mut files)?;
    let base = Kustomization {
        api_version: "kustomize.config.k8s.io/v1beta1",
        kind: "Kustomization",
        resources: files.0.iter().map(|(name, _)| *name).collect(),
    };
    let kustomization = yaml("Kustomization", &base)?;
    Ok(Manifests { files: files.0, kustomization, notes: plan.notes() })
}

/// The manifests of a driver: YAML, in a stable order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifests {
    /// The name of each file and its text, in the order of their application.
    files: Vec<(&'static str, String)>,
    kustomization: String,
    notes: Vec<String>,
}

/// Marks the files that this crate writes.
const HEAD: &str = "# Made from the driver's capabilities. Change the flags, or patch it with kustomize.\n";

impl Manifests {
    /// Returns all objects as one text, for `kubectl apply -f`.
    #[must_use]
    pub fn single(&self) -> String {
        let texts: Vec<&str> = self.files.iter().map(|(_, text)| text.as_str()).collect();
        HEAD.to_owned() + &texts.join("---\n")
    }

    /// Returns the names and texts of the files of a kustomize base, `kustomization.yaml` last.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let mut files: Vec<(&'static str, String)> =
            self.files.iter().map(|(name, text)| (*name, HEAD.to_owned() + text)).collect();
        files.push(("kustomization.yaml", HEAD.to_owned() + &self.kustomization));
        files
    }

    /// Writes the kustomize base into this directory, for `kubectl apply -k`. The directory is created if it
    /// does not exist. Files of the same names are replaced; no other file is touched.
    ///
    /// # Errors
    /// [`Error::Io`] with the path that can't be written.
    pub fn write_to(&self, directory: &Path) -> Result<(), Error> {
        fs::create_dir_all(directory).map_err(|source| Error::Io { path: directory.to_owned(), source })?;
        for (name, text) in self.files() {
            let path = directory.join(name);
            fs::write(&path, text).map_err(|source| Error::Io { path, source })?;
        }
        Ok(())
    }

    /// Returns what a reader has to know that no object says, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The files while they are made.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<(&'static str, String)>);

impl Files {
    /// Adds an object to a file, with comments before it.
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
        let comments: String = comments.iter().map(|line| format!("# {line}\n")).collect();
        let text = comments + &yaml(kind, object)?;
        match self.0.iter_mut().find(|(name, _)| *name == file) {
            Some((_, all)) => *all += &format!("---\n{text}"),
            None => self.0.push((file, text)),
        }
        Ok(())
    }
}

/// A kustomize base.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kustomization {
    api_version: &'static str,
    kind: &'static str,
    resources: Vec<&'static str>,
}

fn yaml(kind: &'static str, object: &impl Serialize) -> Result<String, Error> {
    let mut options = serde_saphyr::SerializerOptions::default();
    options.compact_list_indent = true;
    // One line for each value, so that a change is one line of a diff.
    options.prefer_block_scalars = false;
    serde_saphyr::to_string_with_options(object, options)
        .map(|text| text.trim_end().to_owned() + "\n")
        .map_err(|error| Error::Yaml { kind, reason: error.to_string() })
}
