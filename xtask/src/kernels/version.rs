//! A kernel's version, from its package's name.

use std::fmt;

/// Ordered by major and then minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    pub(crate) const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Parses a text that starts with two numbers and a dot between them.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match numbers(text).as_slice() {
            [major, minor, ..] => Some(Self::new(*major, *minor)),
            _ => None,
        }
    }
}

/// All numbers in a text, for comparing: `6.1.0-56` is before `6.12.117+deb12`.
pub(crate) fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{}", self.major, self.minor);
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("6.1.0-56-cloud") < numbers("6.12.117+deb12-cloud"));
        assert!(numbers("6.1.0-0.deb11.52") < numbers("6.1.0-47"));
        assert!(Version::parse("6.1.0-56") < Version::parse("6.12.1"));
        assert_eq!(Version::parse("5.10.0-46-cloud-amd64"), Some(Version::new(5, 10)));
        assert_eq!(Version::parse("cloud"), None);
        assert_eq!(format!("{:>6}|", Version::new(6, 1)), "   6.1|");
    }
}
