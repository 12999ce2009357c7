//! How a typed request is declared: a table of fields, named as on the wire.

use std::sync::Arc;

use crate::Result;

/// A typed request that can be read from its wire form.
pub(crate) trait Request: Sized {
    type Wire;

    fn read(wire: &Arc<Self::Wire>) -> Result<Self>;
}

/// Declares a typed request: each field's type says what the spec asks of it, and reads it.
macro_rules! request {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            raw: std::sync::Arc<csi_proto::v1::$name>,
        }

        impl $name {
            /// The request as it came over the wire.
            pub fn raw(&self) -> &csi_proto::v1::$name {
                &self.raw
            }
        }

        impl $crate::request::Request for $name {
            type Wire = csi_proto::v1::$name;

            fn read(wire: &std::sync::Arc<Self::Wire>) -> $crate::Result<Self> {
                Ok(Self {
                    $($field: $crate::types::wire::Field::read(stringify!($field), &wire.$field)?,)*
                    raw: std::sync::Arc::clone(wire),
                })
            }
        }

        /// Checked as a request from a caller is; for a driver's own tests.
        impl TryFrom<csi_proto::v1::$name> for $name {
            type Error = $crate::Error;

            fn try_from(wire: csi_proto::v1::$name) -> $crate::Result<Self> {
                $crate::request::Request::read(&std::sync::Arc::new(wire))
            }
        }

        /// As the wire's form: secrets are hidden.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.raw.fmt(f)
            }
        }
    };
}

/// Declares a request that asks for nothing: a mere question.
macro_rules! question {
    ($($name:ident),+ $(,)?) => { $(
        pub(crate) struct $name;

        impl $crate::request::Request for $name {
            type Wire = csi_proto::v1::$name;

            fn read(_: &std::sync::Arc<Self::Wire>) -> $crate::Result<Self> {
                Ok(Self)
            }
        }
    )+ };
}

pub(crate) use {question, request};
