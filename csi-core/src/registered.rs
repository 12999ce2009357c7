//! The objects that serve a service's capabilities, and the methods with which a driver registers them.

/// Declares the table of a service and the methods that fill it. A row of `methods` is a capability: its method, which
/// is also the name of the table's field, perhaps `/` the method that registers another implementor, the trait, and the
/// capability. The methods of the rows `by hand` do more, and stand in the service's own code.
macro_rules! registered {
    (
        $(#[$table_doc:meta])*
        $table:ident of $service:ident, with $base:ident: $base_trait:ident
        fields { $($(#[doc = $field_doc:literal])* $(#[cfg($cfg:meta)])? $vis:vis $field:ident: $type:ty,)* }
        by hand { $($hand:ident: $hand_trait:ident = $hand_capability:ident,)* }
        methods { $($(#[$doc:meta])* $method:ident $(/ $by:ident)?: $trait:ident = $capability:ident,)* }
    ) => {
        $(#[$table_doc])*
        pub(crate) struct $table {
            pub(crate) $base: Arc<dyn $base_trait>,
            $(pub(crate) $hand: Option<Arc<dyn $hand_trait>>,)*
            $(pub(crate) $method: Option<Arc<dyn $trait>>,)*
            pub(crate) offered: BTreeSet<Capability>,
            /// Whether the driver withdrew VOLUME_CONDITION.
            without_condition: bool,
            $($(#[doc = $field_doc])* $(#[cfg($cfg)])? $vis $field: $type,)*
        }

        impl $table {
            fn new($base: Arc<dyn $base_trait>) -> Self {
                Self {
                    $base,
                    $($hand: None,)*
                    $($method: None,)*
                    offered: BTreeSet::new(),
                    without_condition: false,
                    $($(#[cfg($cfg)])? $field: Default::default(),)*
                }
            }

            /// Stops serving this capability.
            #[allow(deprecated, reason = "VOLUME_CONDITION is that of v1.12.0")]
            fn withdraw(&mut self, capability: Capability) {
                self.offered.remove(&capability);
                match capability {
                    $(Capability::$hand_capability => self.$hand = None,)*
                    $(Capability::$capability => self.$method = None,)*
                    Capability::VolumeCondition => self.without_condition = true,
                    _ => {}
                }
            }
        }

        impl<D: $base_trait> $service<D> {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(mut self) -> Self
                where
                    D: $trait,
                {
                    self.table.$method = Some(Arc::clone(&self.driver) as _);
                    self.offer(Capability::$capability)
                }

                $(
                    #[doc = concat!("Like [`", stringify!($method), "`](Self::", stringify!($method), "), answered by `other`.")]
                    #[must_use]
                    pub fn $by(mut self, other: Arc<impl $trait>) -> Self {
                        self.table.$method = Some(other);
                        self.offer(Capability::$capability)
                    }
                )?
            )*

            fn offer(mut self, capability: Capability) -> Self {
                self.table.offered.insert(capability);
                self
            }

            pub(crate) fn into_table(self) -> $table {
                self.table
            }
        }

        impl<D> fmt::Debug for $service<D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($service)).field(&self.table.offered).finish()
            }
        }
    };
}

pub(crate) use registered;
