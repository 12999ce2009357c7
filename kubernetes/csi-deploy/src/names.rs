//! The rules of Kubernetes for names.

use crate::error::Error;

/// The longest label (RFC 1123), and the longest value of a label in Kubernetes.
const LABEL: usize = 63;
const SUBDOMAIN: usize = 253;
/// The longest suffix that this crate puts after the beginning of a name.
pub(crate) const SUFFIX: &str = "-snapshot-metadata";
/// The same with a StatefulSet: a label of its pods has its name and a hash of up to ten digits
/// (kubernetes/kubernetes#64023).
pub(crate) const STATEFUL_SET_SUFFIX: &str = "-controller-0123456789";
/// The verbs of RBAC for resources, in the usual order.
pub(crate) const VERBS: [&str; 8] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

pub(crate) fn is_verb(text: &str) -> bool {
    VERBS.contains(&text)
}

fn is_label(text: &str) -> bool {
    text.len() <= LABEL && is_label_part(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN && text.split('.').all(is_label_part)
}

/// A part of a subdomain: like a label, of any length.
fn is_label_part(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.chars().all(|c| inside(c) || c == '-') && text.starts_with(inside) && text.ends_with(inside)
}

fn check(is_valid: bool, field: &'static str, reason: impl FnOnce() -> String) -> Result<(), Error> {
    if is_valid { Ok(()) } else { Err(Error::invalid(field, reason())) }
}

/// A name of a namespace, and the value of a label.
pub(crate) fn check_label(field: &'static str, text: &str) -> Result<(), Error> {
    check(is_label(text), field, || {
        format!(
            "{text:?} is not 1 to {LABEL} lower-case letters, digits and dashes, alphanumeric at both ends"
        )
    })
}

pub(crate) fn check_prefix(field: &'static str, text: &str, suffix: &str) -> Result<(), Error> {
    check_label(field, text)?;
    let length = text.len();
    let most = LABEL - suffix.len();
    check(length <= most, field, || {
        format!(
            "{text:?} has {length} characters, at most {most} leave room for the ends of names: give a shorter \
             one with --name"
        )
    })
}

/// A name of most objects.
pub(crate) fn check_name(field: &'static str, text: &str) -> Result<(), Error> {
    check(is_subdomain(text), field, || {
        format!(
            "{text:?} is not a name of Kubernetes: at most {SUBDOMAIN} lower-case letters, digits, dashes and \
             dots, alphanumeric at both ends and around each dot"
        )
    })
}

/// The driver's name, as the name of its CSIDriver.
pub(crate) fn check_driver(text: &str) -> Result<(), Error> {
    check_name("driver name", text)?;
    check(text.len() <= LABEL, "driver name", || {
        format!("{text:?} has {} characters, CSIDriver takes {LABEL}", text.len())
    })
}

/// A name of a variable that a shell takes too.
pub(crate) fn check_variable(field: &'static str, text: &str) -> Result<(), Error> {
    let is_word = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_valid = is_word && !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit());
    check(is_valid, field, || {
        format!("{text:?} is not the name of a variable: letters, digits and _, no digit at the beginning")
    })
}

/// A key of a Secret or ConfigMap.
pub(crate) fn check_key(field: &'static str, text: &str) -> Result<(), Error> {
    let is_word = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let is_valid = is_word && (1..=SUBDOMAIN).contains(&text.len()) && text != "." && !text.starts_with("..");
    check(is_valid, field, || {
        format!("{text:?} is not a key of a Secret: letters, digits, dashes, dots and _, no dots alone")
    })
}

pub(crate) fn check_image(field: &'static str, image: &str) -> Result<(), Error> {
    if image.is_empty() || image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Error::invalid(field, format!("{image:?} is not the name of an image")));
    }
    Ok(())
}

/// An absolute path without `..`, as hostPath requires.
pub(crate) fn check_path(field: &'static str, text: &str) -> Result<(), Error> {
    let parts = text.strip_prefix('/').map(|path| path.split('/'));
    let is_clean = parts.is_some_and(|mut parts| parts.all(|part| !["", ".", ".."].contains(&part)))
        && !text.contains(char::is_control);
    check(is_clean, field, || {
        format!(
            "{text:?} is not the path of a directory: give an absolute path without \"..\", without a \
             slash at its end and without control characters"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_rules_of_kubernetes() {
        for good in ["a", "a-b", "a.b.c", "1a", &"x".repeat(253)] {
            assert!(check_name("x", good).is_ok(), "{good}");
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a b", "é", &"x".repeat(254)] {
            assert!(check_name("x", bad).is_err(), "{bad}");
        }
        for bad in ["a.b", &"x".repeat(64), "A", ""] {
            assert!(check_label("x", bad).is_err(), "{bad}");
        }
        for (suffix, most) in [(SUFFIX, 45), (STATEFUL_SET_SUFFIX, 41)] {
            assert!(check_prefix("name", &"x".repeat(most), suffix).is_ok());
            assert!(check_prefix("name", &"x".repeat(most + 1), suffix).is_err());
        }
        assert!(check_driver(&"x".repeat(63)).is_ok() && check_driver(&"x".repeat(64)).is_err());
    }

    #[test]
    fn keys_and_variables_keep_the_rules_of_kubernetes() {
        for good in ["token", "ca.crt", ".dockerconfigjson", "A_b-1"] {
            assert!(check_key("x", good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "..data", "a/b", "a b", "é", &"x".repeat(254)] {
            assert!(check_key("x", bad).is_err(), "{bad}");
        }
        assert!(check_variable("x", "_API_TOKEN2").is_ok());
        for bad in ["", "2A", "A-B", "A.B", "A B", "A=B", "é"] {
            assert!(check_variable("x", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_of_the_host_are_absolute_and_clean() {
        assert!(check_path("x", "/srv/data").is_ok());
        for bad in ["", "/", "srv", "/srv/", "/srv/../etc", "/srv//x", "/./x", "/srv/a\nb", "/srv/\u{9b}"] {
            assert!(check_path("x", bad).is_err(), "{bad}");
        }
    }
}
