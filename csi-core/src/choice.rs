//! Enums that are written as one of a few words.

/// Gives an enum its words, for a field or flag of this name: how it is displayed and parsed.
macro_rules! choice {
    ($type:ident of $field:literal: $($variant:ident = $word:literal),+) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl std::str::FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(Error::invalid(
                        $field,
                        format!("{text:?} is not one of {}", [$($word),+].join(", ")),
                    )),
                }
            }
        }
    };
}

pub(crate) use choice;
