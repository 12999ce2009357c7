//! The driver's own credentials and settings: Secrets and ConfigMaps of its namespace, and the pods that get them.

use std::str::FromStr;

use crate::part::Part;

/// The pods that get a Secret or a ConfigMap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pods {
    One(Part),
    All,
}

impl Pods {
    /// Splits `@node` or `@all` off the end of a text. Without an end only the controller's pods get it: a node runs
    /// other people's pods, and most drivers need the credentials of their storage in the controller only.
    fn split(text: &str) -> Option<(&str, Self)> {
        match text.rsplit_once('@') {
            None => Some((text, Self::One(Part::Controller))),
            Some((rest, "node")) => Some((rest, Self::One(Part::Node))),
            Some((rest, "all")) => Some((rest, Self::All)),
            Some(_) => None,
        }
    }

    pub(crate) fn have(self, part: Part) -> bool {
        self == Self::All || self == Self::One(part)
    }
}

/// A variable of the driver's environment, with a value of a Secret in the driver's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretVariable {
    pub(crate) name: String,
    pub(crate) secret: String,
    pub(crate) key: String,
    pub(crate) pods: Pods,
}

impl FromStr for SecretVariable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Without the text: it can be a secret, written in place of a reference to one.
        let form =
            || "write NAME=SECRET/KEY, such as API_TOKEN=cloud/token, or with @node or @all".to_owned();
        let (text, pods) = Pods::split(text).ok_or_else(form)?;
        let (name, place) = text.split_once('=').ok_or_else(form)?;
        let (secret, key) = place.split_once('/').ok_or_else(form)?;
        Ok(Self { name: name.to_owned(), secret: secret.to_owned(), key: key.to_owned(), pods })
    }
}

/// A directory in the driver's pods, in which each key of a Secret or ConfigMap is a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesDirectory {
    pub(crate) path: String,
    /// The name of the Secret or ConfigMap.
    pub(crate) object: String,
    pub(crate) pods: Pods,
}

impl FromStr for FilesDirectory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "write PATH=NAME, such as /etc/cloud=cloud, or with @node or @all".to_owned();
        let (text, pods) = Pods::split(text).ok_or_else(form)?;
        let (path, object) = text.rsplit_once('=').ok_or_else(form)?;
        Ok(Self { path: path.to_owned(), object: object.to_owned(), pods })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_text_says_which_pods() {
        for (end, due) in [("", [true, false]), ("@node", [false, true]), ("@all", [true, true])] {
            let variable: SecretVariable = format!("TOKEN=cloud/token{end}").parse().expect(end);
            let files: FilesDirectory = format!("/etc/cloud=cloud{end}").parse().expect(end);
            assert_eq!([Part::Controller, Part::Node].map(|part| variable.pods.have(part)), due, "{end}");
            assert_eq!([Part::Controller, Part::Node].map(|part| files.pods.have(part)), due, "{end}");
            assert_eq!([variable.name, variable.secret, variable.key], ["TOKEN", "cloud", "token"]);
            assert_eq!([files.path, files.object], ["/etc/cloud", "cloud"]);
        }
    }

    #[test]
    fn a_malformed_reference_is_not_repeated() {
        for bad in ["hunter2", "TOKEN=hunter2", "TOKEN=cloud/hunter2@controller", "/etc/cloud", "/a=b@nodes"]
        {
            let errors = [bad.parse::<SecretVariable>().err(), bad.parse::<FilesDirectory>().err()];
            assert!(errors.iter().any(Option::is_some), "{bad}");
            assert!(
                errors
                    .iter()
                    .flatten()
                    .all(|error| error.starts_with("write ") && !error.contains("hunter2"))
            );
        }
    }
}
