//! What the driver itself may do in the API.

use std::str::FromStr;

use crate::names;

/// A permission of the driver itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The API group; empty is the core group.
    pub(crate) group: String,
    /// The resource, such as `nodes`.
    pub(crate) resource: String,
    /// The verbs, such as `get`.
    pub(crate) verbs: Vec<String>,
    pub(crate) scope: Scope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A rule of a ClusterRole.
    Cluster,
    /// A rule of a Role in the driver's own namespace.
    Namespace,
}

impl Rule {
    /// Creates a rule for the whole cluster. The core group is empty.
    pub fn new(
        group: impl Into<String>,
        resource: impl Into<String>,
        verbs: impl IntoIterator<Item: Into<String>>,
    ) -> Self {
        let verbs = verbs.into_iter().map(Into::into).collect();
        Self { group: group.into(), resource: resource.into(), verbs, scope: Scope::Cluster }
    }

    /// Limits the rule to the driver's own namespace.
    #[must_use]
    pub fn in_namespace(self) -> Self {
        Self { scope: Scope::Namespace, ..self }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("{text:?} is not [GROUP/]RESOURCE:VERB,VERB[@namespace], such as nodes:get,watch");
        let (text, scope) = match text.split_once('@') {
            None => (text, Scope::Cluster),
            Some((text, "namespace")) => (text, Scope::Namespace),
            Some(_) => return Err(form()),
        };
        let (what, verbs) = text.split_once(':').ok_or_else(form)?;
        // A subresource has a slash too: pods/status, or policy/pods/eviction.
        let (group, resource) = match what.split_once('/') {
            Some((group, rest)) if group.contains('.') || rest.contains('/') => (group, rest),
            _ => ("", what),
        };
        let verbs: Vec<String> = verbs.split(',').map(str::to_owned).collect();
        if resource.is_empty() || verbs.iter().any(|verb| !names::is_verb(verb)) {
            return Err(form());
        }
        Ok(Self { group: group.to_owned(), resource: resource.to_owned(), verbs, scope })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_as_text() {
        for (text, due) in [
            ("nodes:get,watch", Rule::new("", "nodes", ["get", "watch"])),
            ("pods/status:patch", Rule::new("", "pods/status", ["patch"])),
            ("policy/pods/eviction:create", Rule::new("policy", "pods/eviction", ["create"])),
            ("a.example.org/b:get@namespace", Rule::new("a.example.org", "b", ["get"]).in_namespace()),
        ] {
            assert_eq!(text.parse(), Ok(due));
        }
        for text in ["nodes", "nodes:", ":get", "nodes:fetch", "nodes:get@default", "nodes:get@"] {
            let error = text.parse::<Rule>().expect_err(text);
            assert!(error.contains("@namespace"), "{error}");
        }
    }
}
